// The gated delta net against numbers that transformers' torch code computed in f64
// (scripts/oracles/recurrent.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ops/recurrent_fixture.h"

namespace tessera::recurrent {
namespace {

using nlohmann::json;

/// The goldens have nine digits; states are f32.
constexpr double kExact = 3e-7;
/// The angles of the oracle are f32.
constexpr double kF32Angles = 3e-5;

class RecurrentGolden : public testing::TestWithParam<std::string> {
  protected:
    RecurrentGolden() : machine_(GetParam()) {}

    template <class Body>
    void for_each(std::string_view op, const Body& body) {
        static const json cases =
            json::parse(std::ifstream(TESSERA_TEST_DATA "/ops/recurrent.json"));
        int32_t ran = 0;
        for (const json& one : cases) {
            if (one["op"] != op) continue;
            ++ran;
            SCOPED_TRACE(std::string(op) + " " + std::to_string(ran));
            body(one, one["dims"].get<std::vector<int64_t>>());
        }
        EXPECT_GT(ran, 0);
    }
    static std::vector<float> floats(const json& one, const char* name) {
        return one[name].get<std::vector<float>>();
    }
    static Tensor view(std::vector<float>& values, std::initializer_list<int64_t> shape) {
        return make_tensor(values.data(), DType::kF32, shape);
    }
    static void expect_near(const std::vector<float>& out,
                            const json& one,
                            const char* name,
                            double bound) {
        const auto expected = one[name].get<std::vector<double>>();
        ASSERT_EQ(out.size(), expected.size());
        EXPECT_LE(distance(out, expected), bound) << name;
    }
    static Batch batch_of(std::vector<int32_t>& positions,
                          std::vector<int32_t>& starts,
                          std::vector<int32_t>& slot) {
        const auto ints = [](std::vector<int32_t>& values) {
            return make_tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
        };
        Batch batch;
        batch.tokens = batch.positions = ints(positions);
        batch.seq_start = ints(starts);
        batch.slots = ints(slot);
        return batch;
    }

    Machine machine_;
};

TEST_P(RecurrentGolden, GatedDeltaRule) {
    for_each("gated_delta_rule", [&](const json& one, const std::vector<int64_t>& dims) {
        const int64_t t = dims[0], key_heads = dims[1], heads = dims[2];
        const int64_t key_size = dims[3], size = dims[4];
        auto q = floats(one, "q"), k = floats(one, "k"), v = floats(one, "v");
        auto decay = floats(one, "log_decay"), beta = floats(one, "beta");
        for (const bool prompt : {true, false}) {
            std::vector<float> state = floats(one, "state");
            state.resize(static_cast<size_t>(heads * size * key_size), kNan);
            std::vector<float> out(v.size(), kNan);
            std::vector<int32_t> positions, starts = {0, static_cast<int32_t>(t)}, slot = {0};
            for (int32_t i = 0; i < t; ++i) positions.push_back(one["first"].get<int32_t>() + i);
            Batch batch = batch_of(positions, starts, slot);
            batch.prompt_rows = prompt ? starts[1] : 0;
            RecurrentView memory;
            memory.state = view(state, {1, heads, size, key_size});
            machine_.run(batch.prompt_rows, [&](Exec& ex) {
                machine_.ops().gated_delta_rule(
                    ex, view(q, {t, key_heads, key_size}), view(k, {t, key_heads, key_size}),
                    view(v, {t, heads, size}), view(decay, {t, heads}), view(beta, {t, heads}),
                    batch, memory, view(out, {t, heads, size}));
            });
            expect_near(out, one, "out", 2 * kExact);
            expect_near(state, one, "last", 2 * kExact);
        }
    });
}

TEST_P(RecurrentGolden, CausalConv) {
    for_each("causal_conv", [&](const json& one, const std::vector<int64_t>& dims) {
        const int64_t t = dims[0], channels = dims[1], taps = dims[2];
        auto u = floats(one, "u"), weight = floats(one, "taps");
        std::vector<float> window(static_cast<size_t>(channels * (taps - 1)), kNan);
        std::vector<float> out(u.size(), kNan);
        std::vector<int32_t> positions, starts = {0, static_cast<int32_t>(t)}, slot = {0};
        for (int32_t i = 0; i < t; ++i) positions.push_back(i);
        const Batch batch = batch_of(positions, starts, slot);
        RecurrentView memory;
        memory.conv = view(window, {1, channels, taps - 1});
        machine_.run(0, [&](Exec& ex) {
            machine_.ops().causal_conv(ex, view(u, {t, channels}), view(weight, {channels, taps}),
                                       batch, memory, view(out, {t, channels}));
        });
        expect_near(out, one, "out", kExact);
    });
}

TEST_P(RecurrentGolden, DeltaGates) {
    for_each("delta_gates", [&](const json& one, const std::vector<int64_t>& dims) {
        auto a = floats(one, "a"), b = floats(one, "b");
        auto bias = floats(one, "bias"), rate = floats(one, "rate");
        std::vector<float> decay(a.size(), kNan), beta(a.size(), kNan);
        const auto rows = [&](std::vector<float>& x) { return view(x, {dims[0], dims[1]}); };
        machine_.run(0, [&](Exec& ex) {
            machine_.ops().delta_gates(ex, rows(a), rows(b), view(bias, {dims[1]}),
                                       view(rate, {dims[1]}), rows(decay), rows(beta));
        });
        expect_near(decay, one, "log_decay", kExact);
        expect_near(beta, one, "beta", kExact);
    });
}

TEST_P(RecurrentGolden, L2Norm) {
    for_each("l2_norm", [&](const json& one, const std::vector<int64_t>& dims) {
        auto x = floats(one, "x");
        machine_.run(0, [&](Exec& ex) {
            machine_.ops().l2_norm(ex, view(x, {dims[0], dims[1]}), 1e-6f);
        });
        expect_near(x, one, "out", kExact);
    });
}

TEST_P(RecurrentGolden, SigmoidGate) {
    for_each("glu", [&](const json& one, const std::vector<int64_t>& dims) {
        auto gate = floats(one, "gate"), up = floats(one, "up");
        const auto rows = [&](std::vector<float>& x) { return view(x, {dims[0], 1, dims[1]}); };
        machine_.run(0, [&](Exec& ex) {
            machine_.ops().glu(ex, rows(gate), rows(up), Glu::kSigmoid, rows(up));
        });
        expect_near(up, one, "out", kExact);
    });
}

TEST_P(RecurrentGolden, SectionsOfRope) {
    for_each("rope", [&](const json& one, const std::vector<int64_t>& dims) {
        auto x = floats(one, "x");
        auto positions = one["positions"].get<std::vector<int32_t>>();
        RopeParams params{.pairs = RopePairs::kHalves};
        params.rotary = one["rotary"];
        params.base = one["base"];
        params.sections = one["sections"];
        machine_.run(0, [&](Exec& ex) {
            machine_.ops().rope(ex, view(x, {dims[0], dims[1], dims[2]}),
                                make_tensor(positions.data(), DType::kI32, {dims[0], 3}), Tensor{},
                                params);
        });
        expect_near(x, one, "out", kF32Angles);
    });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         RecurrentGolden,
                         testing::ValuesIn(backends()),
                         [](const auto& about) { return about.param; });

}  // namespace
}  // namespace tessera::recurrent
