#pragma once
// Inputs of products whose rows have a scale (ActFormat::kFp8, kNvfp4 and kFp4). The scale needs
// the largest magnitude of the row first: a block takes a row and keeps it in registers between the
// two, so that operands are read once. Bound by bytes.

#include "backends/cuda/ptx/saturate.cuh"
#include "backends/cuda/rows/nearest_e2m1.cuh"
#include "backends/cuda/rows/norm.cuh"

namespace tessera::cuda::rows {

inline constexpr int32_t kScaledMaxThreads = 1024;
/// Fours that a thread keeps: all of a row of up to 16384 columns. Those behind are worked out
/// twice.
inline constexpr int32_t kScaledHeld = 4;

__device__ __forceinline__ float largest_of(const Four& four, float largest) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(four.value[i]));
    return largest;
}

__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return saturate_e4m3(low, high);
#else
    return e4m3_of_f32(low) | uint32_t{e4m3_of_f32(high)} << 8;
#endif
}

/// The scale of a row of e4m3 and its codes (ActFormat::kFp8).
struct E4m3Scale {
    float scale, inverse;

    static __device__ __forceinline__ E4m3Scale of(float largest) {
        const float scale = fmaxf(__fdiv_rn(largest, kFp8Largest), kFp8LeastScale);
        return {scale, __frcp_rn(scale)};
    }
    __device__ __forceinline__ uint32_t codes(const Four& four) const {
        float scaled[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scaled[i] = __fmul_rn(four.value[i], inverse);
        return e4m3_pair(scaled[0], scaled[1]) | e4m3_pair(scaled[2], scaled[3]) << 16;
    }
};

/// Squared error of the 16 values of an NVFP4 block, four in each of four lanes, under `scale`. The
/// sum is that of core/codec_fp4.cpp, halves folded onto each other, in all four lanes: what two of
/// them add in turned order is the same. `upper`: of the second two lanes, which take the second
/// and fourth value of all, the others the first and third.
__device__ __forceinline__ float squared_error(const Four& four, float scale, bool upper) {
    float terms[4];
    NearestE2m1(scale).squared_errors(four.value, terms);
    float first = upper ? terms[1] : terms[0], second = upper ? terms[3] : terms[2];
    first = plus(first, of_lane(upper ? terms[0] : terms[1], 2));
    second = plus(second, of_lane(upper ? terms[2] : terms[3], 2));
    first = plus(first, of_lane(first, 1));
    second = plus(second, of_lane(second, 1));
    const float half = plus(first, second);
    return plus(half, of_lane(half, 2));
}

/// How a prompt row enters a product: its scale, and the columns in it.
struct ScaledRow {
    const InputSink& sink;
    uint32_t row;
    float scale;
    float inverse;

    __device__ __forceinline__ ScaledRow(const InputSink& to, uint32_t index, float largest)
        : sink(to), row(index) {
        if (sink.e4m3 != nullptr) {
            const auto of_row = E4m3Scale::of(largest);
            scale = of_row.scale;
            inverse = of_row.inverse;
        } else {
            scale = nvfp4_row_scale(largest, sink.policy);
            inverse = 0.0f;
        }
    }

    /// Stores columns [column, column + 4), a multiple of 4; the lanes of a warp together, those
    /// with `inside` false store nothing.
    __device__ __forceinline__ void store(const Four& four, int64_t column, bool inside) const {
        if (sink.e4m3 == nullptr) return store_nvfp4(four, column, inside);
        if (!inside) return;
        const uint32_t codes = E4m3Scale{scale, inverse}.codes(four);
        uint8_t* codes_of_row = sink.e4m3 + row * sink.cols;
        if (sink.transposed_quads) {
            *reinterpret_cast<uint32_t*>(codes_of_row + transposed_quad_place(column)) = codes;
            return;
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            if (column + i < sink.cols)
                codes_of_row[column + i] = static_cast<uint8_t>(codes >> (8 * i));
    }

  private:
    /// As the codec of NVFP4 rounds blocks of 16, which four lanes have.
    __device__ __forceinline__ void store_nvfp4(const Four& four,
                                                int64_t column,
                                                bool inside) const {
        Four scaled;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scaled.value[i] = __fdiv_rn(four.value[i], scale);
        float largest = largest_of(scaled, 0.0f);
        largest = fmaxf(largest, of_lane(largest, 1));
        largest = fmaxf(largest, of_lane(largest, 2));
        // Neither is negative nor NaN, so that these are the codes of ue4m3_code().
        const uint32_t scales = e4m3_pair(__fdiv_rn(largest, 6.0f), 0.25f * largest);
        uint32_t block_code = scales & 0xffu;
        if (sink.policy != Nvfp4Policy::kAmax6)
            block_code = best_scale(scaled, block_code, scales >> 8, (column & 8) != 0);
        const float of_block = ue4m3_value(block_code);
        const uint32_t codes = NearestE2m1(of_block).codes(scaled.value);
        bool numbers = true;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            // What is no number stays none.
            if (scaled.value[i] == scaled.value[i])
                scaled.value[i] = __fmul_rn(e2m1_value(codes >> (4 * i) & 15u), of_block);
            else
                numbers = false;
        }
        if (!inside) return;
        if (sink.fp4 != nullptr) return store_fp4(codes, block_code, numbers, column);
        __nv_bfloat16* values = sink.nvfp4 + row * sink.cols;
        if (sink.transposed_pairs)
            store_pairs(scaled, column, sink.cols, sink.cols % 4 == 0, values);
        else
            store_four(scaled, column, sink.cols, sink.cols % 4 == 0, values);
    }

