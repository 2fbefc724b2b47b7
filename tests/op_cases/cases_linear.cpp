// The products. Each sweep guards against one kind of fault; sizes stay small, so that the whole
// list takes seconds.
#include <algorithm>
#include <iterator>
#include <utility>

#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

constexpr DType kFormats[] = {DType::kF32,  DType::kF16,   DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                              DType::kQ5_0, DType::kQ5_1,  DType::kQ8_0, DType::kQ4_K, DType::kQ5_K,
                              DType::kQ6_K, DType::kMXFP4, DType::kNVFP4};
constexpr int32_t kTokens[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   15,  16,
                               17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512};

bool fits(DType format, int64_t k) {
    return k % dtype_info(format).block_elements == 0;
}

void add(std::vector<OpCase>& cases, const LinearCase& shape) {
    append(cases, shape);
}

/// Tile and remainder faults along the tokens, for generated and for prompt rows; the second also
/// over a K of several blocks, with a bias behind the outer scale.
void token_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats) {
        const int64_t k = fits(format, 576) ? 576 : 768;
        for (const int32_t t : kTokens) {
            add(cases, {.weight = format, .n = 16, .k = 256, .t = t});
            add(cases, {.weight = format,
                        .n = 17,
                        .k = t > 100 ? 256 : k,
                        .t = t,
                        .prompt_rows = t,
                        .bias = true,
                        .outer_scale = 0.37f});
        }
    }
}

/// Tile and remainder faults along the rows of the weight, and shares of the threads.
void height_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats)
        for (const int64_t n : {1, 2, 15, 17, 31, 33, 48, 65, 96, 576})
            for (const int32_t t : {1, 5, 16})
                add(cases, {.weight = format,
                            .n = n,
                            .k = 256,
                            .t = t,
                            .prompt_rows = n % 2 == 0 ? t : 0,
                            .padding = n % 3});
    for (const DType format : kFormats)
        for (const int32_t t : {1, 4})
            add(cases,
                {.weight = format, .n = 2880, .k = 256, .t = t, .prompt_rows = t == 4 ? 4 : 0});
}

/// Remainders along K; 2880 is no multiple of 256 or 512.
void depth_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats)
        for (const int64_t k : {32, 64, 96, 128, 512, 576, 1024, 1536, 2816, 2880})
            for (const int32_t t : {1, 3, 33})
                if (fits(format, k))
                    add(cases, {.weight = format,
                                .n = 24,
                                .k = k,
                                .t = t,
                                .prompt_rows = t == 3 ? 0 : t,
                                .padding = 1});
    for (const DType format : {DType::kF32, DType::kF16, DType::kBF16})
        for (const int64_t k : {1, 7, 31, 33, 129, 1057})
            for (const int32_t t : {1, 2, 17})
                for (const bool prompt : {false, true})
                    add(cases,
                        {.weight = format, .n = 19, .k = k, .t = t, .prompt_rows = prompt ? t : 0});
}

/// Prompt rows and weights of few features: K in shares of several units and in shares of none, the
/// last unit of a step missing; tiles of 16 features that are full, begun and absent.
void narrow_sweep(std::vector<OpCase>& cases) {
    constexpr int64_t kFeatures[] = {1, 3, 16, 48, 49, 64, 96, 128};
    constexpr int32_t kRows[] = {1, 2, 17, 64, 300};
    constexpr int64_t kDepths[] = {1056, 1280, 288, 2880};
    size_t turn = 0;
    for (const DType format : kFormats) {
        for (const int64_t n : kFeatures) {
            for (const size_t other : {0, 2}) {
                const int64_t k = kDepths[turn % std::size(kDepths)];
                // A few results may by chance all be far below the typical one.
                const int32_t t = kRows[(turn + other) % std::size(kRows)] + (n < 16 ? 16 : 0);
                add(cases, {.weight = format,
                            .n = n,
                            .k = fits(format, k) ? k : 1280,
                            .t = t,
                            .prompt_rows = t,
                            .bias = turn % 2 == 0,
                            .add = turn % 3 == 0,
                            .padding = static_cast<int64_t>(turn % 4),
                            .outer_scale = 0.37f});
            }
            ++turn;
        }
    }
    // Weights of one input, two of which share a format, and all three of them.
    for (const auto& [format, last] : {std::pair{DType::kQ8_0, DType::kQ4_K},
                                       {DType::kQ4_0, DType::kQ8_0},
                                       {DType::kNVFP4, DType::kMXFP4},
                                       {DType::kQ8_0, DType::kQ8_0}})
        for (const int32_t t : {1, 40, 65})
            append(cases, FusedCase{.kind = FusedKind::kLinearMany,
                                    .weight = format,
                                    .n = t == 40 ? 300 : 48,
                                    .k = 1280,
                                    .t = t,
                                    .prompt_rows = t == 65 ? 33 : t,
                                    .last = last});
}

