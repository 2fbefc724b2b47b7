#include "backends/cpu/cpu_ops.h"

namespace tessera::cpu {

void CpuOps::l2_norm(Exec&, const Tensor&, float) {
    check(false, "l2_norm: not here yet");
}
void CpuOps::causal_conv(
    Exec&, const Tensor&, const Tensor&, const Batch&, const RecurrentView&, const Tensor&) {
    check(false, "causal_conv: not here yet");
}
void CpuOps::delta_gates(Exec&,
                         const Tensor&,
                         const Tensor&,
                         const Tensor&,
                         const Tensor&,
                         const Tensor&,
                         const Tensor&) {
    check(false, "delta_gates: not here yet");
}
void CpuOps::gated_delta_rule(Exec&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Batch&,
                              const RecurrentView&,
                              const Tensor&) {
    check(false, "gated_delta_rule: not here yet");
}
void CpuOps::accept_recurrent(Exec&, const Tensor&, const Tensor&, const RecurrentView&) {
    check(false, "accept_recurrent: not here yet");
}

}  // namespace tessera::cpu
