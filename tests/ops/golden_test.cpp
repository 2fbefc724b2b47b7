// The reference itself against numbers that other implementations computed (ONNX's reference
// evaluator, ggml, llama.cpp's samplers; scripts/oracles/ops.py). A wrong formula that the
// reference shares with a backend shows only here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "engine/engine.h"
#include "op_cases/runner.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kArenaBytes = 1 << 20;

/// What f32 arithmetic may add to the bound of a golden case.
constexpr double kF32Bound = 1e-10;
/// Position 131071 with frequencies held in f32.
constexpr double kF32RopeBound = 1e-6;

const json& golden() {
    static const json cases = json::parse(std::ifstream(TESSERA_TEST_DATA "/ops/golden.json"));
    return cases;
}

Tensor view(std::vector<float>& values, std::initializer_list<int64_t> shape) {
    return make_tensor(values.data(), DType::kF32, shape);
}

Tensor view(std::vector<int32_t>& values) {
    return make_tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
}

class Golden : public testing::TestWithParam<std::string> {
  protected:
    Golden()
        : ops_(make_ops({.name = GetParam(), .threads = 2, .act = ActPolicy::kF32, .isa = {}})),
          memory_(ops_->allocate(kArenaBytes)),
          arena_(memory_, kArenaBytes),
          ex_{arena_, 0} {}

    /// Runs `body` on every case of `op` and expects some.
    template <class Body>
    void for_each(std::string_view op, Body body) {
        int32_t ran = 0;
        for (const json& one : golden()) {
            if (one["op"] != op) continue;
            ++ran;
            SCOPED_TRACE(fmt::format("golden {} {}", op, ran));
            body(one);
        }
        EXPECT_GT(ran, 0);
    }

    void expect_near(const std::vector<float>& out, const json& one, double f32_bound) const {
        const auto expected = one["out"].get<std::vector<float>>();
        // The goldens have nine digits and the outputs are f32.
        const double bound =
            std::max(one["bound"].get<double>(), GetParam() == "reference" ? 1e-14 : f32_bound);
        double nmse = 0.0;
        const auto fault = op_cases::compare_values(out, expected, bound, nmse);
        EXPECT_FALSE(fault.has_value()) << *fault;
    }

    std::unique_ptr<Ops> ops_;
    std::byte* memory_;
    Arena arena_;
    Exec ex_;
};

TEST_P(Golden, RmsNorm) {
    for_each("rms_norm", [&](const json& one) {
        auto x = one["x"].get<std::vector<float>>();
        auto gain = one["gain"].get<std::vector<float>>();
        const Tensor tensor = view(x, {one["shape"][0], one["shape"][1]});
        ops_->rms_norm(ex_, tensor, view(gain, {tensor.cols()}), one["eps"], tensor);
        expect_near(x, one, kF32Bound);
    });
}

TEST_P(Golden, Softmax) {
    for_each("softmax", [&](const json& one) {
        auto x = one["x"].get<std::vector<float>>();
        const Tensor tensor = view(x, {one["shape"][0], one["shape"][1]});
        ops_->softmax(ex_, tensor, Tensor{}, one["scale"], tensor);
        expect_near(x, one, kF32Bound);
    });
}

TEST_P(Golden, Glu) {
    const std::map<std::string, Glu> kinds = {
        {"swiglu", Glu::kSwiGlu}, {"geglu", Glu::kGeGlu}, {"reglu", Glu::kReGlu}};
    for_each("glu", [&](const json& one) {
        auto gate = one["gate"].get<std::vector<float>>();
        auto up = one["up"].get<std::vector<float>>();
        const Tensor tensor = view(gate, {one["shape"][0], one["shape"][1]});
        ops_->glu(ex_, tensor, view(up, {tensor.rows(), tensor.cols()}), kinds.at(one["kind"]),
                  tensor);
        expect_near(gate, one, kF32Bound);
    });
}