/// Prompt rows and more features than kernels for few of them take, over a K that goes through a
/// ring of stages more than once: a stage that is filled again before it was read, tiles of
/// features and tokens that are begun, the last stage of K in part.
void wide_sweep(std::vector<OpCase>& cases) {
    struct Size {
        int64_t n;
        int32_t t;
        int64_t k;
    };
    constexpr Size kSizes[] = {{300, 9, 1376}, {520, 70, 2880}, {257, 300, 1376}};
    for (const DType format : kFormats)
        for (const Size& size : kSizes)
            for (const bool accumulate : {false, true})
                add(cases, {.weight = format,
                            .n = size.n,
                            .k = fits(format, size.k) ? size.k : 1536,
                            .t = size.t,
                            .prompt_rows = size.t,
                            .bias = !accumulate,
                            .add = accumulate,
                            .padding = accumulate ? 3 : 0,
                            .outer_scale = 0.37f});
}

/// Gated products in one launch: tiles of 64 features and up to 256 tokens, with ends of both, and
/// prompt rows beside others.
void gated_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kMXFP4})
        for (const int32_t t : {1, 64, 95, 161, 300, 600})
            for (const int64_t n : {32, 160, 288})
                append(cases, FusedCase{.weight = format,
                                        .n = n,
                                        .k = t == 600 ? 192 : 576,
                                        .t = t,
                                        .prompt_rows = t % 2 == 1 && t > 1 ? t - 7 : t,
                                        .glu = n == 160 ? Glu::kReGlu : Glu::kSwiGlu});
}

/// Columns of several chunks, whose sums blocks share: also small enough for sanitizers. Prompt and
/// generated rows of gated units, which need memory for such sums and for their results.
void long_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        for (const bool accumulate : {false, true})
            add(cases, {.weight = format,
                        .n = 300,
                        .k = 6016,
                        .t = 9,
                        .prompt_rows = 9,
                        .bias = !accumulate,
                        .add = accumulate,
                        .outer_scale = 0.37f});
        append(cases, FusedCase{.weight = format, .n = 288, .k = 6016, .t = 70, .prompt_rows = 66});
    }
}

/// Prompt and generated rows in one call, with every epilogue.
void mixed_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats)
        for (const int32_t t : {2, 9, 40})
            for (const bool bias : {false, true})
                for (const bool accumulate : {false, true})
                    add(cases, {.weight = format,
                                .n = 33,
                                .k = 256,
                                .t = t,
                                .prompt_rows = t / 2,
                                .bias = bias,
                                .add = accumulate,
                                .padding = 5,
                                .outer_scale = 0.37f});
}

/// Rows far from 1: a scale that is missing, clamped or subnormal shows here.
void magnitude_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kQ8_0, DType::kQ4_K, DType::kBF16})
        for (const float magnitude : {1e-30f, 1e-3f, 2687.0f, 2689.0f, 6e4f, 1e30f})
            for (const bool prompt : {false, true})
                add(cases, {.weight = format,
                            .n = 40,
                            .k = 512,
                            .t = 4,
                            .prompt_rows = prompt ? 4 : 0,
                            .magnitude = magnitude});
}

/// FP4 weights whose scales lie far apart, subnormal ones among them: a factor of a row or a place
/// in a table of scales that is out of range shows here. Rows of zeros beside them.
void spread_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kMXFP4})
        for (const int64_t k : {64, 320, 1088})
            for (const int32_t t : {1, 70, 300})
                add(cases, {.weight = format,
                            .n = k == 320 ? 257 : 129,
                            .k = k,
                            .t = t,
                            .prompt_rows = t == 1 ? 0 : t - t / 100,
                            .bias = t == 70,
                            .add = k == 64,
                            .padding = k == 1088 ? 3 : 0,
                            .outer_scale = 0.37f,
                            .spread = true});
    for (const DType format : {DType::kNVFP4, DType::kMXFP4})
        add(cases, {.weight = format, .n = 40, .k = 192, .t = 5, .prompt_rows = 3, .magnitude = 0});
    // More columns than a tensor core sums in one go, and a last chunk that ends early.
    for (const bool accumulate : {false, true})
        add(cases, {.weight = DType::kMXFP4,
                    .n = 24,
                    .k = 12320,
                    .t = 9,
                    .prompt_rows = 8,
                    .bias = true,
                    .add = accumulate});
    // Rows longer than a block of a card keeps in registers.
    for (const FusedKind fused :
         {FusedKind::kPrepare, FusedKind::kRmsNormInput, FusedKind::kGluInput})
        append(cases, FusedCase{.kind = fused,
                                .weight = DType::kNVFP4,
                                .n = 8,
                                .k = 20736,
                                .t = 3,
                                .prompt_rows = 2});
}

