// The gated delta net.
#include <tuple>

#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

void conv_cases(std::vector<OpCase>& cases) {
    // Prompts shorter than the window, then at and beyond it, fresh and continued.
    for (const int32_t taps : {2, 3, 4, 8})
        for (const int32_t count : {1, 2, 3, 4, 70})
            for (const int32_t first : {0, 64}) {
                const bool wide = count == 70;
                append(cases, ConvCase{.channels = wide ? 520 : 37,
                                       .taps = taps,
                                       .memory = {.runs = {{first, count}}, .prompt_runs = 1},
                                       .padding = wide ? 5 : 0});
            }
    append(cases, ConvCase{.channels = 1040,
                           .memory = {.runs = {{0, 130}, {128, 3}, {0, 2}, {5, 1}, {700, 3}},
                                      .prompt_runs = 3,
                                      .saves = {64, 0, 0}},
                           .padding = 3});
    append(cases, ConvCase{.memory = {.runs = {{10, 64}, {64, 64}, {1, 200}},
                                      .prompt_runs = 3,
                                      .saves = {64, 128, 192}}});
    append(cases, ConvCase{.channels = 6144, .memory = {.runs = {{77, 1}}}});
    // Sequences without rows keep their memory.
    append(
        cases,
        ConvCase{.memory = {
                     .runs = {{70, 0}, {0, 70}, {9, 0}, {20, 50}, {3, 0}, {64, 2}, {5, 0}, {77, 1}},
                     .prompt_runs = 5}});
    for (int32_t rows = 1; rows <= 5; ++rows)
        for (int32_t accepted = 0; accepted <= rows; ++accepted)
            append(cases, ConvCase{.channels = 33,
                                   .memory = {.runs = {{9, rows}, {640, 5}},
                                              .accept = {accepted, 5 - accepted}}});
}

/// The fused op reads heads and values in pieces of its own, and replaces the memory while others
/// still convolve: prompts around the length of the window, cut where segments and pieces end.
void delta_input_cases(std::vector<OpCase>& cases) {
    for (const int32_t taps : {2, 4, 8})
        for (const int32_t count : {1, 2, 3, 7, 8, 9, 33, 70})
            for (const int32_t first : {0, 64})
                append(cases, DeltaInputCase{.key_heads = 1,
                                             .heads = 1,
                                             .taps = taps,
                                             .memory = {.runs = {{first, count}}, .prompt_runs = 1},
                                             .padding = count == 9 ? 3 : 0});
    // Sizes of heads that do not fill a vector, a warp or a piece, and those of models.
    for (const int64_t key_size : {1, 18, 31, 36, 100, 128, 132, 260})
        append(cases,
               DeltaInputCase{.key_heads = 3,
                              .key_size = key_size,
                              .heads = 5,
                              .size = key_size + 2,
                              .memory = {.runs = {{0, 5}, {64, 40}, {3, 2}}, .prompt_runs = 2}});
    for (const int64_t heads : {16, 32, 48})
        append(cases, DeltaInputCase{.key_heads = 16,
                                     .key_size = 128,
                                     .heads = heads,
                                     .size = 128,
                                     .memory = {.runs = {{64, 9}, {9, 3}}, .prompt_runs = 1}});
    // Zeros and squares at both ends of the range of f32 under the roots.
    for (const float magnitude : {0.0f, 1e-14f, 400.0f, 3e18f})
        append(cases, DeltaInputCase{.memory = {.runs = {{0, 40}, {0, 2}}, .prompt_runs = 1},
                                     .magnitude = magnitude});
    // A sequence that starts in the last rows of a segment leaves its first window to the next.
    for (int32_t before = 28; before <= 33; ++before)
        append(cases, DeltaInputCase{.memory = {.runs = {{128, before}, {64, 40}, {63, 2}, {0, 5}},
                                                .prompt_runs = 4,
                                                .saves = {0, 0, 64, 0}}});
    append(cases, DeltaInputCase{.memory = {.runs = {{0, 130}, {128, 3}, {0, 2}, {5, 1}, {700, 3}},
                                            .prompt_runs = 3,
                                            .saves = {64, 0, 0}},
                                 .padding = 3});
    append(cases, DeltaInputCase{.memory = {.runs = {{10, 64}, {64, 64}, {1, 200}},
                                            .prompt_runs = 3,
                                            .saves = {64, 128, 192}}});
    append(cases,
           DeltaInputCase{
               .memory = {
                   .runs = {{70, 0}, {0, 70}, {9, 0}, {20, 50}, {3, 0}, {64, 2}, {5, 0}, {77, 1}},
                   .prompt_runs = 5}});
    // Enough rows for the long segments.
    append(cases, DeltaInputCase{.key_heads = 1,
                                 .key_size = 4,
                                 .heads = 1,
                                 .size = 8,
                                 .memory = {.runs = {{0, 1023}, {192, 1030}, {5, 1}},
                                            .prompt_runs = 2,
                                            .saves = {960, 1216, 0}}});
    for (int32_t rows = 1; rows <= 5; ++rows)
        for (int32_t accepted = 0; accepted <= rows; ++accepted)
            append(cases, DeltaInputCase{.key_size = 33,
                                         .memory = {.runs = {{rows == 2 ? 0 : 9, rows}, {640, 5}},
                                                    .accept = {accepted, 5 - accepted}}});
}

