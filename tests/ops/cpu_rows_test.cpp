// The CPU backend's ops other than products, against formulas in f64, on every instruction set that
// this machine has; and its promise that a row's bytes depend on nothing but the row.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/codec.h"
#include "core/numeric.h"
#include "ops/cpu_fixture.h"

namespace tessera::cpu {
namespace {

// Guards against wrong sums in register tails and against a mean in f32.
TEST(CpuRows, RmsNormMatchesTheFormula) {
    for (const std::string& set : sets())
        for (const int64_t cols : {1, 5, 16, 63, 576}) {
            Bench bench(set);
            Exec ex = bench.exec(0);
            const Tensor x = bench.floats({3, cols}), gain = bench.floats({cols});
            const Tensor out = bench.make(DType::kF32, {3, cols});
            bench.ops().rms_norm(ex, x, gain, 1e-5f, out);
            for (int64_t t = 0; t < 3; ++t) {
                double squares = 0;
                for (int64_t i = 0; i < cols; ++i) squares += std::pow(x.row<float>(t)[i], 2.0);
                const double norm = std::sqrt(squares / static_cast<double>(cols) + 1e-5);
                for (int64_t i = 0; i < cols; ++i) {
                    const double want = x.row<float>(t)[i] / norm * gain.as<float>()[i];
                    EXPECT_NEAR(out.row<float>(t)[i], want, 4e-7 * std::fabs(want)) << set;
                }
            }
        }
}

// Guards against a fused norm whose bf16 differs from the composed one.
TEST(CpuRows, FusedNormEqualsNormThenPrepare) {
    for (const std::string& set : sets()) {
        Bench bench(set, 2);
        Exec ex = bench.exec(2);
        const Tensor x = bench.floats({70, 577}), gain = bench.floats({577});
        const ActWants wants{.prompt = 1 << int{static_cast<uint8_t>(ActFormat::kBF16)},
                             .generated = 3};
        const GemmInput fused = bench.ops().rms_norm_input(ex, x, gain, 1e-6f, wants);
        const GemmInput composed = bench.ops().Ops::rms_norm_input(ex, x, gain, 1e-6f, wants);
        const auto compare = [&](const ActView& a, const ActView& b) {
            ASSERT_EQ(a.values.rank, b.values.rank);
            if (a.values.absent()) return;
            ASSERT_EQ(a.format, b.format);
            const int64_t element = a.format == ActFormat::kF32 ? 4 : 2;
            for (int64_t t = 0; t < a.values.rows(); ++t)
                EXPECT_EQ(std::memcmp(a.values.as<char>() + t * a.values.stride[0] * element,
                                      b.values.as<char>() + t * b.values.stride[0] * element,
                                      static_cast<size_t>(577 * element)),
                          0)
                    << set;
        };
        for (size_t i = 0; i < 2; ++i) {
            compare(fused.prompt[i], composed.prompt[i]);
            compare(fused.generated[i], composed.generated[i]);
        }
    }
}

// Guards against a wrong gate function and against tails computed by other instructions.
TEST(CpuRows, GluMatchesTheFormulaWhereverAnElementStands) {
    const auto gate_of = [](Glu kind, double x) {
        if (kind == Glu::kSwiGlu) return x / (1 + std::exp(-x));
        if (kind == Glu::kReGlu) return std::max(x, 0.0);
        const double inner = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        return x / 2 * (1 + std::tanh(inner));
    };
    for (const std::string& set : sets())
        for (const Glu kind : {Glu::kSwiGlu, Glu::kGeGlu, Glu::kReGlu}) {
            Bench bench(set, 2);
            Exec ex = bench.exec(0);
            const Tensor gate = bench.floats({40, 601}, 3.0f), up = bench.floats({40, 601});
            for (int64_t t = 1; t < 40; ++t)  // row t is row 0 from its column t on
                for (int64_t i = 0; i + t < 601; ++i) {
                    gate.row<float>(t)[i] = gate.row<float>(0)[i + t];
                    up.row<float>(t)[i] = up.row<float>(0)[i + t];
                }
            const Tensor out = bench.make(DType::kF32, {40, 601});
            bench.ops().glu(ex, gate, up, kind, out);
            for (int64_t i = 0; i < 601; ++i) {
                const double product = gate.as<float>()[i] * up.as<float>()[i];
                const double want = gate_of(kind, gate.as<float>()[i]) * up.as<float>()[i];
                EXPECT_NEAR(out.as<float>()[i], want, 4e-7 * std::fabs(product)) << set;
            }
            for (int64_t t = 1; t < 40; ++t)
                for (int64_t i = 0; i + t < 601; ++i)
                    ASSERT_EQ(out.row<float>(t)[i], out.row<float>(0)[i + t]) << set << t;
        }
}

// Guards against hidden columns that leak, overflow without the maximum, and wrong tails.
TEST(CpuRows, SoftmaxMatchesTheFormula) {
    for (const std::string& set : sets()) {
        Bench bench(set);
        Exec ex = bench.exec(0);
        const Tensor x = bench.floats({4, 1100}, 40.0f);  // products up to 300 round to 3e-5
        const std::vector<int32_t> visible = {1, 17, 1024, 1100};
        const Tensor out = bench.make(DType::kF32, {4, 1100});
        bench.ops().softmax(ex, x, bench.ints(visible), 2.0f, out);
        for (int64_t t = 0; t < 4; ++t) {
            const int64_t seen = visible[static_cast<size_t>(t)];
            const float* row = x.row<float>(t);
            const double largest = 2.0 * *std::max_element(row, row + seen);
            double total = 0;
            for (int64_t i = 0; i < seen; ++i) total += std::exp(2.0 * row[i] - largest);
            for (int64_t i = 0; i < 1100; ++i) {
                const double want = i < seen ? std::exp(2.0 * row[i] - largest) / total : 0.0;
                EXPECT_NEAR(out.row<float>(t)[i], want, 4e-5 * want + 1e-37) << set;
            }
        }
    }
}

// Guards against swapped pairs, angles in f32 at large positions, and a table of other positions or
// parameters being reused.
TEST(CpuRows, RopeMatchesTheFormula) {
    for (const std::string& set : sets()) {
        Bench bench(set);
        Exec ex = bench.exec(0);
        const Tensor factors = bench.floats({20});
        for (int64_t i = 0; i < 20; ++i)
            factors.as<float>()[i] = 1.0f + std::fabs(factors.as<float>()[i]);
        for (const RopePairs pairs : {RopePairs::kAdjacent, RopePairs::kHalves})
            for (const std::vector<int32_t>& positions :
                 {std::vector<int32_t>{0, 1, 131071}, std::vector<int32_t>{0, 1, 131072}})
                for (const bool scaled : {false, true}) {
                    const Tensor x = bench.floats({3, 2, 48});
                    const std::vector<float> before = values_of(x);
                    const RopeParams params{.pairs = pairs,
                                            .rotary = 40,
                                            .base = 500000.0f,
                                            .freq_scale = scaled ? 0.25f : 1.0f,
                                            .magnitude = scaled ? 1.25f : 1.0f};
                    bench.ops().rope(ex, x, bench.ints(positions), scaled ? factors : Tensor{},
                                     params);
                    for (size_t e = 0; e < before.size(); ++e) {
                        const size_t t = e / 96, i = e % 48;
                        double want = before[e];
                        if (i < 40) {
                            const bool adjacent = pairs == RopePairs::kAdjacent;
                            const size_t pair = adjacent ? i / 2 : i % 20;
                            const bool second = adjacent ? i % 2 == 1 : i >= 20;
                            const size_t other =
                                adjacent ? (second ? e - 1 : e + 1) : (second ? e - 20 : e + 20);
                            double angle = positions[t] *
                                           std::pow(500000.0, -0.05 * static_cast<double>(pair));
                            if (scaled) angle *= 0.25 / factors.as<float>()[pair];
                            const double sign = second ? 1.0 : -1.0;
                            want = before[e] * std::cos(angle) +
                                   sign * before[other] * std::sin(angle);
                            if (scaled) want *= 1.25;
                        }
                        EXPECT_NEAR(values_of(x)[e], want, 1e-6) << set;
                    }
                }
    }
}

// Guards against conversions that flush subnormals, round halves up or lose NaN.
TEST(CpuRows, CopyConvertsBitForBit) {
    std::vector<float> samples;
    for (uint32_t bits = 0; bits < 0xffff0000u; bits += 0x000173c1u)
        samples.push_back(std::bit_cast<float>(bits));
    for (const std::string& set : sets()) {
        Bench bench(set);
        Exec ex = bench.exec(0);
        const auto count = static_cast<int64_t>(samples.size());
        const Tensor x = make_tensor(samples.data(), DType::kF32, {count});
        const Tensor half = bench.make(DType::kF16, {count});
        const Tensor brain = bench.make(DType::kBF16, {count});
        const Tensor back = bench.make(DType::kF32, {count});
        bench.ops().copy(ex, x, half);
        bench.ops().copy(ex, x, brain);
        for (int64_t i = 0; i < count; ++i) {
            const float sample = samples[static_cast<size_t>(i)];
            ASSERT_EQ(brain.as<uint16_t>()[i], bf16_from_f32(sample)) << set << " " << sample;
            if (std::isnan(sample))
                ASSERT_TRUE(std::isnan(f32_from_f16(half.as<uint16_t>()[i])));
            else
                ASSERT_EQ(half.as<uint16_t>()[i], f16_from_f32(sample)) << set << " " << sample;
        }
        bench.ops().copy(ex, half, back);
        for (int64_t i = 0; i < count; ++i) {
            const float want = f32_from_f16(half.as<uint16_t>()[i]);
            if (std::isnan(want)) continue;
            ASSERT_EQ(back.as<float>()[i], want) << set;
        }
    }
}

// Guards against strides taken for bytes, block formats cut in the middle, and integers through
// f32.
TEST(CpuRows, CopyFollowsStridesAndFormats) {
    Bench bench("");
    Exec ex = bench.exec(0);
    Tensor x = bench.floats({5, 96});
    x.shape[1] = 64;  // a view of the first 64 columns
    const Tensor blocks = bench.make(DType::kQ8_0, {5, 64});
    bench.ops().copy(ex, x, blocks);
    for (int64_t t = 0; t < 5; ++t) {
        std::byte want[68];
        quantize_row(DType::kQ8_0, x.row<float>(t), 64, want, Nvfp4Policy::kAmax6);
        EXPECT_EQ(std::memcmp(blocks.as<std::byte>() + t * 68, want, 68), 0);
    }
    const Tensor narrow = bench.ints({16777217, -5});
    const Tensor wide = bench.make(DType::kI64, {2});
    bench.ops().copy(ex, narrow, wide);
    EXPECT_EQ(wide.as<int64_t>()[0], 16777217);
    EXPECT_EQ(wide.as<int64_t>()[1], -5);
}

// Guards against a wrong offset of the second operand on each axis.
TEST(CpuRows, ConcatJoinsEveryAxis) {
    for (int32_t axis = 0; axis < 3; ++axis) {
        Bench bench("");
        Exec ex = bench.exec(0);
        std::array<int64_t, 3> shape = {3, 4, 5};
        const Tensor a = bench.floats({shape[0], shape[1], shape[2]});
        shape[static_cast<size_t>(axis)] = 2;
        const Tensor b = bench.floats({shape[0], shape[1], shape[2]});
        shape[static_cast<size_t>(axis)] += a.shape[static_cast<size_t>(axis)];
        const Tensor out = bench.make(DType::kF32, {shape[0], shape[1], shape[2]});
        bench.ops().concat(ex, a, b, axis, out);
        for (int64_t i = 0; i < out.elements(); ++i) {
            std::array<int64_t, 3> at = {i / (shape[1] * shape[2]), i / shape[2] % shape[1],
                                         i % shape[2]};
            int64_t& place = at[static_cast<size_t>(axis)];
            const int64_t border = a.shape[static_cast<size_t>(axis)];
            const Tensor& source = place < border ? a : b;
            if (place >= border) place -= border;
            EXPECT_EQ(
                out.as<float>()[i],
                source.as<float>()[at[0] * source.stride[0] + at[1] * source.stride[1] + at[2]]);
        }
    }
}

// Guards against results that depend on which thread or how many took a row.
TEST(CpuRows, ThreadsDoNotShow) {
    std::vector<float> first;
    for (const int32_t threads : {1, 2, 3}) {
        Bench bench("", threads);
        Exec ex = bench.exec(0);
        const Tensor x = bench.floats({67, 640}), y = bench.floats({67, 640});
        const Tensor out = bench.make(DType::kF32, {67, 640});
        bench.ops().add(ex, x, y, out);
        bench.ops().rms_norm(ex, out, Tensor{}, 1e-6f, out);
        bench.ops().glu(ex, out, y, Glu::kSwiGlu, out);
        bench.ops().softmax(ex, out, Tensor{}, 1.0f, out);
        if (threads == 1) first = values_of(out);
        EXPECT_EQ(values_of(out), first) << threads;
    }
}

// Guards against a NaN that wins, a later one of equal logits, and tails that are skipped.
TEST(CpuSample, ArgmaxTakesTheLowestOfEquals) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const std::string& set : sets()) {
        Bench bench(set);
        Exec ex = bench.exec(0);
        const Tensor logits = bench.floats({4, 1003});
        logits.row<float>(0)[1002] = 9.0f;
        logits.row<float>(1)[77] = logits.row<float>(1)[501] = 9.0f;
        logits.row<float>(1)[3] = nan;
        std::fill_n(logits.row<float>(2), 1003, nan);
        std::fill_n(logits.row<float>(3), 1003, -std::numeric_limits<float>::infinity());
        logits.row<float>(3)[0] = nan;
        const Tensor ids = bench.ints({0, 0, 0, 0});
        bench.ops().argmax(ex, logits, ids);
        EXPECT_EQ(ids.as<int32_t>()[0], 1002) << set;
        EXPECT_EQ(ids.as<int32_t>()[1], 77) << set;
        EXPECT_EQ(ids.as<int32_t>()[2], -1) << set;
        EXPECT_EQ(ids.as<int32_t>()[3], 1) << set;
    }
}

