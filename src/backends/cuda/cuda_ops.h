#pragma once
// The CUDA backend: one class, its methods by family in linear/, rows/, attention/, recurrent/,
// experts/ and sample/. Everything is queued on one stream in the order of the calls; the host
// waits only in copy_to_host(). This header knows nothing of CUDA's.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace tessera::cuda {

class Device;  // device.cuh

/// How NVFP4 and MXFP4 matrices meet prompt rows in kNvfp4.
enum class Fp4Products : uint8_t {
    kOff,       ///< as bf16, which holds their numbers
    kNative,    ///< by FP4 tensor cores where card and build have them, else as kOff
    kUnasked,   ///< as kNative on a card that has them, without asking self_test(), which uses it
    kEmulated,  ///< by the same kernel with that instruction made of others: slow, to check it
};

struct CudaOptions {
    int32_t device = 0;  ///< as CUDA_VISIBLE_DEVICES numbers them
    /// Formats of the activations of prompt rows and generated rows before a quantized or 16-bit
    /// weight: kF32 or kBF16; for prompt rows on Hopper kFp8, which NVFP4 and MXFP4 matrices take,
    /// others then take bf16. F32 weights take f32 activations always.
    ActFormat act_prompt = ActFormat::kBF16;
    ActFormat act_generated = ActFormat::kBF16;
    /// kNative: where card and build have FP4 tensor cores and self_test() finds nothing wrong.
    Fp4Products fp4_products = Fp4Products::kOff;
    bool act_auto = false;  ///< prompt rows are kNvfp4 instead where FP4 tensor cores multiply them
    Nvfp4Policy nvfp4 = Nvfp4Policy::kAmax6;  ///< of kNvfp4 rows
    /// The kernels that cards of compute capability 12.x run, in the 99 KiB of shared memory that
    /// a block has there, though the card may have better ones. kEmulated needs it.
    bool general = false;
    bool delta_bf16 = false;   ///< gated_delta_rule multiplies bf16 instead of f16
    bool poison = false;       ///< fill fresh memory with 0xFF instead of zeros
    bool synchronous = false;  ///< wait after every kernel, so that a fault names the right one
};

class CudaOps final : public Ops {
  public:
    /// UserError(kDevice): no driver, no such device, no kernels for it. UserError(kUsage): fp8
    /// activations or emulated FP4 products on a card that has no kernels for them.
    explicit CudaOps(const CudaOptions& options);
    ~CudaOps() override;

    std::string_view name() const override { return name_; }
    std::string description() const override;
    std::vector<std::string_view> overrides() const override;
    void set_op_timing(bool on) override;
    std::vector<OpCount> op_counts() const override;
    void reset_op_counts() override;
    Ceilings measure_ceilings() override;
    SelfTest self_test() override;

    // ---- cuda_ops.cu: memory ----
    bool on_host() const override { return false; }
    std::byte* allocate(size_t bytes) override;
    int64_t available_bytes() const override;
    void copy_to_device(void* to, const void* from, size_t bytes) override;
    void copy_to_host(void* to, const void* from, size_t bytes) override;
    Tensor stage(Exec& ex, const Tensor& host) override;
    std::unique_ptr<Recording> record(const std::function<void()>& work) override;

    // ---- linear/ ----
    int64_t upload_bytes(const HostWeight& weight) const override;
    ActWants wants(DType weight_format, int32_t experts) const override;
    Weight upload(const HostWeight& weight) override;
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

    // ---- rows/ ----
    void embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) override;
    GemmInput prepare(Exec& ex, const Tensor& x, ActWants wants) override;
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
    void advance_batch(Exec& ex, const Tensor& ids, const Batch& batch) override;
    GemmInput gated_rms_norm_input(Exec& ex,
                                   const Tensor& x,
                                   const Tensor& gain,
                                   float eps,
                                   const Tensor& z,
                                   ActWants wants) override;

    // ---- attention/ ----
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

    // ---- recurrent/ ----
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
    DType delta_rule_operands() const override;
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

    // ---- experts/ ----
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

    // ---- sample/ ----
    void argmax(Exec& ex, const Tensor& logits, const Tensor& ids) override;
    void sample(Exec& ex,
                const Tensor& logits,
                std::span<const SampleParams> params,
                std::span<const std::span<const int32_t>> history,
                std::span<const float> uniforms,
                const Tensor& ids) override;

    /// Counts a call of an op by name and by the notes that its launches leave at the device; with
    /// timing on, measures it on the device.
    class Timed {
      public:
        Timed(CudaOps& ops, std::string_view op, double flops, double bytes);
        ~Timed();
        Timed(const Timed&) = delete;
        Timed& operator=(const Timed&) = delete;

      private:
        CudaOps& ops_;
        std::string name_;
        double flops_, bytes_;
        size_t span_;  ///< of the open measurement
    };

  private:
    struct Timing;  ///< events that have not been read yet
    struct Upload;  ///< pinned buffers that weights pass through

    /// What gated products are of: rows of x, or (`work`) its pairs with experts.
    struct GatedOperands {
        const GemmInput& x;
        const ExpertWork* work;
        const Weight& gate;
        const Weight& up;
        Glu kind;
    };
    /// linear_glu and linear_experts_glu whose prompt rows are one product; x has some of them.
    GemmInput gated_product(Exec& ex, const GatedOperands& of, ActWants wants);

    /// Counts that an op whose kernel does not take these operands is composed of others instead.
    void note_composed(const Exec& ex, std::string_view op, std::string_view fallback);

    CudaOptions options_;  ///< fp4_products: kNative only where they run
    SelfTest self_test_;   ///< once it ran
    std::string name_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Timing> timing_;
    unsigned long long*
        clamped_;  ///< device word: operands of the delta rule that were out of range, or NaN
    /// Made by the first upload; its deleter is known where it is made.
    std::unique_ptr<Upload, void (*)(Upload*)> upload_{nullptr, nullptr};
    std::vector<OpCount> counts_;
};

}  // namespace tessera::cuda
