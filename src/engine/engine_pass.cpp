// One forward pass: from sequences and tokens to the batch that models see, and from their hidden
// rows to logits. On a device the passes of generated tokens are recorded and replayed.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "engine/engine_impl.h"

namespace tessera {
namespace {

/// Whether these rows of a result are consecutive.
bool in_order(std::span<const int32_t> indices) {
    return !indices.empty() &&
           indices.back() - indices.front() + 1 == static_cast<int32_t>(indices.size()) &&
           std::is_sorted(indices.begin(), indices.end());
}

/// Every index tensor of a pass starts at a multiple of this many numbers, as those of an arena do.
constexpr size_t kIndexLine = 16;

/// Tokens and positions come first: what advances from pass to pass.
std::array<Tensor*, 8> index_tensors(Batch& batch) {
    return {&batch.tokens,  &batch.positions, &batch.seq_start,  &batch.page_table,
            &batch.outputs, &batch.slots,     &batch.save_slots, &batch.save_positions};
}

}  // namespace

/// Bytes for the index tensors of generated rows that stay on a device, and for the tokens drawn.
std::array<int64_t, 2> Engine::Impl::resident_bytes() const {
    const int64_t sequences = options.sequences;
    const int64_t lines = (sequences + 1 + static_cast<int64_t>(kIndexLine)) * 8;
    return {(lines + sequences * pages_per_sequence) * 4, sequences * 4};
}

void Engine::Impl::make_resident() {
    if (ops->on_host()) return;
    const auto [batch, drawn] = resident_bytes();
    resident.memory = working_memory(*ops, batch);
    resident.drawn_memory = working_memory(*ops, drawn);
}

void Engine::Impl::reserve_logits(int64_t rows) {
    if (rows <= logits_capacity) return;
    // Twice as many as before at least: a device keeps what it outgrows.
    rows = std::max(rows, ops->on_host() ? rows : 2 * logits_capacity);
    logits_memory = working_memory(*ops, rows * model->info().vocab * 4);
    logits_capacity = rows;
    recordings.clear();  // they write to the old place
}

/// Starts the index tensors of a pass anew.
void Engine::Impl::clear_rows() {
    buffers.tokens.clear();
    buffers.positions.clear();
    buffers.seq_start.assign(1, 0);
    buffers.page_table.clear();
}

/// Adds the next sequence's tokens from `position` on to them; returns the keys that it then sees.
int32_t Engine::Impl::add_rows(const Sequence& sequence,
                               int32_t position,
                               std::span<const int32_t> tokens) {
    BatchBuffers& b = buffers;
    const auto count = static_cast<int32_t>(tokens.size());
    b.tokens.insert(b.tokens.end(), tokens.begin(), tokens.end());
    for (int32_t i = 0; i < count; ++i) b.positions.push_back(position + i);
    b.seq_start.push_back(static_cast<int32_t>(b.tokens.size()));
    b.page_table.insert(b.page_table.end(), sequence.pages_.begin(), sequence.pages_.end());
    b.page_table.resize(static_cast<size_t>(pages_per_sequence) * (b.seq_start.size() - 1), 0);
    return position + count;
}

Tensor Engine::Impl::page_table() {
    return make_tensor(buffers.page_table.data(), DType::kI32,
                       {std::ssize(buffers.seq_start) - 1, pages_per_sequence});
}

Tensor Engine::Impl::staged(Exec& ex, std::vector<int32_t>& values) {
    return ops->stage(ex, int_tensor(values));
}

/// The index tensors of a batch, one after the other, to buffers.packed.
void Engine::Impl::pack(Batch& batch) {
    std::vector<int32_t>& packed = buffers.packed;
    packed.clear();
    for (const Tensor* part : index_tensors(batch)) {
        if (part->absent()) continue;
        packed.insert(packed.end(), part->as<int32_t>(), part->as<int32_t>() + part->elements());
        packed.resize((packed.size() + kIndexLine - 1) / kIndexLine * kIndexLine);
    }
}

/// The batch whose index tensors lie at `memory` as pack() put them.
Batch Engine::Impl::packed_at(int32_t* memory, Batch batch) {
    for (Tensor* part : index_tensors(batch)) {
        if (part->absent()) continue;
        const auto count = static_cast<size_t>(part->elements());
        part->data = memory;
        memory += (count + kIndexLine - 1) / kIndexLine * kIndexLine;
    }
    return batch;
}

/// The index tensors of a batch where ops read them: in one copy.
Batch Engine::Impl::staged(Exec& ex, Batch batch) {
    if (ops->on_host()) return batch;
    pack(batch);
    return packed_at(ops->stage(ex, int_tensor(buffers.packed)).as<int32_t>(), batch);
}

/// Whether the batch is the one before, each sequence one drawn token further: then the device can
/// make it from what it holds.
bool Engine::Impl::follows_drawn(const Batch& batch) const {
    const std::vector<int32_t>&before = resident.packed, &now = buffers.packed;
    const size_t rows = static_cast<size_t>(batch.row_count());
    const size_t line = (rows + kIndexLine - 1) / kIndexLine * kIndexLine;
    if (before.size() != now.size() || resident.drawn.size() != rows) return false;
    for (size_t i = 0; i < rows; ++i)
        if (now[i] != resident.drawn[i] || now[line + i] != before[line + i] + 1) return false;
    const auto rest = static_cast<std::ptrdiff_t>(2 * line);
    return std::equal(now.begin() + rest, now.end(), before.begin() + rest);
}

/// The batch of a pass where ops read it. One of generated tokens stays on the device from pass to
/// pass; `advance` then says that the device has to take the drawn tokens itself.
Batch Engine::Impl::placed(Exec& ex, const Pass& pass, Batch batch, bool& advance) {
    advance = false;
    if (ops->on_host() || drafting() || pass.prompt_rows > 0 || pass.rows > options.sequences)
        return staged(ex, batch);
    pack(batch);
    advance = follows_drawn(batch);
    auto* memory = reinterpret_cast<int32_t*>(resident.memory.get());
    if (!advance) ops->copy_to_device(memory, buffers.packed.data(), buffers.packed.size() * 4);
    resident.packed.clear();  // until the pass is through
    return packed_at(memory, batch);
}

Batch Engine::Impl::make_batch(const Pass& pass, std::span<const SequenceInput> inputs) {
    BatchBuffers& b = buffers;
    clear_rows();
    b.slots.clear();
    b.outputs = pass.outputs;
    if (drafting()) {
        b.all_rows.resize(static_cast<size_t>(pass.rows));
        std::iota(b.all_rows.begin(), b.all_rows.end(), 0);
    }
    plan_saves(pass, inputs);
    int32_t visible = 0;
    for (const Segment& segment : pass.segments) {
        const SequenceInput& input = inputs[static_cast<size_t>(segment.input)];
        const auto tokens = input.tokens.subspan(static_cast<size_t>(segment.first),
                                                 static_cast<size_t>(segment.count));
        visible = std::max(visible, add_rows(*input.sequence, segment.position, tokens));
        b.slots.push_back(input.sequence->slot_);
    }
    return {.tokens = int_tensor(b.tokens),
            .positions = int_tensor(b.positions),
            .seq_start = int_tensor(b.seq_start),
            .page_table = page_table(),
            .outputs = int_tensor(drafting() ? b.all_rows : b.outputs),
            .prompt_rows = pass.prompt_rows,
            .prompt_outputs = drafting() ? pass.prompt_rows : pass.prompt_outputs,
            .max_visible = visible_bound(visible),
            .slots = int_tensor(b.slots),
            .save_slots = int_tensor(b.save_slots),
            .save_positions = int_tensor(b.save_positions),
            .tentative = inputs.front().tentative};
}

/// A slot for the next checkpoint of a sequence: a free one or that of its oldest.
int32_t Engine::Impl::checkpoint_slot(Sequence& sequence) {
    std::vector<Sequence::Checkpoint>& held = sequence.checkpoints_;
    if (std::ssize(held) < pool->checkpoints()) return pool->take_checkpoint();
    const int32_t slot = held.front().slot;
    held.erase(held.begin());
    return slot;
}

/// Every prompt segment leaves a checkpoint: at its end, or, where the prompt ends, at the last
/// border before its last token, which a repetition of the prompt has to run again.
void Engine::Impl::plan_saves(const Pass& pass, std::span<const SequenceInput> inputs) {
    BatchBuffers& b = buffers;
    b.save_slots.assign(pass.segments.size(), -1);
    b.save_positions.assign(pass.segments.size(), 0);
    if (pool->checkpoints() == 0) return;
    for (size_t i = 0; i < pass.segments.size(); ++i) {
        const Segment& segment = pass.segments[i];
        const SequenceInput& input = inputs[static_cast<size_t>(segment.input)];
        if (input.generated) continue;
        const bool last = segment.first + segment.count == std::ssize(input.tokens);
        const int32_t end = segment.position + segment.count - (last ? 1 : 0);
        const int32_t border = end / kChunkTokens * kChunkTokens;
        if (border <= segment.position) continue;
        b.save_slots[i] = checkpoint_slot(*input.sequence);
        b.save_positions[i] = border;
    }
}

void Engine::Impl::note_saves(const Pass& pass, std::span<const SequenceInput> inputs) {
    for (size_t i = 0; i < pass.segments.size(); ++i) {
        if (buffers.save_slots[i] < 0) continue;
        const SequenceInput& input = inputs[static_cast<size_t>(pass.segments[i].input)];
        Sequence& sequence = *input.sequence;
        sequence.checkpoints_.push_back(
            {buffers.save_slots[i], buffers.save_positions[i], sequence.skipped_});
        buffers.save_slots[i] = -1;
    }
}

/// Gives back the slots whose checkpoints were not noted: the pass was left by an exception.
void Engine::Impl::drop_saves() {
    for (int32_t& slot : buffers.save_slots)
        if (slot >= 0) pool->give(std::exchange(slot, -1));
}

/// Runs `work`, which asks for the same ops on the same addresses whenever `key` is the same: what
/// has run once is recorded the next time and replayed from then on. Returns what `work` returns.
Tensor Engine::Impl::run_recorded(const RecordingKey& key, const std::function<Tensor()>& work) {
    if (ops->on_host() || !recording) return work();
    constexpr size_t kMost = 64;  // their memory is planned for about so many
    if (recordings.size() >= kMost && !recordings.contains(key)) recordings.clear();
    const auto [place, fresh] = recordings.try_emplace(key);
    Recorded& known = place->second;
    if (fresh) return known.result = work();
    if (known.ops == nullptr) {
        try {
            known.ops = ops->record([&] { known.result = work(); });
        } catch (const UserError&) {
            // No room, say. What is wrong with the work itself shows when it is run.
            recording = false;
            return work();
        }
    }
    known.ops->replay();
    return known.result;
}

/// Keys that an attention op has to expect: a power of two on a device, so that few recordings
/// serve a whole conversation.
int32_t Engine::Impl::visible_bound(int32_t visible) const {
    constexpr int32_t kLeast = 1024;
    if (ops->on_host()) return visible;
    int32_t bound = kLeast;
    while (bound < visible) bound *= 2;
    return std::max(visible, std::min(bound, options.context));
}

void Engine::Impl::run_pass(const Pass& pass, std::span<const SequenceInput> inputs) {
    struct Saves {
        Impl& impl;
        ~Saves() { impl.drop_saves(); }
    } const saves{*this};
    Arena arena(arena_memory.get(), arena_bytes);
    Exec ex{.arena = arena, .prompt_rows = pass.prompt_rows};
    bool advance = false;
    const Batch batch = placed(ex, pass, make_batch(pass, inputs), advance);
    // The draft block follows all rows; mostly the logits of all are wanted, too.
    const bool choose = drafting() && std::ssize(pass.outputs) < pass.rows;
    const Tensor wanted = choose ? staged(ex, buffers.outputs) : Tensor{};
    const auto work = [&] {
        if (advance)
            ops->advance_batch(
                ex,
                make_tensor(resident.drawn_memory.get(), DType::kI32, {int64_t{batch.row_count()}}),
                batch);
        const Tensor hidden = model->forward(*ops, ex, batch, memory());
        if (pass.outputs.empty()) return hidden;
        if (!choose) {
            head_rows(arena, pass, hidden);
            return hidden;
        }
        const Scope scope(arena);
        const Tensor rows = arena.allocate(DType::kF32, {wanted.rows(), hidden.cols()});
        ops->gather_rows(ex, hidden, wanted, rows);
        head_rows(arena, pass, rows);
        return hidden;
    };
    const bool generated = pass.prompt_rows == 0 &&
                           pass.output_indices.size() == buffers.outputs.size() &&
                           in_order(pass.output_indices) && pass.output_indices.front() == 0;
    const RecordingKey key{.kind = RecordingKey::kPass,
                           .rows = pass.rows,
                           .sequences = batch.sequence_count(),
                           .outputs = static_cast<int32_t>(pass.outputs.size()),
                           .visible = batch.max_visible,
                           .tentative = batch.tentative,
                           .advance = advance,
                           .logits = logits_memory.get()};
    const Tensor hidden = generated ? run_recorded(key, work) : work();
    if (drafting()) follow_pass(arena, pass, inputs, batch, hidden);
    note_saves(pass, inputs);
    if (batch.tokens.data == resident.memory.get()) resident.packed = buffers.packed;
}

/// Logits of the wanted hidden rows of a pass, to their rows of the result.
void Engine::Impl::head_rows(Arena& arena, const Pass& pass, const Tensor& hidden) {
    const auto wanted = std::ssize(pass.outputs);
    const int64_t vocab = model->info().vocab;
    auto* result = reinterpret_cast<float*>(logits_memory.get());
    Exec head{.arena = arena, .prompt_rows = pass.prompt_outputs};
    const int32_t first = pass.output_indices.front();
    if (in_order(pass.output_indices)) {
        model->logits(*ops, head, hidden,
                      make_tensor(result + first * vocab, DType::kF32, {wanted, vocab}));
        return;
    }
    if (wanted > staging_capacity) {
        staging_memory = working_memory(*ops, wanted * vocab * 4);
        staging_capacity = wanted;
    }
    auto* staging = reinterpret_cast<float*>(staging_memory.get());
    model->logits(*ops, head, hidden, make_tensor(staging, DType::kF32, {wanted, vocab}));
    for (int64_t i = 0; i < wanted; ++i)
        ops->copy(head, make_tensor(staging + i * vocab, DType::kF32, {1, vocab}),
                  make_tensor(result + pass.output_indices[static_cast<size_t>(i)] * vocab,
                              DType::kF32, {1, vocab}));
}

}  // namespace tessera
