#pragma once
// Recurrent memory of all sequences: one slot per open sequence and some for checkpoints, in every
// recurrent layer. A checkpoint is the state after a multiple of kChunkTokens prompt tokens; a
// later prompt that begins with the same tokens goes on from there, with the same bytes as a fresh
// run.

#include <cstdint>
#include <span>
#include <vector>

#include "models/model.h"
#include "ops/ops.h"

namespace tessera {

struct StatePoolShape {
    std::vector<RecurrentSpec> layers;
    int32_t sequences = 1;
    int32_t checkpoints = 0;  ///< of each sequence
    int32_t log_rows = 0;     ///< rows that a tentative batch may have per sequence
    int64_t width = 0;        ///< of the hidden states kept for drafting; 0: none
    int32_t recent_rows = 0;  ///< hidden states kept per slot
};

class StatePool {
  public:
    explicit StatePool(StatePoolShape shape);
    /// Views without memory until this is called.
    void allocate(Ops& ops);
    /// Bytes of each allocation that allocate() makes, in order.
    std::vector<int64_t> blocks() const;

    std::span<const RecurrentView> views() const { return views_; }
    /// [slots, recent_rows, width] hidden states that drafting has not consumed yet; absent when
    /// width is 0.
    const Tensor& recent() const { return recent_; }
    bool empty() const { return views_.empty() && recent_.absent(); }
    bool recurrent() const { return !views_.empty(); }
    int32_t checkpoints() const { return shape_.checkpoints; }

    /// A free slot; there is one for every open sequence and each of its checkpoints.
    int32_t take_sequence() { return take(free_sequences_); }
    int32_t take_checkpoint() { return take(free_checkpoints_); }
    void give(int32_t slot);
    /// Copies everything that a slot holds but its logs.
    void copy(Ops& ops, Exec& ex, int32_t from, int32_t to) const;

  private:
    StatePoolShape shape_;
    int32_t slots_ = 0;
    std::vector<RecurrentView> views_;
    Tensor recent_;
    std::vector<int32_t> free_sequences_, free_checkpoints_;

    static int32_t take(std::vector<int32_t>& free);
};

}  // namespace tessera
