#pragma once
// The op vocabulary: what a model may say and what a backend must do. Primitives are pure; fused
// ops have a default body made of primitives (ops.cpp) and a backend overrides them when it has a
// kernel.
//
// Conventions for every op. Activations are F32 unless said otherwise; `T` is the number of rows
// (tokens) and may be 0 (nothing happens). Outputs are preallocated by the caller, except
// GemmInput, which lives in `ex.arena`; scratch comes from `ex.arena` inside a Scope. Outputs may
// not overlap inputs unless "in place" is said. While `ex.planning()` an op allocates exactly what
// a run would allocate and returns: no operand is read. Shapes that do not fit are bugs (check),
// not UserErrors. Same build, device and operands give the same bytes; the result of a row does not
// depend on other rows or on their number.

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/codec.h"
#include "core/weight.h"
#include "ops/batch.h"
#include "ops/exec.h"

namespace tessera {

/// Gated linear units, out = act(gate) * up, the activation in f32.
enum class Glu : uint8_t {
    kSwiGlu,  ///< act(x) = x / (1 + exp(-x))
    kGeGlu,   ///< act(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    kReGlu,   ///< act(x) = max(x, 0)
    kSigmoid  ///< act(x) = 1 / (1 + exp(-x))
};

/// Whether a product replaces its output or is added to it (residual connection).
enum class Accumulate : uint8_t { kNo, kAdd };

/// Which two elements of a head a rotation mixes.
enum class RopePairs : uint8_t {
    kAdjacent,  ///< (2i, 2i+1): llama in GGUF
    kHalves     ///< (i, i + rotary/2): NeoX, qwen
};

/// Rotary position embedding (arXiv 2104.09864) with linear and YaRN scaling (arXiv 2309.00071).
/// theta_i = position * base^(-2i/rotary) / factor_i, i < rotary/2; elements >= rotary pass
/// through. With yarn: theta = theta_i * freq_scale * (1 - r(i)) + theta_i * r(i), r(i) = 1 -
/// clamp((i - low) / max(0.001, high - low), 0, 1), low = max(0, floor(c(beta_fast))), high =
/// min(rotary - 1, ceil(c(beta_slow))), c(b) = rotary ln(original_context / (2 pi b)) / (2 ln
/// base); without: theta_i * freq_scale. cos and sin are multiplied by `magnitude`. Angles are
/// computed in f64 or at least as precisely as f32(position) * f32(inverse frequency) rounded once;
/// frequencies are tabulated in f64.
struct RopeParams {
    RopePairs pairs = RopePairs::kAdjacent;
    int32_t rotary = 0;  ///< even, <= head size
    float base = 10000.0f;
    float freq_scale = 1.0f;
    float magnitude = 1.0f;
    bool yarn = false;
    float beta_fast = 32.0f;
    float beta_slow = 1.0f;
    int32_t original_context = 0;
    /// Interleaved multi-section rotation (qwen3.5): sizes of the temporal, height and width
    /// sections; all 0: off. Pair i of `rotary / 2` turns by the position of axis i % 3 while
    /// i < 3 * sections[i % 3], by the temporal one otherwise. Text has one position for all axes,
    /// which makes this plain rotation.
    std::array<int32_t, 3> sections{0, 0, 0};
};

/// How experts are chosen from the router's logits [T, E]. p = softmax over all experts or
/// sigmoid; the k experts with the largest p + bias are taken (ties: lowest id), in that order;
/// weights are their p without bias, divided by max(sum, 2^-14) when normalised, times scale.
struct RouteParams {
    bool sigmoid = false;
    bool normalize = true;
    float scale = 1.0f;
};

/// The (token, choice) pairs p = t * k + j of a batch, grouped by expert: the work of every expert
/// matrix of a layer. pairs[starts[e] .. starts[e+1]) are the pairs of expert e, ascending.
struct ExpertWork {
    Tensor pairs;         ///< I32 [T * k]
    Tensor starts;        ///< I32 [E + 1]
    int32_t choices = 0;  ///< k
};

struct AttentionParams {
    float scale = 1.0f;    ///< multiplies q.k, usually 1/sqrt(head size)
    float softcap = 0.0f;  ///< > 0: score = softcap * tanh(score / softcap)
    int32_t window = 0;  ///< > 0: only the newest `window` keys (own position included) are visible
    /// F32 [H] or absent, contiguous. A score per query head that takes part in the softmax as if
    /// it were one more visible key, past any softcap and window, whose value row is 0: with m the
    /// largest score or the sink, weights are exp(s - m) / (sum exp(s - m) + exp(sink - m)).
    Tensor sinks{};
};

/// How the next token is drawn from one row of logits. Steps, in this order, as llama.cpp's default
/// chain without its exotic members: penalties, top-k, top-p, min-p, temperature, draw.
struct SampleParams {
    float temperature =
        0.8f;  ///< <= 0: greedy, the lowest id among equal largest logits (after penalties)
    int32_t top_k = 40;   ///< <= 0: all
    float top_p = 0.95f;  ///< >= 1: off. Smallest set of most probable tokens with mass >= top_p
    float min_p = 0.05f;  ///< <= 0: off. Drops tokens with p < min_p * p_max
    float repeat_penalty = 1.0f;  ///< logit > 0 ? logit / r : logit * r for tokens in the history
    float frequency_penalty = 0.0f;  ///< logit -= count * f
    float presence_penalty = 0.0f;   ///< logit -= (count > 0) * p
};

/// What the products of an op are made of, as far as units of their own multiply it.
enum class Operands : uint8_t {
    kF32,     ///< f32; also ops that are no products
    k16Bits,  ///< bf16 or f16, summed in f32
    kInt8,
    kFp8,  ///< e4m3, summed in f32
    kFp4,  ///< e2m1 with scales of blocks on both sides, summed in f32
    kCount
};

/// Counter of work and fallbacks by op, for `bench --ops` and for tests that must see a fused path
/// run. Calls of one name that differ in operands or fallback are counted apart.
struct OpCount {
    std::string name;  ///< op, with the kernel that ran: "linear[nvfp4,amx]"
    int64_t calls = 0;
    double seconds = 0;  ///< summed wall time of the calls; 0 unless timing is on
    double flops = 0;
    double bytes = 0;  ///< operands read and written once
    Operands operands = Operands::kF32;
    /// Why a general kernel ran for (some of) the rows though this device has a special one for
    /// such an op, and which: "experts: general tensor-core kernel". Empty: none did. Where the
    /// composition ran in the place of a fused op, its time is that of its parts: seconds is 0.
    std::string fallback{};
};

/// Name of the counter of operands that gated_delta_rule clamped to their format, or that are NaN.
inline constexpr std::string_view kDeltaSaturated = "gated_delta_rule: saturated";

/// The counter of such calls, added where there is none yet.
OpCount& count_of(std::vector<OpCount>& counts,
                  std::string_view name,
                  Operands operands,
                  std::string_view fallback);

/// What a device does at best: rates of loops that do nothing else. 0: not measured, or it has no
/// such units.
struct Ceilings {
    /// FLOP/s of dense products, by Operands.
    std::array<double, static_cast<size_t>(Operands::kCount)> flops_per_second{};
    double bytes_per_second = 0;  ///< of memory: bytes read and written beyond any cache
};

/// Ops that were recorded once and run again with the same addresses.
class Recording {
  public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
};

/// What a device was asked before its kernels are trusted, and what it got wrong.
struct SelfTest {
    std::string checked{};              ///< empty: there is nothing to ask
    std::vector<std::string> faults{};  ///< a line each
};

class Ops {
  public:
    virtual ~Ops() = default;

