#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/machine.h"
#include "hf/open_model.h"

namespace tessera {

HostMemory host_memory(int64_t bytes) {
    const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 63) / 64 * 64;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, &std::free};
}

HostMemory working_memory(Ops& ops, int64_t bytes) {
    if (ops.on_host()) return host_memory(bytes);
    return {ops.allocate(static_cast<size_t>(bytes)), [](void*) {}};
}

void Engine::Impl::check_inputs(std::span<const SequenceInput> inputs) const {
    int64_t tokens = 0;
    for (const SequenceInput& input : inputs) {
        check(input.sequence != nullptr, "decode: input without a sequence");
        const auto count = static_cast<int64_t>(input.tokens.size());
        tokens += count;
        check(input.tentative == inputs.front().tentative, "decode: some inputs are tentative");
        check(!input.tentative || (input.generated && count <= options.draft_max + 1),
              "decode: tentative tokens are generated and at most draft_max + 1");
        check(!input.unseen || (input.generated && !input.tentative && count > 0),
              "decode: unseen tokens are generated and no guesses");
        if (input.sequence->length() + count > options.context)
            throw UserError(
                ExitCode::kFailure,
                fmt::format("context is full: {} tokens held and {} more do not fit into "
                            "{} (-c)",
                            input.sequence->length(), count, options.context));
        for (const int32_t token : input.tokens)
            if (token < 0 || token >= model->info().vocab)
                throw UserError(ExitCode::kFailure, fmt::format("token id {} is not in 0..{}",
                                                                token, model->info().vocab - 1));
    }
    check(tokens <= options.batch, "decode: more tokens than the batch size");
}

void Engine::Impl::take_pages(Sequence& sequence, int32_t tokens) {
    const int32_t needed = (tokens + kPageTokens - 1) / kPageTokens;
    while (static_cast<int32_t>(sequence.pages_.size()) < needed) {
        check(!free_pages.empty(), "page pool is empty although the plan reserved every page");
        sequence.pages_.push_back(free_pages.back());
        free_pages.pop_back();
    }
}

Engine::Engine(const EngineOptions& options) : Engine(options, open_model(options.model_path)) {}

Engine::Engine(const EngineOptions& options, GgufFile file)
    : impl_(std::make_unique<Impl>(options)) {
    impl_->load(std::move(file));
    release_free_heap();  // the tables of the file
}

Engine::~Engine() {
    check(!impl_ || impl_->open_sequences == 0, "engine destroyed before its sequences");
}

MemoryPlan plan_memory(const EngineOptions& options, const GgufFile& file) {
    Engine::Impl impl(options);
    impl.describe(file);
    return impl.plan;
}

const ModelInfo& Engine::info() const {
    return impl_->model->info();
}
const MemoryPlan& Engine::plan() const {
    return impl_->plan;
}
Ops& Engine::ops() {
    return *impl_->ops;
}
const EngineOptions& Engine::options() const {
    return impl_->options;
}

ActFormat Engine::prompt_act() const {
    std::array<int32_t, 8> matrices{};
    for (const WeightRow& row : impl_->model->weights())
        if (row.matrix != nullptr && !row.matrix->absent())
            for (size_t format = 0; format < matrices.size(); ++format)
                matrices[format] += row.matrix->wants.prompt >> format & 1;
    return static_cast<ActFormat>(std::ranges::max_element(matrices) - matrices.begin());
}

const Tokenizer& Engine::tokenizer() const {
    check(impl_->tokenizer.has_value(), "engine was loaded without text");
    return *impl_->tokenizer;
}

const ChatTemplate* Engine::chat_template() const {
    return impl_->chat_template ? &*impl_->chat_template : nullptr;
}

Sequence Engine::new_sequence() {
    if (impl_->open_sequences == impl_->options.sequences)
        throw UserError(ExitCode::kFailure,
                        fmt::format("all {} sequences are in use (-np)", impl_->options.sequences));
    ++impl_->open_sequences;
    Sequence sequence;
    sequence.engine_ = this;
    if (!impl_->pool->empty()) sequence.slot_ = impl_->pool->take_sequence();
    return sequence;
}

