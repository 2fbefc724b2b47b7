// What is said about launches that fail. Each runs in a process of its own, since a kernel that
// traps takes the card from its process.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gpu/gpu.h"
#include "gpu/launches/failing_launches.h"

namespace tessera {
namespace {

[[noreturn]] void report(FailingLaunch kind, bool synchronous) {
    try {
        launch_failing(kind, synchronous);
    } catch (const UserError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        std::exit(static_cast<int>(error.code()));
    }
    std::exit(0);
}

class FailingLaunches : public CardTest {
  protected:
    void SetUp() override {
        // A process forked from one that has used the card could not use it.
        GTEST_FLAG_SET(death_test_style, "threadsafe");
        CardTest::SetUp();
    }
};

/// The launch ends the process with the code of a device, and this on a line.
void expect_report(FailingLaunch kind, bool synchronous, const std::string& pattern) {
    EXPECT_EXIT(report(kind, synchronous),
                testing::ExitedWithCode(static_cast<int>(ExitCode::kDevice)), pattern);
}

// Guards against a bare "invalid argument" that nobody can look for.
TEST_F(FailingLaunches, NameTheKernelAndItsShapeWhenTheCardRefusesThem) {
    for (const bool synchronous : {false, true}) {
        expect_report(FailingLaunch::kTooManyThreads, synchronous,
                      "CUDA: idle_kernel <<<\\(3, 2, 1\\), \\(2048, 1, 1\\), 0 bytes>>>: invalid ");
        expect_report(FailingLaunch::kTooMuchSharedMemory, synchronous,
                      "CUDA: idle_kernel <<<\\(3, 2, 1\\), \\(64, 1, 1\\), 1048576 bytes>>>: "
                      "invalid ");
    }
}

// Guards against a fault of a kernel that names whatever waited for it.
TEST_F(FailingLaunches, NameTheKernelThatTrapped) {
    const std::string kernel = "trap_kernel <<<\\(5, 1, 1\\), \\(96, 1, 1\\), 16 bytes>>>: .+";
    expect_report(FailingLaunch::kTrap, /*synchronous=*/true, "CUDA: " + kernel);
    expect_report(FailingLaunch::kTrap, /*synchronous=*/false,
                  "CUDA: a kernel failed, the last one queued was " + kernel);
}

[[noreturn]] void exit_behind(GeneralLaunch kind) {
    launch_general(kind);
    std::exit(0);
}

// Guards against general kernels that only a card with more shared memory can start, that of their
// own counted, and against kernels for Hopper where general ones were asked for: every launch under
// --emulate is checked so.
TEST_F(FailingLaunches, GeneralKernelsHaveWhatABlackwellCardGives) {
    EXPECT_EXIT(exit_behind(GeneralLaunch::kFits), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(exit_behind(GeneralLaunch::kBeyond), testing::KilledBySignal(SIGABRT),
                "static_kernel <<<.* 100368 bytes>>>: 101392 bytes of shared memory, 101376 are ");
    EXPECT_EXIT(exit_behind(GeneralLaunch::kHopperKernel), testing::KilledBySignal(SIGABRT),
                "idle_kernel: a kernel for Hopper");
}

}  // namespace
}  // namespace tessera
