#pragma once
// The public face of the library: load a model once, hold any number of sequences, run batches of
// their tokens.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "ops/ops.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {

/// Called as a long operation advances, from the calling thread: what, done and total units (bytes
/// or tokens).
using ProgressFn = std::function<void(std::string_view what, int64_t done, int64_t total)>;

/// `--act`: how activations enter matrix products. kAuto picks the backend's best exact-weight
/// path.
enum class ActPolicy : uint8_t { kAuto, kF32, kBF16, kInt8, kNvfp4, kFp8 };

/// Of --act nvfp4 unless --act-policy says otherwise: docs/measurements.md, "Activations side by
/// side".
inline constexpr Nvfp4Policy kActNvfp4 = Nvfp4Policy::kSearch;

inline constexpr int32_t kAllLayers = INT32_MAX;

/// What a card runs though it has better kernels: what cards of compute capability 12.x run.
enum class Emulation : uint8_t {
    kNone,
    kGeneral,  ///< all kernels, but no products of FP4 tensor cores
    kFp4,      ///< those too, the instruction made of others on Hopper: slow, to check them
};

struct BackendOptions {
    /// "cpu", "reference", "cuda" (the card `device`), "CUDA0", ..., or "auto": a card where there
    /// is one, else the CPU.
    std::string name = "cpu";
    int32_t device = 0;   ///< card of "cuda" and "auto"
    int32_t threads = 0;  ///< 0: one per physical core
    ActPolicy act = ActPolicy::kAuto;
    Nvfp4Policy act_nvfp4 = kActNvfp4;  ///< how ActPolicy::kNvfp4 rounds
    std::string isa;  ///< CPU kernels at most this good: "scalar", "avx2", "avx512", "amx", "neon";
                      ///< "" = best
    /// Layers on a card: all or none (then "auto" is the CPU). UserError(kUsage) by Engine for a
    /// number between, as partial offload does not exist.
    int32_t gpu_layers = kAllLayers;
    /// CUDA. kFp4 is for `act` kNvfp4, which kAuto then is, kGeneral not for kFp8;
    /// UserError(kUsage) otherwise, on the CPU, and for kFp4 where no Hopper card computes.
    Emulation emulate = Emulation::kNone;
    bool delta_bf16 = false;   ///< CUDA: bf16 operands in the gated delta rule, not f16
    bool poison = false;       ///< CUDA: fresh memory is 0xFF, not 0
    bool synchronous = false;  ///< CUDA: wait after every kernel, so that a fault names it
    /// Called with a line for the user where something else runs than was to be expected: "auto"
    /// leaves a card of this machine alone and why, or a card failed its self-test and what takes
    /// the place of the products that it got wrong.
    std::function<void(std::string_view)> note{};
};

/// The one factory of backends. UserError(kUsage) for an unknown name, naming the nearest known
/// one.
std::unique_ptr<Ops> make_ops(const BackendOptions& options);

struct EngineOptions {
    std::string model_path;
    BackendOptions backend;
    int32_t context = 0;    ///< tokens of each sequence; 0: the model's own
    int32_t batch = 2048;   ///< tokens that one decode() accepts
    int32_t ubatch = 512;   ///< tokens of one forward pass
    int32_t sequences = 1;  ///< sequences that may be open at a time
    /// States kept of each sequence of a recurrent model, at multiples of kChunkTokens of its
    /// prompt: how far back rewind() may go. Other models need none.
    int32_t checkpoints = 0;
    /// Tokens that may be drafted at a time by multi-token prediction; 0: off. UserError(kModel)
    /// for a model without the block.
    int32_t draft_max = 0;
    DType type_k = DType::kF16;
    DType type_v = DType::kF16;
    bool load_text = true;           ///< tokenizer and chat template; benchmarks may go without
    int64_t memory_limit_bytes = 0;  ///< 0: what the machine has available
    ProgressFn progress;
};

/// Where memory goes, known before anything is loaded.
struct MemoryPlan {
    int64_t weight_bytes = 0;
    int64_t kv_bytes = 0;
    int64_t state_bytes = 0;    ///< recurrent memory with its checkpoints
    int64_t compute_bytes = 0;  ///< arena of one forward pass, logits included
    /// On a card: what the driver rounds up, buffers of the upload, kernels and recordings.
    int64_t reserve_bytes = 0;
    int64_t total() const {
        return weight_bytes + kv_bytes + state_bytes + compute_bytes + reserve_bytes;
    }
};

/// The plan of an Engine with these options (context and the like defaulted as it would), without
/// loading anything and without asking whether it fits. UserError as the constructor of Engine, but
/// for kMemory.
MemoryPlan plan_memory(const EngineOptions& options, const GgufFile& file);

/// The state of one conversation: its key/value pages and how many tokens they hold. Created by
/// Engine; moves only.
class Sequence {
  public:
    Sequence() = default;
    Sequence(Sequence&& other) noexcept;
    Sequence& operator=(Sequence&& other) noexcept;
    ~Sequence();
    int32_t length() const { return length_; }

