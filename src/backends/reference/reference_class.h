#pragma once
// The class behind make_reference_ops. Its methods stand by family in reference_ops.cpp (memory,
// counters), reference_linear.cpp, reference_rows.cpp, reference_attention.cpp and
// reference_sample.cpp. Weights stay as the file has them and are decoded row by row.

#include <chrono>
#include <string>
#include <vector>

#include "backends/reference/reference_ops.h"
#include "ops/ops.h"

namespace tessera::reference {

/// Rows along the last axis of a tensor of any rank.
inline int64_t row_count(const Tensor& tensor) {
    int64_t rows = 1;
    for (int32_t axis = 0; axis + 1 < tensor.rank; ++axis)
        rows *= tensor.shape[static_cast<size_t>(axis)];
    return rows;
}

/// Element offset of row `index` (row-major over the outer axes).
inline int64_t row_offset(const Tensor& tensor, int64_t index) {
    int64_t offset = 0;
    for (int32_t axis = tensor.rank - 2; axis >= 0; --axis) {
        const auto a = static_cast<size_t>(axis);
        offset += index % tensor.shape[a] * tensor.stride[a];
        index /= tensor.shape[a];
    }
    return offset;
}

/// Address of element `offset` of a tensor; in block formats a multiple of the block size.
inline std::byte* address(const Tensor& tensor, int64_t offset) {
    return tensor.as<std::byte>() + dtype_bytes(tensor.dtype, offset);
}

class ReferenceOps : public Ops {
  public:
    explicit ReferenceOps(const ReferenceOptions& options) : options_(options) {}

    std::string_view name() const override { return "REF"; }
    std::string description() const override { return "plain loops, f64 sums, 1 thread"; }
    std::vector<std::string_view> overrides() const override { return {}; }
    void set_op_timing(bool on) override { timing_ = on; }
    std::vector<OpCount> op_counts() const override { return counts_; }
    void reset_op_counts() override { counts_.clear(); }

    std::byte* allocate(size_t bytes) override;
    int64_t upload_bytes(const HostWeight& weight) const override;
    ActWants wants(DType weight_format, int32_t experts) const override;
    Weight upload(const HostWeight& weight) override;

    void embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) override;
    GemmInput prepare(Exec& ex, const Tensor& x, ActWants wants) override;
    void linear(Exec& ex,
                const GemmInput& x,
                const Weight& weight,
                const Tensor& bias,
                const Tensor& out,
                Accumulate accumulate) override;

    void rms_norm(
        Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) override;
    void glu(Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) override;
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
    void attention(Exec& ex,
                   const Tensor& q,
                   const Batch& batch,
                   const KvView& cache,
                   const AttentionParams& params,
                   const Tensor& out) override;

    void l2_norm(Exec& ex, const Tensor& x, float eps) override;
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
    using Clock = std::chrono::steady_clock;

    /// Counts one call; with timing on, adds the time until its destruction.
    class Counted {
      public:
        Counted(ReferenceOps& ops, std::string_view op, double flops, double bytes);
        ~Counted();
        Counted(const Counted&) = delete;
        Counted& operator=(const Counted&) = delete;

      private:
        ReferenceOps& ops_;
        size_t index_ = 0;
        Clock::time_point start_;
    };

    ReferenceOptions options_;
    std::vector<std::vector<std::byte>> memory_;
    std::vector<OpCount> counts_;
    bool timing_ = false;
};

}  // namespace tessera::reference