    /// "CPU", "REF", "CUDA0", ...
    virtual std::string_view name() const = 0;
    /// One line for `bench` and logs: instruction sets or card, threads.
    virtual std::string description() const = 0;
    /// Names of the fused ops that this backend overrides, for `inspect --ops`.
    virtual std::vector<std::string_view> overrides() const = 0;
    virtual void set_op_timing(bool on) = 0;
    /// Counters since the last reset, in order of first use.
    virtual std::vector<OpCount> op_counts() const = 0;
    virtual void reset_op_counts() = 0;
    /// Runs loops of some milliseconds each, with all threads or multiprocessors, in memory of its
    /// own (up to 1 GiB) that it gives back. Nothing measured by default.
    virtual Ceilings measure_ceilings() { return {}; }
    /// Checks instructions that the kernels for this device were written without (FP4 tensor cores
    /// of sm_120), in memory of its own that it gives back; some tenths of a second.
    virtual SelfTest self_test() { return {}; }

    // ---- memory ----
    /// Zero-filled memory of this device that lives as long as the backend (weights, key/value
    /// pages, state).
    virtual std::byte* allocate(size_t bytes) = 0;
    /// Whether the host reads and writes this device's memory as its own. Otherwise
    /// copy_to_device(), copy_to_host() and stage() are the only ways in and out.
    virtual bool on_host() const { return true; }
    /// Bytes that allocate() and upload() can still give; the host's memory by default: -1, ask the
    /// system.
    virtual int64_t available_bytes() const { return -1; }
    /// Host memory to device memory, in order with the ops around it; `from` is free on return.
    virtual void copy_to_device(void* to, const void* from, size_t bytes);
    /// Device memory to host memory, after all ops so far. Throws UserError for what those ops
    /// found wrong with their operands where they could not say so themselves.
    virtual void copy_to_host(void* to, const void* from, size_t bytes);
    /// A contiguous host tensor where ops can read it: itself, or a copy in ex.arena.
    virtual Tensor stage(Exec& ex, const Tensor& host);
    /// Records the ops that `work` asks for (nothing runs, no read, no write) for replay; nullptr
    /// when this backend has no such thing.
    virtual std::unique_ptr<Recording> record(const std::function<void()>& work);
    /// Bytes that `upload` will take for this weight (data pointer not read).
    virtual int64_t upload_bytes(const HostWeight& weight) const = 0;
    /// Activation formats that a weight of this format, one of `experts` matrices that lie
    /// together, will want: what `upload` sets, known beforehand for planning.
    virtual ActWants wants(DType weight_format, int32_t experts) const = 0;
    /// Repacks a weight into this backend's layout; the source may go away afterwards. Every DType
    /// that `dequantize_row` reads is accepted.
    virtual Weight upload(const HostWeight& weight) = 0;