void l2_cases(std::vector<OpCase>& cases) {
    for (const int64_t cols : {1, 16, 31, 64, 128, 200})
        for (const float magnitude : {0.0f, 1e-4f, 1.0f, 1e3f})
            append(cases, L2NormCase{.shape = {5, 3, cols},
                                     .padding = cols == 64 ? 7 : 0,
                                     .magnitude = magnitude});
    append(cases, L2NormCase{.shape = {3, 2, 4, 80}, .padding = 1, .eps = 1e-2f});
    append(cases, L2NormCase{.shape = {70, 128}});
}

void gate_cases(std::vector<OpCase>& cases) {
    for (const int32_t t : {1, 2, 65})
        for (const int64_t heads : {1, 16, 48})
            append(cases, GatesCase{.t = t, .heads = heads, .padding = t == 2 ? 3 : 0});
    // Far outside: softplus is its argument or 0, sigmoid 0 or 1, and rates reach -infinity.
    for (const float magnitude : {0.01f, 30.0f, 400.0f})
        append(cases, GatesCase{.t = 9, .heads = 32, .magnitude = magnitude});
    for (const float magnitude : {30.0f, 150.0f})
        append(cases,
               GatesCase{.t = 9, .heads = 32, .magnitude = magnitude, .largest_a_log = 100.0f});
}

/// Every length up to three chunks and beyond, from inside and at the border of a chunk.
void delta_lengths(std::vector<OpCase>& cases) {
    for (const int32_t count : {1,  2,  3,  4,  7,   8,   9,   15,  16,  17,  31,  33, 47,
                                63, 64, 65, 66, 100, 127, 128, 129, 191, 192, 193, 200})
        for (const int32_t first : {0, 1, 64, 101})
            append(cases, DeltaCase{.key_heads = 1,
                                    .heads = 2,
                                    .key_size = 32,
                                    .size = 48,
                                    .memory = {.runs = {{first, count}}, .prompt_runs = 1},
                                    .padding = count == 65 ? 3 : 0});
}

void delta_gates_and_keys(std::vector<OpCase>& cases) {
    for (const Decay decay : {Decay::kWeak, Decay::kNone, Decay::kStrong, Decay::kVanishing,
                              Decay::kBeyondExp, Decay::kWide, Decay::kMixed})
        for (const Beta beta : {Beta::kUniform, Beta::kZero, Beta::kOne})
            for (const Keys keys :
                 {Keys::kRandom, Keys::kSame, Keys::kNearlySame, Keys::kZeroRows}) {
                const bool one_kind = keys != Keys::kRandom && beta == Beta::kZero;
                if (one_kind) continue;  // keys without effect
                append(cases, DeltaCase{.key_heads = 1,
                                        .heads = 1,
                                        .memory = {.runs = {{0, 64}, {64, 70}, {100, 2}},
                                                   .prompt_runs = 2},
                                        .decay = decay,
                                        .beta = beta,
                                        .keys = keys});
                // The sizes that forms of their own take.
                if (beta == Beta::kZero) continue;
                append(cases, DeltaCase{.key_heads = 1,
                                        .heads = 2,
                                        .key_size = 128,
                                        .size = 64,
                                        .memory = {.runs = {{0, 64}, {64, 70}}, .prompt_runs = 2},
                                        .decay = decay,
                                        .beta = beta,
                                        .keys = keys});
            }
}

