#pragma once
// What every backend expects of the operands of an op, where all of them expect the same: shapes
// and formats, as the contracts in ops.h have them. A failure is a bug (check), never a user's.

#include <source_location>

#include "ops/ops.h"

namespace tessera {

using Caller = std::source_location;

void check_rope(const Tensor& x,
                const Tensor& positions,
                const Tensor& freq_factors,
                const RopeParams& params,
                const Caller& where = Caller::current());
void check_concat(const Tensor& a,
                  const Tensor& b,
                  int32_t axis,
                  const Tensor& out,
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
