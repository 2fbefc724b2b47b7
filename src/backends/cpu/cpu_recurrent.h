#pragma once
// What the two families of the gated delta rule share: cpu_recurrent.cpp takes generated rows,
// cpu_recurrent_prompt.cpp takes prompt rows by chunks.

#include <atomic>

#include "backends/cpu/cpu_work.h"
#include "backends/cpu/isa/recurrent_kernels.h"

namespace tessera::cpu {

/// body(item, thread) for every item; which thread takes which does not show.
template <class Body>
void run_items(ThreadPool& pool, int64_t items, bool worth, const Body& body) {
    if (items == 0) return;
    std::atomic<int64_t> next{0};
    run_team(pool, worth && items > 1 && pool.size() > 1, [&](int32_t thread) {
        for (;;) {
            const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
            if (item >= items) return;
            body(item, thread);
        }
    });
}

/// One sequence of a batch and its place in the recurrent memory.
struct Place {
    int64_t begin, rows, slot;
    int32_t position;    // of the first row; at 0 the memory counts as zeros
    int64_t save_slot;   // -1: none
    int64_t save_after;  // rows before the copy for save_slot is made
};

/// Sequence `sequence` of a batch, its save position checked.
Place place_of(const Batch& batch, int64_t sequence);

struct DeltaCall {
    const RecurrentKernels& kernels;
    const Tensor& q;
    const Tensor& k;
    const Tensor& v;
    const Tensor& log_decay;
    const Tensor& beta;
    const Batch& batch;
    const RecurrentView& memory;
    const Tensor& out;
    int64_t key_heads, key_size, heads, size;
};

/// Rows of a sequence from `first` on, value rows [row, row + rows) of `head`.
DeltaRun run_of(const DeltaCall& call, const Place& place, int64_t head, int64_t row, int64_t rows);

/// Scratch of a thread for either family, in floats.
struct DeltaScratch {
    int64_t strips = 0;  ///< of a value head
    int64_t strip_floats = 0, key_floats = 0, square_floats = 0, delta_floats = 0;
    int64_t tile_floats = 0;
    int64_t together = 0;  ///< key heads of a prompt item
    int64_t total = 0;
};

/// The first `sequences` sequences, which hold all prompt rows; `scratch` is sizes.total floats a
/// thread.
void run_prompts(const DeltaCall& call,
                 ThreadPool& pool,
                 const DeltaScratch& sizes,
                 int64_t sequences,
                 float* scratch);

}  // namespace tessera::cpu
