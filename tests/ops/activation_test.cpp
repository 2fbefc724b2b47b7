// How the reference rounds activations: everything else starts from these values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backends/reference/reference_ops.h"
#include "core/codec.h"
#include "core/numeric.h"
#include "engine/engine.h"
#include "op_cases/case_run.h"

namespace tessera {
namespace {

constexpr size_t kArenaBytes = 1 << 16;

/// One row rounded to `format` and decoded again.
std::vector<float> round_trip(Ops& ops,
                              ActFormat format,
                              Nvfp4Policy policy,
                              std::vector<float> row) {
    Arena arena(ops.allocate(kArenaBytes), kArenaBytes);
    Exec ex{arena, 1};
    const Tensor x = make_tensor(row.data(), DType::kF32, {1, static_cast<int64_t>(row.size())});
    const auto bit = static_cast<uint8_t>(1u << static_cast<unsigned>(format));
    std::vector<float> values;
    op_cases::read_input(ops.prepare(ex, x, {.prompt = bit, .generated = 0, .nvfp4 = policy}),
                         values);
    return values;
}
std::vector<float> round_trip(ActFormat format, std::vector<float> row) {
    return round_trip(*make_reference_ops({}), format, Nvfp4Policy::kAmax6, std::move(row));
}

std::vector<float> random_row(int64_t cols, float amax) {
    op_cases::Random random(7);
    std::vector<float> row(static_cast<size_t>(cols));
    for (float& value : row) value = random.uniform(-1.0f, 1.0f);
    row[3] = -1.0f;
    for (float& value : row) value *= amax;
    return row;
}

double relative_error(ActFormat format, float amax) {
    const std::vector<float> row = random_row(192, amax);
    const std::vector<float> rounded = round_trip(format, row);
    double error = 0.0;
    double power = 0.0;
    for (size_t i = 0; i < row.size(); ++i) {
        const double x = static_cast<double>(row[i]);
        const double difference = static_cast<double>(rounded[i]) - x;
        error += difference * difference;
        power += x * x;
    }
    return std::sqrt(error / power);
}

/// Fault N1: without a second-level scale large rows are clamped and small ones vanish.
TEST(Activations, RelativeErrorDoesNotDependOnMagnitude) {
    for (const ActFormat format :
         {ActFormat::kBF16, ActFormat::kInt8, ActFormat::kNvfp4, ActFormat::kFp8}) {
        const double usual = relative_error(format, 1.0f);
        EXPECT_GT(usual, 1e-4);
        EXPECT_LT(usual, format == ActFormat::kNvfp4 ? 0.11
                         : format == ActFormat::kFp8 ? 0.03
                                                     : 0.008);
        // A bf16's own error depends on where in an octave the values lie, by up to a factor of 2.
        const double slack = format == ActFormat::kBF16 ? 0.4 : 0.05;
        for (const float amax : {1e-30f, 1e-3f, 2687.0f, 2689.0f, 6e4f, 1e30f})
            EXPECT_NEAR(relative_error(format, amax) / usual, 1.0, slack)
                << fmt::format("format {} amax {}", static_cast<int>(format), amax);
    }
}

/// Known values, worked out by hand from ActFormat's text.
TEST(Activations, RoundAsTheContractSays) {
    std::vector<float> row(64, 0.0f);
    row[0] = 127.0f;
    row[1] = 0.5f;   // tie: the even code 0
    row[2] = 1.5f;   // tie: the even code 2
    row[3] = -2.5f;  // tie: the even code -2
    row[40] = 1.27f;
    const std::vector<float> int8 = round_trip(ActFormat::kInt8, row);
    EXPECT_EQ(int8[0], 127.0f);
    EXPECT_EQ(int8[1], 0.0f);
    EXPECT_EQ(int8[2], 2.0f);
    EXPECT_EQ(int8[3], -2.0f);
    EXPECT_FLOAT_EQ(int8[40], 1.27f);  // the second block has a scale of its own

    EXPECT_EQ(round_trip(ActFormat::kBF16, {1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, 0.0f}),
              (std::vector<float>{1.0f, 1.0f + 0x1p-6f, 0.0f}));

    // Row scale 1: amax = 2688 = 6 * 448. Block 1 has the block scale 1 and e2m1's own values.
    row.assign(64, 0.0f);
    row[0] = 2688.0f;
    row[16] = 6.0f;
    row[17] = -0.25f;  // tie: the even code, zero
    row[18] = 2.5f;    // tie: the even code, 2
    row[19] = 5.0f;    // tie: the even code, 4
    row[20] = -3.4f;
    const std::vector<float> nvfp4 = round_trip(ActFormat::kNvfp4, row);
    EXPECT_EQ(nvfp4[0], 2688.0f);
    EXPECT_EQ(nvfp4[16], 6.0f);
    EXPECT_EQ(nvfp4[17], 0.0f);
    EXPECT_EQ(nvfp4[18], 2.0f);
    EXPECT_EQ(nvfp4[19], 4.0f);
    EXPECT_EQ(nvfp4[20], -3.0f);

    // Row scale 1: amax = 448.
    row.assign(64, 0.0f);
    row[0] = -448.0f;
    row[1] = 17.0f;      // tie between 16 and 18: the even code, 16
    row[2] = 19.0f;      // tie between 18 and 20: the even code, 20
    row[3] = 0x1p-9f;    // the least subnormal
    row[40] = 0x1p-10f;  // tie: zero
    row[41] = 240.5f;
    const std::vector<float> fp8 = round_trip(ActFormat::kFp8, row);
    EXPECT_EQ(fp8[0], -448.0f);
    EXPECT_EQ(fp8[1], 16.0f);
    EXPECT_EQ(fp8[2], 20.0f);
    EXPECT_EQ(fp8[3], 0x1p-9f);
    EXPECT_EQ(fp8[40], 0.0f);
    EXPECT_EQ(fp8[41], 240.0f);
}

/// Magnitudes whose scale would be subnormal have the least scale instead; what is no number takes
/// its row with it.
TEST(Activations, Fp8RowsAtTheEndsOfTheRange) {
    const std::vector<float> tiny = round_trip(ActFormat::kFp8, {0x1p-126f, -0x1.8p-130f, 0.0f});
    EXPECT_EQ(tiny, (std::vector<float>{0x1p-126f, -0x1.8p-130f, 0.0f}));
    const std::vector<float> infinite = round_trip(ActFormat::kFp8, {1.0f, INFINITY, 0.0f});
    for (const float value : infinite) EXPECT_TRUE(std::isnan(value));
    const std::vector<float> nan = round_trip(ActFormat::kFp8, {448.0f, NAN, -1.0f});
    EXPECT_EQ(nan[0], 448.0f);
    EXPECT_TRUE(std::isnan(nan[1]));
    EXPECT_EQ(nan[2], -1.0f);
}

/// Numbers down to the least: a scale that is zero, or whose reciprocal is none, made NaN of them.
TEST(Activations, Nvfp4RowsAtTheLowerEndOfTheRange) {
    const std::unique_ptr<Ops> reference = make_reference_ops({});
    const std::unique_ptr<Ops> cpu = make_ops({.name = "cpu", .threads = 1, .isa = {}});
    for (const Nvfp4Policy policy :
         {Nvfp4Policy::kAmax6, Nvfp4Policy::kFourSix, Nvfp4Policy::kSearch}) {
        // Under the least scale these are 3, 1.5 and 0.75: multiples of 3 / 6 and 0.75 / 6.
        std::vector<float> exact(64, 0.0f);
        exact[0] = -0x1.8p-125f;
        exact[1] = 0x1.8p-126f;
        exact[17] = 0x1.8p-127f;
        EXPECT_EQ(round_trip(*reference, ActFormat::kNvfp4, policy, exact), exact);
        for (const float amax : {1e-45f, 2e-42f, 1e-40f, 1e-38f, 1e-36f, 3e-35f}) {
            const std::vector<float> row = random_row(192, amax);
            const std::vector<float> rounded =
                round_trip(*reference, ActFormat::kNvfp4, policy, row);
            EXPECT_EQ(round_trip(*cpu, ActFormat::kNvfp4, policy, row), rounded) << amax;
            // A third of the largest number, or half a step of the least block scale times 6.
            const float bound = std::max(amax / 3.0f, 0x1.8p-134f);
            for (size_t i = 0; i < row.size(); ++i)
                EXPECT_LE(std::fabs(rounded[i] - row[i]), bound) << amax << ' ' << i;
        }
    }
}

/// A row of zeros has no largest value to divide by.
TEST(Activations, RowsOfZerosStayZero) {
    for (const ActFormat format :
         {ActFormat::kF32, ActFormat::kBF16, ActFormat::kInt8, ActFormat::kNvfp4, ActFormat::kFp8})
        EXPECT_EQ(round_trip(format, std::vector<float>(96, 0.0f)), std::vector<float>(96, 0.0f));
}

/// A K that fills no whole block must round as if zeros followed.
TEST(Activations, PartialBlocksRoundAsIfPadded) {
    for (const ActFormat format : {ActFormat::kInt8, ActFormat::kNvfp4}) {
        std::vector<float> row = random_row(129, 3.0f);
        std::vector<float> expected = row;
        expected.resize(192, 0.0f);
        expected = round_trip(format, expected);
        expected.resize(129);
        EXPECT_EQ(round_trip(format, row), expected);
    }
}

/// Outer scale first, then bias, then the old value (fault N12: a bias scaled with the product).
TEST(Activations, EpilogueOrderIsScaleBiasAdd) {
    const std::unique_ptr<Ops> ops = make_reference_ops({});
    Arena arena(ops->allocate(kArenaBytes), kArenaBytes);
    Exec ex{arena, 0};
    std::vector<float> w = {1.0f, 2.0f};
    const float outer = 0.5f;
    const Weight weight = ops->upload({.name = "w",
                                       .format = DType::kF32,
                                       .rows = 1,
                                       .cols = 2,
                                       .experts = 1,
                                       .data = reinterpret_cast<const std::byte*>(w.data()),
                                       .scales = {&outer, 1}});
    std::vector<float> x = {3.0f, 4.0f};
    std::vector<float> bias = {10.0f};
    std::vector<float> out = {100.0f};
    const GemmInput input =
        ops->prepare(ex, make_tensor(x.data(), DType::kF32, {1, 2}), weight.wants);
    ops->linear(ex, input, weight, make_tensor(bias.data(), DType::kF32, {1}),
                make_tensor(out.data(), DType::kF32, {1, 1}), Accumulate::kAdd);
    EXPECT_EQ(out[0], 0.5f * 11.0f + 10.0f + 100.0f);
}

}  // namespace
}  // namespace tessera
