// Scalar conversions against ml_dtypes and numpy (scripts/oracles/formats.py). Where a table of all
// results would be large, its 64-bit FNV-1a hash is stored.

#include "core/numeric.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/core/stored_data.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Hashed {
    size_t bytes = 0;
    uint64_t hash = 0xcbf29ce484222325u;

    template <class T>
    void add(T value) {
        unsigned char raw[sizeof(T)];
        std::memcpy(raw, &value, sizeof(T));
        for (const unsigned char byte : raw) hash = (hash ^ byte) * 0x100000001b3u;
        bytes += sizeof(T);
    }
};

void expect_stored(const std::string& name, const Hashed& result) {
    for (const std::vector<std::string>& row :
         test::read_table(test::data_path("formats/scalars.tsv"))) {
        if (row.at(0) != name) continue;
        EXPECT_EQ(result.bytes, std::stoull(row.at(1))) << name;
        EXPECT_EQ(result.hash, std::stoull(row.at(2), nullptr, 16)) << name;
        return;
    }
    FAIL() << "no stored hash of " << name;
}

/// The inputs of the stored sweeps: every 4099th float that is a number.
template <class Encode>
Hashed sweep(Encode encode) {
    Hashed result;
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
        const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
        if (!std::isnan(value)) result.add(encode(value));
    }
    return result;
}

// Guards against a wrong subnormal, infinity or sign in the half-precision table: all 65536 codes.
TEST(Numeric, HalfDecodesEveryCode) {
    Hashed result;
    for (uint32_t code = 0; code < 65536; ++code) {
        const float value = f32_from_f16(static_cast<uint16_t>(code));
        const bool is_nan_code = (code & 0x7fffu) > 0x7c00u;
        EXPECT_EQ(std::isnan(value), is_nan_code) << code;
        if (!is_nan_code) result.add(value);
    }
    expect_stored("f16_decode", result);
}

// Guards against truncation, double rounding and ties to odd, over the whole range of f32.
TEST(Numeric, EncodersRoundADenseSweep) {
    expect_stored("f16_encode_sweep", sweep(f16_from_f32));
    expect_stored("bf16_encode_sweep", sweep(bf16_from_f32));
    expect_stored("e4m3_encode_sweep", sweep(ue4m3_from_f32));
    expect_stored("f8_e4m3_encode_sweep", sweep(e4m3_from_f32));
    expect_stored("e2m1_encode_sweep", sweep([](float value) { return e2m1_from_f32(value); }));
}

// Guards against ties that go the wrong way: every midpoint of neighbouring halves and the floats
// beside it.
TEST(Numeric, HalfRoundsTiesToEven) {
    constexpr uint32_t kFinite = 0x7c00;
    Hashed result;
    const auto middle = [](uint32_t code) {
        return 0.5f * (f32_from_f16(static_cast<uint16_t>(code)) +
                       f32_from_f16(static_cast<uint16_t>(code + 1)));
    };
    for (uint32_t code = 0; code < kFinite; ++code)
        result.add(f16_from_f32(f32_from_f16(static_cast<uint16_t>(code))));
    for (uint32_t code = 0; code + 1 < kFinite; ++code) result.add(f16_from_f32(middle(code)));
    for (uint32_t code = 0; code + 1 < kFinite; ++code)
        result.add(f16_from_f32(std::nextafter(middle(code), kInfinity)));
    for (uint32_t code = 0; code + 1 < kFinite; ++code)
        result.add(f16_from_f32(std::nextafter(middle(code), -kInfinity)));
    expect_stored("f16_encode_ties", result);
}

template <class Encode>
void expect_ties(const std::string& name, Encode encode) {
    const auto inputs =
        test::read_vector<float>(test::data_path("formats/" + name + ".values.bin"));
    const auto codes =
        test::read_vector<uint8_t>(test::data_path("formats/" + name + ".codes.bin"));
    ASSERT_EQ(inputs.size(), codes.size());
    ASSERT_FALSE(inputs.empty());
    for (size_t i = 0; i < inputs.size(); ++i)
        EXPECT_EQ(int{encode(inputs[i])}, int{codes[i]}) << name << " of " << inputs[i];
}

