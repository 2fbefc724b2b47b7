#pragma once
// Everything of an instruction set's product kernels but the products: activations into their
// formats, gates, and the table. Internal linkage: see isa/vector.h.

#include <cstring>

#include "backends/cpu/isa/linear_kernels.h"
#include "backends/cpu/isa/vector_math.h"

namespace tessera::cpu {
namespace {

void permute_bytes(const ByteRows& rows) {
    for (int64_t t = 0; t < rows.rows; ++t) {
        const int8_t* codes = rows.codes + t * rows.stride;
        int8_t* permuted = rows.permuted + t * rows.units * kUnitCols;
        for (int64_t u = 0; u < rows.units; ++u, codes += kUnitCols, permuted += kUnitCols) {
            const int64_t index = t * rows.units + u;
            int32_t sum[2];
            for (int half = 0; half < 2; ++half) {
                sum[half] = 0;
                for (int i = 0; i < 16; ++i) sum[half] += codes[16 * half + i];
                rows.zeros[2 * index + half] = -rows.offset * sum[half];
            }
            if (rows.sums != nullptr)
                rows.sums[index] = static_cast<float>(sum[0] + sum[1]) * rows.scales[index];
            for (int eight = 0; eight < 32; eight += 8)
                for (int i = 0; i < 8; ++i) permuted[eight + i] = codes[eight + kByteOrder[i]];
        }
    }
}

template <class V>
void quantize_bytes(const float* x, int64_t units, int8_t* codes, float* scales) {
    constexpr int kVectors = 32 / V::kLanes;
    const typename V::Int magnitude = V::set_int(INT32_MAX);
    for (int64_t u = 0; u < units; ++u, x += kUnitCols, codes += kUnitCols) {
        typename V::Float largest = V::zero();
        for (int i = 0; i < kVectors; ++i) {
            const typename V::Int bits = V::bits(V::load(x + i * V::kLanes));
            largest = V::max(largest, V::from_bits(V::and_bits(bits, magnitude)));
        }
        float lanes[V::kLanes];
        V::store(lanes, largest);
        float amax = lanes[0];
        for (int i = 1; i < V::kLanes; ++i) amax = amax < lanes[i] ? lanes[i] : amax;
        scales[u] = amax / 127.0f;
        const float inverse = scales[u] > 0.0f ? 1.0f / scales[u] : 0.0f;
        for (int i = 0; i < kVectors; ++i) {
            int32_t rounded[V::kLanes];
            const typename V::Int value =
                V::to_int(V::mul(V::load(x + i * V::kLanes), V::set(inverse)));
            std::memcpy(rounded, &value, sizeof rounded);
            for (int lane = 0; lane < V::kLanes; ++lane)
                codes[i * V::kLanes + lane] = static_cast<int8_t>(rounded[lane]);
        }
    }
}

/// As bf16_from_f32, branch-free so that it vectorises.
void round_bf16(const float* x, int64_t count, uint16_t* out) {
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = load_as<uint32_t>(x + i);
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        out[i] = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
    }
}

void widen_bf16(const uint16_t* x, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
        std::memcpy(out + i, &bits, sizeof bits);
    }
}

void sum_units(const float* x, int64_t units, float* sums) {
    for (int64_t u = 0; u < units; ++u, x += kUnitCols) {
        float lanes[8] = {};
        for (int i = 0; i < 32; ++i) lanes[i & 7] += x[i];
        for (int width = 4; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
        sums[u] = lanes[0];
    }
}

template <class V, Glu kKind>
TESSERA_INLINE typename V::Float gate_of(typename V::Float x) {
    if constexpr (kKind == Glu::kSwiGlu) return silu_of<V>(x);
    if constexpr (kKind == Glu::kGeGlu) return gelu_of<V>(x);
    if constexpr (kKind == Glu::kReGlu) return relu_of<V>(x);
    if constexpr (kKind == Glu::kSigmoid) return sigmoid_of<V>(x);
}

template <class V, Glu kKind>
void glu_of(const float* gate, const float* up, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes)
        V::store(out + i, V::mul(gate_of<V, kKind>(V::load(gate + i)), V::load(up + i)));
    if (i == count) return;
    // The tail goes through the same vectors, so that an element depends on its value alone.
    float a[V::kLanes] = {}, b[V::kLanes] = {};
    const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
    std::memcpy(a, gate + i, bytes);
    std::memcpy(b, up + i, bytes);
    V::store(a, V::mul(gate_of<V, kKind>(V::load(a)), V::load(b)));
    std::memcpy(out + i, a, bytes);
}

template <class V>
void glu_rows(const float* gate, const float* up, int64_t count, Glu kind, float* out) {
    switch (kind) {
        case Glu::kSwiGlu:
            return glu_of<V, Glu::kSwiGlu>(gate, up, count, out);
        case Glu::kGeGlu:
            return glu_of<V, Glu::kGeGlu>(gate, up, count, out);
        case Glu::kReGlu:
            return glu_of<V, Glu::kReGlu>(gate, up, count, out);
        case Glu::kSigmoid:
            return glu_of<V, Glu::kSigmoid>(gate, up, count, out);
    }
}

constexpr bool has_bytes(DType stored) {
    return stored != DType::kF32 && stored != DType::kF16 && stored != DType::kBF16;
}

template <class Blocks, DType kFormat>
void add_format(LinearKernels& kernels) {
    kernels.f32[static_cast<int>(kFormat)] = Blocks::template kF32<kFormat>;
    if constexpr (has_bytes(kFormat))
        kernels.bytes[static_cast<int>(kFormat)] = Blocks::template kBytes<kFormat>;
}

/// `Blocks` names the block kernels by format.
template <class V, class Blocks>
LinearKernels make_kernels() {
    LinearKernels kernels;
    add_format<Blocks, DType::kF32>(kernels);
    add_format<Blocks, DType::kF16>(kernels);
    add_format<Blocks, DType::kBF16>(kernels);
    add_format<Blocks, DType::kQ4_0>(kernels);
    add_format<Blocks, DType::kQ4_1>(kernels);
    add_format<Blocks, DType::kQ5_0>(kernels);
    add_format<Blocks, DType::kQ5_1>(kernels);
    add_format<Blocks, DType::kQ8_0>(kernels);
    add_format<Blocks, DType::kQ4_K>(kernels);
    add_format<Blocks, DType::kQ5_K>(kernels);
    add_format<Blocks, DType::kQ6_K>(kernels);
    add_format<Blocks, DType::kMXFP4>(kernels);
    add_format<Blocks, DType::kNVFP4>(kernels);
    kernels.permute_bytes = permute_bytes;
    kernels.quantize_bytes = quantize_bytes<V>;
    kernels.round_bf16 = round_bf16;
    kernels.widen_bf16 = widen_bf16;
    kernels.sum_units = sum_units;
    kernels.glu = glu_rows<V>;
    return kernels;
}

}  // namespace
}  // namespace tessera::cpu
