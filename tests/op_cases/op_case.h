#pragma once
// Op cases as data: an op, its shapes and formats, and a seed. The tests, `tessera test-ops test`
// and `tessera test-ops perf` run the same list. Names follow llama.cpp's test-backend-ops where it
// has the op: m = rows of the weight, n = tokens, k = length of the sum.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/ops.h"

namespace tessera::op_cases {

/// Rows: prompt_rows of them are prompt rows, the others generated rows.
struct LinearCase {
    DType weight = DType::kF32;
    int64_t n = 16;
    int64_t k = 256;
    int32_t t = 1;
    int32_t prompt_rows = 0;
    bool bias = false;
    bool add = false;
    int64_t padding = 0;       ///< floats between two rows of out
    float outer_scale = 1.0f;  ///< second-level scale of the weight
    float magnitude = 1.0f;    ///< activations are uniform in [-magnitude, magnitude]
    bool spread = false;       ///< rows and blocks of the weight differ by powers of two
};

enum class FusedKind : uint8_t {
    kLinearGlu,
    kLinearMany,
    kRmsNormInput,
    kPrepare,
    kGluInput,          ///< [t, k / head, head]
    kGatedRmsNormInput  ///< [t, k / head, head]
};

/// Ops with a default body, and prepare; `weight` decides the activation formats that are wanted.
struct FusedCase {
    FusedKind kind = FusedKind::kLinearGlu;
    DType weight = DType::kF32;
    int64_t n = 64;
    int64_t k = 256;
    int32_t t = 1;
    int32_t prompt_rows = 0;
    Glu glu = Glu::kSwiGlu;
    float magnitude = 1.0f;
    int64_t head = 64;
    std::optional<DType> last{};  ///< kLinearMany: format of the last of the three weights
    bool spread = false;          ///< kPrepare: blocks of 16 of x are of many sizes
};

enum class InPlace : uint8_t { kNo, kFirst, kSecond };

struct NormCase {
    std::vector<int64_t> shape;
    int64_t padding = 0;
    float eps = 1e-5f;
    bool gain = true;
    InPlace in_place = InPlace::kNo;
};

struct AddCase {
    std::vector<int64_t> shape;
    int64_t padding = 0;
    InPlace in_place = InPlace::kNo;
};

struct GluCase {
    int32_t t = 1;
    int64_t n = 64;
    int32_t heads = 0;  ///< > 0: [t, heads, n] instead of [t, n]
    int64_t padding = 0;
    Glu kind = Glu::kSwiGlu;
    InPlace in_place = InPlace::kNo;
    float magnitude = 150.0f;
};

struct SoftmaxCase {
    int32_t t = 1;
    int64_t n = 64;
    int64_t padding = 0;
    bool visible = false;
    float scale = 1.0f;
    InPlace in_place = InPlace::kNo;
    float magnitude = 1.0f;
};

struct RopeCase {
    int32_t t = 1;
    int32_t heads = 1;
    int64_t head_size = 64;
    int64_t padding = 0;
    RopeParams params{};
    bool factors = false;
    int32_t first_position = 0;
    bool axes = false;  ///< three positions a token instead of one
};

struct CopyCase {
    std::vector<int64_t> shape;
    DType from = DType::kF32;
    DType to = DType::kF32;
    int64_t from_padding = 0;
    int64_t to_padding = 0;
};

struct ConcatCase {
    std::vector<int64_t> shape;
    int32_t axis = 0;
    int64_t extra = 7;  ///< extent of the second operand along `axis`
    DType dtype = DType::kF32;
    int64_t padding = 0;
};

/// gather_rows of F32 rows, or embed when `table` is set.
struct GatherCase {
    bool embed = false;
    DType table = DType::kF32;
    int64_t rows = 100;
    int64_t cols = 256;
    int32_t t = 1;
    int64_t padding = 0;
    float outer_scale = 1.0f;
};

/// `count` new tokens of a sequence that already holds `first`.
struct Run {
    int32_t first = 0;
    int32_t count = 1;
};

enum class PagedKind : uint8_t { kStore, kQkNormRopeStore, kAttention };

/// What kAttention finds at one token of its first sequence, in all kv heads but the last of
/// several.
enum class Poison : uint8_t {
    kNone,
    kInfinity,  ///< both infinities; formats without: NaN
    kNan
};

/// Ops on key/value pages. The first `prompt_runs` sequences are prompts.
struct PagedCase {
    PagedKind kind = PagedKind::kAttention;
    int32_t heads = 4;
    int32_t kv_heads = 4;
    int64_t head_size = 64;
    DType type_k = DType::kF16;
    DType type_v = DType::kF16;
    std::vector<Run> runs{};
    int32_t prompt_runs = 0;
    int64_t padding = 0;
    int32_t window = 0;
    float softcap = 0.0f;
    bool in_place = false;  ///< kAttention: out is q; padding 0
    bool sinks = false;     ///< kAttention
    Poison poison_k = Poison::kNone;
    Poison poison_v = Poison::kNone;
    int32_t poison_at = 0;  ///< position of that token
    bool norm = true;       ///< kQkNormRopeStore: with gains
    RopeParams rope{};      ///< kQkNormRopeStore
};

/// Sequences in slots of recurrent memory, whose other slots stay poisoned, as does the slot of a
/// sequence that starts at position 0. The first `prompt_runs` runs are prompts.
struct MemoryCase {
    std::vector<Run> runs{};
    int32_t prompt_runs = 0;
    std::vector<int32_t> saves{};   ///< per run the position to be saved, 0: none; may be shorter
    std::vector<int32_t> accept{};  ///< not empty: a tentative batch, then so many rows of each run
};

struct ConvCase {
    int64_t channels = 64;
    int32_t taps = 4;
    MemoryCase memory{};
    int64_t padding = 0;
};

/// Channels: of q and k, then of v.
struct DeltaInputCase {
    int64_t key_heads = 2;
    int64_t key_size = 64;
    int64_t heads = 4;
    int64_t size = 64;
    int32_t taps = 4;
    MemoryCase memory{};
    int64_t padding = 0;
    float magnitude = 2.0f;  ///< of u, a, b and bias
    int64_t channels() const { return 2 * key_heads * key_size + heads * size; }
};

struct L2NormCase {
    std::vector<int64_t> shape;
    int64_t padding = 0;
    float eps = 1e-6f;
    float magnitude = 1.0f;
};

struct GatesCase {
    int32_t t = 1;
    int64_t heads = 16;
    int64_t padding = 0;
    float magnitude = 4.0f;  ///< of a, b and bias
    float largest_a_log = 3.0f;
};

enum class Decay : uint8_t {
    kWeak,       ///< log decay in (-0.1, 0)
    kNone,       ///< 0
    kStrong,     ///< -30
    kVanishing,  ///< ln 1e-12
    kBeyondExp,  ///< in (-300, -88), whose exp is 0 or denormal
    kWide,       ///< ln of uniform (0.01, 1)
    kMixed       ///< any of these and -infinity
};
enum class Beta : uint8_t { kUniform, kZero, kOne };
enum class Keys : uint8_t {
    kRandom,
    kSame,
    kNearlySame,
    kZeroRows,
    kAlike,   ///< half of the square of each in one direction
    kTurning  ///< each like the one before, unlike those far before
};

struct DeltaCase {
    int64_t key_heads = 2;
    int64_t heads = 4;
    int64_t key_size = 64;
    int64_t size = 64;
    MemoryCase memory{};
    Decay decay = Decay::kWide;
    Beta beta = Beta::kUniform;
    Keys keys = Keys::kRandom;
    int64_t padding = 0;
};

enum class Logits : uint8_t {
    kRandom,    ///< uniform in [-8, 8]
    kTies,      ///< few distinct values
    kNanRows,   ///< every other row holds a NaN
    kAllNan,    ///< every other row holds nothing else
    kMasked,    ///< most are -infinity
    kConstant,  ///< all equal
    kPeaked     ///< one far above the others
};

/// Which experts the tokens of an ExpertCase choose.
enum class Ids : uint8_t {
    kDistinct,  ///< random, no expert twice in a token
    kRepeated,  ///< random, with repetitions inside a token
    kOne,       ///< the last expert for all
    kEvens      ///< every other expert stays empty
};

/// Products of grouped rows; `gated`: linear_experts_glu.
struct ExpertCase {
    bool gated = false;
    DType weight = DType::kF32;
    int64_t n = 32;
    int64_t k = 256;
    int32_t experts = 8;
    int32_t choices = 2;
    int32_t t = 1;
    int32_t prompt_rows = 0;
    bool per_pair = false;  ///< a row of x per pair, not per token
    Ids ids = Ids::kDistinct;
    bool scales = false;  ///< a second-level scale per expert
    int64_t padding = 0;
    Glu glu = Glu::kSwiGlu;
    float magnitude = 1.0f;
};

struct RouteCase {
    int32_t t = 1;
    int32_t experts = 8;
    int32_t choices = 2;
    bool sigmoid = false;
    bool normalize = true;
    bool bias = false;
    float scale = 1.0f;
    Logits logits = Logits::kRandom;
    int64_t padding = 0;
};

struct CombineCase {
    int32_t t = 1;
    int32_t choices = 2;
    int64_t n = 256;
    bool add = false;
    int64_t padding = 0;
};

struct ArgmaxCase {
    int32_t t = 1;
    int64_t vocabulary = 1000;
    Logits logits = Logits::kRandom;
    int64_t padding = 0;
};

struct SampleCase {
    int32_t t = 4;
    int64_t vocabulary = 1000;
    Logits logits = Logits::kRandom;
    SampleParams params{};
    int32_t history = 0;  ///< recent tokens per row, likely ones among them
    bool mixed = false;   ///< every row has parameters of its own
};

using Shape = std::variant<LinearCase,
                           FusedCase,
                           NormCase,
                           AddCase,
                           GluCase,
                           SoftmaxCase,
                           RopeCase,
                           CopyCase,
                           ConcatCase,
                           GatherCase,
                           PagedCase,
                           ConvCase,
                           DeltaInputCase,
                           L2NormCase,
                           GatesCase,
                           DeltaCase,
                           ExpertCase,
                           RouteCase,
                           CombineCase,
                           ArgmaxCase,
                           SampleCase>;

struct OpCase {
    Shape shape;
    uint64_t seed = 0;
};

/// "MUL_MAT".
std::string_view op_name(const OpCase& op_case);
/// "MUL_MAT(type=NVFP4,m=16,n=1,k=256,...)".
std::string case_name(const OpCase& op_case);

/// Floating-point operations and bytes (operands read and written once) of one run.
struct Cost {
    double flops = 0;
    double bytes = 0;
};
Cost case_cost(const OpCase& op_case);

/// Appends a case with a seed of its own. Not inline: the lists would take minutes to compile.
void append(std::vector<OpCase>& cases, Shape shape);

/// What the tests run: about 2,500 cases, edge sizes above all.
std::vector<OpCase> all_cases();
/// Sizes of real models for `test-ops perf`.
std::vector<OpCase> perf_cases();

/// The parts of all_cases(), in its order.
void add_linear_cases(std::vector<OpCase>& cases);
void add_row_cases(std::vector<OpCase>& cases);
void add_data_cases(std::vector<OpCase>& cases);
void add_paged_cases(std::vector<OpCase>& cases);
void add_recurrent_cases(std::vector<OpCase>& cases);
void add_choice_cases(std::vector<OpCase>& cases);
void add_expert_cases(std::vector<OpCase>& cases);
/// More of perf_cases() for a card: prompts of thousands of tokens.
void add_card_perf_cases(std::vector<OpCase>& cases);
/// The part of perf_cases() with experts.
void add_expert_perf_cases(std::vector<OpCase>& cases);
/// The part of perf_cases() with recurrent memory.
void add_recurrent_perf_cases(std::vector<OpCase>& cases);

}  // namespace tessera::op_cases
