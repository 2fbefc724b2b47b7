#pragma once
// The CPU backend. One class; its methods stand by family in cpu_linear.cpp (weights, products),
// cpu_rows.cpp (norms, GLU, rope, copies), cpu_attention.cpp and cpu_sample.cpp. Kernels stand in
// isa/, one file per instruction set, reached through the tables that the constructor picks once.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/thread_pool.h"
#include "ops/ops.h"

namespace tessera::cpu {

/// Instruction sets, best last; `kNeon` on ARM only.
enum class Isa : uint8_t { kScalar, kNeon, kAvx2, kAvx512, kAmx };

/// The best set that this machine, its kernel and the name ("" = best) allow; AMX asks the kernel
/// for its tiles. kAvx2 means AVX2, FMA and F16C; kAvx512 means F, BW, DQ, VL, VNNI and VBMI; kAmx
/// adds AVX512-BF16, AMX-TILE, AMX-BF16 and AMX-INT8. Throws UserError(kUsage) for a name that is
/// none of this architecture's: "scalar", "avx2", "avx512", "amx" or "scalar", "neon".
Isa pick_isa(std::string_view at_most);
std::string_view isa_name(Isa isa);

struct CpuOptions {
    int32_t threads = 1;
    /// Formats of the activations of prompt rows and generated rows; nothing picks the default of
    /// the Isa.
    bool act_auto = true;
    ActFormat act_prompt = ActFormat::kF32;
    ActFormat act_generated = ActFormat::kF32;
    Nvfp4Policy nvfp4 = Nvfp4Policy::kAmax6;  ///< of kNvfp4 rows
    std::string isa;
};

class CpuOps final : public Ops {
  public:
    explicit CpuOps(const CpuOptions& options);
    ~CpuOps() override;

    std::string_view name() const override { return "CPU"; }
    std::string description() const override;
    std::vector<std::string_view> overrides() const override;
    void set_op_timing(bool on) override;
    std::vector<OpCount> op_counts() const override;
    void reset_op_counts() override;
    Ceilings measure_ceilings() override;  ///< cpu_ceilings.cpp
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
    GemmInput glu_input(
        Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants) override;
    GemmInput gated_rms_norm_input(Exec& ex,
                                   const Tensor& x,
                                   const Tensor& gain,
                                   float eps,
                                   const Tensor& z,
                                   ActWants wants) override;
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

    /// Counts a call of an op by name; with timing on, measures until destruction.
    class Timed {
      public:
        Timed(CpuOps& ops, std::string_view op, double flops, double bytes)
            : Timed(ops, op, flops, bytes, Operands::kF32, {}) {}
        Timed(CpuOps& ops,
              std::string_view op,
              double flops,
              double bytes,
              Operands operands,
              std::string_view fallback);
        ~Timed();

      private:
        CpuOps& ops_;
        size_t index_;
        std::chrono::steady_clock::time_point start_;
    };

  private:
    struct Linear;  ///< kernel table and formats, cpu_linear.cpp
    struct Rows;    ///< kernel tables of everything else, cpu_rows.cpp
    /// Unmaps a mapping of map().
    struct FreeBlock {
        size_t mapped_bytes = 0;
        void operator()(void* base) const;
    };

    ThreadPool pool_;
    Isa isa_;
    std::unique_ptr<Linear> linear_;
    std::unique_ptr<Rows> rows_;
    /// The rest of a mapping that small blocks share.
    struct Chunk {
        std::byte* next = nullptr;
        size_t left = 0;
    };
    std::byte* map(size_t bytes, bool huge_pages);
    static void trim(const Chunk& chunk);
    std::byte* carve(Chunk& chunk, size_t bytes, bool huge_pages);
    std::byte* allocate_weight(size_t bytes);
    /// Counts that an op whose kernel does not take these operands is composed of others instead.
    void note_composed(const Exec& ex, std::string_view op, std::string_view fallback);
    /// Bytes a second that all threads read of memory; 0: too little is free to tell.
    double best_read_rate();
    std::vector<std::unique_ptr<void, FreeBlock>> memory_;
    Chunk weights_, state_;
    std::vector<OpCount> counts_;
    bool timing_ = false;
};

}  // namespace tessera::cpu