/// The chain of the contract on a fully sorted vocabulary.
int32_t sample_slowly(const float* logits,
                      int32_t vocabulary,
                      const SampleParams& p,
                      std::span<const int32_t> history,
                      double uniform) {
    std::vector<std::pair<double, int32_t>> order;
    for (int32_t id = 0; id < vocabulary; ++id) {
        double logit = logits[id];
        const auto count = static_cast<double>(std::ranges::count(history, id));
        if (count > 0) {
            logit = logit > 0 ? logit / p.repeat_penalty : logit * p.repeat_penalty;
            logit -= count * p.frequency_penalty + p.presence_penalty;
        }
        order.emplace_back(-logit, id);
    }
    std::sort(order.begin(), order.end());
    if (p.temperature <= 0) return order[0].second;
    if (p.top_k > 0) order.resize(std::min<size_t>(order.size(), static_cast<size_t>(p.top_k)));
    const auto weight = [&](size_t i) { return std::exp(order[0].first - order[i].first); };
    double total = 0, mass = 0;
    for (size_t i = 0; i < order.size(); ++i) total += weight(i);
    size_t kept = 0;
    while (kept < order.size() && (p.top_p >= 1 || mass < p.top_p * total)) mass += weight(kept++);
    while (kept > 1 && weight(kept - 1) < p.min_p) --kept;
    total = mass = 0;
    for (size_t i = 0; i < kept; ++i) total += std::pow(weight(i), 1.0 / p.temperature);
    for (size_t i = 0; i < kept; ++i) {
        mass += std::pow(weight(i), 1.0 / p.temperature);
        if (mass > uniform * total) return order[i].second;
    }
    return order[kept - 1].second;
}

