// Mixtures of experts. Each sweep guards against one kind of fault; weights stay small, so that the
// whole list takes seconds.
#include <algorithm>

#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

constexpr DType kFormats[] = {DType::kF32,  DType::kF16,   DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                              DType::kQ5_0, DType::kQ5_1,  DType::kQ8_0, DType::kQ4_K, DType::kQ5_K,
                              DType::kQ6_K, DType::kMXFP4, DType::kNVFP4};

bool fits(DType format, int64_t k) {
    return k % dtype_info(format).block_elements == 0;
}

void add(std::vector<OpCase>& cases, const ExpertCase& shape) {
    append(cases, shape);
}

/// Tile and remainder faults along the rows of an expert, in every format: generated, prompt and
/// mixed rows, inputs per token and per pair.
void token_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats)
        for (const int32_t choices : {1, 2, 4})
            for (const bool per_pair : {false, true})
                for (const int32_t t : {1, 4, 5, 17, 32, 129})
                    add(cases, {.weight = format,
                                .n = t > 100 ? 16 : 40,
                                .k = 256,
                                .experts = 8,
                                .choices = choices,
                                .t = t,
                                .prompt_rows = t == 17 ? 9
                                               : t > 4 ? t
                                                       : 0,
                                .per_pair = per_pair,
                                .scales = choices == 2});
}

/// Numbers of experts, up to more than there are rows: work lists, steps from expert to expert.
void expert_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kMXFP4, DType::kQ4_0, DType::kQ4_K,
                               DType::kQ8_0, DType::kBF16, DType::kF32})
        for (const int32_t experts : {1, 2, 3, 7, 16, 60, 128, 256, 512})
            for (const int32_t t : {1, 3, 33})
                add(cases, {.weight = format,
                            .n = experts > 100 ? 17 : 48,
                            .k = 256,
                            .experts = experts,
                            .choices = std::min(experts, 8),
                            .t = t,
                            .prompt_rows = t == 3 ? 0 : t / 2,
                            .per_pair = t == 3,
                            .scales = experts % 2 == 0});
}

/// Every number of choices, up to all experts.
void choice_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kQ4_K, DType::kBF16})
        for (int32_t choices = 1; choices <= 16; ++choices)
            for (const int32_t t : {1, 9})
                add(cases, {.weight = format,
                            .n = 32,
                            .k = 256,
                            .experts = 16,
                            .choices = choices,
                            .t = t,
                            .prompt_rows = choices % 2 == 0 ? t : 0,
                            .per_pair = choices % 3 == 0});
}

/// Experts without rows, one with all of them, the same expert twice in a row.
void uneven_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats)
        for (const Ids ids : {Ids::kRepeated, Ids::kOne, Ids::kEvens})
            for (const int32_t t : {1, 16, 70})
                add(cases, {.weight = format,
                            .n = 33,
                            .k = 256,
                            .experts = 6,
                            .choices = 3,
                            .t = t,
                            .prompt_rows = t == 16 ? 0 : t - t / 3,
                            .per_pair = t == 16,
                            .ids = ids,
                            .scales = true,
                            .padding = 5});
}

/// Remainders along the rows and columns of a weight; 2880 is no multiple of 256 or 512.
void size_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kQ4_0, DType::kQ6_K, DType::kF16})
        for (const int64_t n : {1, 15, 17, 33, 48, 65})
            for (const int32_t t : {2, 20})
                add(cases, {.weight = format,
                            .n = n,
                            .k = 256,
                            .experts = 4,
                            .choices = 2,
                            .t = t,
                            .prompt_rows = t == 20 ? t : 0,
                            .padding = n % 3});
    for (const DType format : kFormats)
        for (const int64_t k : {64, 2880})
            for (const int32_t t : {1, 33})
                for (const bool per_pair : {false, true})
                    if (fits(format, k))
                        add(cases, {.weight = format,
                                    .n = 24,
                                    .k = k,
                                    .experts = 4,
                                    .choices = 2,
                                    .t = t,
                                    .prompt_rows = t == 33 ? t : 0,
                                    .per_pair = per_pair,
                                    .scales = true});
    for (const DType format : {DType::kF32, DType::kF16, DType::kBF16})
        for (const int64_t k : {7, 33, 129})
            for (const int32_t t : {1, 19})
                add(cases, {.weight = format,
                            .n = 19,
                            .k = k,
                            .experts = 5,
                            .choices = 2,
                            .t = t,
                            .prompt_rows = t / 2});
}

/// Many rows: ranges of gathered rows, and the largest expert count with them.
void large_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kQ8_0})
        for (const int32_t experts : {4, 128}) {
            add(cases, {.weight = format,
                        .n = 16,
                        .k = 128,
                        .experts = experts,
                        .choices = 4,
                        .t = 1024,
                        .prompt_rows = 1024});
            add(cases, {.weight = format,
                        .n = 16,
                        .k = 64,
                        .experts = experts,
                        .choices = 1,
                        .t = 4096,
                        .prompt_rows = 4000,
                        .ids = experts == 4 ? Ids::kOne : Ids::kRepeated});
        }
    for (const float magnitude : {1e-30f, 1e-3f, 2689.0f, 1e30f})
        for (const bool prompt : {false, true})
            add(cases, {.weight = DType::kNVFP4,
                        .n = 32,
                        .k = 512,
                        .experts = 4,
                        .choices = 2,
                        .t = 6,
                        .prompt_rows = prompt ? 6 : 0,
                        .scales = true,
                        .magnitude = magnitude});
}