// Guards against round-half-up in the 8-bit scales (llama.cpp's rule, not ours) and in E2M1.
TEST(Numeric, SmallFloatsRoundTiesToEven) {
    expect_ties("e4m3_ties", ue4m3_from_f32);
    expect_ties("e2m1_ties", e2m1_from_f32);
    expect_ties("e4m3_ties", e4m3_from_f32);
}

// Guards against a shifted exponent in the scale table.
TEST(Numeric, E4m3DecodesEveryCode) {
    const auto values = test::read_vector<float>(test::data_path("formats/e4m3_decode.bin"));
    ASSERT_EQ(values.size(), 127u);
    for (size_t code = 0; code < values.size(); ++code) {
        EXPECT_EQ(f32_from_ue4m3(static_cast<uint8_t>(code)), values[code]) << code;
        EXPECT_EQ(f32_from_ue4m3(static_cast<uint8_t>(code | 0x80u)), values[code]) << code;
        EXPECT_EQ(f32_from_e4m3(static_cast<uint8_t>(code)), values[code]) << code;
        EXPECT_EQ(f32_from_e4m3(static_cast<uint8_t>(code | 0x80u)), -values[code]) << code;
    }
    EXPECT_EQ(f32_from_ue4m3(0x7f), 0.0f);
    EXPECT_EQ(f32_from_ue4m3(0xff), 0.0f);
}

// Guards against NaN or infinity slipping through as codes that decode to something else.
TEST(Numeric, SpecialValues) {
    EXPECT_EQ(f16_from_f32(kInfinity), 0x7c00);
    EXPECT_EQ(f16_from_f32(-kInfinity), 0xfc00);
    EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
    EXPECT_EQ(f16_from_f32(std::nextafter(65520.0f, 0.0f)), 0x7bff);
    EXPECT_EQ(f16_from_f32(kNan) & 0x7e00, 0x7e00);
    EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x7f800001u)) & 0x7fc0, 0x7fc0);
    EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(kNan))));
    EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7f80);
    EXPECT_EQ(e2m1_from_f32(kNan), 7);
    EXPECT_EQ(e2m1_from_f32(-kNan), 7);
    EXPECT_EQ(e2m1_from_f32(-kInfinity), 15);
    EXPECT_EQ(e2m1_from_f32(-0.0f), 8);
    EXPECT_EQ(ue4m3_from_f32(kNan), 0);
    EXPECT_EQ(ue4m3_from_f32(-1.0f), 0);
    EXPECT_EQ(ue4m3_from_f32(kInfinity), 0x7e);
    EXPECT_EQ(ue4m3_from_f32(463.0f), 0x7e);
    EXPECT_EQ(e4m3_from_f32(kNan), 0x7f);
    EXPECT_EQ(e4m3_from_f32(-kNan), 0xff);
    EXPECT_TRUE(std::isnan(f32_from_e4m3(0x7f)));
    EXPECT_TRUE(std::isnan(f32_from_e4m3(0xff)));
    EXPECT_EQ(e4m3_from_f32(kInfinity), 0x7e);
    EXPECT_EQ(e4m3_from_f32(-kInfinity), 0xfe);
    EXPECT_EQ(e4m3_from_f32(-465.0f), 0xfe);
    EXPECT_EQ(e4m3_from_f32(-0.0f), 0x80);
    EXPECT_EQ(f32_from_e8m0(0), 0x1p-127f);
    EXPECT_EQ(f32_from_e8m0(127), 1.0f);
    EXPECT_EQ(f32_from_e8m0(254), 0x1p127f);
    EXPECT_EQ(f32_from_e8m0(255), kInfinity);
}

}  // namespace
}  // namespace tessera
