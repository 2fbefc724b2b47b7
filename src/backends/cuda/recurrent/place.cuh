#pragma once
// Where the sequences of a batch stand in its rows and in the recurrent memory. All of it is read
// on the device: a recorded batch is run again with other lengths, slots and positions.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/batch.h"

namespace tessera::cuda {

/// The part of a Batch that recurrent memory depends on.
struct BatchArgs {
    const int32_t* positions = nullptr;
    const int32_t* seq_start = nullptr;
    const int32_t* slots = nullptr;
    const int32_t* save_slots = nullptr;  ///< null: nothing is saved
    const int32_t* save_positions = nullptr;
    int32_t sequences = 0;
    int32_t prompt_rows = 0;
};

inline BatchArgs batch_args(const Batch& batch) {
    BatchArgs args{.positions = batch.positions.as<int32_t>(),
                   .seq_start = batch.seq_start.as<int32_t>(),
                   .slots = batch.slots.as<int32_t>(),
                   .sequences = batch.sequence_count(),
                   .prompt_rows = batch.prompt_rows};
    if (batch.save_slots.absent()) return args;
    args.save_slots = batch.save_slots.as<int32_t>();
    args.save_positions = batch.save_positions.as<int32_t>();
    return args;
}

/// One sequence of a batch and its place in the recurrent memory. Without rows only `begin` counts.
struct Place {
    int32_t begin = 0;
    int32_t rows = 0;
    int32_t slot = 0;
    int32_t position = 0;    ///< of the first row; at 0 the memory counts as zeros
    int32_t save_slot = -1;  ///< -1: none
    int32_t save_after = 0;  ///< rows before the copy for save_slot is made
};

__device__ __forceinline__ Place place_of(const BatchArgs& batch, int32_t sequence) {
    Place place{.begin = batch.seq_start[sequence]};
    place.rows = batch.seq_start[sequence + 1] - place.begin;
    if (place.rows == 0) return place;
    place.slot = batch.slots[sequence];
    place.position = batch.positions[place.begin];
    if (batch.save_slots == nullptr) return place;
    place.save_slot = batch.save_slots[sequence];
    if (place.save_slot >= 0) place.save_after = batch.save_positions[sequence] - place.position;
    return place;
}

/// The sequence that row `row` of the batch belongs to.
__device__ __forceinline__ int32_t sequence_of_row(const BatchArgs& batch, int32_t row) {
    // The last one that begins at or before the row: empty ones before it begin there too.
    int32_t low = 0, high = batch.sequences;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (batch.seq_start[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

}  // namespace tessera::cuda
