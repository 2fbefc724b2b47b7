// What the program says on a machine whose driver is older than the CUDA that it was built with.
// The driver is a stand-in (fakes/old_driver.cpp); the library of the CUDA backend is the real one,
// so the test skips itself where none was built.

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>

#include "tools/scratch_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class OldDriver : public ScratchFolder {
  protected:
    void SetUp() override {
        ScratchFolder::SetUp();
        if (!fs::exists(fs::path(TESSERA_PROGRAM).parent_path() / "libtessera_cuda.so"))
            GTEST_SKIP() << "built without CUDA";
    }

    /// Runs the program with that driver.
    Outcome run(const std::string& words) const {
        return execute("LD_LIBRARY_PATH='" TESSERA_OLD_DRIVER "' '" TESSERA_PROGRAM "' " + words);
    }
};

// Guards against "no GPU", a bare error number or a crash where the driver only has to be updated.
TEST_F(OldDriver, IsNamedWithBothVersionsInOneLine) {
    const Outcome made = run("synth llama tiny model.gguf");
    ASSERT_EQ(made.code, 0) << made.err;
    const std::regex line(
        "tessera: the NVIDIA driver supports CUDA 11\\.8, this program needs [0-9]+\\.[0-9]+: "
        "update the driver or take --backend cpu\n");
    for (const char* words :
         {"run model.gguf --backend cuda0 -p hello -n 1",
          "bench -m model.gguf --backend cuda0 -p 8 -n 0", "test-ops support -b cuda0"}) {
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.code, 5) << words;
        EXPECT_TRUE(std::regex_match(outcome.err, line)) << words << ": " << outcome.err;
        EXPECT_EQ(outcome.out, "") << words;
    }
}

}  // namespace
}  // namespace tessera
