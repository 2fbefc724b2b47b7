// Norms, gates, softmax, rotation (add_row_cases) and data movement (add_data_cases).
#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

void norm_cases(std::vector<OpCase>& cases) {
    for (const int64_t cols : {1, 7, 64, 128, 132, 576, 1025, 8192})
        for (const int64_t rows : {1, 2, 5, 33})
            for (const float eps : {1e-6f, 1e-1f})
                append(cases, NormCase{.shape = {rows, cols},
                                       .padding = rows == 5 ? 3 : 0,
                                       .eps = eps,
                                       .gain = cols != 128,
                                       .in_place = rows == 2 ? InPlace::kFirst : InPlace::kNo});
    for (const float eps : {0.0f, 1e-4f, 10.0f})
        append(cases, NormCase{.shape = {4, 260}, .eps = eps});
    for (const int64_t padding : {0, 64}) {
        append(cases, NormCase{.shape = {5, 9, 64}, .padding = padding});
        append(cases,
               NormCase{.shape = {5, 9, 128}, .padding = padding, .in_place = InPlace::kFirst});
        append(cases, NormCase{.shape = {3, 4, 5, 80}, .padding = padding});
    }
}

void add_cases(std::vector<OpCase>& cases) {
    for (const InPlace in_place : {InPlace::kNo, InPlace::kFirst, InPlace::kSecond}) {
        for (const int64_t cols : {1, 15, 64, 577})
            for (const int64_t rows : {1, 3, 65})
                append(cases, AddCase{.shape = {rows, cols},
                                      .padding = rows == 3 ? 5 : 0,
                                      .in_place = in_place});
        append(cases, AddCase{.shape = {3, 4, 33}, .padding = 2, .in_place = in_place});
        append(cases, AddCase{.shape = {2, 3, 4, 17}, .padding = 1, .in_place = in_place});
    }
}

void glu_cases(std::vector<OpCase>& cases) {
    // A few numbers may by chance all be where a gate vanishes.
    const auto rows = [](int64_t n) { return n == 1 ? 40 : n == 17 ? 13 : 4; };
    for (const Glu kind : {Glu::kSwiGlu, Glu::kGeGlu, Glu::kReGlu, Glu::kSigmoid})
        for (const InPlace in_place : {InPlace::kNo, InPlace::kFirst, InPlace::kSecond})
            for (const int64_t n : {1, 17, 128, 1536})
                for (const float magnitude : {3.0f, 150.0f})
                    append(cases, GluCase{.t = rows(n),
                                          .n = n,
                                          .padding = n == 17 ? 7 : 0,
                                          .kind = kind,
                                          .in_place = in_place,
                                          .magnitude = magnitude});
    for (const Glu kind : {Glu::kSwiGlu, Glu::kSigmoid})
        for (const InPlace in_place : {InPlace::kNo, InPlace::kFirst, InPlace::kSecond})
            append(cases, GluCase{.t = 5,
                                  .n = in_place == InPlace::kNo ? 37 : 128,
                                  .heads = 3,
                                  .padding = 9,
                                  .kind = kind,
                                  .in_place = in_place,
                                  .magnitude = 20.0f});
}

void softmax_cases(std::vector<OpCase>& cases) {
    for (const int64_t n : {1, 2, 16, 33, 64, 1023, 4096})
        for (const int32_t t : {1, 5, 32})
            for (const bool visible : {false, true})
                append(cases, SoftmaxCase{.t = t,
                                          .n = n,
                                          .padding = t == 5 ? 3 : 0,
                                          .visible = visible,
                                          .scale = n == 64 ? 0.125f : 1.0f,
                                          .in_place = t == 32 ? InPlace::kFirst : InPlace::kNo,
                                          .magnitude = n == 33 ? 500.0f : 4.0f});
}

