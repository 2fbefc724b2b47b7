// Key/value pages, attention (add_paged_cases), and the choice of tokens (add_choice_cases).
#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

constexpr DType kCaches[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kF8_E4M3};

void store_cases(std::vector<OpCase>& cases) {
    for (const DType cache : kCaches)
        for (const int64_t head_size : {64, 128}) {
            append(cases, PagedCase{.kind = PagedKind::kStore,
                                    .kv_heads = 3,
                                    .head_size = head_size,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{0, 1}}});
            append(cases, PagedCase{.kind = PagedKind::kStore,
                                    .kv_heads = 2,
                                    .head_size = head_size,
                                    .type_k = cache,
                                    .type_v = DType::kF16,
                                    .runs = {{60, 70}, {0, 5}, {127, 1}, {128, 1}},
                                    .prompt_runs = 2,
                                    .padding = 3});
        }
    for (const DType cache : kCaches)
        for (const bool norm : {false, true})
            for (const RopePairs pairs : {RopePairs::kAdjacent, RopePairs::kHalves}) {
                const RopeParams rope{.pairs = pairs, .rotary = norm ? 64 : 48, .base = 1e5f};
                append(cases, PagedCase{.kind = PagedKind::kQkNormRopeStore,
                                        .heads = 6,
                                        .kv_heads = 2,
                                        .type_k = cache,
                                        .type_v = cache,
                                        .runs = {{62, 1}},
                                        .norm = norm,
                                        .rope = rope});
                append(cases, PagedCase{.kind = PagedKind::kQkNormRopeStore,
                                        .heads = 8,
                                        .kv_heads = 2,
                                        .type_k = cache,
                                        .type_v = cache,
                                        .runs = {{0, 66}, {100, 30}, {64, 1}, {5, 1}},
                                        .prompt_runs = 2,
                                        .padding = 8,
                                        .norm = norm,
                                        .rope = rope});
            }
}

/// Head sizes, groups and cache types over one ragged batch: a prompt chunk from the middle of a
/// page, a fresh prompt, and three decoding sequences at the edges of pages.
void attention_grid(std::vector<OpCase>& cases) {
    for (const DType cache : kCaches)
        for (const int64_t head_size : {64, 80, 128, 256}) {
            if (head_size % dtype_info(cache).block_elements != 0) continue;
            for (const int32_t group : {1, 3, 4, 8}) {
                append(cases, PagedCase{.heads = 2 * group,
                                        .kv_heads = 2,
                                        .head_size = head_size,
                                        .type_k = cache,
                                        .type_v = cache,
                                        .runs = {{130, 1}, {63, 1}, {64, 1}, {0, 1}}});
                append(cases, PagedCase{.heads = 2 * group,
                                        .kv_heads = 2,
                                        .head_size = head_size,
                                        .type_k = cache,
                                        .type_v = cache,
                                        .runs = {{40, 26}, {0, 5}, {63, 1}, {64, 1}, {0, 1}},
                                        .prompt_runs = 2,
                                        .padding = group == 3 ? 5 : 0});
            }
        }
    // Sequences without rows.
    append(cases,
           PagedCase{.kv_heads = 2,
                     .runs = {{70, 0}, {0, 70}, {5, 0}, {9, 30}, {3, 0}, {64, 1}, {2, 0}, {70, 2}},
                     .prompt_runs = 5});
    append(cases, PagedCase{.type_k = DType::kF32, .type_v = DType::kQ8_0, .runs = {{70, 3}}});
    append(cases, PagedCase{.type_k = DType::kQ8_0, .type_v = DType::kF16, .runs = {{70, 3}}});
    append(cases, PagedCase{.type_k = DType::kQ8_0, .type_v = DType::kF8_E4M3, .runs = {{70, 3}}});
    // Rows of f8 that start anywhere, and ones whose end does not fill a register or a vector.
    for (const int64_t head_size : {18, 24, 72})
        for (const int32_t prompts : {0, 1})
            append(cases, PagedCase{.kv_heads = 2,
                                    .head_size = head_size,
                                    .type_k = DType::kF8_E4M3,
                                    .type_v = DType::kF8_E4M3,
                                    .runs = {{70, 3}},
                                    .prompt_runs = prompts});
    for (const int32_t prompts : {0, 1})
        append(cases, PagedCase{.kv_heads = 1,
                                .type_k = DType::kF8_E4M3,
                                .type_v = DType::kF8_E4M3,
                                .runs = {{4100, 3}},
                                .prompt_runs = prompts});
}