  private:
    friend class Engine;
    struct Checkpoint {
        int32_t slot = 0;
        int32_t position = 0;
        int32_t skipped = 0;  ///< skipped_ there
    };
    class Engine* engine_ = nullptr;
    std::vector<int32_t> pages_;
    int32_t length_ = 0;
    int32_t slot_ = -1;                    ///< in the state pool
    std::vector<Checkpoint> checkpoints_;  ///< rising positions
    // Drafting: hidden states of the newest `recent_` positions that the draft block has not seen,
    // and the tokens behind all but the last of them.
    int32_t recent_ = 0;
    std::vector<int32_t> recent_tokens_;
    int32_t skipped_ = 0;             ///< tokens that the draft block never saw
    bool lost_ = false;               ///< the hidden state of the last token was not kept
    std::vector<int32_t> tentative_;  ///< tokens of the last tentative decode()
};

/// One sequence's share of a batch. Prompt rows and generated rows go through different kernel
/// families (ops/exec.h).
struct SequenceInput {
    Sequence* sequence = nullptr;
    std::span<const int32_t> tokens;
    bool generated = false;  ///< tokens were drawn by us, not given
    /// Generated tokens that are only guesses: the sequence keeps its length and state until
    /// accept(). All or none of the inputs of one decode().
    bool tentative = false;
    /// Generated tokens (at least one) that the draft block need not see, nor those that wait for
    /// it: later guesses are made as if they had not been. That makes guesses worse, never the
    /// answer. Nothing is done for the block: the token behind them cannot be drafted from, and it
    /// is not seen either when it is a generated one.
    bool unseen = false;
    enum class Logits : uint8_t { kNone, kLast, kAll } logits = Logits::kLast;
};

class Engine {
  public:
    /// Plans memory, then loads. UserError: kModel for the file, kMemory with the numbers when the
    /// plan does not fit.
    explicit Engine(const EngineOptions& options);
    /// The same around a model already described in memory (`bench --synth`, tests).
    Engine(const EngineOptions& options, GgufFile file);
    ~Engine();

    const ModelInfo& info() const;
    const MemoryPlan& plan() const;
    Ops& ops();
    const EngineOptions& options() const;  ///< with the defaults filled in
    /// In which format prompt rows meet most of the model's matrices: what ActPolicy::kAuto, or a
    /// format that not all weights take, came to.
    ActFormat prompt_act() const;
    const Tokenizer& tokenizer() const;
    /// The model's chat template, or nullptr.
    const ChatTemplate* chat_template() const;

    /// UserError(kFailure) when all `sequences` are open.
    Sequence new_sequence();
    /// Forgets all tokens from `length` on (0: everything), and as many before it as a recurrent
    /// model needs to go on with a prompt as if it had been run in one piece: down to a checkpoint.
    /// Returns the length that is left.
    int32_t rewind(Sequence& sequence, int32_t length);

    /// Runs the tokens of all inputs, cut into passes of `ubatch` rows, and appends them to their
    /// sequences. Returns the wanted rows of logits [rows, vocab] F32, inputs in order, where the
    /// backend has them (see on_host()); valid until the next decode(). UserError(kFailure):
    /// context full (with both numbers), token id out of range. `progress` may throw to cancel:
    /// then the sequences are rewound to their old length.
    Tensor decode(std::span<const SequenceInput> inputs, const ProgressFn& progress = {});

    /// Keeps the first `count` (at least 1) tokens of the sequence's last tentative decode().
    void accept(Sequence& sequence, int32_t count);

    /// One guess for each sequence by multi-token prediction: logits [steps, vocab] of the token
    /// behind `token`, which stands at position length() + ahead. `ahead` counts 0, 1, 2, ... from
    /// the newest token, which is not decoded yet and does not stand behind an unseen one. Valid
    /// until the next draft().
    struct DraftStep {
        Sequence* sequence = nullptr;
        int32_t token = 0;
        int32_t ahead = 0;
    };
    Tensor draft(std::span<const DraftStep> steps);

    /// What a round with one guess is expected to take beyond a step of one token, in such steps: a
    /// rough figure from the sizes of the weights.
    double guess_cost() const;

    /// Tokens that the draft block has not seen. Of generated ones only a few dozen wait: of more
    /// the oldest are skipped, and later guesses are made as if they had not been. That makes
    /// guesses worse, never the answer.
    int32_t waiting(const Sequence& sequence) const;
    /// Lets the draft block see what waits, in less time than draft() would take for it.
    void follow(Sequence& sequence);

    /// A hash over all that the sequence remembers of its tokens (keys, values, recurrent state;
    /// not what only drafting uses), for tests.
    uint64_t memory_hash(const Sequence& sequence) const;

    /// Logits (of decode() or draft()) as the host can read them, valid until the next call.
    Tensor on_host(const Tensor& logits);
    /// Whether a device may replay recordings of its ops (on at first). Op counts and times need it
    /// off.
    void set_recording(bool on);
    /// Returns when everything that was asked for is computed.
    void wait();
    /// Chooses one token per row of `logits` on the backend; see Ops::sample. -1 marks a row with
    /// NaN.
    std::vector<int32_t> sample(const Tensor& logits,
                                std::span<const SampleParams> params,
                                std::span<const std::span<const int32_t>> history,
                                std::span<const float> uniforms);

  private:
    friend class Sequence;
    friend MemoryPlan plan_memory(const EngineOptions& options, const GgufFile& file);
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