void rope_cases(std::vector<OpCase>& cases) {
    const RopeParams llama{.rotary = 64};
    const RopeParams neox{.pairs = RopePairs::kHalves, .rotary = 128, .base = 1e6f};
    const RopeParams partial{.pairs = RopePairs::kHalves, .rotary = 32, .base = 5e5f};
    const RopeParams partial_adjacent{.rotary = 48, .base = 1e5f};
    const RopeParams linear{.rotary = 64, .freq_scale = 0.25f};
    const RopeParams yarn{.pairs = RopePairs::kHalves,
                          .rotary = 64,
                          .base = 150000.0f,
                          .freq_scale = 1.0f / 32.0f,
                          .magnitude = 1.3465736f,
                          .yarn = true,
                          .beta_fast = 32.0f,
                          .beta_slow = 1.0f,
                          .original_context = 4096};
    for (const RopeParams& params : {llama, neox, partial, partial_adjacent, linear, yarn}) {
        for (const int32_t first : {0, 1, 63, 1000, 4095, 32767, 131071}) {
            const int64_t head_size = params.rotary == 128 || params.rotary == 32 ? 128 : 64;
            append(cases, RopeCase{.t = 1,
                                   .heads = 3,
                                   .head_size = head_size,
                                   .params = params,
                                   .first_position = first});
            append(cases, RopeCase{.t = 5,
                                   .heads = 9,
                                   .head_size = head_size,
                                   .padding = 4,
                                   .params = params,
                                   .factors = true,
                                   .first_position = first});
        }
    }
    append(cases, RopeCase{.t = 3, .heads = 2, .head_size = 80, .params = {.rotary = 2}});
    // The sections of Qwen3.5, then ones that leave pairs to the temporal axis, and uneven ones.
    const std::array<int32_t, 3> sections[] = {{11, 11, 10}, {8, 4, 4}, {16, 2, 9}};
    for (const std::array<int32_t, 3>& sizes : sections)
        for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kAdjacent})
            for (const bool axes : {false, true})
                append(
                    cases,
                    RopeCase{
                        .t = 6,
                        .heads = 3,
                        .head_size = 256,
                        .padding = 4,
                        .params = {.pairs = pairs, .rotary = 64, .base = 1e7f, .sections = sizes},
                        .first_position = 1000,
                        .axes = axes});
}

void copy_pair(std::vector<OpCase>& cases, DType from, DType to) {
    const int64_t unit = is_block_format(from) || is_block_format(to) ? 256 : 1;
    append(cases, CopyCase{.shape = {3, unit == 1 ? 37 : 256}, .from = from, .to = to});
    append(cases, CopyCase{.shape = {2, 3, 2, unit == 1 ? 70 : 512},
                           .from = from,
                           .to = to,
                           .from_padding = unit == 1 ? 3 : 256,
                           .to_padding = unit == 1 ? 1 : 256});
}

void copy_cases(std::vector<OpCase>& cases) {
    for (const DTypeInfo& info : all_dtypes()) {
        copy_pair(cases, info.dtype, info.dtype);
        for (const DType from : {DType::kF32, DType::kF16, DType::kBF16})
            if (from != info.dtype) copy_pair(cases, from, info.dtype);
        if (info.dtype != DType::kF32 && info.dtype != DType::kF16 && info.dtype != DType::kBF16)
            copy_pair(cases, info.dtype, DType::kF32);
    }
    append(cases, CopyCase{.shape = {1}, .from = DType::kF32, .to = DType::kF16});
    append(cases, CopyCase{.shape = {1000}, .from = DType::kBF16, .to = DType::kF32});
}

void concat_cases(std::vector<OpCase>& cases) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI16,
                              DType::kI32, DType::kI64})
        for (const int32_t axis : {0, 1, 2, 3})
            for (const int64_t padding : {0, 3})
                append(
                    cases,
                    ConcatCase{
                        .shape = {6, 5, 4, 11}, .axis = axis, .dtype = dtype, .padding = padding});
    for (const int32_t axis : {0, 1})
        append(cases, ConcatCase{.shape = {17, 33}, .axis = axis, .extra = 1, .padding = 1});
    append(cases, ConcatCase{.shape = {100}, .axis = 0, .extra = 31});
}

void gather_cases(std::vector<OpCase>& cases) {
    for (const int32_t t : {1, 2, 9, 64})
        for (const int64_t cols : {1, 33, 576})
            append(cases, GatherCase{.rows = 77, .cols = cols, .t = t, .padding = t == 9 ? 5 : 0});
    for (const DTypeInfo& info : all_dtypes()) {
        if (info.dtype >= DType::kF64 && info.dtype <= DType::kI64) continue;
        for (const int32_t t : {1, 5, 64})
            append(cases, GatherCase{.embed = true,
                                     .table = info.dtype,
                                     .rows = 100,
                                     .cols = info.block_elements > 64 ? 768 : 576,
                                     .t = t,
                                     .padding = t == 5 ? 3 : 0,
                                     .outer_scale = t == 64 ? 0.37f : 1.0f});
    }
}

}  // namespace

void add_row_cases(std::vector<OpCase>& cases) {
    norm_cases(cases);
    add_cases(cases);
    glu_cases(cases);
    softmax_cases(cases);
    rope_cases(cases);
}

void add_data_cases(std::vector<OpCase>& cases) {
    copy_cases(cases);
    concat_cases(cases);
    gather_cases(cases);
}

}  // namespace tessera::op_cases
