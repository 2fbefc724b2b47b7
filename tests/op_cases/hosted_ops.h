#pragma once
// Ops on host tensors for a backend whose memory is elsewhere: every operand is copied over, the op
// runs, everything that it could have written is copied back. So the op cases, and whoever else
// keeps tensors on the host, need not know where a backend lives.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace tessera::op_cases {

/// `recorded`: every op is recorded first and then replayed (not `sample`, which is never part of a
/// recording). Operands lie between guards in device memory, as does the arena; an op that writes
/// to one is reported by faults(). Timing, counts and weights are those of the backend.
class HostedOps final : public Ops {
  public:
    HostedOps(std::unique_ptr<Ops> inner, bool recorded);
    ~HostedOps() override;

    /// What was overwritten since the last call, a line each.
    std::vector<std::string> take_faults();
    /// Every op runs so often between its operands' way over and back: to be timed, as it adds to
    /// what it finds each time.
    void set_times(int32_t times) { times_ = times; }
    /// Device time of all ops since the last call, and of prepare() alone; needs
    /// set_op_timing(true).
    struct Seconds {
        double all = 0, prepare = 0;
    };
    Seconds take_seconds();

    std::string_view name() const override { return inner_->name(); }
    std::string description() const override { return inner_->description(); }
    std::vector<std::string_view> overrides() const override { return inner_->overrides(); }
    void set_op_timing(bool on) override { inner_->set_op_timing(on); }
    std::vector<OpCount> op_counts() const override { return inner_->op_counts(); }
    void reset_op_counts() override { inner_->reset_op_counts(); }
    std::byte* allocate(size_t bytes) override;
    int64_t upload_bytes(const HostWeight& weight) const override {
        return inner_->upload_bytes(weight);
    }
    ActWants wants(DType weight_format, int32_t experts) const override {
        return inner_->wants(weight_format, experts);
    }
    DType delta_rule_operands() const override { return inner_->delta_rule_operands(); }
    Weight upload(const HostWeight& weight) override { return inner_->upload(weight); }

    void embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) override;
    GemmInput prepare(Exec& ex, const Tensor& x, ActWants wants) override;
    void linear(Exec& ex,
                const GemmInput& x,
                const Weight& weight,
                const Tensor& bias,
                const Tensor& out,
                Accumulate accumulate) override;
    void linear_many(Exec& ex,
                     const GemmInput& x,
                     std::span<const Weight* const> weights,
                     std::span<const Tensor> biases,
                     std::span<const Tensor> outs) override;
    GemmInput linear_glu(Exec& ex,
                         const GemmInput& x,
                         const Weight& gate,
                         const Weight& up,
                         Glu kind,
                         ActWants wants) override;
    void rms_norm(
        Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) override;
    GemmInput rms_norm_input(
        Exec& ex, const Tensor& x, const Tensor& gain, float eps, ActWants wants) override;
    void glu(Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) override;
    GemmInput glu_input(
        Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants) override;
    void l2_norm(Exec& ex, const Tensor& x, float eps) override;
    void add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) override;
    void softmax(
        Exec& ex, const Tensor& x, const Tensor& visible, float scale, const Tensor& out) override;
    void rope(Exec& ex,
              const Tensor& x,
              const Tensor& positions,
              const Tensor& freq_factors,
              const RopeParams& params) override;
    void copy(Exec& ex, const Tensor& from, const Tensor& to) override;
    void concat(
        Exec& ex, const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out) override;
    void gather_rows(Exec& ex, const Tensor& x, const Tensor& ids, const Tensor& out) override;
    void kv_store(Exec& ex,
                  const Tensor& k,
                  const Tensor& v,
                  const Batch& batch,
                  const KvView& cache) override;
    void qk_norm_rope_store(Exec& ex,
                            const Tensor& q,
                            const Tensor& k,
                            const Tensor& v,
                            const QkvRope& how,
                            const Batch& batch,
                            const KvView& cache) override;
    void attention(Exec& ex,
                   const Tensor& q,
                   const Batch& batch,
                   const KvView& cache,
                   const AttentionParams& params,
                   const Tensor& out) override;
    void causal_conv(Exec& ex,
                     const Tensor& u,
                     const Tensor& taps,
                     const Batch& batch,
                     const RecurrentView& memory,
                     const Tensor& out) override;
    void delta_gates(Exec& ex,
                     const Tensor& a,
                     const Tensor& b,
                     const Tensor& bias,
                     const Tensor& rate,
                     const Tensor& log_decay,
                     const Tensor& beta) override;
    void delta_net_input(Exec& ex,
                         const Tensor& u,
                         const Tensor& a,
                         const Tensor& b,
                         const DeltaNetInput& how,
                         const Batch& batch,
                         const RecurrentView& memory,
                         const Tensor& qkv) override;
    void gated_delta_rule(Exec& ex,
                          const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const Tensor& log_decay,
                          const Tensor& beta,
                          const Batch& batch,
                          const RecurrentView& memory,
                          const Tensor& out) override;
    void accept_recurrent(Exec& ex,
                          const Tensor& slots,
                          const Tensor& counts,
                          const RecurrentView& memory) override;
    GemmInput gated_rms_norm_input(Exec& ex,
                                   const Tensor& x,
                                   const Tensor& gain,
                                   float eps,
                                   const Tensor& z,
                                   ActWants wants) override;
    void route(Exec& ex,
               const Tensor& logits,
               const Tensor& bias,
               const RouteParams& params,
               const Tensor& ids,
               const Tensor& weights) override;
    ExpertWork group_experts(Exec& ex, const Tensor& ids, int32_t experts) override;
    void linear_experts(Exec& ex,
                        const GemmInput& x,
                        const ExpertWork& work,
                        const Weight& weight,
                        const Tensor& out) override;
    GemmInput linear_experts_glu(Exec& ex,
                                 const GemmInput& x,
                                 const ExpertWork& work,
                                 const Weight& gate,
                                 const Weight& up,
                                 Glu kind,
                                 ActWants wants) override;
    void combine(Exec& ex,
                 const Tensor& y,
                 const Tensor& weights,
                 const Tensor& out,
                 Accumulate accumulate) override;
    void argmax(Exec& ex, const Tensor& logits, const Tensor& ids) override;
    void sample(Exec& ex,
                const Tensor& logits,
                std::span<const SampleParams> params,
                std::span<const std::span<const int32_t>> history,
                std::span<const float> uniforms,
                const Tensor& ids) override;

  private:
    class Call;
    friend class Call;
    /// Device memory that grows when a larger block is asked for.
    struct Space {
        std::byte* base = nullptr;
        size_t bytes = 0;
    };
    std::byte* reserve(Space& space, size_t bytes);

    std::unique_ptr<Ops> inner_;
    int32_t times_ = 1;
    bool recorded_;
    Space arena_, operands_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<std::string> faults_;
};

}  // namespace tessera::op_cases