/// Keys that resemble each other, in fresh states: the sums of a chunk are small against their
/// terms, and nothing else fills the norm that errors are measured by. Keys of 96 and 64 numbers
/// lie on both sides of the limit from which the CPU backend makes its products more exact.
void delta_alike(std::vector<OpCase>& cases) {
    for (const Decay decay : {Decay::kWeak, Decay::kNone})
        for (const Beta beta : {Beta::kUniform, Beta::kOne})
            for (const Keys keys :
                 {Keys::kSame, Keys::kNearlySame, Keys::kAlike, Keys::kTurning, Keys::kRandom})
                for (const int64_t key_size : {64, 96, 128})
                    append(cases, DeltaCase{.key_heads = 2,
                                            .heads = 4,
                                            .key_size = key_size,
                                            .size = 64,
                                            .memory = {.runs = {{0, 50}, {0, 128}, {0, 33}},
                                                       .prompt_runs = 3},
                                            .decay = decay,
                                            .beta = beta,
                                            .keys = keys});
}

void delta_shapes(std::vector<OpCase>& cases) {
    for (const int64_t size : {16, 20, 33, 64, 80, 128})
        for (const int64_t key_size : {16, 18, 64, 100, 128})
            append(cases,
                   DeltaCase{.key_heads = 2,
                             .heads = 4,
                             .key_size = key_size,
                             .size = size,
                             .memory = {.runs = {{0, 70}, {63, 5}, {30, 2}}, .prompt_runs = 2},
                             .padding = key_size == 100 ? 2 : 0});
    struct Heads {
        int64_t keys, values;
    };
    for (const Heads heads : {Heads{16, 48}, Heads{16, 32}, Heads{16, 16}, Heads{1, 1}}) {
        append(cases,
               DeltaCase{.key_heads = heads.keys,
                         .heads = heads.values,
                         .key_size = 128,
                         .size = 128,
                         .memory = {.runs = {{128, heads.values > 1 ? 11 : 70}}, .prompt_runs = 1},
                         .decay = Decay::kMixed});
        append(cases, DeltaCase{.key_heads = heads.keys,
                                .heads = heads.values,
                                .key_size = 128,
                                .size = 128,
                                .memory = {.runs = {{12, 1}, {64, 3}}},
                                .decay = Decay::kWeak});
    }
}