void fused_sweep(std::vector<OpCase>& cases) {
    const auto add_fused = [&](const FusedCase& shape) { append(cases, shape); };
    for (const DType format : kFormats) {
        for (const int32_t t : {1, 2, 7, 16, 33, 65}) {
            const Glu kind = static_cast<Glu>(t % 3);
            const int32_t prompt = t == 7 ? 3 : t > 7 ? t : 0;
            for (const FusedKind fused : {FusedKind::kLinearGlu, FusedKind::kLinearMany,
                                          FusedKind::kRmsNormInput, FusedKind::kPrepare})
                add_fused({.kind = fused,
                           .weight = format,
                           .n = t > 16 ? 64 : 256,
                           .k = 512,
                           .t = t,
                           .prompt_rows = prompt,
                           .glu = kind});
        }
    }
    for (const DType format : {DType::kF32, DType::kBF16, DType::kQ4_0, DType::kNVFP4})
        for (const int32_t t : {1, 5, 33})
            add_fused({.weight = format,
                       .n = 96,
                       .k = 256,
                       .t = t,
                       .prompt_rows = t > 1 ? t - 1 : 0,
                       .glu = Glu::kSigmoid});
    for (const FusedKind fused : {FusedKind::kGluInput, FusedKind::kGatedRmsNormInput})
        for (const DType format : {DType::kF32, DType::kBF16, DType::kQ4_0, DType::kNVFP4})
            for (const Glu kind : {Glu::kSwiGlu, Glu::kSigmoid})
                for (const int32_t t : {1, 3, 70})
                    if (fused == FusedKind::kGluInput || kind == Glu::kSwiGlu)
                        add_fused({.kind = fused,
                                   .weight = format,
                                   .k = t == 70 ? 320 : 128,
                                   .t = t,
                                   .prompt_rows = t > 1 ? t - 2 : 0,
                                   .glu = kind,
                                   .magnitude = 8.0f});
    for (const FusedKind fused : {FusedKind::kPrepare, FusedKind::kRmsNormInput})
        for (const DType format : {DType::kF32, DType::kNVFP4, DType::kQ4_0})
            for (const float magnitude : {1e-30f, 2689.0f, 6e4f, 0.0f})
                for (const bool prompt : {false, true})
                    add_fused({.kind = fused,
                               .weight = format,
                               .n = 64,
                               .k = 576,
                               .t = 3,
                               .prompt_rows = prompt ? 3 : 0,
                               .magnitude = magnitude});
    for (const int64_t k : {1, 33, 129, 1057})
        for (const bool prompt : {false, true})
            add_fused({.kind = FusedKind::kPrepare,
                       .weight = DType::kF16,
                       .n = 8,
                       .k = k,
                       .t = 5,
                       .prompt_rows = prompt ? 5 : 0});
}

/// Rows that become inputs: lengths in the registers of a warp or a block and beyond (256, 9216),
/// pieces whose pairs of columns can be exchanged between lanes (multiples of 32) and others, more
/// heads than a block has warps, and squares that leave f32.
void input_sweep(std::vector<OpCase>& cases) {
    const auto add_fused = [&](FusedKind kind, int64_t k, int32_t t, int64_t head,
                               float magnitude) {
        append(cases, FusedCase{.kind = kind,
                                .weight = DType::kNVFP4,
                                .k = k,
                                .t = t,
                                .prompt_rows = t - t / 3,
                                .magnitude = magnitude,
                                .head = head});
    };
    for (const FusedKind kind : {FusedKind::kRmsNormInput, FusedKind::kPrepare})
        for (const int64_t k : {96, 256, 288, 1000, 5120, 9216, 9248, 17408})
            for (const int32_t t : {1, 3}) add_fused(kind, k, t, 64, 4.0f);
    struct Heads {
        int64_t size, count;
    };
    for (const FusedKind kind : {FusedKind::kGluInput, FusedKind::kGatedRmsNormInput})
        for (const Heads& heads : {Heads{32, 61}, Heads{80, 4}, Heads{100, 3}, Heads{128, 48},
                                   Heads{160, 7}, Heads{256, 26}, Heads{320, 2}})
            for (const int32_t t : {1, 3, 150})
                if (t < 150 || heads.count < 8)
                    add_fused(kind, heads.size * heads.count, t, heads.size, 4.0f);
    for (const float magnitude : {1e-20f, 1e19f})
        for (const int64_t head : {64, 128, 320})
            add_fused(FusedKind::kGatedRmsNormInput, 640, 2, head, magnitude);
}

