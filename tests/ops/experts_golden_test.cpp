// The expert ops against numbers of scripts/oracles/experts.py (numpy, f64): a wrong formula that
// the reference shares with a backend shows only here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/engine.h"
#include "op_cases/runner.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kArenaBytes = 1 << 20;
/// The goldens have ten digits; a sum of 10 products in f32 is good for 1e-13.
constexpr double kBound = 1e-12;

std::vector<float> floats(const json& values) {
    std::vector<float> out;
    for (const json& value : values) out.push_back(value.is_null() ? NAN : value.get<float>());
    return out;
}

Tensor view(std::vector<float>& values, std::initializer_list<int64_t> shape) {
    return make_tensor(values.data(), DType::kF32, shape);
}
Tensor view(std::vector<int32_t>& values, std::initializer_list<int64_t> shape) {
    return make_tensor(values.data(), DType::kI32, shape);
}

class ExpertGolden : public testing::TestWithParam<std::string> {
  protected:
    ExpertGolden()
        : ops_(make_ops({.name = GetParam(), .threads = 2, .act = ActPolicy::kF32, .isa = {}})),
          arena_(ops_->allocate(kArenaBytes), kArenaBytes) {}

    template <class Body>
    void for_each(std::string_view op, Body body) {
        static const json kCases =
            json::parse(std::ifstream(TESSERA_TEST_DATA "/ops/experts.json"));
        int32_t ran = 0;
        for (const json& one : kCases) {
            if (one["op"] != op) continue;
            SCOPED_TRACE(fmt::format("golden {} {}", op, ++ran));
            body(one);
        }
        EXPECT_GT(ran, 0);
    }

    static void expect_near(const std::vector<float>& out, const json& expected) {
        double nmse = 0.0;
        const auto fault = op_cases::compare_values(out, floats(expected), kBound, nmse);
        EXPECT_FALSE(fault.has_value()) << *fault;
    }

    Weight upload(const json& one, const std::string& which) {
        const std::vector<float> values = floats(one[which]);
        const std::vector<float> scales = floats(one[which + "_scale"]);
        return ops_->upload({.name = which,
                             .format = DType::kF32,
                             .rows = one["n"],
                             .cols = one["k"],
                             .experts = one["experts"],
                             .data = reinterpret_cast<const std::byte*>(values.data()),
                             .scales = scales});
    }

    std::unique_ptr<Ops> ops_;
    Arena arena_;
};

TEST_P(ExpertGolden, Route) {
    for_each("route", [&](const json& one) {
        std::vector<float> logits = floats(one["logits"]), bias = floats(one["bias"]);
        const int64_t rows = one["shape"][0], experts = one["shape"][1], choices = one["choices"];
        std::vector<int32_t> ids(static_cast<size_t>(rows * choices), -7);
        std::vector<float> weights(ids.size());
        Exec ex{arena_, 0};
        ops_->route(
            ex, view(logits, {rows, experts}), bias.empty() ? Tensor{} : view(bias, {experts}),
            {.sigmoid = one["sigmoid"], .normalize = one["normalize"], .scale = one["scale"]},
            view(ids, {rows, choices}), view(weights, {rows, choices}));
        EXPECT_EQ(ids, one["ids"].get<std::vector<int32_t>>());
        expect_near(weights, one["weights"]);
    });
}

/// Grouping, both kinds of product, combination; all rows generated, all prompt, and mixed.
TEST_P(ExpertGolden, GroupedProducts) {
    for_each("moe", [&](const json& one) {
        const int64_t tokens = one["tokens"], choices = one["choices"], n = one["n"];
        const int64_t pairs = tokens * choices;
        std::vector<float> x = floats(one["x"]), weights = floats(one["weights"]);
        std::vector<int32_t> ids = one["ids"].get<std::vector<int32_t>>();
        const Weight gate = upload(one, "gate"), up = upload(one, "up");
        const int64_t x_rows = static_cast<int64_t>(x.size()) / gate.cols;
        for (const int32_t prompt : {0, 2, static_cast<int32_t>(tokens)}) {
            const Scope scope(arena_);
            Exec ex{arena_, prompt};
            Exec rows_ex{arena_, static_cast<int32_t>(prompt * x_rows / tokens)};
            const GemmInput input =
                ops_->prepare(rows_ex, view(x, {x_rows, gate.cols}), gate.wants);
            const ExpertWork work =
                ops_->group_experts(ex, view(ids, {tokens, choices}), gate.experts);
            const auto* order = work.pairs.as<int32_t>();
            EXPECT_EQ(std::vector<int32_t>(order, order + pairs),
                      one["pairs"].get<std::vector<int32_t>>());
            const auto* starts = work.starts.as<int32_t>();
            EXPECT_EQ(std::vector<int32_t>(starts, starts + gate.experts + 1),
                      one["starts"].get<std::vector<int32_t>>());

            std::vector<float> y(static_cast<size_t>(pairs * n), NAN);
            ops_->linear_experts(ex, input, work, gate, view(y, {pairs, n}));
            expect_near(y, one["products"]);

            std::vector<float> gated;
            op_cases::read_input(
                ops_->linear_experts_glu(ex, input, work, gate, up, Glu::kSwiGlu, gate.wants),
                gated);
            expect_near(gated, one["gated"]);

            std::vector<float> sum(static_cast<size_t>(tokens * n), NAN),
                added = floats(one["base"]);
            const Tensor mix = view(weights, {tokens, choices});
            ops_->combine(ex, view(y, {pairs, n}), mix, view(sum, {tokens, n}), Accumulate::kNo);
            expect_near(sum, one["combined"]);
            ops_->combine(ex, view(y, {pairs, n}), mix, view(added, {tokens, n}), Accumulate::kAdd);
            expect_near(added, one["added"]);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ExpertGolden,
                         testing::Values("reference", "cpu"),
                         [](const auto& about) { return about.param; });

}  // namespace
}  // namespace tessera