void delta_batches(std::vector<OpCase>& cases) {
    append(cases,
           DeltaCase{.memory = {.runs = {{0, 3}, {0, 130}, {190, 4}, {7, 1}, {0, 1}, {64, 3}},
                                .prompt_runs = 3},
                     .padding = 5});
    append(cases, DeltaCase{.memory = {.runs = {{1, 1}, {2, 1}, {63, 1}, {64, 1}, {65, 1}}}});
    append(cases, DeltaCase{.memory = {.runs = {{1, 9}}}, .decay = Decay::kMixed});
    // Saves at the first border, an inner one and the end of the rows.
    append(cases, DeltaCase{.memory = {.runs = {{0, 200}, {60, 100}, {64, 64}, {0, 64}, {30, 5}},
                                       .prompt_runs = 4,
                                       .saves = {128, 64, 128, 64}},
                            .decay = Decay::kWeak});
    append(cases, DeltaCase{.key_heads = 1,
                            .heads = 1,
                            .memory = {.runs = {{0, 192}}, .prompt_runs = 1, .saves = {192}}});
    // Sequences without rows keep their memory, and do not stand in the way of others: in the last
    // case there are more of them than rows.
    append(cases,
           DeltaCase{
               .memory = {
                   .runs = {{70, 0}, {0, 70}, {9, 0}, {20, 50}, {3, 0}, {64, 2}, {5, 0}, {77, 1}},
                   .prompt_runs = 5}});
    append(cases, DeltaCase{.memory = {.runs = {{70, 0}, {5, 0}, {128, 0}, {64, 2}, {7, 0}},
                                       .prompt_runs = 5}});
    for (int32_t rows = 1; rows <= 5; ++rows)
        for (int32_t accepted = 0; accepted <= rows; ++accepted)
            append(cases, DeltaCase{.key_size = 36,
                                    .size = 24,
                                    .memory = {.runs = {{9, rows}, {640, 5}},
                                               .accept = {accepted, 5 - accepted}},
                                    .padding = accepted});
    append(cases, DeltaCase{.key_heads = 16,
                            .heads = 32,
                            .key_size = 128,
                            .size = 128,
                            .memory = {.runs = {{100, 4}}, .accept = {3}},
                            .decay = Decay::kMixed});
}

}  // namespace

/// As many heads of 128 as the 27B has: on a card of 132 multiprocessors the form of the scan for
/// few heads does not take them.
void delta_many_heads(std::vector<OpCase>& cases) {
    for (const auto& [decay, beta, keys] :
         {std::tuple{Decay::kMixed, Beta::kUniform, Keys::kRandom},
          {Decay::kNone, Beta::kOne, Keys::kSame},
          {Decay::kWeak, Beta::kOne, Keys::kNearlySame},
          {Decay::kBeyondExp, Beta::kUniform, Keys::kZeroRows}})
        append(cases, DeltaCase{.key_heads = 16,
                                .heads = 48,
                                .key_size = 128,
                                .size = 128,
                                .memory = {.runs = {{0, 130}, {64, 70}, {100, 2}},
                                           .prompt_runs = 2,
                                           .saves = {64, 128, 0}},
                                .decay = decay,
                                .beta = beta,
                                .keys = keys,
                                .padding = keys == Keys::kRandom ? 3 : 0});
}

void add_recurrent_cases(std::vector<OpCase>& cases) {
    conv_cases(cases);
    delta_input_cases(cases);
    l2_cases(cases);
    gate_cases(cases);
    delta_lengths(cases);
    delta_gates_and_keys(cases);
    delta_alike(cases);
    delta_shapes(cases);
    delta_batches(cases);
    delta_many_heads(cases);
}

void add_recurrent_perf_cases(std::vector<OpCase>& cases) {
    for (const int64_t heads : {16, 32, 48}) {
        const auto delta = [&](const Run& run, int32_t prompts) {
            append(cases, DeltaCase{.key_heads = 16,
                                    .heads = heads,
                                    .key_size = 128,
                                    .size = 128,
                                    .memory = {.runs = {run}, .prompt_runs = prompts}});
        };
        // The last one is the token recurrence over the rows of the first.
        for (const int32_t count : {512, 64, 16}) delta({64, count}, 1);
        for (const int32_t count : {1, 4, 512}) delta({64, count}, 0);
    }
    for (const int64_t channels : {6144, 10240})
        for (const int32_t count : {1, 512})
            append(cases,
                   ConvCase{.channels = channels,
                            .memory = {.runs = {{64, count}}, .prompt_runs = count > 1 ? 1 : 0}});
    for (const int32_t count : {1, 512, 2048})
        append(cases,
               DeltaInputCase{.key_heads = 16,
                              .key_size = 128,
                              .heads = 48,
                              .size = 128,
                              .memory = {.runs = {{64, count}}, .prompt_runs = count > 1 ? 1 : 0}});
    for (const int32_t t : {1, 512}) {
        append(cases, L2NormCase{.shape = {t, 32, 128}});
        append(cases, GatesCase{.t = t, .heads = 48});
    }
}

}  // namespace tessera::op_cases