/// Every kind of scale that a block of an input can have; rows that end within a block, that a
/// block of a card keeps in registers, and that it does not.
void spread_input_sweep(std::vector<OpCase>& cases) {
    for (const int64_t k : {16, 100, 512, 5120, 20992})
        for (const DType format : {DType::kNVFP4, DType::kMXFP4})
            append(cases, FusedCase{.kind = FusedKind::kPrepare,
                                    .weight = format,
                                    .n = 8,
                                    .k = k,
                                    .t = 7,
                                    .prompt_rows = 6,
                                    .magnitude = 3.0f,
                                    .spread = true});
}

/// Rows that fill the registers of a block of a card exactly, more of them than any card has
/// multiprocessors: from there on a block has a row, below a warp has heads.
void whole_input_sweep(std::vector<OpCase>& cases) {
    append(cases, FusedCase{.kind = FusedKind::kGatedRmsNormInput,
                            .weight = DType::kNVFP4,
                            .k = 512,
                            .t = 300,
                            .prompt_rows = 200,
                            .magnitude = 4.0f,
                            .head = 128});
}

}  // namespace

void add_linear_cases(std::vector<OpCase>& cases) {
    token_sweep(cases);
    height_sweep(cases);
    depth_sweep(cases);
    narrow_sweep(cases);
    wide_sweep(cases);
    mixed_sweep(cases);
    magnitude_sweep(cases);
    fused_sweep(cases);
    input_sweep(cases);
}

std::vector<OpCase> all_cases() {
    std::vector<OpCase> cases;
    add_linear_cases(cases);
    add_row_cases(cases);
    add_data_cases(cases);
    add_paged_cases(cases);
    add_choice_cases(cases);
    add_recurrent_cases(cases);
    add_expert_cases(cases);
    // Last, so that the others keep their seeds.
    spread_sweep(cases);
    gated_sweep(cases);
    long_sweep(cases);
    spread_input_sweep(cases);
    whole_input_sweep(cases);
    return cases;
}

std::vector<OpCase> perf_cases() {
    std::vector<OpCase> cases;
    for (const DType format : kFormats)
        for (const int32_t t : {1, 2, 4, 8, 512})
            add(cases,
                {.weight = format, .n = 1536, .k = 1536, .t = t, .prompt_rows = t == 512 ? t : 0});
    for (const DType format : {DType::kNVFP4, DType::kQ4_0, DType::kQ4_K, DType::kQ8_0})
        for (const int32_t t : {1, 512})
            append(cases, FusedCase{.kind = FusedKind::kLinearGlu,
                                    .weight = format,
                                    .n = 1536,
                                    .k = 512,
                                    .t = t,
                                    .prompt_rows = t == 512 ? t : 0});
    for (const int32_t t : {1, 512}) {
        append(cases, NormCase{.shape = {t, 2048}});
        append(cases, AddCase{.shape = {t, 2048}});
        append(cases, GluCase{.t = t, .n = 6144, .magnitude = 4.0f});
        append(cases, RopeCase{.t = t, .heads = 16, .head_size = 128, .params = {.rotary = 128}});
        append(cases, ArgmaxCase{.t = t, .vocabulary = 49152});
    }
    for (const DType cache : {DType::kF16, DType::kQ8_0, DType::kF32})
        for (const Run run : {Run{511, 1}, Run{4095, 1}, Run{0, 512}, Run{3584, 512}})
            append(cases, PagedCase{.heads = 16,
                                    .kv_heads = 4,
                                    .head_size = 128,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {run},
                                    .prompt_runs = run.count > 1 ? 1 : 0});
    append(cases, SampleCase{.t = 1, .vocabulary = 49152});
    add_recurrent_perf_cases(cases);
    add_expert_perf_cases(cases);
    return cases;
}

}  // namespace tessera::op_cases
