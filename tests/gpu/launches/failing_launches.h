#pragma once
// Launches that cannot succeed, for the test of what is said about them.

namespace tessera {

enum class FailingLaunch {
    kTooManyThreads,       ///< idle_kernel <<<(3, 2, 1), (2048, 1, 1), 0 bytes>>>
    kTooMuchSharedMemory,  ///< idle_kernel <<<(3, 2, 1), (64, 1, 1), 1048576 bytes>>>
    kTrap                  ///< trap_kernel <<<(5, 1, 1), (96, 1, 1), 16 bytes>>>
};
/// Launches where general kernels were asked for (CudaOptions::general).
enum class GeneralLaunch {
    kFits,         ///< static_kernel, 1024 bytes of its own and as many more as there is room for
    kBeyond,       ///< static_kernel, 16 bytes more than that
    kHopperKernel  ///< idle_kernel, as one made for Hopper
};

/// Launches such a kernel on card 0 and waits for it: UserError(kDevice), from the launch itself
/// where the card can refuse it or `synchronous` is set. A trap costs the process its card.
void launch_failing(FailingLaunch kind, bool synchronous);

/// Launches such a kernel on card 0 and waits for it. All but kFits abort.
void launch_general(GeneralLaunch kind);

}  // namespace tessera
