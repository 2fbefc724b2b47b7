#include "engine/passes.h"

#include <algorithm>

namespace tessera {
namespace {

using Logits = SequenceInput::Logits;

int64_t outputs_of(const SequenceInput& input) {
    if (input.tokens.empty() || input.logits == Logits::kNone) return 0;
    return input.logits == Logits::kAll ? static_cast<int64_t>(input.tokens.size()) : 1;
}

/// Appends tokens [first, first + count) of an input to a pass; `result_row` is the input's first
/// row of logits.
void append(Pass& pass, const SequenceInput& input, const Segment& segment, int64_t result_row) {
    const auto last_token = static_cast<int32_t>(input.tokens.size()) - 1;
    for (int32_t i = 0; i < segment.count; ++i) {
        const int32_t token = segment.first + i;
        const bool wanted =
            input.logits == Logits::kAll || (input.logits == Logits::kLast && token == last_token);
        if (!wanted) continue;
        pass.outputs.push_back(pass.rows + i);
        const int64_t offset = input.logits == Logits::kAll ? token : 0;
        pass.output_indices.push_back(static_cast<int32_t>(result_row + offset));
        if (!input.generated) ++pass.prompt_outputs;
    }
    pass.segments.push_back(segment);
    pass.rows += segment.count;
    if (!input.generated) pass.prompt_rows += segment.count;
}

/// Where prompts are cut by choice, in tokens: a chunk of the delta rule, a page, a tile.
constexpr int32_t kGrain = 64;

/// The share of an empty pass in `left` > ubatch prompt tokens: passes of one size, as few as
/// there can be. A short last pass would read all weights for a handful of tokens.
int32_t even_share(int32_t position, int32_t left, int32_t ubatch) {
    const int32_t passes = (left + ubatch - 1) / ubatch;
    const int32_t least = left - (passes - 1) * ubatch;  // fewer would need another pass
    const int32_t share = (position + left / passes) / kGrain * kGrain - position;
    if (share >= least) return share;
    return (position + least + kGrain - 1) / kGrain * kGrain - position;
}

/// How many of the `left` tokens from `position` on go into a pass with `room` of `ubatch` rows; 0:
/// none fits.
int32_t rows_to_take(const SequenceInput& input,
                     int32_t position,
                     int32_t left,
                     int32_t room,
                     int32_t ubatch,
                     int32_t chunk) {
    if (left <= room) return left;
    if (input.tentative) return 0;
    if (input.generated) return room;
    const int32_t wanted = room == ubatch ? even_share(position, left, ubatch) : room;
    return std::max((position + std::min(wanted, room)) / chunk * chunk - position, 0);
}

}  // namespace

int64_t count_outputs(std::span<const SequenceInput> inputs) {
    int64_t rows = 0;
    for (const SequenceInput& input : inputs) rows += outputs_of(input);
    return rows;
}

std::vector<Pass> cut_passes(std::span<const SequenceInput> inputs, int32_t ubatch, int32_t chunk) {
    std::vector<int64_t> result_rows;
    int64_t next_row = 0;
    for (const SequenceInput& input : inputs) {
        result_rows.push_back(next_row);
        next_row += outputs_of(input);
    }
    std::vector<Pass> passes;
    for (const bool generated : {false, true}) {
        for (size_t i = 0; i < inputs.size(); ++i) {
            const SequenceInput& input = inputs[i];
            if (input.generated != generated) continue;
            const auto count = static_cast<int32_t>(input.tokens.size());
            for (int32_t first = 0; first < count;) {
                if (passes.empty() || passes.back().rows == ubatch || first > 0)
                    passes.emplace_back();
                const int32_t position = input.sequence->length() + first;
                const int32_t take = rows_to_take(input, position, count - first,
                                                  ubatch - passes.back().rows, ubatch, chunk);
                if (take == 0) {
                    passes.emplace_back();
                    continue;
                }
                append(passes.back(), input,
                       {.input = static_cast<int32_t>(i),
                        .first = first,
                        .count = take,
                        .position = position},
                       result_rows[i]);
                first += take;
            }
        }
    }
    return passes;
}

}  // namespace tessera
