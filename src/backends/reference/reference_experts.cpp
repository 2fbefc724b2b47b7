#include "backends/reference/reference_class.h"

namespace tessera::reference {

void ReferenceOps::route(
    Exec&, const Tensor&, const Tensor&, const RouteParams&, const Tensor&, const Tensor&) {
    check(false, "route: not here yet");
}
ExpertWork ReferenceOps::group_experts(Exec&, const Tensor&, int32_t) {
    check(false, "group_experts: not here yet");
    return {};
}
void ReferenceOps::linear_experts(
    Exec&, const GemmInput&, const ExpertWork&, const Weight&, const Tensor&) {
    check(false, "linear_experts: not here yet");
}
void ReferenceOps::combine(Exec&, const Tensor&, const Tensor&, const Tensor&, Accumulate) {
    check(false, "combine: not here yet");
}

}  // namespace tessera::reference
