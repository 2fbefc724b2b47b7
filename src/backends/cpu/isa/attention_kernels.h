#pragma once
// What an instruction set provides for attention. Two families: prompt rows go through blocks of
// query columns (one lane per query, S^T = K Q^T), generated rows through dot products along the
// head. cpu_attention.cpp schedules both; which one a row takes follows from what the row is.

#include <cstddef>
#include <cstdint>

#include "backends/cpu/cpu_ops.h"

namespace tessera::cpu {

/// One kv head's part of a key or value page: kPageTokens rows of `head_size` elements.
struct PageRows {
    const std::byte* base = nullptr;
    DType dtype = DType::kF32;
    int64_t row_bytes = 0;
};

/// Head geometry and score arithmetic shared by all blocks of a call.
struct AttentionShape {
    int32_t head_size = 0;
    int32_t group = 0;   ///< query heads per kv head
    int32_t window = 0;  ///< 0: everything before a row is visible
    float scale = 1.0f;
    float softcap = 0.0f;
};

/// Consecutive query columns of one sequence and one kv head; column c is token c / group, query
/// head c % group. Covers the pages [first_page, last_page) of one segment of the keys.
struct PromptBlock {
    AttentionShape shape;
    const float* queries = nullptr;  ///< token 0, first query head of the kv head
    int64_t token_stride = 0;
    int64_t head_stride = 0;
    const int32_t* positions = nullptr;  ///< by token of the sequence
    int32_t first_column = 0;
    int32_t columns = 0;                ///< 1 .. PromptKernels::block_columns
    const std::byte* packed = nullptr;  ///< packed page `first_page`, the next ones behind it
    int32_t first_page = 0;
    int32_t last_page = 0;
    bool opens = true;             ///< first segment: start the state instead of continuing it
    bool closes = true;            ///< last segment: write the output
    float* state = nullptr;        ///< state_floats(): sums, maxima and totals between segments
    const float* sinks = nullptr;  ///< by query head of the kv head; null: none
    float* out = nullptr;          ///< token 0, first query head; rows of head_size per query head
    int64_t out_stride = 0;
};

struct PromptKernels {
    int32_t block_columns = 0;
    /// Bytes of one packed page (keys and values of a kv head), a multiple of 64.
    int64_t (*packed_bytes)(int32_t head_size) = nullptr;
    int64_t (*state_floats)(int32_t head_size) = nullptr;
    /// Scratch of a thread, 64-byte aligned.
    int64_t (*scratch_bytes)(int32_t head_size) = nullptr;
    /// Brings a page into the kernel's layout. Rows from `live` on become zeros: they hold nothing
    /// that this call may see, and a stale infinity times a probability of 0 would be NaN.
    void (*pack_page)(const PageRows& keys,
                      const PageRows& values,
                      int32_t head_size,
                      int32_t live,
                      std::byte* packed) = nullptr;
    /// Around a thread's blocks (register state that a set needs), may be null.
    void (*enter)() = nullptr;
    void (*leave)() = nullptr;
    void (*attend)(const PromptBlock& block, std::byte* scratch) = nullptr;
};

/// Keys of a split of a generated row's context. Splits start at absolute multiples, so the sums
/// depend on positions alone, and each split can go to another thread.
inline constexpr int32_t kSplitKeys = 128;

/// One generated row, one kv head, the visible keys [begin, end) of one split.
struct SplitBlock {
    AttentionShape shape;
    const float* queries = nullptr;  ///< first query head of the kv head
    int64_t head_stride = 0;
    PageRows keys[2];  ///< the pages of the split; a page without visible keys may be empty
    PageRows values[2];
    int32_t begin = 0;  ///< relative to the split
    int32_t end = 0;
    /// Per query head: head_size sums of exp(s - max) v, then the maximum and the total.
    float* partial = nullptr;
};

/// Floats between the partials of two query heads.
inline constexpr int64_t partial_floats(int32_t head_size) {
    return (static_cast<int64_t>(head_size) + 2 + 15) / 16 * 16;
}

/// Partials of one query head: their number, and the floats from one to the next.
struct PartialRange {
    int32_t splits;
    int64_t stride;
};

struct SplitKernels {
    /// Scores of a split, `group` rows of kSplitKeys floats, are kept in `scores`.
    void (*attend)(const SplitBlock& block, float* scores) = nullptr;
    /// out[i] = sum over splits in order, rescaled to the common maximum, over the common total. A
    /// sink (null: none) is one more score without a value.
    void (*combine)(const float* partials,
                    PartialRange range,
                    int32_t head_size,
                    const float* sink,
                    float* out) = nullptr;
};

/// The kernels for heads of `head_size` with at most the instructions of `isa`; never null.
const PromptKernels& prompt_kernels_scalar(int32_t head_size);
const SplitKernels& split_kernels_scalar(int32_t head_size);
#if defined(__x86_64__)
const PromptKernels& prompt_kernels_avx2(int32_t head_size);
const SplitKernels& split_kernels_avx2(int32_t head_size);
const PromptKernels& prompt_kernels_avx512(int32_t head_size);
const SplitKernels& split_kernels_avx512(int32_t head_size);
const PromptKernels& prompt_kernels_amx(int32_t head_size);
#endif

}  // namespace tessera::cpu