    /// The code of the scale with the least squared error that the policy tries beside `amax6`, the
    /// first one in order of the codec among equals; the last is `amax4`, which puts the largest
    /// element at 4. The same for the four lanes of a block; `upper` are the two behind.
    __device__ __forceinline__ uint32_t best_scale(const Four& four,
                                                   uint32_t amax6,
                                                   uint32_t amax4,
                                                   bool upper) const {
        const uint32_t tries = sink.policy == Nvfp4Policy::kSearch ? 5 : 1;
        uint32_t best = amax6;
        float least = squared_error(four, ue4m3_value(amax6), upper);
#pragma unroll 1
        for (uint32_t i = 1; i <= tries; ++i) {
            // amax6 - 1, + 1, - 2, + 2 and at last amax4. No code is below 0, where the
            // subtraction ends up far above.
            const uint32_t step = (i + 1) / 2;
            const uint32_t code = i == tries ? amax4 : i % 2 == 1 ? amax6 - step : amax6 + step;
            const float error = squared_error(four, ue4m3_value(code & 0x7fu), upper);
            if (code > 0x7eu || !(error < least)) continue;
            least = error;
            best = code;
        }
        return best;
    }

    /// Four codes, and the scale of their block. No code is no number, so that the row's scale has
    /// to be none.
    __device__ __forceinline__ void store_fp4(uint32_t codes,
                                              uint32_t block_code,
                                              bool numbers,
                                              int64_t column) const {
        const int64_t place = row * sink.cols + column;
        *reinterpret_cast<uint16_t*>(sink.fp4 + place / 2) = static_cast<uint16_t>(codes);
        if (column % 16 == 0) sink.fp4_scales[place / 16] = static_cast<uint8_t>(block_code);
        if (!numbers) sink.row_scales[row] = __uint_as_float(0x7fffffffu);
    }
};

/// Rows of x, f32 or bf16, as they are.
template <class T>
struct ScaledCopy {
    RowMap<const T> x;
    InputSink sink;
    bool vector = false;

    __device__ __forceinline__ Four value(uint32_t row, int64_t column) const {
        return load_four(x.row(row), column, sink.cols, vector);
    }
    template <class ForEach>
    __device__ __forceinline__ float factor(const ForEach&) const {
        return 1.0f;
    }
    __device__ __forceinline__ void finish(Four&, int64_t, float) const {}
};

/// act(gate) * up; `heads` rows of the operands, multiples of 4 long, make one row.
struct ScaledGlu {
    static constexpr int32_t kHeld = 4, kWholeThreads = 384, kWholeBlocks = 3;
    RowMap<const float> gate, up;
    Glu kind = Glu::kSwiGlu;
    int64_t cols = 0;
    uint32_t heads = 1;
    InputSink sink;
    bool vector = false;