void gated_sweep(std::vector<OpCase>& cases) {
    for (const DType format : kFormats)
        for (const int32_t t : {1, 7, 40})
            for (const bool per_pair : {false, true})
                add(cases, {.gated = true,
                            .weight = format,
                            .n = t == 40 ? 64 : 256,
                            .k = 256,
                            .experts = 5,
                            .choices = 2,
                            .t = t,
                            .prompt_rows = t == 7  ? 3
                                           : t > 7 ? t
                                                   : 0,
                            .per_pair = per_pair,
                            .ids = t == 7 ? Ids::kRepeated : Ids::kDistinct,
                            .scales = true,
                            .glu = t == 1 ? Glu::kSwiGlu : Glu::kGeGlu});
    for (const DType format : {DType::kNVFP4, DType::kQ4_K})
        for (const int32_t experts : {64, 256})
            for (const int32_t t : {1, 65})
                add(cases, {.gated = true,
                            .weight = format,
                            .n = 256,
                            .k = 256,
                            .experts = experts,
                            .choices = 8,
                            .t = t,
                            .prompt_rows = t > 1 ? t : 0});
}

/// Prompt pairs of FP4 matrices: tiles of both sizes and both ends of them, ends of stages, prompt
/// and generated pairs of one expert, far more experts than pairs.
void fp4_sweep(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        for (const int64_t k : {192, 448})
            for (const Ids ids : {Ids::kDistinct, Ids::kRepeated, Ids::kEvens})
                add(cases, {.weight = format,
                            .n = k == 192 ? 272 : 130,
                            .k = k,
                            .experts = 6,
                            .choices = 2,
                            .t = 200,
                            .prompt_rows = ids == Ids::kDistinct ? 200 : 151,
                            .per_pair = ids == Ids::kEvens,
                            .ids = ids,
                            .scales = true,
                            .padding = 3});
        add(cases, {.weight = format,
                    .n = 136,
                    .k = 320,
                    .experts = 3,
                    .choices = 1,
                    .t = 500,
                    .prompt_rows = 470,
                    .scales = true});
        add(cases, {.weight = format,
                    .n = 144,
                    .k = 128,
                    .experts = 300,
                    .choices = 4,
                    .t = 23,
                    .prompt_rows = 20,
                    .scales = true});
        add(cases, {.gated = true,
                    .weight = format,
                    .n = 192,
                    .k = 192,
                    .experts = 7,
                    .choices = 3,
                    .t = 120,
                    .prompt_rows = 90,
                    .ids = Ids::kRepeated,
                    .scales = true});
        for (const int32_t choices : {1, 2})
            add(cases, {.gated = true,
                        .weight = format,
                        .n = 160,
                        .k = 448,
                        .experts = 3,
                        .choices = choices,
                        .t = 300,
                        .prompt_rows = choices == 1 ? 300 : 271,
                        .per_pair = choices == 2,
                        .scales = true});
        add(cases, {.gated = true,
                    .weight = format,
                    .n = 64,
                    .k = 128,
                    .experts = 300,
                    .choices = 4,
                    .t = 23,
                    .prompt_rows = 20,
                    .scales = true});
    }
}

void route_sweep(std::vector<OpCase>& cases) {
    for (const int32_t experts : {1, 2, 8, 60, 64, 128, 256, 512})
        for (const int32_t choices : {1, 2, 4, 8, 16})
            for (const bool sigmoid : {false, true})
                for (const bool normalize : {false, true})
                    if (choices <= experts)
                        append(cases, RouteCase{.t = experts == 128 ? 66 : 3,
                                                .experts = experts,
                                                .choices = choices,
                                                .sigmoid = sigmoid,
                                                .normalize = normalize,
                                                .bias = choices % 4 == 0,
                                                .scale = normalize ? 2.5f : 1.0f,
                                                .padding = choices % 3});
    for (const Logits logits : {Logits::kTies, Logits::kNanRows, Logits::kAllNan, Logits::kMasked,
                                Logits::kConstant, Logits::kPeaked})
        for (const bool sigmoid : {false, true})
            for (const bool bias : {false, true})
                append(cases, RouteCase{.t = 6,
                                        .experts = 40,
                                        .choices = 10,
                                        .sigmoid = sigmoid,
                                        .normalize = bias,
                                        .bias = bias,
                                        .logits = logits});
}

void combine_sweep(std::vector<OpCase>& cases) {
    for (const int32_t choices : {1, 2, 6, 8, 16})
        for (const int64_t n : {1, 33, 256, 2880})
            for (const int32_t t : {1, 40})
                for (const bool accumulate : {false, true})
                    append(cases, CombineCase{.t = t,
                                              .choices = choices,
                                              .n = n,
                                              .add = accumulate,
                                              .padding = n % 2 * 3});
}

}  // namespace

void add_expert_cases(std::vector<OpCase>& cases) {
    token_sweep(cases);
    expert_sweep(cases);
    choice_sweep(cases);
    uneven_sweep(cases);
    size_sweep(cases);
    large_sweep(cases);
    gated_sweep(cases);
    route_sweep(cases);
    combine_sweep(cases);
    fp4_sweep(cases);
}

void add_expert_perf_cases(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kNVFP4, DType::kQ4_K})
        for (const bool gated : {false, true})
            for (const int32_t t : {1, 4, 32, 128, 512})
                add(cases, {.gated = gated,
                            .weight = format,
                            .n = 768,
                            .k = 2048,
                            .experts = 128,
                            .choices = 8,
                            .t = t,
                            .prompt_rows = t > 4 ? t : 0});
    for (const int32_t t : {1, 512}) {
        append(cases, RouteCase{.t = t, .experts = 128, .choices = 8});
        append(cases, CombineCase{.t = t, .choices = 8, .n = 2048, .add = true});
    }
}

}  // namespace tessera::op_cases
