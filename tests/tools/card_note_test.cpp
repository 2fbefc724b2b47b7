// What the program says when it could have been expected to use a card and does not. Drivers and
// the library of the CUDA backend are stand-ins (fakes/).

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace fs = std::filesystem;

constexpr const char* kNote = "tessera: note: CUDA0 not used: ";

std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int count_of(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
        ++count;
    return count;
}

class CardNote : public testing::Test {
  protected:
    /// The program in a folder of its own, away from any library that was built beside it.
    void SetUp() override {
        folder_ = fs::temp_directory_path() /
                  ("tessera_note_" + std::to_string(getpid()) + "_" +
                   testing::UnitTest::GetInstance()->current_test_info()->name());
        fs::create_directories(folder_ / "bin");
        fs::copy_file(TESSERA_PROGRAM, folder_ / "bin" / "tessera");
    }
    void TearDown() override { fs::remove_all(folder_); }

    /// Its stderr on a machine whose driver offers so many cards; it must succeed.
    std::string errors(const std::string& words, int cards) const {
        const std::string command =
            "cd '" + folder_.string() + "' && LD_LIBRARY_PATH='" TESSERA_FAKES "/" +
            std::to_string(cards) + "_cards' bin/tessera " + words + " >stdout 2>stderr </dev/null";
        EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0) << words;
        return contents(folder_ / "stderr");
    }

    fs::path folder_;
};

// Guards against a slow run whose reason nobody sees: a program without the backend beside a card.
TEST_F(CardNote, SaysThatTheBackendIsMissingWhereThereIsACard) {
    EXPECT_EQ(errors("inspect --ops", 1),
              std::string(kNote) +
                  "this program was built without CUDA: libtessera_cuda.so is not "
                  "beside it; running on the CPU\n");
    EXPECT_NE(contents(folder_ / "stdout").find("Backend CPU"), std::string::npos);
}

TEST_F(CardNote, SaysThatTheBackendIsOfAnotherBuild) {
    fs::copy_file(TESSERA_FAKES "/libtessera_cuda.so", folder_ / "bin" / "libtessera_cuda.so");
    const std::string text = errors("inspect --ops", 1);
    EXPECT_TRUE(text.starts_with(kNote)) << text;
    EXPECT_NE(text.find("of another build"), std::string::npos) << text;
    EXPECT_EQ(count_of(text, "\n"), 1) << text;
}

// Guards against noise on every machine without a card, and where nobody asked for one.
TEST_F(CardNote, SaysNothingWithoutACardOrWhenTheCpuWasAskedFor) {
    EXPECT_EQ(errors("inspect --ops", 0), "");
    for (const char* words : {"inspect --ops --backend cpu", "inspect --ops -ngl 0",
                              "inspect --ops --device none", "inspect --ops --backend reference"})
        EXPECT_EQ(errors(words, 1), "") << words;
}

// Guards against a note for each time that a backend is made.
TEST_F(CardNote, IsSaidOnce) {
    ASSERT_EQ(errors("synth llama tiny a.gguf --type bf16", 1).find(kNote), std::string::npos);
    EXPECT_EQ(count_of(errors("inspect a.gguf --ops", 1), kNote), 1);
    EXPECT_EQ(count_of(errors("run a.gguf -no-cnv -p a -n 1 --seed 1", 1), kNote), 1);
    EXPECT_EQ(count_of(errors("bench -m a.gguf -p 8 -n 0 -ub 32,64 -r 1", 1), kNote), 1);
}

}  // namespace
