#include "backends/cpu/cpu_ops.h"

namespace tessera::cpu {

void CpuOps::route(
    Exec&, const Tensor&, const Tensor&, const RouteParams&, const Tensor&, const Tensor&) {
    check(false, "route: not here yet");
}
ExpertWork CpuOps::group_experts(Exec&, const Tensor&, int32_t) {
    check(false, "group_experts: not here yet");
    return {};
}
void CpuOps::linear_experts(
    Exec&, const GemmInput&, const ExpertWork&, const Weight&, const Tensor&) {
    check(false, "linear_experts: not here yet");
}
void CpuOps::combine(Exec&, const Tensor&, const Tensor&, const Tensor&, Accumulate) {
    check(false, "combine: not here yet");
}

}  // namespace tessera::cpu