    __device__ __forceinline__ Four value(uint32_t token, int64_t column) const {
        const auto head = static_cast<uint32_t>(column) / static_cast<uint32_t>(cols);
        const uint32_t row = token * heads + head;
        const int64_t inside = column - static_cast<int64_t>(head) * cols;
        const Four gates = load_four(gate.row(row), inside, cols, vector);
        Four four = load_four(up.row(row), inside, cols, vector);
        apply_gate(four, gates, kind);
        return four;
    }
    template <class ForEach>
    __device__ __forceinline__ float factor(const ForEach&) const {
        return 1.0f;
    }
    __device__ __forceinline__ void finish(Four&, int64_t, float) const {}
};

/// rms_norm(x) * gain.
struct ScaledNorm {
    static constexpr int32_t kHeld = 8, kWholeThreads = 320, kWholeBlocks = 3;
    RowMap<const float> x;
    const float* gain = nullptr;  ///< null: 1
    float eps = 0.0f;
    InputSink sink;
    bool vector = false;

    __device__ __forceinline__ Four value(uint32_t row, int64_t column) const {
        return load_four(x.row(row), column, sink.cols, vector);
    }
    /// `for_each(f)` calls f with every value of the thread.
    template <class ForEach>
    __device__ __forceinline__ float factor(const ForEach& for_each) const {
        Sum sum{0.0f, 0.0f};
        for_each([&sum](float value) { sum.add_square(value); });
        return norm_factor<NormKind::kRmsInput, false>(sum, for_each, sink.cols, eps);
    }
    __device__ __forceinline__ void finish(Four& four, int64_t column, float factor) const {
        norm_scale(four, factor, gain, column, sink.cols, vector);
    }
};

/// rms_norm(x) * gain * silu(z) of heads of kScaledHead columns, which a warp has at a time.
inline constexpr int64_t kScaledHead = 128;
struct ScaledGatedNorm {
    static constexpr int32_t kHeld = 4, kWholeThreads = 384, kWholeBlocks = 3;
    RowMap<const float> x, z;
    const float* gain = nullptr;  ///< null: 1
    float eps = 0.0f;
    uint32_t heads = 1;
    InputSink sink;
    bool vector = false;

    __device__ __forceinline__ Four value(uint32_t token, int64_t column) const {
        const uint32_t row = token * heads + static_cast<uint32_t>(column / kScaledHead);
        const int64_t inside = column % kScaledHead;
        Four four = load_four(x.row(row), inside, kScaledHead, vector);
        const Four gates = load_four(z.row(row), inside, kScaledHead, vector);
        const auto for_each = [&four](const auto& f) {
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) f(four.value[i]);
        };
        Sum sum{0.0f, 0.0f};
        for_each([&sum](float value) { sum.add_square(value); });
        const float factor =
            norm_factor<NormKind::kGatedInput, true>(sum, for_each, kScaledHead, eps);
        norm_scale(four, factor, gain, inside, kScaledHead, vector);
        apply_gate(four, gates);
        return four;
    }
    template <class ForEach>
    __device__ __forceinline__ float factor(const ForEach&) const {
        return 1.0f;
    }
    __device__ __forceinline__ void finish(Four&, int64_t, float) const {}
};

/// A block a row, to every format of work.sink: work.value(row, column) for every group of four
/// columns, then work.finish(it, column, factor) with what work.factor() made of all of them.
template <class Work>
__global__ void __launch_bounds__(kScaledMaxThreads, 1)
    scaled_rows_kernel(const __grid_constant__ Work work) {
    const InputSink& sink = work.sink;
    const uint32_t row = blockIdx.x;
    const int64_t threads = blockDim.x, first = threadIdx.x;
    const auto column_of = [&](int64_t g) { return 4 * (g * threads + first); };
    const auto value_at = [&](int64_t column) {
        return column < sink.cols ? work.value(row, column) : Four{};
    };
    // The same for all threads of the block.
    const auto behind = static_cast<int32_t>((sink.cols + 4 * threads - 1) / (4 * threads));
    Four held[kScaledHeld];
#pragma unroll
    for (int32_t g = 0; g < kScaledHeld; ++g) held[g] = value_at(column_of(g));
    const float factor = work.factor([&](const auto& f) {
        const auto four_values = [&f](const Four& four) {
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) f(four.value[i]);
        };
#pragma unroll
        for (int32_t g = 0; g < kScaledHeld; ++g) four_values(held[g]);
        for (int32_t g = kScaledHeld; g < behind; ++g) four_values(value_at(column_of(g)));
    });
    const auto finished_at = [&](int64_t column) {
        Four four = value_at(column);
        if (column < sink.cols) work.finish(four, column, factor);
        return four;
    };
    float largest = 0.0f;
