#pragma once
// A folder of its own for each test that writes files or runs the built program.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tessera {

/// What a command left.
struct Outcome {
    int code = -1;  ///< -1: it did not exit by itself
    std::string out;
    std::string err;
};

inline std::string contents(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The folder goes away with the test.
class ScratchFolder : public testing::Test {
  protected:
    void SetUp() override {
        const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
        folder_ =
            std::filesystem::temp_directory_path() / ("tessera_" + std::to_string(getpid()) + "_" +
                                                      test.test_suite_name() + "_" + test.name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    /// Runs a shell's words in the folder, with nothing on stdin.
    Outcome execute(const std::string& words) const {
        const std::string command =
            "cd '" + folder_.string() + "' && " + words + " >stdout 2>stderr </dev/null";
        const int status = std::system(command.c_str());
        return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder_ / "stdout"),
                contents(folder_ / "stderr")};
    }

    std::filesystem::path folder_;
};

}  // namespace tessera