TEST_P(Golden, Rope) {
    for_each("rope", [&](const json& one) {
        auto x = one["x"].get<std::vector<float>>();
        auto positions = one["positions"].get<std::vector<int32_t>>();
        auto factors = one.value("factors", std::vector<float>{});
        RopeParams params;
        params.pairs = one["pairs"] == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent;
        params.rotary = one["rotary"];
        params.base = one["base"];
        params.freq_scale = one.value("freq_scale", 1.0f);
        params.magnitude = one.value("magnitude", 1.0f);
        params.yarn = one.value("yarn", false);
        params.beta_fast = one.value("beta_fast", 32.0f);
        params.beta_slow = one.value("beta_slow", 1.0f);
        params.original_context = one.value("original_context", 0);
        ops_->rope(
            ex_, view(x, {one["shape"][0], one["shape"][1], one["shape"][2]}), view(positions),
            factors.empty() ? Tensor{} : view(factors, {static_cast<int64_t>(factors.size())}),
            params);
        expect_near(x, one, kF32RopeBound);
    });
}

/// kv_store of all tokens, then attention of the last `count`, over pages in falling order.
TEST_P(Golden, StoreAndAttention) {
    for_each("attention", [&](const json& one) {
        auto q = one["q"].get<std::vector<float>>();
        auto k = one["k"].get<std::vector<float>>();
        auto v = one["v"].get<std::vector<float>>();
        auto sinks = one.value("sinks", std::vector<float>{});
        const int32_t first = one["first"];
        const int32_t count = one["count"];
        const int32_t total = first + count;
        const int64_t heads = one["heads"];
        const int64_t kv_heads = one["kv_heads"];
        const int64_t d = one["head_size"];
        const int64_t pages = (total + kPageTokens - 1) / kPageTokens;
        std::vector<int32_t> table(static_cast<size_t>(pages));
        std::iota(table.rbegin(), table.rend(), 0);
        std::vector<float> keys(static_cast<size_t>(pages * kv_heads * kPageTokens * d));
        std::vector<float> values(keys.size());
        const KvView cache{view(keys, {pages, kv_heads, kPageTokens, d}),
                           view(values, {pages, kv_heads, kPageTokens, d})};
        std::vector<int32_t> positions(static_cast<size_t>(total));
        std::iota(positions.begin(), positions.end(), 0);
        std::vector<int32_t> start = {0, total};
        Batch batch;
        batch.tokens = view(positions);
        batch.positions = view(positions);
        batch.seq_start = view(start);
        batch.page_table = make_tensor(table.data(), DType::kI32, {1, pages});
        batch.prompt_rows = total;
        batch.max_visible = total;
        ops_->kv_store(ex_, view(k, {total, kv_heads, d}), view(v, {total, kv_heads, d}), batch,
                       cache);
        batch.positions = batch.positions.slice_rows(first, count);
        batch.tokens = batch.positions;
        start[1] = count;
        std::vector<float> out(static_cast<size_t>(count * heads * d));
        for (const int32_t prompt_rows : {0, count}) {
            batch.prompt_rows = prompt_rows;
            ex_.prompt_rows = prompt_rows;
            ops_->attention(ex_, view(q, {count, heads, d}), batch, cache,
                            {.scale = one["scale"],
                             .softcap = one["softcap"],
                             .window = one["window"],
                             .sinks = sinks.empty() ? Tensor{} : view(sinks, {heads})},
                            view(out, {count, heads * d}));
            expect_near(out, one, kF32Bound);
        }
    });
}

TEST_P(Golden, Sample) {
    for_each("sample", [&](const json& one) {
        auto logits = one["logits"].get<std::vector<float>>();
        const auto recent = one["history"].get<std::vector<int32_t>>();
        const json& how = one["params"];
        const SampleParams params{.temperature = how["temperature"],
                                  .top_k = how["top_k"],
                                  .top_p = how["top_p"],
                                  .min_p = how["min_p"],
                                  .repeat_penalty = how["repeat_penalty"],
                                  .frequency_penalty = how["frequency_penalty"],
                                  .presence_penalty = how["presence_penalty"]};
        for (const json& draw : one["draws"]) {
            const float uniform = draw[0];
            const std::span<const int32_t> history(recent);
            std::vector<int32_t> ids = {-7};
            ops_->sample(ex_, view(logits, {1, static_cast<int64_t>(logits.size())}), {&params, 1},
                         {&history, 1}, {&uniform, 1}, view(ids));
            EXPECT_EQ(ids[0], draw[1].get<int32_t>()) << how << " at " << uniform;
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         Golden,
                         testing::Values("reference", "cpu"),
                         [](const auto& about) { return about.param; });

}  // namespace
}  // namespace tessera