// Guards against a candidate search that misses kept tokens, a wrong order of the steps, penalties
// applied twice, and rows that share their workspace.
TEST(CpuSample, MatchesTheChainOnASortedVocabulary) {
    constexpr int32_t kVocabulary = 3001, kRows = 200;
    for (const int32_t threads : {1, 3}) {
        Bench bench("", threads);
        Exec ex = bench.exec(0);
        const Tensor logits = bench.floats({kRows, kVocabulary}, 2.0f);
        for (int64_t i = 0; i < logits.elements(); ++i)  // ties
            logits.as<float>()[i] = std::round(logits.as<float>()[i] * 8.0f) / 8.0f;
        std::mt19937 random(3);
        const auto pick = [&](auto... options) {
            const double all[] = {static_cast<double>(options)...};
            return all[random() % sizeof...(options)];
        };
        std::vector<SampleParams> params;
        std::vector<std::vector<int32_t>> tokens;
        std::vector<std::span<const int32_t>> history;
        std::vector<float> uniforms;
        for (int32_t row = 0; row < kRows; ++row) {
            params.push_back({.temperature = static_cast<float>(pick(0, 0.5, 1, 2)),
                              .top_k = static_cast<int32_t>(pick(0, 1, 40, 5000)),
                              .top_p = static_cast<float>(pick(0.1, 0.93, 0.999, 1)),
                              .min_p = static_cast<float>(pick(0, 0.05, 0.3)),
                              .repeat_penalty = static_cast<float>(pick(1, 1.25)),
                              .frequency_penalty = static_cast<float>(pick(0, 0.5)),
                              .presence_penalty = static_cast<float>(pick(0, 0.25))});
            tokens.push_back({5, 5, 6, 2999, static_cast<int32_t>(random() % kVocabulary)});
            uniforms.push_back(static_cast<float>(random() % 4096) / 4096.0f);
        }
        for (const auto& list : tokens) history.emplace_back(list);
        const Tensor ids = bench.ints(std::vector<int32_t>(kRows, -7));
        const std::vector<float> before = values_of(logits);
        bench.ops().sample(ex, logits, params, history, uniforms, ids);
        EXPECT_EQ(values_of(logits), before);
        for (size_t row = 0; row < kRows; ++row)
            EXPECT_EQ(ids.as<int32_t>()[row],
                      sample_slowly(logits.row<float>(static_cast<int64_t>(row)), kVocabulary,
                                    params[row], history[row], uniforms[row]))
                << row;
        logits.row<float>(1)[2000] = std::numeric_limits<float>::quiet_NaN();
        bench.ops().sample(ex, logits, params, history, uniforms, ids);
        EXPECT_EQ(ids.as<int32_t>()[1], -1);
    }
}

// Guards against a silent fallback for a mistyped name.
TEST(CpuOpsTest, UnknownInstructionSetIsAUserError) {
    try {
        pick_isa("avx51");
        FAIL() << "no error";
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kUsage);
        EXPECT_NE(std::string(error.what()).find("scalar"), std::string::npos);
    }
    EXPECT_EQ(pick_isa("scalar"), Isa::kScalar);
}

// Guards against memory that is not zero or not aligned, on both sides of the huge-page border.
TEST(CpuOpsTest, AllocatedMemoryIsZeroAndAligned) {
    CpuOptions options;
    CpuOps ops(options);
    for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{3} << 20}) {
        const std::byte* block = ops.allocate(bytes);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
        EXPECT_TRUE(
            std::all_of(block, block + bytes, [](std::byte b) { return b == std::byte{}; }));
    }
}

}  // namespace
}  // namespace tessera::cpu