void attention_lengths(std::vector<OpCase>& cases) {
    for (const DType cache : {DType::kF16, DType::kQ8_0})
        for (const int32_t first : {0, 1, 31, 62, 127, 128, 500, 1023, 2047, 4100}) {
            append(cases, PagedCase{.heads = 4,
                                    .kv_heads = 1,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{first, 1}}});
            append(cases, PagedCase{.heads = 3,
                                    .kv_heads = 1,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{first, 3}},
                                    .prompt_runs = 1});
        }
    for (const int32_t count : {64, 65, 200})
        append(cases, PagedCase{.heads = 2,
                                .kv_heads = 1,
                                .type_k = DType::kF16,
                                .type_v = DType::kF16,
                                .runs = {{0, count}},
                                .prompt_runs = 1});
}

/// Models let the result replace q: an early write would spoil what is still to be read.
void attention_in_place(std::vector<OpCase>& cases) {
    for (const DType cache : {DType::kF16, DType::kQ8_0})
        for (const int32_t kv_heads : {1, 2, 4}) {
            append(cases, PagedCase{.kv_heads = kv_heads,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{0, 200}, {4090, 9}, {700, 1}, {5, 1}},
                                    .prompt_runs = 2,
                                    .in_place = true});
            append(cases, PagedCase{.kv_heads = kv_heads,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{300, 1}, {0, 1}, {63, 3}},
                                    .in_place = true});
        }
}

void attention_options(std::vector<OpCase>& cases) {
    for (const int32_t window : {1, 7, 64, 100, 5000})
        for (const float softcap : {0.0f, 30.0f}) {
            append(cases, PagedCase{.heads = 4,
                                    .kv_heads = 2,
                                    .runs = {{0, 130}},
                                    .prompt_runs = 1,
                                    .window = window,
                                    .softcap = softcap});
            append(cases, PagedCase{.heads = 4,
                                    .kv_heads = 2,
                                    .runs = {{300, 1}, {5, 1}, {63, 1}},
                                    .window = window,
                                    .softcap = softcap});
        }
    append(cases, PagedCase{.runs = {{0, 20}, {90, 1}}, .prompt_runs = 1, .softcap = 0.5f});
}

/// Sinks with every option that a model may set beside them, and with contexts of several splits
/// (segments), whose joins must count a sink once.
void attention_sinks(std::vector<OpCase>& cases) {
    for (const DType cache : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kF8_E4M3})
        for (const int32_t kv_heads : {1, 4}) {
            append(cases, PagedCase{.heads = 8,
                                    .kv_heads = kv_heads,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{40, 26}, {0, 5}, {63, 1}, {64, 1}, {0, 1}},
                                    .prompt_runs = 2,
                                    .padding = 5,
                                    .sinks = true});
            append(cases, PagedCase{.heads = 8,
                                    .kv_heads = kv_heads,
                                    .type_k = cache,
                                    .type_v = cache,
                                    .runs = {{4100, 1}, {700, 3}, {0, 1}},
                                    .sinks = true});
        }
    for (const int32_t window : {1, 100, 128})
        for (const float softcap : {0.0f, 2.0f}) {
            append(cases, PagedCase{.heads = 6,
                                    .kv_heads = 2,
                                    .runs = {{0, 130}, {200, 70}},
                                    .prompt_runs = 2,
                                    .window = window,
                                    .softcap = softcap,
                                    .sinks = true});
            append(cases, PagedCase{.heads = 6,
                                    .kv_heads = 2,
                                    .runs = {{300, 1}, {5, 1}, {63, 1}},
                                    .window = window,
                                    .softcap = softcap,
                                    .sinks = true});
        }
    for (const int64_t head_size : {80, 256})
        append(cases, PagedCase{.heads = 10,
                                .kv_heads = 2,
                                .head_size = head_size,
                                .runs = {{4090, 9}, {5, 1}},
                                .prompt_runs = 1,
                                .in_place = true,
                                .sinks = true});
}