#pragma unroll
    for (int32_t g = 0; g < kScaledHeld; ++g) {
        if (column_of(g) < sink.cols) work.finish(held[g], column_of(g), factor);
        largest = largest_of(held[g], largest);
    }
    for (int32_t g = kScaledHeld; g < behind; ++g)
        largest = largest_of(finished_at(column_of(g)), largest);
    largest = reduce<false>(largest, 0.0f, Largest{});
    const ScaledRow scaled(sink, row, largest);
    const bool prompt = row < sink.prompt_rows;
    if (prompt && first == 0) sink.row_scales[row] = scaled.scale;
    // Whoever finds what is no number puts another scale there.
    if (sink.fp4 != nullptr) __syncthreads();
    const auto store = [&](const Four& four, int64_t column) {
        const bool inside = column < sink.cols;
        if (prompt) scaled.store(four, column, inside);
        if (inside) sink.row(row).store(four, column, sink.cols, sink.cols % 4 == 0);
    };
#pragma unroll
    for (int32_t g = 0; g < kScaledHeld; ++g) store(held[g], column_of(g));
    for (int32_t g = kScaledHeld; g < behind; ++g) store(finished_at(column_of(g)), column_of(g));
}

/// Rows of e4m3 with transposed quads, or without a scale, aligned, that fill the registers of a
/// block exactly: the same numbers with fewer instructions, which bound the kernel above, and in
/// fewer registers, so that more rows are on their way.
template <int32_t kHeld>
struct WholeRow {
    Four held[kHeld];

    /// Of held[g].
    static __device__ __forceinline__ int32_t column(int32_t g) {
        return 4 * static_cast<int32_t>(g * blockDim.x + threadIdx.x);
    }
};

/// ScaledNorm of a whole row.
template <int32_t kHeld>
__device__ __forceinline__ void take_whole(const ScaledNorm& work,
                                           uint32_t row,
                                           WholeRow<kHeld>& out) {
    const float* x = work.x.row(row);
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) out.held[g] = load_whole_four_once(x + out.column(g));
    const float factor = work.factor([&out](const auto& f) {
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g)
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) f(out.held[g].value[i]);
    });
    if (work.gain == nullptr) {
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g)
            norm_scale(out.held[g], factor, Four{{1.0f, 1.0f, 1.0f, 1.0f}});
        return;
    }
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g)
        norm_scale(out.held[g], factor, load_whole_four(work.gain + out.column(g)));
}

/// Heads of a token: `stride` between them.
struct WholeHeads {
    const float* first;
    int64_t stride;

    __device__ __forceinline__ WholeHeads(const RowMap<const float>& rows, uint32_t first_row)
        : first(rows.row(first_row)), stride(rows.stride[0]) {}
    __device__ __forceinline__ Four load(uint32_t head, uint32_t column) const {
        return load_whole_four_once(first + head * stride + column);
    }
};

/// ScaledGatedNorm of a whole row: a warp has kHeld heads, whose sums are joined together.
template <int32_t kHeld>
__device__ __forceinline__ void take_whole(const ScaledGatedNorm& work,
                                           uint32_t token,
                                           WholeRow<kHeld>& out) {
    const uint32_t column_of_head = 4 * (threadIdx.x % 32);
    const WholeHeads x(work.x, token * work.heads), z(work.z, token * work.heads);
    Four gates[kHeld];
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) {
        const uint32_t head = static_cast<uint32_t>(out.column(g)) / kScaledHead;
        out.held[g] = x.load(head, column_of_head);
        gates[g] = z.load(head, column_of_head);
    }
    Four gains{{1.0f, 1.0f, 1.0f, 1.0f}};
    if (work.gain != nullptr) gains = load_whole_four(work.gain + column_of_head);
    float factors[kHeld];
    norm_factors<NormKind::kGatedInput>(out.held, kHeld, kScaledHead, work.eps, factors);
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) {
        norm_scale(out.held[g], factors[g], gains);
        apply_gate(out.held[g], gates[g]);
    }
}

/// ScaledGlu of a whole row.
template <int32_t kHeld>
__device__ __forceinline__ void take_whole(const ScaledGlu& work,
                                           uint32_t token,
                                           WholeRow<kHeld>& out) {
    const auto head_cols = static_cast<uint32_t>(work.cols);
    const WholeHeads gate(work.gate, token * work.heads), up(work.up, token * work.heads);
    Four gates[kHeld];
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) {
        const auto column = static_cast<uint32_t>(out.column(g));
        const uint32_t head = column / head_cols, inside = column - head * head_cols;
        gates[g] = gate.load(head, inside);
        out.held[g] = up.load(head, inside);
    }
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) apply_gate(out.held[g], gates[g], work.kind);
}

