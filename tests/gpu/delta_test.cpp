// Operands of the gated delta rule in prompts: f16, or bf16 on request, in the scans for Hopper and
// in the general one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.h"
#include "op_cases/case_run.h"
#include "op_cases/hosted_ops.h"

namespace tessera {
namespace {

using op_cases::HostedOps;

class DeltaOperands : public CardTest {};

HostedOps delta_ops(bool bf16, Emulation emulate = Emulation::kNone) {
    BackendOptions options{.name = kCard, .isa = {}};
    options.emulate = emulate;
    options.delta_bf16 = bf16;
    return HostedOps(make_ops(options), false);
}

/// A number that is put into the first sequence: at a token, and an element of all heads.
struct Special {
    int32_t token, element;
    float value;
};
struct Prompts {
    int32_t heads = 1;
    int32_t sequences = 1;
    float most = 1.0f;  ///< of the values
    std::vector<Special> values{}, keys{}, queries{};
};
constexpr int32_t kRows = 100, kSize = 128;  ///< of each sequence; keys and values

/// Of the first sequence.
struct Results {
    std::vector<float> outputs;  ///< [kRows, heads, kSize]
    std::vector<float> state;    ///< [heads, kSize, kSize], behind all rows
};

/// Sequences side by side with one key head. What a sequence holds does not depend on how many
/// there are.
Results results_of(Ops& ops, const Prompts& prompts) {
    const int64_t heads = prompts.heads, count = prompts.sequences, rows = count * kRows;
    const auto filled = [&](int64_t width, float low, float high) {
        std::vector<float> values;
        for (int64_t s = 0; s < count; ++s) {
            op_cases::Random random(static_cast<uint64_t>(3 + s));
            for (int64_t i = 0; i < kRows * width; ++i) values.push_back(random.uniform(low, high));
        }
        return values;
    };
    std::vector<float> q = filled(kSize, -0.1f, 0.1f), k = filled(kSize, -0.1f, 0.1f);
    std::vector<float> v = filled(heads * kSize, -prompts.most, prompts.most), out(v.size());
    const auto place = [](const std::vector<Special>& specials, int64_t of_heads,
                          std::vector<float>& into) {
        for (const Special& special : specials)
            for (int64_t head = 0; head < of_heads; ++head)
                into[static_cast<size_t>((special.token * of_heads + head) * kSize +
                                         special.element)] = special.value;
    };
    place(prompts.queries, 1, q);
    place(prompts.keys, 1, k);
    place(prompts.values, heads, v);
    std::vector<float> decay = filled(heads, -0.1f, 0.0f), beta = filled(heads, 0.0f, 1.0f);
    std::vector<float> state(static_cast<size_t>(count * heads * kSize * kSize));
    std::vector<int32_t> positions, starts{0}, slots;
    for (int32_t s = 0; s < prompts.sequences; ++s) {
        for (int32_t i = 0; i < kRows; ++i) positions.push_back(i);
        starts.push_back(starts.back() + kRows);
        slots.push_back(s);
    }
    const auto integers = [](std::vector<int32_t>& x) {
        return make_tensor(x.data(), DType::kI32, {static_cast<int64_t>(x.size())});
    };
    Batch batch;
    batch.tokens = batch.positions = integers(positions);
    batch.seq_start = integers(starts);
    batch.slots = integers(slots);
    batch.prompt_rows = static_cast<int32_t>(rows);
    batch.max_visible = kRows;
    RecurrentView memory;
    memory.state = make_tensor(state.data(), DType::kF32, {count, heads, kSize, kSize});
    const auto by_head = [&](std::vector<float>& x, int64_t n) {
        return make_tensor(x.data(), DType::kF32, {rows, n, kSize});
    };
    const auto gates = [&](std::vector<float>& x) {
        return make_tensor(x.data(), DType::kF32, {rows, heads});
    };
    std::vector<std::byte> scratch(size_t{64} << 20);
    Arena arena(scratch.data(), scratch.size());
    Exec ex{arena, batch.prompt_rows};
    ops.gated_delta_rule(ex, by_head(q, 1), by_head(k, 1), by_head(v, heads), gates(decay),
                         gates(beta), batch, memory, by_head(out, heads));
    out.resize(static_cast<size_t>(kRows * heads * kSize));
    state.resize(static_cast<size_t>(heads * kSize * kSize));
    return {std::move(out), std::move(state)};
}
std::vector<float> outputs_of(Ops& ops, const Prompts& prompts) {
    return results_of(ops, prompts).outputs;
}

/// How many elements have other bits, NaN among them.
int64_t unequal(const std::vector<float>& x, const std::vector<float>& y) {
    int64_t count = 0;
    for (size_t i = 0; i < x.size(); ++i)
        count += std::bit_cast<uint32_t>(x[i]) != std::bit_cast<uint32_t>(y[i]) ? 1 : 0;
    return count;
}
int64_t nan_count(const std::vector<float>& x) {
    return std::count_if(x.begin(), x.end(), [](float value) { return std::isnan(value); });
}

double distance(const std::vector<float>& x, const std::vector<float>& y) {
    double apart = 0.0, all = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
        apart += (x[i] - y[i]) * (x[i] - y[i]);
        all += y[i] * y[i];
    }
    return std::sqrt(apart / all);
}

int64_t saturated(const Ops& ops) {
    for (const OpCount& count : ops.op_counts())
        if (count.name == kDeltaSaturated) return count.calls;
    return 0;
}

// Guards against a switch that changes nothing, a counter that counts nothing or counts what is in
// range, and a range that one of the two forms of the scan loses.
TEST_F(DeltaOperands, Bf16HoldsWhatF16Clamps) {
    const auto exact = make_ops({.name = "reference", .isa = {}});
    for (const int32_t heads : {2, 40}) {
        const Prompts usual{.heads = heads}, large{.heads = heads, .most = 1e6f};
        const std::vector<float> usual_outputs = outputs_of(*exact, usual);
        const std::vector<float> large_outputs = outputs_of(*exact, large);
        for (const auto& [bf16, emulate] :
             {std::pair(false, Emulation::kNone), std::pair(true, Emulation::kNone),
              std::pair(false, Emulation::kGeneral), std::pair(true, Emulation::kGeneral)}) {
            HostedOps ops = delta_ops(bf16, emulate);
            const DType operands = ops.delta_rule_operands();
            EXPECT_EQ(operands, bf16 ? DType::kBF16 : DType::kF16);
            EXPECT_LT(distance(outputs_of(ops, usual), usual_outputs),
                      operands == DType::kBF16 ? 8e-3 : 1e-3);
            EXPECT_EQ(saturated(ops), 0) << heads;
            const double off = distance(outputs_of(ops, large), large_outputs);
            if (operands == DType::kF16) {
                EXPECT_GT(saturated(ops), 0) << heads;
                EXPECT_GT(off, 0.1) << heads;
            } else {
                EXPECT_EQ(saturated(ops), 0) << heads;
                EXPECT_LT(off, 8e-3) << heads;
            }
        }
    }
}

// Guards against bits that depend on the form of the scan, which is chosen by how many blocks come
// together: a sequence alone runs the narrow one, among nine the wide one. Each form has its own
// code for operands that saturate and for numbers that are none, and for the state it leaves.
TEST_F(DeltaOperands, BothFormsGiveTheSameBits) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    // In both chunks of 64 tokens, and in value rows of several warps.
    const std::vector<Special> bad{{9, 3, kInfinity}, {40, 70, kNone},  {77, 3, -kInfinity},
                                   {80, 100, kNone},  {81, 101, 3e38f}, {99, 31, kInfinity}};
    const Prompts usual{.heads = 16}, large{.heads = 16, .most = 1e6f};
    Prompts bad_values = large, bad_keys = large;
    bad_values.values = bad;
    bad_values.queries = {{20, 5, kNone}, {90, 6, kInfinity}};
    bad_keys.values = bad;
    bad_keys.keys = {{85, 64, kNone}, {95, 7, kInfinity}};
    for (const bool bf16 : {false, true}) {
        HostedOps ops = delta_ops(bf16);
        for (const Prompts& prompts : {usual, large, bad_values, bad_keys}) {
            Prompts among = prompts;
            among.sequences = 9;
            const Results alone = results_of(ops, prompts), other = results_of(ops, among);
            const std::string what =
                fmt::format("bf16 {}, most {}, {} bad values, {} bad keys", bf16, prompts.most,
                            prompts.values.size(), prompts.keys.size());
            EXPECT_EQ(unequal(alone.outputs, other.outputs), 0) << what;
            EXPECT_EQ(unequal(alone.state, other.state), 0) << what;
            // The cases are what they are meant to be: some results are no numbers, others are.
            const int64_t outputs = nan_count(alone.outputs), state = nan_count(alone.state);
            const bool good = prompts.values.empty();
            EXPECT_EQ(outputs > 0, !good) << what;
            EXPECT_EQ(state > 0, !good) << what;
            EXPECT_LT(outputs, static_cast<int64_t>(alone.outputs.size())) << what;
            if (prompts.keys.empty()) {
                EXPECT_LT(state, static_cast<int64_t>(alone.state.size())) << what;
            }
        }
    }
}

// Guards against bits of models with heads of 128 that depend on the size of a pass. Those with
// short heads take split operands, and their gated norms another kernel than passes of more rows
// than the card has multiprocessors take here.
TEST_F(DeltaOperands, AnswersOfLongHeadsAreTheSameForAnyUbatch) {
    for (const Emulation emulate : {Emulation::kNone, Emulation::kGeneral})
        for (const char* architecture : {"qwen35", "qwen35moe"}) {
            SCOPED_TRACE(fmt::format("{}{}", architecture,
                                     emulate == Emulation::kGeneral ? ", general kernels" : ""));
            BackendOptions backend{.name = kCard, .isa = {}};
            backend.emulate = emulate;
            expect_same_answers_for_any_ubatch(
                backend, long_headed_model_of(architecture, DType::kNVFP4), is_plain_delta_rule);
        }
}

}  // namespace
}  // namespace tessera
