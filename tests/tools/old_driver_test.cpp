// What the program says on a machine whose driver is older than the CUDA that it was built with.
// The driver is a stand-in (fakes/old_driver.cpp); the library of the CUDA backend is the real one,
// so the test skips itself where none was built.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

namespace fs = std::filesystem;

class OldDriver : public testing::Test {
  protected:
    void SetUp() override {
        if (!fs::exists(fs::path(TESSERA_PROGRAM).parent_path() / "libtessera_cuda.so"))
            GTEST_SKIP() << "built without CUDA";
        folder_ = fs::temp_directory_path() / ("tessera_old_driver_" + std::to_string(getpid()));
        fs::create_directories(folder_);
    }
    void TearDown() override {
        if (!folder_.empty()) fs::remove_all(folder_);
    }

    /// Runs the program with that driver; its exit code.
    int run(const std::string& words) const {
        const std::string command = "cd '" + folder_.string() +
                                    "' && LD_LIBRARY_PATH='" TESSERA_OLD_DRIVER
                                    "' '" TESSERA_PROGRAM "' " +
                                    words + " >stdout 2>stderr </dev/null";
        const int status = std::system(command.c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::string output(const char* stream) const {
        std::ifstream file(folder_ / stream, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }

    fs::path folder_;
};

// Guards against "no GPU", a bare error number or a crash where the driver only has to be updated.
TEST_F(OldDriver, IsNamedWithBothVersionsInOneLine) {
    ASSERT_EQ(run("synth llama tiny model.gguf"), 0) << output("stderr");
    const std::regex line(
        "tessera: the NVIDIA driver supports CUDA 11\\.8, this program needs [0-9]+\\.[0-9]+: "
        "update the driver or take --backend cpu\n");
    for (const char* words :
         {"run model.gguf --backend cuda0 -p hello -n 1",
          "bench -m model.gguf --backend cuda0 -p 8 -n 0", "test-ops support -b cuda0"}) {
        EXPECT_EQ(run(words), 5) << words;
        EXPECT_TRUE(std::regex_match(output("stderr"), line)) << words << ": " << output("stderr");
        EXPECT_EQ(output("stdout"), "") << words;
    }
}

}  // namespace
