// The probes of the FP4 instruction for all cards.
#include "backends/cuda/linear/fp4_self_test.cuh"

namespace tessera::cuda {

std::vector<std::string> check_fp4_instruction(Device& device) {
    return fp4_probe::check<NativeFp4Mma>(device);
}

}  // namespace tessera::cuda
