// Multi-token prediction. The draft block at position p takes the token there and the hidden state
// of p - 1. Its keys and values have to exist for every position before a guess, so it follows
// every prompt pass at once, and the generated tokens with the next guess or in bulk (`follow`).
// Hidden states that it has not seen wait in `StatePool::recent`. While nobody drafts, following
// costs a tiny model more than it may: then tokens are skipped, those that come unseen, for which
// nothing at all is done, and the oldest of too many that wait. The block counts positions without
// the skipped ones, as if the text had been cut there: it never attends a place that it has not
// written, and near tokens keep their distances.
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/engine_impl.h"

namespace tessera {

/// Rows [first, first + count) of the states that wait for the draft block.
Tensor Engine::Impl::recent_rows(const Sequence& sequence, int32_t first, int32_t count) const {
    const Tensor rows = pool->recent().slice_rows(sequence.slot_, 1);
    return rows.reshape({rows.shape[1], rows.shape[2]}).slice_rows(first, count);
}

/// The state behind the newest guess of a sequence: the last row, which nothing else uses.
Tensor Engine::Impl::chain_row(const Sequence& sequence) const {
    return recent_rows(sequence, static_cast<int32_t>(pool->recent().shape[1]) - 1, 1);
}

/// Positions of the prompt rows as the draft block counts them.
Tensor Engine::Impl::prompt_places(Exec& ex,
                                   const Pass& pass,
                                   std::span<const SequenceInput> inputs,
                                   const Batch& batch) {
    std::vector<int32_t>& places = buffers.places;
    places.clear();
    bool skipped = false;
    for (const Segment& segment : pass.segments) {
        const SequenceInput& input = inputs[static_cast<size_t>(segment.input)];
        if (input.generated) continue;
        skipped = skipped || input.sequence->skipped_ > 0;
        for (int32_t i = 0; i < segment.count; ++i)
            places.push_back(segment.position + i - input.sequence->skipped_);
    }
    return skipped ? staged(ex, places) : batch.positions.slice_rows(0, pass.prompt_rows);
}

/// Prompt rows: each goes with the state of the row before it, the first of a sequence with what
/// was kept of its last pass, or with zeros where that is nothing.
void Engine::Impl::follow_prompts(Arena& arena,
                                  const Pass& pass,
                                  std::span<const SequenceInput> inputs,
                                  const Batch& batch,
                                  const Tensor& hidden) {
    int64_t sequences = 0;
    int32_t row = 0;
    buffers.shift.clear();
    for (const Segment& segment : pass.segments)
        if (!inputs[static_cast<size_t>(segment.input)].generated) ++sequences;
    Exec ex{.arena = arena, .prompt_rows = pass.prompt_rows};
    Scope scope(arena);
    const int64_t rows = pass.prompt_rows, width = hidden.cols();
    const Tensor states = arena.allocate(DType::kF32, {sequences + rows, width});
    const Tensor shifted = arena.allocate(DType::kF32, {rows, width});
    ops->copy(ex, hidden.slice_rows(0, rows), states.slice_rows(sequences, rows));
    const Tensor zeros = ops->stage(ex, make_tensor(buffers.zeros.data(), DType::kF32, {1, width}));
    for (int64_t i = 0; i < sequences; ++i) {
        const Segment& segment = pass.segments[static_cast<size_t>(i)];
        const Sequence& sequence = *inputs[static_cast<size_t>(segment.input)].sequence;
        const Tensor first = states.slice_rows(i, 1);
        const bool kept = segment.position > 0 && !sequence.lost_;
        ops->copy(ex, kept ? recent_rows(sequence, 0, 1) : zeros, first);
        buffers.shift.push_back(static_cast<int32_t>(i));
        for (int32_t j = 1; j < segment.count; ++j)
            buffers.shift.push_back(static_cast<int32_t>(sequences) + row + j - 1);
        row += segment.count;
    }
    ops->gather_rows(ex, states, staged(ex, buffers.shift), shifted);
    const Tensor places = prompt_places(ex, pass, inputs, batch);
    Batch prompts = batch;
    prompts.tokens = batch.tokens.slice_rows(0, rows);
    prompts.positions = places;
    prompts.seq_start = batch.seq_start.slice_rows(0, sequences + 1);
    prompts.page_table = batch.page_table.slice_rows(0, sequences);
    prompts.outputs = batch.outputs.slice_rows(0, 0);
    prompts.prompt_outputs = 0;
    model->draft(*ops, ex, prompts, shifted, memory());
}

void Engine::Impl::follow_pass(Arena& arena,
                               const Pass& pass,
                               std::span<const SequenceInput> inputs,
                               const Batch& batch,
                               const Tensor& hidden) {
    if (pass.prompt_rows > 0) follow_prompts(arena, pass, inputs, batch, hidden);
    Exec ex{.arena = arena};
    int64_t row = 0;
    for (size_t i = 0; i < pass.segments.size(); ++i) {
        const Segment& segment = pass.segments[i];
        const SequenceInput& input = inputs[static_cast<size_t>(segment.input)];
        Sequence& sequence = *input.sequence;
        const auto tokens = input.tokens.subspan(static_cast<size_t>(segment.first),
                                                 static_cast<size_t>(segment.count));
        if (!input.generated) {
            ops->copy(ex, hidden.slice_rows(row + segment.count - 1, 1),
                      recent_rows(sequence, 0, 1));
            sequence.recent_ = 1;
            sequence.recent_tokens_.clear();
            sequence.lost_ = false;
            if (buffers.save_slots[i] >= 0) {
                Sequence saved;
                saved.slot_ = buffers.save_slots[i];
                const int64_t before = buffers.save_positions[i] - 1 - segment.position;
                ops->copy(ex, hidden.slice_rows(row + before, 1), recent_rows(saved, 0, 1));
            }
        } else if (!input.unseen) {
            ops->copy(ex, hidden.slice_rows(row, segment.count),
                      recent_rows(sequence, sequence.recent_, segment.count));
            if (input.tentative) {
                sequence.tentative_.assign(tokens.begin(), tokens.end());
            } else {
                // Behind a state that waits, the token waits, too.
                for (size_t j = 0; j < tokens.size(); ++j)
                    if (sequence.recent_ + static_cast<int32_t>(j) > 0)
                        sequence.recent_tokens_.push_back(tokens[j]);
                sequence.recent_ += segment.count;
            }
        }
        row += segment.count;
    }
}

void Engine::Impl::follow_accepted(Sequence& sequence, int32_t count) {
    if (!drafting()) return;
    for (int32_t j = 0; j < count; ++j)
        if (sequence.recent_ + j > 0)
            sequence.recent_tokens_.push_back(sequence.tentative_[static_cast<size_t>(j)]);
    sequence.recent_ += count;
}

/// Runs the draft block over the rows; `want_last`: returns the hidden state behind the last row of
/// each sequence, its logits being in draft_logits_memory.
Tensor Engine::Impl::run_draft(Arena& arena, std::span<const DraftRows> rows, bool want_last) {
    BatchBuffers& b = buffers;
    clear_rows();
    b.outputs.clear();
    int32_t visible = 0;
    for (const DraftRows& part : rows) {
        take_pages(*part.sequence, part.position + static_cast<int32_t>(part.tokens.size()));
        visible = std::max(visible, add_rows(*part.sequence, part.position, part.tokens));
        if (want_last) b.outputs.push_back(b.seq_start.back() - 1);
    }
    // Rows in bulk go like those of a prompt.
    const int32_t prompt_rows = want_last ? 0 : b.seq_start.back();
    Exec ex{.arena = arena, .prompt_rows = prompt_rows};
    const Tensor hidden = arena.allocate(
        DType::kF32, {std::ssize(b.tokens), static_cast<int64_t>(model->info().width)});
    for (size_t i = 0; i < rows.size(); ++i)
        ops->copy(ex, rows[i].hidden,
                  hidden.slice_rows(b.seq_start[i], b.seq_start[i + 1] - b.seq_start[i]));
    const Batch batch = staged(ex, {.tokens = int_tensor(b.tokens),
                                    .positions = int_tensor(b.positions),
                                    .seq_start = int_tensor(b.seq_start),
                                    .page_table = page_table(),
                                    .outputs = int_tensor(b.outputs),
                                    .prompt_rows = prompt_rows,
                                    .prompt_outputs = 0,
                                    .max_visible = visible_bound(visible)});
    const auto work = [&] {
        const Tensor guessed = model->draft(*ops, ex, batch, hidden, memory());
        if (want_last)
            model->draft_logits(*ops, ex, guessed,
                                make_tensor(draft_logits_memory.get(), DType::kF32,
                                            {std::ssize(rows), int64_t{model->info().vocab}}));
        return guessed;
    };
    if (!want_last) return work();
    return run_recorded({.kind = RecordingKey::kDraft,
                         .rows = static_cast<int32_t>(batch.row_count()),
                         .sequences = batch.sequence_count(),
                         .visible = batch.max_visible},
                        work);
}

/// Lets the draft block see all that waits but the newest state, whose token is to come.
void Engine::Impl::follow_waiting(Sequence& sequence) {
    if (sequence.recent_ < 2) return;
    Arena arena(arena_memory.get(), arena_bytes);
    Exec ex{.arena = arena};
    const int32_t seen = sequence.recent_ - 1;
    const DraftRows rows{.sequence = &sequence,
                         .position = sequence.length_ - sequence.skipped_ - seen,
                         .tokens = sequence.recent_tokens_,
                         .hidden = recent_rows(sequence, 0, seen)};
    run_draft(arena, {&rows, 1}, false);
    ops->copy(ex, recent_rows(sequence, seen, 1), recent_rows(sequence, 0, 1));
    sequence.recent_ = 1;
    sequence.recent_tokens_.clear();
}

/// Skips the older half of what waits when there is no room for `count` more states.
void Engine::Impl::make_room(Sequence& sequence, int32_t count) const {
    const int32_t rows = static_cast<int32_t>(pool->recent().shape[1]) - 1;
    if (sequence.recent_ + count <= rows) return;
    const int32_t kept = std::min(sequence.recent_ / 2, rows - count);
    check(kept > 0, "decode: more generated tokens than may wait for the draft block");
    const int32_t skipped = sequence.recent_ - kept;
    Arena arena(arena_memory.get(), arena_bytes);
    Exec ex{.arena = arena};
    ops->copy(ex, recent_rows(sequence, skipped, kept), recent_rows(sequence, 0, kept));
    sequence.recent_tokens_.erase(sequence.recent_tokens_.begin(),
                                  sequence.recent_tokens_.begin() + skipped);
    sequence.recent_ = kept;
    sequence.skipped_ += skipped;
}

/// Skips what waits and the next `count` tokens, whose states are not kept. The first of them was
/// seen if it was drafted from: then nothing waits.
void Engine::Impl::skip_tokens(Sequence& sequence, int32_t count) {
    sequence.skipped_ += sequence.recent_ + count - 1;
    sequence.recent_ = 0;
    sequence.recent_tokens_.clear();
    sequence.lost_ = true;
}

/// Before a decode. A prompt is followed at once, so that what it stands behind has to be.
void Engine::Impl::prepare_follow(Sequence& sequence, const SequenceInput& input) {
    const auto count = static_cast<int32_t>(input.tokens.size());
    if (!input.generated) return follow_waiting(sequence);
    // Without a state before it this token cannot be seen.
    if (std::exchange(sequence.lost_, false)) ++sequence.skipped_;
    if (input.unseen)
        skip_tokens(sequence, count);
    else
        make_room(sequence, count);
}

double Engine::guess_cost() const {
    // What verifying one more row takes: a host computes where a device waits for its memory.
    constexpr double kRowHost = 0.4, kRowDevice = 0.1;
    return impl_->guess_share + (impl_->ops->on_host() ? kRowHost : kRowDevice);
}

int32_t Engine::waiting(const Sequence& sequence) const {
    return std::max(sequence.recent_ - 1, 0);
}

void Engine::follow(Sequence& sequence) {
    impl_->follow_waiting(sequence);
}

Tensor Engine::draft(std::span<const DraftStep> steps) {
    Impl& impl = *impl_;
    check(impl.drafting(), "draft: the engine was made without");
    std::vector<std::vector<int32_t>> tokens(steps.size());
    std::vector<DraftRows> rows;
    for (size_t i = 0; i < steps.size(); ++i) {
        Sequence& sequence = *steps[i].sequence;
        const int32_t place = sequence.length_ - sequence.skipped_ + steps[i].ahead;
        DraftRows part{.sequence = &sequence, .position = place, .tokens = {}, .hidden = {}};
        if (steps[i].ahead == 0) {
            check(sequence.recent_ > 0,
                  "draft: the newest token was drafted from before or stands behind an unseen one");
            tokens[i] = sequence.recent_tokens_;
            part.position = place - static_cast<int32_t>(tokens[i].size());
            part.hidden = impl.recent_rows(sequence, 0, sequence.recent_);
        } else {
            part.hidden = impl.chain_row(sequence);
        }
        tokens[i].push_back(steps[i].token);
        part.tokens = tokens[i];
        rows.push_back(part);
    }
    Arena arena(impl.arena_memory.get(), impl.arena_bytes);
    Exec ex{.arena = arena};
    const Tensor hidden = impl.run_draft(arena, rows, true);
    const Tensor logits =
        make_tensor(impl.draft_logits_memory.get(), DType::kF32,
                    {std::ssize(steps), static_cast<int64_t>(impl.model->info().vocab)});
    for (size_t i = 0; i < steps.size(); ++i) {
        Sequence& sequence = *steps[i].sequence;
        impl.ops->copy(ex, hidden.slice_rows(static_cast<int64_t>(i), 1), impl.chain_row(sequence));
        if (steps[i].ahead > 0) continue;
        sequence.recent_ = 0;
        sequence.recent_tokens_.clear();
    }
    return logits;
}

}  // namespace tessera