/// A key or value that is not finite, in a page that other rows see in part: rows before it, rows
/// whose window has passed it, other heads and other sequences stay as they are.
void attention_poison(std::vector<OpCase>& cases) {
    const auto add = [&](PagedCase shape) {
        append(cases, shape);  // in the values
        shape.poison_v = Poison::kNan;
        append(cases, shape);
        shape.poison_v = Poison::kNone;
        for (const Poison kind : {Poison::kInfinity, Poison::kNan}) {
            shape.poison_k = kind;
            append(cases, shape);
        }
    };
    PagedCase shape{.kv_heads = 2,
                    .runs = {{0, 150}, {10, 70}, {64, 1}},
                    .prompt_runs = 2,
                    .poison_v = Poison::kInfinity};
    for (const int32_t at : {0, 63, 64, 70, 149}) {
        shape.poison_at = at;
        add(shape);
    }
    for (const DType cache : kCaches)
        for (const int64_t head_size : {64, 80, 128, 256}) {
            if (head_size % dtype_info(cache).block_elements != 0) continue;
            PagedCase format{.kv_heads = 1,
                             .head_size = head_size,
                             .type_k = cache,
                             .type_v = cache,
                             .runs = {{40, 26}},
                             .prompt_runs = 1,
                             .poison_v = Poison::kInfinity,
                             .poison_at = 50};
            append(cases, format);
            format.poison_k = Poison::kNan;
            format.poison_v = Poison::kNone;
            append(cases, format);
        }
    for (const int32_t window : {1, 7, 64, 100}) {
        PagedCase windowed{.heads = 6,
                           .kv_heads = 2,
                           .runs = {{20, 180}, {0, 70}},
                           .prompt_runs = 2,
                           .window = window,
                           .poison_v = Poison::kInfinity,
                           .poison_at = 66};
        add(windowed);
        windowed.softcap = 30.0f;
        windowed.sinks = true;
        append(cases, windowed);
    }
    // Small enough for the tools that look for races.
    append(cases, PagedCase{.heads = 8,
                            .kv_heads = 2,
                            .runs = {{40, 26}},
                            .prompt_runs = 1,
                            .poison_v = Poison::kInfinity,
                            .poison_at = 50});
    // Generated rows: one sequence's rows around the token, and the splits of a long context, of
    // which the last one begins with the token.
    for (const int32_t window : {0, 2})
        add({.kv_heads = 2,
             .runs = {{125, 6}, {130, 1}},
             .window = window,
             .poison_v = Poison::kInfinity,
             .poison_at = 127});
    for (const int32_t at : {5, 128, 4096})
        add({.kv_heads = 1, .runs = {{at - 1, 3}}, .poison_v = Poison::kInfinity, .poison_at = at});
}

/// Pages of 8-bit floats, which a kernel may convert on their way: windows that begin and end
/// inside pages, more pages than are under way at once, and a NaN that some rows see.
void attention_coded(std::vector<OpCase>& cases) {
    for (const int64_t head_size : {64, 128, 256}) {
        PagedCase shape{.heads = 6,
                        .kv_heads = 2,
                        .head_size = head_size,
                        .type_k = DType::kF8_E4M3,
                        .type_v = DType::kF8_E4M3,
                        .runs = {{0, 1}, {90, 340}, {5, 70}, {0, 0}, {63, 2}},
                        .prompt_runs = 4};
        for (const int32_t window : {0, 1, 64, 100}) {
            shape.window = window;
            append(cases, shape);
        }
        shape.runs = {{20, 180}, {0, 70}};
        shape.prompt_runs = 2;
        shape.poison_v = Poison::kNan;
        shape.poison_at = 66;
        append(cases, shape);
    }
}