void Engine::Impl::release_pages(Sequence& sequence, int32_t tokens) {
    const auto needed = static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens);
    while (sequence.pages_.size() > needed) {
        free_pages.push_back(sequence.pages_.back());
        sequence.pages_.pop_back();
    }
}

int32_t Engine::rewind(Sequence& sequence, int32_t length) {
    check(length >= 0 && length <= sequence.length_, "rewind beyond the end of a sequence");
    StatePool& pool = *impl_->pool;
    if (!pool.empty()) {
        std::vector<Sequence::Checkpoint>& held = sequence.checkpoints_;
        while (!held.empty() && held.back().position > length) {
            pool.give(held.back().slot);
            held.pop_back();
        }
        length = held.empty() ? 0 : held.back().position;
        sequence.skipped_ = held.empty() ? 0 : held.back().skipped;
        sequence.recent_ = 0;
        sequence.recent_tokens_.clear();
        sequence.lost_ = false;
        if (length > 0) {
            Arena arena(impl_->arena_memory.get(), impl_->arena_bytes);
            Exec ex{.arena = arena};
            pool.copy(*impl_->ops, ex, held.back().slot, sequence.slot_);
            sequence.recent_ = impl_->drafting() ? 1 : 0;
        }
    }
    sequence.length_ = length;
    impl_->release_pages(sequence, length);
    return length;
}

Tensor Engine::decode(std::span<const SequenceInput> inputs, const ProgressFn& progress) {
    Impl& impl = *impl_;
    impl.check_inputs(inputs);
    const int64_t wanted = count_outputs(inputs);
    impl.reserve_logits(wanted);
    const std::vector<Pass> passes =
        cut_passes(inputs, impl.options.ubatch, impl.pool->recurrent() ? kChunkTokens : 1);
    int64_t total = 0;
    for (const SequenceInput& input : inputs) {
        impl.take_pages(*input.sequence,
                        input.sequence->length_ + static_cast<int32_t>(input.tokens.size()));
        total += static_cast<int64_t>(input.tokens.size());
    }
    if (impl.drafting())
        for (const SequenceInput& input : inputs) impl.prepare_follow(*input.sequence, input);
    try {
        int64_t done = 0;
        for (const Pass& pass : passes) {
            if (progress) progress("prompt", done, total);
            impl.run_pass(pass, inputs);
            done += pass.rows;
        }
        if (progress) progress("prompt", done, total);
    } catch (...) {
        for (const SequenceInput& input : inputs) rewind(*input.sequence, input.sequence->length_);
        throw;
    }
    for (const SequenceInput& input : inputs)
        if (!input.tentative) input.sequence->length_ += static_cast<int32_t>(input.tokens.size());
    return make_tensor(impl.logits_memory.get(), DType::kF32, {wanted, impl.model->info().vocab});
}

void Engine::accept(Sequence& sequence, int32_t count) {
    Impl& impl = *impl_;
    check(count > 0 && count <= std::ssize(sequence.tentative_), "accept: nothing to accept");
    std::vector<int32_t> slot{sequence.slot_}, counts{count};
    Arena arena(impl.arena_memory.get(), impl.arena_bytes);
    Exec ex{.arena = arena};
    const Tensor slots = impl.staged(ex, slot), accepted = impl.staged(ex, counts);
    impl.run_recorded({.kind = RecordingKey::kAccept}, [&] {
        for (const RecurrentView& view : impl.pool->views())
            impl.ops->accept_recurrent(ex, slots, accepted, view);
        return Tensor{};
    });
    impl.follow_accepted(sequence, count);
    sequence.length_ += count;
    sequence.tentative_.clear();
}

