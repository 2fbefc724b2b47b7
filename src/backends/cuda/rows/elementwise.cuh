#pragma once
// Ops in which an element of the result depends on the same element of each operand. Bound by
// bytes: every operand is read once, four elements a thread (two fours a thread took 3 to 6%
// longer).
//
// `work.run<kVector>(row, column)` does columns [column, column + 4) of a row. `kVector`: operands
// and result are whole aligned fours.

#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

inline constexpr int32_t kThreads = 256;

/// Columns [column, column + 4) as far as they lie before `cols`.
template <bool kVector>
__device__ __forceinline__ Four load_some(const float* row, int64_t column, int64_t cols) {
    if constexpr (kVector) return load_whole_four(row + column);
    return load_four(row, column, cols, false);
}
/// The same where nobody reads them again.
template <bool kVector>
__device__ __forceinline__ Four load_some_once(const float* row, int64_t column, int64_t cols) {
    if constexpr (kVector) return load_whole_four_once(row + column);
    return load_four(row, column, cols, false);
}
template <bool kVector>
__device__ __forceinline__ void store_some(const Four& four,
                                           int64_t column,
                                           int64_t cols,
                                           float* row) {
    store_four(four, column, kVector ? column + 4 : cols, kVector, row);
}

template <bool kVector>
__device__ __forceinline__ void store_input(const Four& four,
                                            int64_t column,
                                            int64_t end,
                                            const RowSink& sink) {
    if constexpr (kVector)
        sink.store_whole(four, static_cast<int32_t>(column));
    else
        sink.store(four, column, end, false);
}

struct AddWork {
    RowMap<const float> a, b;
    RowMap<float> out;
    int64_t cols = 0;

    template <bool kVector>
    __device__ __forceinline__ void run(uint32_t row, int64_t column) const {
        const Four left = load_some<kVector>(a.row(row), column, cols);
        const Four right = load_some<kVector>(b.row(row), column, cols);
        Four sum;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sum.value[i] = left.value[i] + right.value[i];
        store_some<kVector>(sum, column, cols, out.row(row));
    }
};

struct GluOperands {
    RowMap<const float> gate, up;
    Glu kind = Glu::kSwiGlu;
    int64_t cols = 0;

    template <bool kVector>
    __device__ __forceinline__ Four product(uint32_t row, int64_t column) const {
        const Four gates = load_some_once<kVector>(gate.row(row), column, cols);
        Four four = load_some_once<kVector>(up.row(row), column, cols);
        apply_gate(four, gates, kind);
        return four;
    }
};

struct GluWork {
    GluOperands operands;
    RowMap<float> out;

    template <bool kVector>
    __device__ __forceinline__ void run(uint32_t row, int64_t column) const {
        store_some<kVector>(operands.product<kVector>(row, column), column, operands.cols,
                            out.row(row));
    }
};

/// `heads` rows of the operands make one row of the input.
struct GluInputWork {
    GluOperands operands;
    InputSink sink;
    Divider heads;

    template <bool kVector>
    __device__ __forceinline__ void run(uint32_t row, int64_t column) const {
        const uint32_t token = heads.quotient(row);
        const int64_t first = (row - token * heads.divisor) * operands.cols;
        store_input<kVector>(operands.product<kVector>(row, column), first + column,
                             first + operands.cols, sink.row(token));
    }
};

struct PrepareWork {
    RowMap<const float> x;
    InputSink sink;

    template <bool kVector>
    __device__ __forceinline__ void run(uint32_t row, int64_t column) const {
        store_input<kVector>(load_some<kVector>(x.row(row), column, sink.cols), column, sink.cols,
                             sink.row(row));
    }
};

struct GatherWork {
    RowMap<const float> x;
    RowMap<float> out;
    const int32_t* ids = nullptr;
    uint32_t rows = 0;  ///< of x
    int64_t cols = 0;

    template <bool kVector>
    __device__ __forceinline__ void run(uint32_t row, int64_t column) const {
        const auto id = static_cast<uint32_t>(ids[row]);
        // A wrong id is a bug of the caller: NaN shows it without reading foreign memory.
        Four four{{nanf(""), nanf(""), nanf(""), nanf("")}};
        if (id < rows) four = load_some<kVector>(x.row(id), column, cols);
        store_some<kVector>(four, column, cols, out.row(row));
    }
};

/// The groups of four columns of `rows` rows, `count` = rows * per_row.
struct Fours {
    int64_t count = 0;
    int64_t per_row = 0;
    Divider divider;  ///< by per_row, where count < 2^31

    struct At {
        uint32_t row = 0;
        int64_t column = 0;
    };
    __device__ __forceinline__ At at(int64_t index) const {
        if (per_row == count) return {0, 4 * index};
        if (count <= 0x7fffffff) {
            const uint32_t row = divider.quotient(static_cast<uint32_t>(index));
            return {row, 4 * (index - row * per_row)};
        }
        const int64_t row = index / per_row;
        return {static_cast<uint32_t>(row), 4 * (index - row * per_row)};
    }
};

/// A thread for each four.
template <class Work>
__global__ void __launch_bounds__(kThreads) by_fours_kernel(const __grid_constant__ Work work,
                                                            const __grid_constant__ Fours fours,
                                                            const bool vector) {
    const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (index >= fours.count) return;
    const Fours::At at = fours.at(index);
    if (vector)
        work.template run<true>(at.row, at.column);
    else
        work.template run<false>(at.row, at.column);
}

}  // namespace tessera::cuda::rows
