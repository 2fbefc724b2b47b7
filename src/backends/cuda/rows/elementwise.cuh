#pragma once
// Ops in which an element of the result depends on the same element of each operand. Bound by
// bytes: every operand is read once, four elements a thread.

#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

inline constexpr int32_t kThreads = 256;

struct AddWork {
    RowMap<const float> a, b;
    RowMap<float> out;
    int64_t cols = 0;
    bool vector = false;

    __device__ __forceinline__ void operator()(uint32_t row, int64_t column) const {
        const Four left = load_four(a.row(row), column, cols, vector);
        const Four right = load_four(b.row(row), column, cols, vector);
        Four sum;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sum.value[i] = left.value[i] + right.value[i];
        store_four(sum, column, cols, vector, out.row(row));
    }
};

struct GluOperands {
    RowMap<const float> gate, up;
    Glu kind = Glu::kSwiGlu;
    int64_t cols = 0;
    bool vector = false;

    __device__ __forceinline__ Four product(uint32_t row, int64_t column) const {
        const Four gates = load_four(gate.row(row), column, cols, vector);
        Four four = load_four(up.row(row), column, cols, vector);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            four.value[i] = activate(kind, gates.value[i]) * four.value[i];
        return four;
    }
};

struct GluWork {
    GluOperands operands;
    RowMap<float> out;

    __device__ __forceinline__ void operator()(uint32_t row, int64_t column) const {
        store_four(operands.product(row, column), column, operands.cols, operands.vector,
                   out.row(row));
    }
};

/// `heads` rows of the operands make one row of the input.
struct GluInputWork {
    GluOperands operands;
    InputSink sink;
    uint32_t heads = 1;

    __device__ __forceinline__ void operator()(uint32_t row, int64_t column) const {
        const uint32_t token = row / heads;
        const int64_t first = (row - token * heads) * operands.cols;
        sink.store(operands.product(row, column), token, first + column, first + operands.cols,
                   operands.vector);
    }
};

struct PrepareWork {
    RowMap<const float> x;
    InputSink sink;
    bool vector = false;

    __device__ __forceinline__ void operator()(uint32_t row, int64_t column) const {
        sink.store(load_four(x.row(row), column, sink.cols, vector), row, column, sink.cols,
                   vector);
    }
};

struct GatherWork {
    RowMap<const float> x;
    RowMap<float> out;
    const int32_t* ids = nullptr;
    uint32_t rows = 0;  ///< of x
    int64_t cols = 0;
    bool vector = false;

    __device__ __forceinline__ void operator()(uint32_t row, int64_t column) const {
        const auto id = static_cast<uint32_t>(ids[row]);
        // A wrong id is a bug of the caller: NaN shows it without reading foreign memory.
        Four four{{nanf(""), nanf(""), nanf(""), nanf("")}};
        if (id < rows) four = load_four(x.row(id), column, cols, vector);
        store_four(four, column, cols, vector, out.row(row));
    }
};

/// work(row, column) for every group of four columns; `count` = rows * per_row groups.
template <class Work>
__global__ void __launch_bounds__(kThreads)
    by_fours_kernel(const __grid_constant__ Work work, const int64_t count, const int64_t per_row) {
    const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (index >= count) return;
    if (per_row == count) {
        work(0, 4 * index);
    } else if (count <= 0xffffffff) {  // the short division
        const uint32_t row = static_cast<uint32_t>(index) / static_cast<uint32_t>(per_row);
        work(row, 4 * (index - row * per_row));
    } else {
        const int64_t row = index / per_row;
        work(static_cast<uint32_t>(row), 4 * (index - row * per_row));
    }
}

}  // namespace tessera::cuda::rows