void argmax_cases(std::vector<OpCase>& cases) {
    for (const Logits logits : {Logits::kRandom, Logits::kTies, Logits::kNanRows, Logits::kAllNan,
                                Logits::kMasked, Logits::kConstant, Logits::kPeaked})
        for (const int64_t vocabulary : {1, 15, 16, 1000, 49152})
            append(cases, ArgmaxCase{.t = vocabulary > 1000 ? 3 : 6,
                                     .vocabulary = vocabulary,
                                     .logits = logits,
                                     .padding = vocabulary == 15 ? 3 : 0});
}

/// Everything off: the plain softmax at temperature 1.
constexpr SampleParams kPlain{.temperature = 1.0f,
                              .top_k = 0,
                              .top_p = 1.0f,
                              .min_p = 0.0f,
                              .repeat_penalty = 1.0f,
                              .frequency_penalty = 0.0f,
                              .presence_penalty = 0.0f};

template <class Value>
SampleParams with(SampleParams params, Value SampleParams::*member, Value value) {
    params.*member = value;
    return params;
}

std::vector<SampleParams> single_parameters() {
    std::vector<SampleParams> all = {kPlain};
    for (const float temperature : {0.0f, -1.0f, 1e-6f, 0.3f, 2.0f, 1e6f})
        all.push_back(with(kPlain, &SampleParams::temperature, temperature));
    for (const int32_t top_k : {-5, 1, 2, 40, 1000, 100000})
        all.push_back(with(kPlain, &SampleParams::top_k, top_k));
    for (const float top_p : {-1.0f, 0.0f, 0.1f, 0.5f, 0.95f, 2.0f})
        all.push_back(with(kPlain, &SampleParams::top_p, top_p));
    for (const float min_p : {-1.0f, 0.05f, 0.5f, 1.0f, 2.0f})
        all.push_back(with(kPlain, &SampleParams::min_p, min_p));
    for (const float repeat : {0.7f, 1.1f, 2.0f})
        all.push_back(with(kPlain, &SampleParams::repeat_penalty, repeat));
    for (const float frequency : {-0.5f, 0.5f})
        all.push_back(with(kPlain, &SampleParams::frequency_penalty, frequency));
    for (const float presence : {-1.0f, 1.5f})
        all.push_back(with(kPlain, &SampleParams::presence_penalty, presence));
    return all;
}

void sample_cases(std::vector<OpCase>& cases) {
    for (const SampleParams& params : single_parameters())
        for (const int64_t vocabulary : {5, 1000})
            append(cases, SampleCase{.vocabulary = vocabulary, .params = params, .history = 16});
    const SampleParams together{.temperature = 0.8f,
                                .top_k = 40,
                                .top_p = 0.9f,
                                .min_p = 0.05f,
                                .repeat_penalty = 1.2f,
                                .frequency_penalty = 0.1f,
                                .presence_penalty = 0.2f};
    for (const Logits logits : {Logits::kRandom, Logits::kTies, Logits::kNanRows, Logits::kAllNan,
                                Logits::kMasked, Logits::kConstant, Logits::kPeaked})
        for (const SampleParams& params :
             {kPlain, together, SampleParams{}, with(kPlain, &SampleParams::temperature, 0.0f),
              with(kPlain, &SampleParams::top_k, 3), with(kPlain, &SampleParams::top_p, 0.5f)})
            append(
                cases,
                SampleCase{
                    .t = 6, .vocabulary = 256, .logits = logits, .params = params, .history = 8});
    append(cases, SampleCase{.t = 12, .params = together, .history = 64, .mixed = true});
    append(cases, SampleCase{.t = 2, .vocabulary = 49152, .params = kPlain});
    append(cases, SampleCase{.t = 2, .vocabulary = 49152, .params = together, .history = 64});
    append(cases, SampleCase{.t = 2, .vocabulary = 1, .params = together});
}

}  // namespace

void add_paged_cases(std::vector<OpCase>& cases) {
    store_cases(cases);
    attention_grid(cases);
    attention_lengths(cases);
    attention_in_place(cases);
    attention_options(cases);
    attention_sinks(cases);
    attention_poison(cases);
    attention_coded(cases);
}

void add_choice_cases(std::vector<OpCase>& cases) {
    argmax_cases(cases);
    sample_cases(cases);
}

}  // namespace tessera::op_cases
