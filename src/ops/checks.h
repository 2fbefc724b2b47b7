#pragma once
// What every backend expects of the operands of an op, where all of them expect the same: shapes
// and formats, as the contracts in ops.h have them. A failure is a bug (check), never a user's.

#include <source_location>

#include "ops/ops.h"

namespace tessera {

using Caller = std::source_location;

/// Whether rank and extents agree.
bool same_shape(const Tensor& a, const Tensor& b);

void check_linear(const GemmInput& x,
                  const Weight& weight,
                  const Tensor& bias,
                  const Tensor& out,
                  const Caller& where = Caller::current());
void check_rms_norm(const Tensor& x,
                    const Tensor& gain,
                    const Tensor& out,
                    const Caller& where = Caller::current());
void check_rms_norm_input(const Tensor& x,
                          const Tensor& gain,
                          const Caller& where = Caller::current());
void check_gated_rms_norm_input(const Tensor& x,
                                const Tensor& gain,
                                const Tensor& z,
                                const Caller& where = Caller::current());
void check_glu(const Tensor& gate,
               const Tensor& up,
               const Tensor& out,
               const Caller& where = Caller::current());
void check_glu_input(const Tensor& gate, const Tensor& up, const Caller& where = Caller::current());
void check_l2_norm(const Tensor& x, const Caller& where = Caller::current());
void check_add(const Tensor& a,
               const Tensor& b,
               const Tensor& out,
               const Caller& where = Caller::current());
void check_softmax(const Tensor& x,
                   const Tensor& visible,
                   const Tensor& out,
                   const Caller& where = Caller::current());
void check_rope(const Tensor& x,
                const Tensor& positions,
                const Tensor& freq_factors,
                const RopeParams& params,
                const Caller& where = Caller::current());
void check_copy(const Tensor& from, const Tensor& to, const Caller& where = Caller::current());
void check_concat(const Tensor& a,
                  const Tensor& b,
                  int32_t axis,
                  const Tensor& out,
                  const Caller& where = Caller::current());
/// The ids themselves are for the op to check.
void check_gather_rows(const Tensor& x,
                       const Tensor& ids,
                       const Tensor& out,
                       const Caller& where = Caller::current());
void check_advance_batch(const Tensor& ids,
                         const Batch& batch,
                         const Caller& where = Caller::current());

/// Whether every slot of a part of a RecurrentView is one piece.
bool dense_slots(const Tensor& part);
/// The index tensors of a batch of `rows` rows for ops on recurrent memory.
void check_recurrent_batch(const Batch& batch,
                           int64_t rows,
                           const Caller& where = Caller::current());
void check_causal_conv(const Tensor& u,
                       const Tensor& taps,
                       const RecurrentView& memory,
                       const Tensor& out,
                       const Caller& where = Caller::current());
void check_delta_gates(const Tensor& a,
                       const Tensor& b,
                       const Tensor& bias,
                       const Tensor& rate,
                       const Tensor& log_decay,
                       const Tensor& beta,
                       const Caller& where = Caller::current());
/// Besides what causal_conv and delta_gates expect.
void check_delta_net_input(const Tensor& u,
                           const Tensor& a,
                           const Ops::DeltaNetInput& how,
                           const Caller& where = Caller::current());
void check_delta_rule(const Tensor& q,
                      const Tensor& k,
                      const Tensor& v,
                      const Tensor& log_decay,
                      const Tensor& beta,
                      const RecurrentView& memory,
                      const Tensor& out,
                      const Caller& where = Caller::current());

void check_route(const Tensor& logits,
                 const Tensor& bias,
                 const Tensor& ids,
                 const Tensor& weights,
                 const Caller& where = Caller::current());
void check_linear_experts(const GemmInput& x,
                          const ExpertWork& work,
                          const Weight& weight,
                          const Tensor& out,
                          const Caller& where = Caller::current());
void check_combine(const Tensor& y,
                   const Tensor& weights,
                   const Tensor& out,
                   const Caller& where = Caller::current());

}  // namespace tessera
