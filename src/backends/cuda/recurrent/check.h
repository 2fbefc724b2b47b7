#pragma once
// What the host can check of a batch and of recurrent memory: shapes. Lengths, slots and positions
// are on the device.

#include "core/error.h"
#include "ops/batch.h"

namespace tessera::cuda {

/// Whether each slot is one piece.
inline bool dense_slots(const Tensor& x) {
    if (x.rank == 4) return x.stride[2] == x.shape[3] && x.stride[1] == x.shape[2] * x.shape[3];
    return x.rank == 3 && x.stride[1] == x.shape[2];
}

inline void check_recurrent_batch(const Batch& batch, int64_t rows) {
    const int64_t sequences = batch.sequence_count();
    check(batch.positions.rows() == rows && batch.slots.rows() == sequences, "recurrence: batch");
    check(batch.save_slots.absent() ||
              (batch.save_slots.rows() == sequences && batch.save_positions.rows() == sequences),
          "recurrence: saves");
    check(!batch.tentative || batch.prompt_rows == 0, "recurrence: tentative prompt rows");
}

}  // namespace tessera::cuda