    // ---- linear algebra ----
    /// out[t, :] = row ids[t] of `table` as F32 times its outer scale. ids I32 [T], out [T, cols].
    /// Ids outside [0, rows) are bugs here: callers check tokens.
    virtual void embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) = 0;

    /// x [T, K] in every format of `wants` (see ActFormat for the rounding). kF32 may alias x.
    virtual GemmInput prepare(Exec& ex, const Tensor& x, ActWants wants) = 0;

    /// out[t, n] = outer_scale * sum_k x[t, k] W[n, k] (+ bias[n]) (+ out[t, n] if kAdd), summed in
    /// f32 or better. bias F32 [N] or absent. out [T, N], row stride free. Rows of kFp8 may meet
    /// weights rounded to e4m3 times a factor per row n that keeps the row within e4m3, and sums
    /// that are off by up to an eighth of what rounding the operands costs. Rows of kNvfp4 may meet
    /// MXFP4 weights without the blocks whose scale is below 2^-17 of the largest in their row
    /// (which counts where its block is not all zeros).
    virtual void linear(Exec& ex,
                        const GemmInput& x,
                        const Weight& weight,
                        const Tensor& bias,
                        const Tensor& out,
                        Accumulate accumulate) = 0;

    /// Several products of one input (q, k, v): out[i] = linear(x, *weights[i], biases[i]), kNo.
    /// Default: one after the other.
    virtual void linear_many(Exec& ex,
                             const GemmInput& x,
                             std::span<const Weight* const> weights,
                             std::span<const Tensor> biases,
                             std::span<const Tensor> outs);

    /// act(x Wg^T) * (x Wu^T), ready for `wants`. Prompt rows for kNvfp4 are rounded to bf16 before
    /// their scale is found, and so in all their formats: an NMSE of 5e-4, several times that in
    /// single rows, which is too much to leave to backends. Rows for kFp8 may be, which moves a
    /// value to a neighbour in e4m3 once in 30. Default: two linears, glu_input; glu, round_gated,
    /// prepare where kNvfp4 is wanted.
    virtual GemmInput linear_glu(Exec& ex,
                                 const GemmInput& x,
                                 const Weight& gate,
                                 const Weight& up,
                                 Glu kind,
                                 ActWants wants);

    // ---- rows ----
    /// out[.., i] = x[.., i] / sqrt(mean_i(x^2) + eps) * gain[i]. x, out F32 with 2 to 4 axes,
    /// outer strides free; gain F32 [cols] or absent (1). Mean in f64 or as precise. In place
    /// allowed.
    virtual void rms_norm(
        Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) = 0;