/// A block a row of work.sink.
template <class Work>
__global__ void __launch_bounds__(Work::kWholeThreads, Work::kWholeBlocks)
    whole_rows_kernel(const __grid_constant__ Work work) {
    constexpr int32_t kHeld = Work::kHeld;
    const InputSink& sink = work.sink;
    const uint32_t row = blockIdx.x;
    WholeRow<kHeld> whole;
    take_whole(work, row, whole);
    const RowSink others = sink.row(row);
    if (others.exact != nullptr || others.rounded != nullptr) {
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g) others.store_whole(whole.held[g], whole.column(g));
    }
    if (sink.e4m3 == nullptr || row >= sink.prompt_rows) return;
    float largest = 0.0f;
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) largest = largest_of(whole.held[g], largest);
    const auto scale = E4m3Scale::of(reduce<false>(largest, 0.0f, Largest{}));
    if (threadIdx.x == 0) sink.row_scales[row] = scale.scale;
    uint8_t* const codes = sink.e4m3 + row * sink.cols;
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) {
        const int32_t column = whole.column(g);
        // transposed_quad_place() of multiples of 4.
        const int32_t place = (column & ~31) | (column & 4) << 2 | (column & 24) >> 1;
        *reinterpret_cast<uint32_t*>(codes + place) = scale.codes(whole.held[g]);
    }
}

inline constexpr int32_t kRoundedThreads = 640;
/// Eights that a thread keeps of a row of bf16: all of 20480 columns. Those behind are read twice.
inline constexpr int32_t kRoundedHeld = 4;

__device__ __forceinline__ __nv_bfloat162 bf16_two(uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
__device__ __forceinline__ Four four_of_bf16(uint32_t first, uint32_t second) {
    const float2 low = __bfloat1622float2(bf16_two(first));
    const float2 high = __bfloat1622float2(bf16_two(second));
    return {{low.x, low.y, high.x, high.y}};
}

/// A block a row of bf16 in order, to e4m3 with transposed quads. Several blocks a multiprocessor,
/// so that some read while others look for their largest magnitude. `eights`: of a row, fours of
/// them.
__global__ void __launch_bounds__(kRoundedThreads, 2)
    rounded_rows_kernel(const uint4* values, int32_t eights, uint8_t* codes, float* scales) {
    const int64_t row = blockIdx.x;
    const auto first = static_cast<int32_t>(threadIdx.x);
    const auto threads = static_cast<int32_t>(blockDim.x);
    values += row * eights;
    codes += row * eights * 8;
    uint4 held[kRoundedHeld];
#pragma unroll
    for (int32_t g = 0; g < kRoundedHeld; ++g) {
        const int32_t at = first + g * threads;
        held[g] = at < eights ? __ldcs(values + at) : uint4{};
    }
    // A NaN does not count.
    __nv_bfloat162 largest = bf16_two(0);
    const auto compare = [&](const uint4& eight) {
        largest = __hmax2(largest, __habs2(bf16_two(eight.x)));
        largest = __hmax2(largest, __habs2(bf16_two(eight.y)));
        largest = __hmax2(largest, __habs2(bf16_two(eight.z)));
        largest = __hmax2(largest, __habs2(bf16_two(eight.w)));
    };
#pragma unroll
    for (int32_t g = 0; g < kRoundedHeld; ++g) compare(held[g]);
    const int32_t behind = first + kRoundedHeld * threads;
    for (int32_t at = behind; at < eights; at += threads) compare(__ldg(values + at));
    const float2 two = __bfloat1622float2(largest);
    const auto scale = E4m3Scale::of(reduce<false>(fmaxf(two.x, two.y), 0.0f, Largest{}));
    if (first == 0) scales[row] = scale.scale;
    const auto store = [&](const uint4& eight, int32_t at) {
        auto* const to = reinterpret_cast<uint32_t*>(codes + at / 4 * 32 + at % 4 * 4);
        to[0] = scale.codes(four_of_bf16(eight.x, eight.y));
        to[4] = scale.codes(four_of_bf16(eight.z, eight.w));
    };
#pragma unroll
    for (int32_t g = 0; g < kRoundedHeld; ++g) {
        const int32_t at = first + g * threads;
        if (at < eights) store(held[g], at);
    }
    for (int32_t at = behind; at < eights; at += threads) store(__ldg(values + at), at);
}

}  // namespace tessera::cuda::rows
