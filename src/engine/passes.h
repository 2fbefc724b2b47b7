#pragma once
// Cuts the tokens of one decode() into forward passes.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace tessera {

/// Consecutive tokens of one input inside a pass.
struct Segment {
    int32_t input = 0;  ///< index into the inputs of decode()
    int32_t first = 0;  ///< first of its tokens
    int32_t count = 0;
    int32_t position = 0;  ///< absolute position of the first one
};

/// One forward pass: prompt segments first, then generated ones, at most `ubatch` rows in all.
struct Pass {
    std::vector<Segment> segments;
    int32_t rows = 0;
    int32_t prompt_rows = 0;
    std::vector<int32_t> outputs;  ///< rows whose logits are wanted, ascending
    std::vector<int32_t>
        output_indices;  ///< their rows in the result of decode(), which follows the inputs
    int32_t prompt_outputs = 0;
};

/// Empty inputs give no segment. Rows of logits are numbered in the order of the inputs. A prompt
/// that does not end in a pass is cut at a multiple of `chunk` tokens of its sequence, into passes
/// of nearly one size; ubatch >= chunk. Tentative inputs are never cut.
std::vector<Pass> cut_passes(std::span<const SequenceInput> inputs, int32_t ubatch, int32_t chunk);

/// Rows of logits that the inputs want together.
int64_t count_outputs(std::span<const SequenceInput> inputs);

}  // namespace tessera
