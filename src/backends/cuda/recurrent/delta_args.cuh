#pragma once
// What the kernels of gated_delta_rule work on.

#include "backends/cuda/recurrent/place.cuh"

namespace tessera::cuda {

/// [tokens][heads][elements].
template <class T>
struct HeadRows {
    T* data = nullptr;
    int64_t row_stride = 0;
    int64_t head_stride = 0;
    __device__ T* at(int64_t row, int32_t head) const {
        return data + row * row_stride + head * head_stride;
    }
};

/// Operands of gated_delta_rule.
struct DeltaArgs {
    HeadRows<const float> q{}, k{}, v{}, log_decay{}, beta{};  ///< gates: one element a head
    HeadRows<float> out{};
    float* state = nullptr;  ///< [slots][heads][size][key_size]
    int64_t state_stride = 0;
    float* log = nullptr;  ///< [slots][log_rows][log_floats]
    int32_t log_rows = 0;
    int32_t log_floats = 0;
    int32_t key_heads = 0;
    int32_t key_size = 0;
    int32_t heads = 0;
    int32_t size = 0;
    int32_t row_blocks = 0;  ///< of kTokenBlockRows value rows
    float scale = 0.0f;
    bool tentative = false;
    bool prompts_too = false;  ///< prompt rows run the token recurrence as well
    BatchArgs batch{};
};

}  // namespace tessera::cuda
