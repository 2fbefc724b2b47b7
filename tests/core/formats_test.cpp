// Block formats against the gguf package (decoding), ggml's quantizer (encoding) and an independent
// model of the NVFP4 policies: scripts/oracles/formats.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "core/codec.h"
#include "core/dtype.h"
#include "tests/core/stored_data.h"

namespace tessera {
namespace {

std::string stem(DType format) {
    std::string name(dtype_info(format).name);
    for (char& letter : name)
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return test::data_path("formats/" + name);
}

std::vector<std::byte> stored_blocks(const std::string& path) {
    return test::read_vector<std::byte>(path);
}

std::vector<float> input_values() {
    return test::read_vector<float>(test::data_path("formats/input.values.bin"));
}

std::vector<std::byte> encode(DType format,
                              const std::vector<float>& values,
                              Nvfp4Policy policy = Nvfp4Policy::kAmax6) {
    const int64_t count = static_cast<int64_t>(values.size());
    std::vector<std::byte> blocks(static_cast<size_t>(dtype_bytes(format, count)));
    quantize_row(format, values.data(), count, blocks.data(), policy);
    return blocks;
}

std::vector<float> decode(DType format, const std::vector<std::byte>& blocks) {
    const DTypeInfo& info = dtype_info(format);
    const size_t count = blocks.size() / static_cast<size_t>(info.block_bytes) *
                         static_cast<size_t>(info.block_elements);
    std::vector<float> values(count);
    dequantize_row(format, blocks.data(), static_cast<int64_t>(count), values.data());
    return values;
}

double squared_error(DType format,
                     const std::vector<std::byte>& blocks,
                     const std::vector<float>& values) {
    const std::vector<float> decoded = decode(format, blocks);
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
        const double difference = double{decoded[i]} - double{values[i]};
        sum += difference * difference;
    }
    return sum;
}

/// Index of the first block that differs, or -1.
int64_t first_difference(DType format,
                         const std::vector<std::byte>& a,
                         const std::vector<std::byte>& b) {
    if (a.size() != b.size()) return 0;
    const auto [in_a, in_b] = std::ranges::mismatch(a, b);
    return in_a == a.end() ? -1 : (in_a - a.begin()) / dtype_info(format).block_bytes;
}

class BlockFormat : public testing::TestWithParam<DType> {};

std::string format_name(const testing::TestParamInfo<DType>& info) {
    return std::string(dtype_info(info.param).name);
}

std::vector<DType> block_formats() {
    std::vector<DType> formats;
    for (const DTypeInfo& info : all_dtypes())
        if (info.block_elements > 1) formats.push_back(info.dtype);
    return formats;
}
INSTANTIATE_TEST_SUITE_P(Formats, BlockFormat, testing::ValuesIn(block_formats()), format_name);

// Guards against a wrong nibble order, bit plane, scale unpacking or sign, in any code: the blocks
// are random bytes.
TEST_P(BlockFormat, DecodesAsTheGgufPackage) {
    const auto blocks = stored_blocks(stem(GetParam()) + ".random.bin");
    const auto expected = test::read_vector<float>(stem(GetParam()) + ".decoded.bin");
    const std::vector<float> values = decode(GetParam(), blocks);
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], expected[i]) << "value " << i;
}

// Guards against a block loop that reads or writes past its block: unaligned, exactly sized memory.
TEST_P(BlockFormat, WorksBlockByBlock) {
    const DTypeInfo& info = dtype_info(GetParam());
    const size_t elements = static_cast<size_t>(info.block_elements);
    const size_t bytes = static_cast<size_t>(info.block_bytes);
    const std::vector<float> values = input_values();
    const std::vector<std::byte> whole = encode(GetParam(), values, Nvfp4Policy::kSearch);
    const std::vector<float> decoded = decode(GetParam(), whole);
    for (size_t block = 0; block < values.size() / elements; ++block) {
        std::vector<std::byte> shifted(bytes + 1);
        quantize_row(GetParam(), values.data() + block * elements, info.block_elements,
                     shifted.data() + 1, Nvfp4Policy::kSearch);
        ASSERT_TRUE(std::equal(shifted.begin() + 1, shifted.end(), whole.data() + block * bytes));
        std::vector<float> one(elements);
        dequantize_row(GetParam(), shifted.data() + 1, info.block_elements, one.data());
        ASSERT_TRUE(std::equal(one.begin(), one.end(), decoded.data() + block * elements));
    }
}

// Guards against NaN from a division by a zero or denormal scale.
TEST_P(BlockFormat, ExtremeValuesStayFinite) {
    for (const float value : {0.0f, -0.0f, 1e-44f, -1e-40f, 1e-30f, 3e38f, -3e38f, 65504.0f}) {
        for (const bool alternate : {false, true}) {
            std::vector<float> values(256, value);
            if (alternate)
                for (size_t i = 0; i < values.size(); i += 2) values[i] = -value;
            for (const float result : decode(GetParam(), encode(GetParam(), values)))
                ASSERT_TRUE(std::isfinite(result)) << value;
        }
    }
}

// Guards against an encoder that departs from the reference rule of the deterministic formats.
TEST(Formats, EncodersWithOneRuleMatchGgml) {
    for (const DType format :
         {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kMXFP4}) {
        const auto expected = stored_blocks(stem(format) + ".ggml.bin");
        EXPECT_EQ(first_difference(format, encode(format, input_values()), expected), -1)
            << dtype_info(format).name;
    }
}

// Guards against a K-quant search that is worse than ggml's.
TEST(Formats, KQuantsLoseNoMoreThanGgml) {
    const std::vector<float> values = input_values();
    for (const DType format : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
        const double theirs =
            squared_error(format, stored_blocks(stem(format) + ".ggml.bin"), values);
        const double ours = squared_error(format, encode(format, values), values);
        EXPECT_LE(ours, 1.01 * theirs) << dtype_info(format).name;
        EXPECT_GT(theirs, 0.0);
    }
}