    /// rms_norm ready for `wants`. Default: rms_norm, prepare.
    virtual GemmInput rms_norm_input(
        Exec& ex, const Tensor& x, const Tensor& gain, float eps, ActWants wants);

    /// out = act(gate) * up, all of one shape (2 or 3 axes, outer strides free); out may be gate or
    /// up.
    virtual void glu(
        Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) = 0;

    /// glu of [T, N] or [T, H, d] ready for `wants` as [T, N] (N = H * d). Default: glu, prepare.
    virtual GemmInput glu_input(
        Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants);

    /// x[.., i] /= sqrt(sum_i x^2 + eps) in place, x F32 with 2 to 4 axes, outer strides free.
    virtual void l2_norm(Exec& ex, const Tensor& x, float eps) = 0;

    /// out = a + b, all of one shape (2 to 4 axes, outer strides free); out may be a or b.
    virtual void add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) = 0;

    /// out[.., i] = exp(scale x_i - m) / sum, m = max_j(scale x_j): softmax over the last axis of
    /// [T, N]; columns
    /// >= visible[t] (I32 [T], or absent: all visible) count as -inf and become 0. visible >= 1. In
    /// place allowed.
    virtual void softmax(
        Exec& ex, const Tensor& x, const Tensor& visible, float scale, const Tensor& out) = 0;

    /// Rotates the heads of x [T, H, d] in place by positions I32 [T], or [T, 3] (temporal, height,
    /// width) when params.sections are set. freq_factors F32 [rotary/2] or absent (1).
    virtual void rope(Exec& ex,
                      const Tensor& x,
                      const Tensor& positions,
                      const Tensor& freq_factors,
                      const RopeParams& params) = 0;

    /// Element-wise conversion of one shape (1 to 4 axes) between strides and DTypes, including to
    /// and from the block formats (rows along the last axis, quantize_row with kAmax6). f32 ->
    /// f16/bf16/f8_e4m3 round to nearest even, f8_e4m3 saturates at 448 (a NaN stays NaN); float ->
    /// integer rounds to nearest even and saturates, NaN gives 0; integer -> narrower integer
    /// saturates. F64 and integers may pass through f32 to and from narrower floats.
    virtual void copy(Exec& ex, const Tensor& from, const Tensor& to) = 0;

    /// Joins a and b along `axis`; same dtype (plain), rank and other extents; strides free.
    virtual void concat(
        Exec& ex, const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out) = 0;

    /// out[i, :] = x[ids[i], :]; x F32 [T, N], ids I32 [M], out [M, N].
    virtual void gather_rows(Exec& ex, const Tensor& x, const Tensor& ids, const Tensor& out) = 0;

    /// Makes the batch of the next generated token out of that of the last one, a row a sequence:
    /// tokens[i] = ids[i], positions[i] += 1; all I32 [T], contiguous. What else a batch says has
    /// to stay true. Default: on the host.
    virtual void advance_batch(Exec& ex, const Tensor& ids, const Batch& batch);

    // ---- attention ----
    /// Writes k and v [T, Hkv, d] of every row to its page (f32 to the cache's dtype, round to
    /// nearest even).
    virtual void kv_store(
        Exec& ex, const Tensor& k, const Tensor& v, const Batch& batch, const KvView& cache) = 0;

    /// Optional per-head RMS norm of q and k (gain [d] each, or absent), rope on both, kv_store. q
    /// rotated in place; k is undefined afterwards. Default: rms_norm, rope, kv_store; an override
    /// gives the same bits.
    struct QkvRope {
        Tensor q_gain, k_gain;  ///< F32 [d] or absent
        float eps = 0.0f;
        RopeParams rope;
        Tensor freq_factors;
    };
    virtual void qk_norm_rope_store(Exec& ex,
                                    const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const QkvRope& how,
                                    const Batch& batch,
                                    const KvView& cache);

    /// Causal attention of q [T, H, d] over the stored keys 0..position of each row's own sequence
    /// (kv_store came before). Query head h reads kv head h / (H / Hkv). out [T, H * d] F32; may be
    /// q. params.sinks, where given, add exp(sink - m) to the denominator of their head, m the
    /// largest score or the sink.
    /// Softmax in f32, sums in f32 or better; the order of summation depends on absolute key
    /// positions only. The form for prompt rows may round its operands (q, k, v and the
    /// probabilities) to bf16; the CPU backend does so on AMX where d is a multiple of 32.
    virtual void attention(Exec& ex,
                           const Tensor& q,
                           const Batch& batch,
                           const KvView& cache,
                           const AttentionParams& params,
                           const Tensor& out) = 0;

    // ---- recurrence (gated delta net, arXiv 2412.06464) ----
    /// Causal depthwise convolution and SiLU: y[t, c] = sum_{i < W} taps[c, i] u[t - W + 1 + i, c],
    /// out = y / (1 + exp(-y)), over each sequence on its own, continued from memory.conv, which
    /// then holds the last W - 1 inputs (also when fewer rows came). u, out [T, C], row strides
    /// free; taps F32 [C, W], 2 <= W <= 8. f32, summed in the order of i.
    virtual void causal_conv(Exec& ex,
                             const Tensor& u,
                             const Tensor& taps,
                             const Batch& batch,
                             const RecurrentView& memory,
                             const Tensor& out) = 0;

    /// log_decay[t, h] = softplus(a[t, h] + bias[h]) * rate[h], beta[t, h] = 1 / (1 + exp(-b[t,
    /// h])). softplus(x) = x > 20 ? x : log1p(exp(x)). rate = -exp(A_log) <= 0; bias, rate [H]. A
    /// product inf * 0 counts as 0. In place: log_decay may be a, beta may be b.
    virtual void delta_gates(Exec& ex,
                             const Tensor& a,
                             const Tensor& b,
                             const Tensor& bias,
                             const Tensor& rate,
                             const Tensor& log_decay,
                             const Tensor& beta) = 0;

    /// What stands between the projections and the gated delta rule: causal_conv of u [T, C] to qkv
    /// [T, C], l2_norm of its columns of q and k, which come first (key_heads heads of key_size
    /// each; values behind them), and delta_gates in place: log decays replace a [T, H], betas
    /// replace b [T, H]. Default: causal_conv, l2_norm, delta_gates; an override gives the same
    /// bits.
    struct DeltaNetInput {
        Tensor taps;        ///< F32 [C, W]
        Tensor bias, rate;  ///< F32 [H]
        float eps = 0.0f;   ///< of the L2 norms
        int64_t key_heads = 0;
        int64_t key_size = 0;
    };
    virtual void delta_net_input(Exec& ex,
                                 const Tensor& u,
                                 const Tensor& a,
                                 const Tensor& b,
                                 const DeltaNetInput& how,
                                 const Batch& batch,
                                 const RecurrentView& memory,
                                 const Tensor& qkv);

    /// What the chunk form of gated_delta_rule multiplies: kF16 or kBF16 if rounded, else kF32.
    virtual DType delta_rule_operands() const { return DType::kF32; }
    /// Gated delta rule. Per value head h with key head h % Hk and state S [dv, dk] of the slot:
    ///   S <- exp(log_decay) S;  d = beta (v - S k);  S <- S + d k^T;  out = S q / sqrt(dk).
    /// q, k [T, Hk, dk] (already normalised), v [T, Hv, dv], log_decay <= 0 and beta [T, Hv], out
    /// [T, Hv, dv]; row and head strides free. Hv % Hk == 0. Generated rows run this recurrence,
    /// each on its own, so that the result does not depend on how many come at once. Prompt rows
    /// may run the chunk form: in chunks of kChunkTokens at absolute multiples of it, cut short at
    /// the ends of the rows; with G the inclusive running sum of log_decay inside the chunk,
    ///   (I + L) D = beta (V - exp(G) K S^T),  L_ij = beta_i exp(G_i - G_j) k_i.k_j (i > j),
    ///   out_i = (exp(G_i) S q_i + sum_{j <= i} exp(G_i - G_j) (q_i.k_j) D_j) / sqrt(dk),
    ///   S <- exp(G_C) S + sum_j exp(G_C - G_j) D_j k_j^T;
    /// only differences of G are ever exponentiated. Everything in f32 or better; the chunk form
    /// may multiply operands split into two bf16 numbers as long as it stays within 1e-5 (relative
    /// L2) of the recurrence. The CPU backend does so on AMX unless activations are f32. Where
    /// delta_rule_operands() is kF16, it multiplies operands rounded to f16 (sums and states in
    /// f32, operands beyond 65504 saturate): 1e-3 of the recurrence, 5e-3 where keys repeat, or
    /// change slowly, without decay. Where it is kBF16, operands rounded to bf16, which have the
    /// range of f32: 8e-3, or 4e-2.
    virtual void gated_delta_rule(Exec& ex,
                                  const Tensor& q,
                                  const Tensor& k,
                                  const Tensor& v,
                                  const Tensor& log_decay,
                                  const Tensor& beta,
                                  const Batch& batch,
                                  const RecurrentView& memory,
                                  const Tensor& out) = 0;

    /// Makes the first counts[s] rows of the last tentative batch of slots[s] (I32 [S] both) part
    /// of the recurrent memory, bit for bit as if they had been decoded one by one.
    virtual void accept_recurrent(Exec& ex,
                                  const Tensor& slots,
                                  const Tensor& counts,
                                  const RecurrentView& memory) = 0;

    /// rms_norm(x) * gain * silu(z), ready for `wants` as [T, H * d]. x, z [T, H, d], gain [d].
    /// Default: rms_norm, glu_input(kSwiGlu).
    virtual GemmInput gated_rms_norm_input(
        Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& z, ActWants wants);

    // ---- experts ----
    /// ids I32 [T, k], weights F32 [T, k] of logits [T, E]; bias F32 [E] or absent. NaN logits
    /// count as -inf (weight 0; a row of nothing else is uniform under softmax), so that every id
    /// is valid.
    virtual void route(Exec& ex,
                       const Tensor& logits,
                       const Tensor& bias,
                       const RouteParams& params,
                       const Tensor& ids,
                       const Tensor& weights) = 0;

    /// Groups ids I32 [T, k] by expert (stable). Lives in ex.arena. Ids may repeat within a token.
    /// UserError(kFailure) names an id outside [0, experts).
    virtual ExpertWork group_experts(Exec& ex, const Tensor& ids, int32_t experts) = 0;

    /// out[p, :] = outer_scale[e] * W_e x_r for every pair p of expert e; r = p when x has a row
    /// per pair, r = p / k when it has one per token. out [T * k, N] F32. ex.prompt_rows counts
    /// tokens. Sums as `linear`.
    virtual void linear_experts(Exec& ex,
                                const GemmInput& x,
                                const ExpertWork& work,
                                const Weight& weight,
                                const Tensor& out) = 0;

    /// act(Wg_e x) * (Wu_e x) per pair, ready for `wants` with a row per pair, rounded as
    /// linear_glu. Default: two linear_experts, then as linear_glu.
    virtual GemmInput linear_experts_glu(Exec& ex,
                                         const GemmInput& x,
                                         const ExpertWork& work,
                                         const Weight& gate,
                                         const Weight& up,
                                         Glu kind,
                                         ActWants wants);

    /// out[t] (+)= sum_j weights[t, j] y[t * k + j], j ascending, f32. y [T * k, N], weights
    /// [T, k].
    virtual void combine(Exec& ex,
                         const Tensor& y,
                         const Tensor& weights,
                         const Tensor& out,
                         Accumulate accumulate) = 0;

    // ---- choosing tokens ----
    /// ids[t] = lowest index of the largest logit of row t. NaN never wins; a row of only NaN gives
    /// -1.
    virtual void argmax(Exec& ex, const Tensor& logits, const Tensor& ids) = 0;

    /// Draws ids[t] from row t by params[t]; `history[t]` are the recent tokens that the penalties
    /// see and `uniforms[t]` in [0, 1) is the random number of this draw (inverse CDF over the kept
    /// tokens in order of falling probability, ties by id). logits [T, V] are not changed. A row
    /// with a NaN gives -1.
    virtual void sample(Exec& ex,
                        const Tensor& logits,
                        std::span<const SampleParams> params,
                        std::span<const std::span<const int32_t>> history,
                        std::span<const float> uniforms,
                        const Tensor& ids) = 0;

  protected:
    /// The rounding that linear_glu promises: of the prompt rows of `gated`, F32 [T, N], to bf16
    /// where kNvfp4 or kFp4 is wanted of them.
    void round_gated(Exec& ex, const Tensor& gated, ActWants wants);

  private:
    /// The end of linear_glu: of products with gate, which is overwritten, and up.
    GemmInput join(Exec& ex, const Tensor& gated, const Tensor& other, Glu kind, ActWants wants);
};

}  // namespace tessera
