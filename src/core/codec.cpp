#include "core/codec.h"

#include <limits>
#include <type_traits>

#include "core/codec_blocks.h"
#include "core/error.h"

namespace tessera {
namespace {

template <class T>
void decode_plain(const std::byte* source, int64_t count, float* values) {
    for (int64_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(codec::load<T>(source + i * int64_t{sizeof(T)}));
}

void decode_f16(const std::byte* source, int64_t count, float* values) {
    for (int64_t i = 0; i < count; ++i) values[i] = codec::load_f16(source + 2 * i);
}

void decode_bf16(const std::byte* source, int64_t count, float* values) {
    for (int64_t i = 0; i < count; ++i)
        values[i] = f32_from_bf16(codec::load<uint16_t>(source + 2 * i));
}

void decode_e4m3(const std::byte* source, int64_t count, float* values) {
    for (int64_t i = 0; i < count; ++i)
        values[i] = f32_from_e4m3(std::to_integer<uint8_t>(source[i]));
}

template <class T>
T nearest_of_type(float value) {
    if constexpr (std::is_floating_point_v<T>) {
        return static_cast<T>(value);
    } else {
        if (std::isnan(value)) return 0;
        // -2^(bits-1) and 2^(bits-1) are exact in double for every width, the largest integer is
        // not.
        constexpr double kLowest = static_cast<double>(std::numeric_limits<T>::min());
        const double rounded = std::nearbyint(static_cast<double>(value));
        if (rounded <= kLowest) return std::numeric_limits<T>::min();
        if (rounded >= -kLowest) return std::numeric_limits<T>::max();
        return static_cast<T>(rounded);
    }
}

template <class T>
void encode_plain(const float* values, int64_t count, std::byte* target) {
    for (int64_t i = 0; i < count; ++i)
        codec::store(target + i * int64_t{sizeof(T)}, nearest_of_type<T>(values[i]));
}

void encode_f16(const float* values, int64_t count, std::byte* target) {
    for (int64_t i = 0; i < count; ++i) codec::store(target + 2 * i, f16_from_f32(values[i]));
}

void encode_bf16(const float* values, int64_t count, std::byte* target) {
    for (int64_t i = 0; i < count; ++i) codec::store(target + 2 * i, bf16_from_f32(values[i]));
}

void encode_e4m3(const float* values, int64_t count, std::byte* target) {
    for (int64_t i = 0; i < count; ++i) target[i] = std::byte{e4m3_from_f32(values[i])};
}

codec::Decoder decoder_of(DType format) {
    switch (format) {
        case DType::kF32:
            return decode_plain<float>;
        case DType::kF16:
            return decode_f16;
        case DType::kBF16:
            return decode_bf16;
        case DType::kF64:
            return decode_plain<double>;
        case DType::kI8:
            return decode_plain<int8_t>;
        case DType::kI16:
            return decode_plain<int16_t>;
        case DType::kI32:
            return decode_plain<int32_t>;
        case DType::kI64:
            return decode_plain<int64_t>;
        case DType::kF8_E4M3:
            return decode_e4m3;
        case DType::kQ4_0:
            return codec::decode_q4_0;
        case DType::kQ4_1:
            return codec::decode_q4_1;
        case DType::kQ5_0:
            return codec::decode_q5_0;
        case DType::kQ5_1:
            return codec::decode_q5_1;
        case DType::kQ8_0:
            return codec::decode_q8_0;
        case DType::kQ4_K:
            return codec::decode_q4_k;
        case DType::kQ5_K:
            return codec::decode_q5_k;
        case DType::kQ6_K:
            return codec::decode_q6_k;
        case DType::kMXFP4:
            return codec::decode_mxfp4;
        case DType::kNVFP4:
            return codec::decode_nvfp4;
    }
    return nullptr;
}

codec::Encoder encoder_of(DType format) {
    switch (format) {
        case DType::kF32:
            return encode_plain<float>;
        case DType::kF16:
            return encode_f16;
        case DType::kBF16:
            return encode_bf16;
        case DType::kF64:
            return encode_plain<double>;
        case DType::kI8:
            return encode_plain<int8_t>;
        case DType::kI16:
            return encode_plain<int16_t>;
        case DType::kI32:
            return encode_plain<int32_t>;
        case DType::kI64:
            return encode_plain<int64_t>;
        case DType::kF8_E4M3:
            return encode_e4m3;
        case DType::kQ4_0:
            return codec::encode_q4_0;
        case DType::kQ4_1:
            return codec::encode_q4_1;
        case DType::kQ5_0:
            return codec::encode_q5_0;
        case DType::kQ5_1:
            return codec::encode_q5_1;
        case DType::kQ8_0:
            return codec::encode_q8_0;
        case DType::kQ4_K:
            return codec::encode_q4_k;
        case DType::kQ5_K:
            return codec::encode_q5_k;
        case DType::kQ6_K:
            return codec::encode_q6_k;
        case DType::kMXFP4:
            return codec::encode_mxfp4;
        case DType::kNVFP4:
            return nullptr;  // it alone takes a policy
    }
    return nullptr;
}

}  // namespace

void dequantize_row(DType format, const std::byte* source, int64_t count, float* values) {
    check(count >= 0 && count % dtype_info(format).block_elements == 0,
          "a row to dequantize is a whole number of blocks");
    decoder_of(format)(source, count, values);
}

void quantize_row(
    DType format, const float* values, int64_t count, std::byte* target, Nvfp4Policy policy) {
    check(count >= 0 && count % dtype_info(format).block_elements == 0,
          "a row to quantize is a whole number of blocks");
    if (format == DType::kNVFP4)
        codec::encode_nvfp4(values, count, policy, target);
    else
        encoder_of(format)(values, count, target);
}

float nvfp4_tensor_scale(const float* values, int64_t count) {
    const float scale = codec::largest_magnitude(values, count) / (6.0f * 448.0f);
    return scale > 0.0f ? scale : 1.0f;
}

}  // namespace tessera