uint64_t Engine::memory_hash(const Sequence& sequence) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto add = [&](const Tensor& tensor, int64_t first, int64_t count) {
        std::vector<uint8_t> bytes(static_cast<size_t>(dtype_bytes(tensor.dtype, count)));
        impl_->ops->copy_to_host(
            bytes.data(), tensor.as<uint8_t>() + dtype_bytes(tensor.dtype, first), bytes.size());
        for (const uint8_t byte : bytes) hash = (hash ^ byte) * 1099511628211u;
    };
    const size_t trunk = impl_->kv.size() - (impl_->drafting() ? 1 : 0);
    for (const KvView& view : std::span(impl_->kv).first(trunk))
        for (const Tensor* tensor : {&view.keys, &view.values})
            for (int32_t begin = 0; begin < sequence.length_; begin += kPageTokens)
                for (int64_t head = 0; head < tensor->shape[1]; ++head) {
                    const int32_t page = sequence.pages_[static_cast<size_t>(begin / kPageTokens)];
                    const int32_t tokens = std::min(kPageTokens, sequence.length_ - begin);
                    add(*tensor, page * tensor->stride[0] + head * tensor->stride[1],
                        tokens * tensor->shape[3]);
                }
    for (const RecurrentView& view : impl_->pool->views())
        for (const Tensor* tensor : {&view.conv, &view.state})
            add(*tensor, sequence.slot_ * tensor->stride[0], tensor->stride[0]);
    return hash;
}

std::vector<int32_t> Engine::sample(const Tensor& logits,
                                    std::span<const SampleParams> params,
                                    std::span<const std::span<const int32_t>> history,
                                    std::span<const float> uniforms) {
    Impl& impl = *impl_;
    std::vector<int32_t> ids(static_cast<size_t>(logits.rows()), -1);
    Arena arena(impl.arena_memory.get(), impl.arena_bytes);
    Exec ex{.arena = arena};
    if (impl.ops->on_host()) {
        impl.ops->sample(ex, logits, params, history, uniforms, int_tensor(ids));
        return ids;
    }
    // Where the next pass finds them.
    const bool stay = std::ssize(ids) <= impl.options.sequences;
    const Tensor drawn =
        stay ? make_tensor(impl.resident.drawn_memory.get(), DType::kI32, {std::ssize(ids)})
             : arena.allocate(DType::kI32, {std::ssize(ids)});
    impl.resident.drawn.clear();
    impl.ops->sample(ex, logits, params, history, uniforms, drawn);
    impl.ops->copy_to_host(ids.data(), drawn.data, ids.size() * sizeof(int32_t));
    if (stay) impl.resident.drawn = ids;
    return ids;
}

Tensor Engine::on_host(const Tensor& logits) {
    Impl& impl = *impl_;
    if (impl.ops->on_host()) return logits;
    check(logits.contiguous(), "on_host: logits lie together");
    const int64_t bytes = logits.elements() * 4;
    if (bytes > impl.host_logits_capacity) {
        impl.host_logits_memory = host_memory(bytes);
        impl.host_logits_capacity = bytes;
    }
    Tensor copy = logits;
    copy.data = impl.host_logits_memory.get();
    impl.ops->copy_to_host(copy.data, logits.data, static_cast<size_t>(bytes));
    return copy;
}

void Engine::set_recording(bool on) {
    impl_->recording = on;
}

void Engine::wait() {
    impl_->ops->copy_to_host(nullptr, nullptr, 0);
}

Sequence::Sequence(Sequence&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)),
      pages_(std::move(other.pages_)),
      length_(std::exchange(other.length_, 0)),
      slot_(std::exchange(other.slot_, -1)),
      checkpoints_(std::move(other.checkpoints_)),
      recent_(std::exchange(other.recent_, 0)),
      recent_tokens_(std::move(other.recent_tokens_)),
      skipped_(std::exchange(other.skipped_, 0)),
      lost_(std::exchange(other.lost_, false)),
      tentative_(std::move(other.tentative_)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(pages_, other.pages_);
    std::swap(length_, other.length_);
    std::swap(slot_, other.slot_);
    std::swap(checkpoints_, other.checkpoints_);
    std::swap(recent_, other.recent_);
    std::swap(recent_tokens_, other.recent_tokens_);
    std::swap(skipped_, other.skipped_);
    std::swap(lost_, other.lost_);
    std::swap(tentative_, other.tentative_);
    return *this;
}

Sequence::~Sequence() {
    if (engine_ == nullptr) return;
    engine_->rewind(*this, 0);
    if (slot_ >= 0) engine_->impl_->pool->give(slot_);
    --engine_->impl_->open_sequences;
}

}  // namespace tessera
