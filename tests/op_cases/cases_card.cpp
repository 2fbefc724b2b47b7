// Sizes of prompts of large models, for `test-ops perf` on a card: a CPU would take minutes.
#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

/// Qwen3.5-27B: gate and up, then down.
void product_cases(std::vector<OpCase>& cases) {
    struct Matrix {
        int64_t n, k;
    };
    for (const Matrix& matrix : {Matrix{17408, 5120}, Matrix{5120, 17408}})
        for (const int32_t t : {1, 4, 128, 512, 2048})
            append(cases, LinearCase{.weight = DType::kNVFP4,
                                     .n = matrix.n,
                                     .k = matrix.k,
                                     .t = t,
                                     .prompt_rows = t > 4 ? t : 0});
    for (const int32_t t : {128, 512, 2048})
        append(cases,
               FusedCase{.weight = DType::kNVFP4, .n = 17408, .k = 5120, .t = t, .prompt_rows = t});
}

/// Other formats, whose encoding on the host is slow: fewer features.
void decoded_cases(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kQ8_0, DType::kBF16, DType::kQ4_K, DType::kQ6_K})
        for (const int32_t t : {128, 512, 2048})
            append(cases,
                   LinearCase{.weight = format, .n = 4096, .k = 4096, .t = t, .prompt_rows = t});
    append(
        cases,
        LinearCase{.weight = DType::kQ8_0, .n = 17408, .k = 5120, .t = 2048, .prompt_rows = 2048});
}

/// Gates of the delta net, a router: few features.
void narrow_cases(std::vector<OpCase>& cases) {
    for (const DType format : {DType::kQ8_0, DType::kBF16, DType::kNVFP4})
        for (const int32_t t : {128, 512, 2048})
            append(cases,
                   LinearCase{.weight = format, .n = 48, .k = 5120, .t = t, .prompt_rows = t});
    append(cases, FusedCase{.kind = FusedKind::kLinearMany,
                            .weight = DType::kQ8_0,
                            .n = 48,
                            .k = 5120,
                            .t = 2048,
                            .prompt_rows = 2048});
    for (const int64_t n : {128, 256})
        append(
            cases,
            LinearCase{.weight = DType::kBF16, .n = n, .k = 2048, .t = 2048, .prompt_rows = 2048});
}

void attention_cases(std::vector<OpCase>& cases) {
    struct Heads {
        int64_t size;
        int32_t heads, kv_heads;
    };
    for (const Heads& heads : {Heads{256, 24, 4}, Heads{128, 32, 8}})
        for (const DType cache : {DType::kBF16, DType::kF8_E4M3})
            // 1536 rows are 2.2 rounds of blocks of general attention on 132 multiprocessors.
            for (const Run& run : {Run{0, 2048}, Run{0, 16384}, Run{63488, 1536}, Run{63488, 2048}})
                append(cases, PagedCase{.heads = heads.heads,
                                        .kv_heads = heads.kv_heads,
                                        .head_size = heads.size,
                                        .type_k = cache,
                                        .type_v = cache,
                                        .runs = {run},
                                        .prompt_runs = 1});
}

void delta_cases(std::vector<OpCase>& cases) {
    for (const int64_t heads : {16, 32, 48})
        for (const int32_t count : {2048, 16384})
            append(cases, DeltaCase{.key_heads = 16,
                                    .heads = heads,
                                    .key_size = 128,
                                    .size = 128,
                                    .memory = {.runs = {{0, count}}, .prompt_runs = 1}});
}

/// Qwen3.5-27B: what stands between its products, for a generated token and a prompt.
void row_cases(std::vector<OpCase>& cases) {
    struct Row {
        FusedKind kind;
        int64_t k, head;
    };
    for (const int32_t t : {1, 2048}) {
        const int32_t prompt = t > 1 ? t : 0;
        for (const Row& row :
             {Row{FusedKind::kRmsNormInput, 5120, 64}, Row{FusedKind::kPrepare, 17408, 64},
              Row{FusedKind::kGluInput, 17408, 64}, Row{FusedKind::kGluInput, 6144, 256},
              Row{FusedKind::kGatedRmsNormInput, 6144, 128}})
            append(cases, FusedCase{.kind = row.kind,
                                    .weight = DType::kNVFP4,
                                    .k = row.k,
                                    .t = t,
                                    .prompt_rows = prompt,
                                    .glu = row.head == 256 ? Glu::kSigmoid : Glu::kSwiGlu,
                                    .head = row.head});
        append(cases, NormCase{.shape = {t, 5120}});
        const MemoryCase memory{.runs = {{64, t}}, .prompt_runs = prompt > 0 ? 1 : 0};
        append(cases,
               DeltaInputCase{
                   .key_heads = 16, .key_size = 128, .heads = 48, .size = 128, .memory = memory});
        append(cases, PagedCase{.kind = PagedKind::kQkNormRopeStore,
                                .heads = 24,
                                .kv_heads = 4,
                                .head_size = 256,
                                .type_k = DType::kBF16,
                                .type_v = DType::kBF16,
                                .runs = {{64, t}},
                                .prompt_runs = prompt > 0 ? 1 : 0,
                                .rope = {.pairs = RopePairs::kHalves, .rotary = 64, .base = 1e7f}});
    }
}

}  // namespace

void add_card_perf_cases(std::vector<OpCase>& cases) {
    product_cases(cases);
    row_cases(cases);
    decoded_cases(cases);
    narrow_cases(cases);
    attention_cases(cases);
    delta_cases(cases);
}

}  // namespace tessera::op_cases