// Guards against a wrong candidate set, tie rule or scale rounding in the three policies.
TEST(Formats, Nvfp4PoliciesMatchTheModel) {
    struct Case {
        Nvfp4Policy policy;
        const char* name;
    };
    for (const Case& c :
         {Case{Nvfp4Policy::kAmax6, "amax6"}, Case{Nvfp4Policy::kFourSix, "four_six"},
          Case{Nvfp4Policy::kSearch, "search"}}) {
        const auto expected =
            stored_blocks(test::data_path(std::string("formats/nvfp4.") + c.name + ".bin"));
        const auto blocks = encode(DType::kNVFP4, input_values(), c.policy);
        EXPECT_EQ(first_difference(DType::kNVFP4, blocks, expected), -1) << c.name;
    }
}

// Guards against the half-up scale rounding of ggml's encoder coming back unnoticed: on the same
// values it gives other bytes, and the error of ours is not larger.
TEST(Formats, Nvfp4RoundsScalesToEven) {
    const std::vector<float> values = input_values();
    const auto theirs = stored_blocks(stem(DType::kNVFP4) + ".ggml.bin");
    const double search =
        squared_error(DType::kNVFP4, encode(DType::kNVFP4, values, Nvfp4Policy::kSearch), values);
    EXPECT_LT(search, squared_error(DType::kNVFP4, theirs, values));
    // amax / 6 = 17/16 + 1/16 = a tie between 1.0625 and 1.1875 in steps of 1/8: even is 1.0.
    std::vector<float> tie(64, 0.0f);
    tie[0] = 6.0f * 1.0625f;
    EXPECT_EQ(encode(DType::kNVFP4, tie)[0], std::byte{0x38});
    tie[0] = 6.0f * 1.1875f;
    EXPECT_EQ(encode(DType::kNVFP4, tie)[0], std::byte{0x3a});
}

// Guards against a second-level scale that lets block scales saturate at 448.
TEST(Formats, Nvfp4TensorScaleReachesTheLargestValue) {
    EXPECT_EQ(nvfp4_tensor_scale(nullptr, 0), 1.0f);
    const std::vector<float> zeros(37, 0.0f);
    EXPECT_EQ(nvfp4_tensor_scale(zeros.data(), 37), 1.0f);
    for (size_t place = 0; place < 37; ++place) {
        std::vector<float> values(37, 0.5f);
        values[place] = -2688.0f * 3.0f;
        EXPECT_EQ(nvfp4_tensor_scale(values.data(), 37), 3.0f) << place;
    }
    const float tiny = 1e-44f;
    EXPECT_GT(nvfp4_tensor_scale(&tiny, 1), 0.0f);
}

// Guards against a conversion that wraps or truncates instead of rounding and saturating.
TEST(Formats, IntegersConvertByValue) {
    const std::vector<float> values = {
        0.5f, 1.5f, -2.5f, 300.0f, -1e30f, 1e30f, std::numeric_limits<float>::quiet_NaN()};
    const std::vector<float> i8 = {0.0f, 2.0f, -2.0f, 127.0f, -128.0f, 127.0f, 0.0f};
    const std::vector<float> i16 = {0.0f, 2.0f, -2.0f, 300.0f, -32768.0f, 32767.0f, 0.0f};
    const std::vector<float> i64 = {0.0f, 2.0f, -2.0f, 300.0f, -0x1p63f, 0x1p63f, 0.0f};
    EXPECT_EQ(decode(DType::kI8, encode(DType::kI8, values)), i8);
    EXPECT_EQ(decode(DType::kI16, encode(DType::kI16, values)), i16);
    EXPECT_EQ(decode(DType::kI64, encode(DType::kI64, values)), i64);
    const auto i32 = decode(DType::kI32, encode(DType::kI32, values));
    EXPECT_EQ(i32[4], -0x1p31f);
    EXPECT_EQ(i32[5], 0x1p31f);
}

// Guards against plain formats that go through the wrong width.
TEST(Formats, PlainFloatsKeepWhatTheyCanHold) {
    const std::vector<float> values = {1.0f, -0.0f, 0.333251953125f, 65504.0f, 0x1p-24f, 3e38f};
    EXPECT_EQ(decode(DType::kF32, encode(DType::kF32, values)), values);
    EXPECT_EQ(decode(DType::kF64, encode(DType::kF64, values)), values);
    const std::vector<float> half = decode(DType::kF16, encode(DType::kF16, values));
    EXPECT_TRUE(std::equal(half.begin(), half.end() - 1, values.begin()));
    const std::vector<float> small = decode(DType::kF8_E4M3, encode(DType::kF8_E4M3, values));
    EXPECT_EQ(small, (std::vector<float>{1.0f, -0.0f, 0.34375f, 448.0f, 0.0f, 448.0f}));
    const std::vector<float> brain = decode(DType::kBF16, encode(DType::kBF16, values));
    EXPECT_EQ(brain[2], 0.333984375f);  // eight significant bits: 171 / 512
}

// Guards against a partial block being read as a whole one.
TEST(FormatsDeathTest, PartialBlocksAreABug) {
    std::vector<float> values(33);
    std::vector<std::byte> blocks(64);
    EXPECT_DEATH(quantize_row(DType::kQ8_0, values.data(), 33, blocks.data(), Nvfp4Policy::kAmax6),
                 "whole number of blocks");
    EXPECT_DEATH(dequantize_row(DType::kNVFP4, blocks.data(), 32, values.data()),
                 "whole number of blocks");
}

}  // namespace
}  // namespace tessera
