#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/machine.h"
#include "engine/passes.h"
#include "engine/vocab_from_gguf.h"

namespace tessera {
namespace {

using HostMemory = std::unique_ptr<std::byte, void (*)(void*)>;

HostMemory host_memory(int64_t bytes) {
    const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 63) / 64 * 64;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, &std::free};
}

std::string gib(int64_t bytes) {
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
}

/// Host copies of the index tensors of one pass; sized once for the largest pass.
struct BatchBuffers {
    std::vector<int32_t> tokens, positions, seq_start, page_table, outputs;
};

Tensor int_tensor(std::vector<int32_t>& values) {
    return make_tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
}

}  // namespace

struct Engine::Impl {
    EngineOptions options;
    std::unique_ptr<Ops> ops;
    std::unique_ptr<Model> model;
    std::optional<Tokenizer> tokenizer;
    std::optional<ChatTemplate> chat_template;
    MemoryPlan plan;

    int32_t pages_per_sequence = 0;
    std::vector<KvView> kv;
    std::vector<int32_t> free_pages;
    int32_t open_sequences = 0;

    HostMemory arena_memory = host_memory(0);
    size_t arena_bytes = 0;
    HostMemory logits_memory = host_memory(0);
    HostMemory staging_memory =
        host_memory(0);  ///< one pass of logits when inputs are not in processing order
    int64_t logits_capacity = 0;
    int64_t staging_capacity = 0;
    BatchBuffers buffers;

    explicit Impl(const EngineOptions& given) : options(given) {}

    void prepare_options();
    void check_kv_types() const;
    int64_t kv_bytes_per_token() const;
    size_t plan_arena();
    void describe(const GgufFile& file);
    void make_plan(const GgufFile& file);
    void check_memory(const std::string& path) const;
    void load_text(const GgufFile& file);
    void load(GgufFile file);
    void make_kv();

    void check_inputs(std::span<const SequenceInput> inputs) const;
    void take_pages(Sequence& sequence, int32_t tokens);
    Batch make_batch(const Pass& pass, std::span<const SequenceInput> inputs);
    void reserve_logits(int64_t rows);
    void run_pass(const Pass& pass, std::span<const SequenceInput> inputs);
};

void Engine::Impl::prepare_options() {
    if (options.context <= 0) options.context = model->info().train_context;
    options.sequences = std::max(options.sequences, 1);
    options.ubatch = std::max(1, std::min(options.ubatch, options.batch));
    options.batch = std::max(options.batch, options.ubatch);
    pages_per_sequence = (options.context + kPageTokens - 1) / kPageTokens;
    check_kv_types();
}

void Engine::Impl::check_kv_types() const {
    for (const DType type : {options.type_k, options.type_v}) {
        const bool known = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 ||
                           type == DType::kQ8_0;
        if (!known)
            throw UserError(
                ExitCode::kUsage,
                fmt::format("key/value cache type '{}' is not supported; known are f32, "
                            "f16, bf16, q8_0",
                            dtype_info(type).name));
        for (const KvSpec& spec : model->kv_layers())
            if (spec.head_size % dtype_info(type).block_elements != 0)
                throw UserError(
                    ExitCode::kUsage,
                    fmt::format("cache type '{}' needs a head size that is a multiple of "
                                "{}, this model has {}",
                                dtype_info(type).name, dtype_info(type).block_elements,
                                spec.head_size));
    }
}

int64_t Engine::Impl::kv_bytes_per_token() const {
    int64_t bytes = 0;
    for (const KvSpec& spec : model->kv_layers()) {
        const int64_t values = int64_t{spec.kv_heads} * spec.head_size;
        bytes += dtype_bytes(options.type_k, values) + dtype_bytes(options.type_v, values);
    }
    return bytes;
}

/// Runs the forward function without memory, for passes of prompt rows, of generated rows and of
/// both.
size_t Engine::Impl::plan_arena() {
    size_t peak = 0;
    const std::vector<KvSpec> specs = model->kv_layers();
    std::vector<KvView> planned_kv;
    for (const KvSpec& spec : specs) {
        const int64_t pages = int64_t{pages_per_sequence} * options.sequences;
        planned_kv.push_back({make_tensor(nullptr, options.type_k,
                                          {pages, spec.kv_heads, kPageTokens, spec.head_size}),
                              make_tensor(nullptr, options.type_v,
                                          {pages, spec.kv_heads, kPageTokens, spec.head_size})});
    }
    const int64_t rows = options.ubatch;
    for (const int32_t prompt_rows : {options.ubatch, options.ubatch / 2, 0}) {
        Arena arena(nullptr, 0);
        Exec ex{.arena = arena, .prompt_rows = prompt_rows};
        const int64_t sequences = std::min<int64_t>(options.sequences, rows);
        const Batch batch = {
            .tokens = make_tensor(nullptr, DType::kI32, {rows}),
            .positions = make_tensor(nullptr, DType::kI32, {rows}),
            .seq_start = make_tensor(nullptr, DType::kI32, {sequences + 1}),
            .page_table = make_tensor(nullptr, DType::kI32, {sequences, pages_per_sequence}),
            .outputs = make_tensor(nullptr, DType::kI32, {rows}),
            .prompt_rows = prompt_rows,
            .prompt_outputs = prompt_rows,
            .max_visible = options.context};
        const Tensor hidden = model->forward(*ops, ex, batch, planned_kv);
        const Tensor logits = make_tensor(nullptr, DType::kF32, {rows, model->info().vocab});
        model->logits(*ops, ex, hidden, logits);
        const std::vector<SampleParams> params(static_cast<size_t>(sequences));
        const std::vector<std::span<const int32_t>> history(params.size());
        const std::vector<float> uniforms(params.size());
        ops->sample(ex, logits.slice_rows(0, sequences), params, history, uniforms,
                    make_tensor(nullptr, DType::kI32, {sequences}));
        peak = std::max(peak, arena.peak_bytes());
    }
    return peak;
}

void Engine::Impl::make_plan(const GgufFile& file) {
    plan.weight_bytes = planned_weight_bytes(file, *model, *ops);
    plan.kv_bytes = kv_bytes_per_token() * kPageTokens * pages_per_sequence * options.sequences;
    arena_bytes = plan_arena();
    plan.compute_bytes =
        static_cast<int64_t>(arena_bytes) + int64_t{options.sequences} * model->info().vocab * 4;
}

void Engine::Impl::check_memory(const std::string& path) const {
    const int64_t limit =
        options.memory_limit_bytes > 0 ? options.memory_limit_bytes : available_memory_bytes();
    if (limit > 0 && plan.total() > limit)
        throw UserError(
            ExitCode::kMemory,
            fmt::format(
                "{} needs {} (weights {}, {} sequence(s) of {} tokens {}, compute {}), but {} "
                "are available: lower the context (-c), the cache types (-ctk, -ctv) or take "
                "a smaller model",
                path, gib(plan.total()), gib(plan.weight_bytes), options.sequences, options.context,
                gib(plan.kv_bytes), gib(plan.compute_bytes), gib(limit)));
}

void Engine::Impl::make_kv() {
    const int64_t pages = int64_t{pages_per_sequence} * options.sequences;
    for (const KvSpec& spec : model->kv_layers()) {
        const auto layer = [&](DType type) {
            const int64_t values = pages * spec.kv_heads * kPageTokens * spec.head_size;
            std::byte* memory = ops->allocate(static_cast<size_t>(dtype_bytes(type, values)));
            return make_tensor(memory, type, {pages, spec.kv_heads, kPageTokens, spec.head_size});
        };
        const Tensor keys = layer(options.type_k);
        kv.push_back({keys, layer(options.type_v)});
    }
    for (int64_t page = pages - 1; page >= 0; --page)
        free_pages.push_back(static_cast<int32_t>(page));
}

void Engine::Impl::load_text(const GgufFile& file) {
    VocabSource source = vocab_from_gguf(file);
    if (static_cast<int64_t>(source.tokens.size()) != model->info().vocab)
        throw UserError(ExitCode::kModel,
                        fmt::format("{}: key 'tokenizer.ggml.tokens' has {} entries, but tensor "
                                    "'token_embd.weight' has {} rows",
                                    file.path(), source.tokens.size(), model->info().vocab));
    if (!source.chat_template.empty()) chat_template.emplace(source.chat_template, file.path());
    tokenizer.emplace(std::move(source), file.path());
}

/// Everything that is known without the weights.
void Engine::Impl::describe(const GgufFile& file) {
    model = make_model(file);
    ops = make_ops(options.backend);
    prepare_options();
    make_plan(file);
}

/// The file is let go before anything is computed: its metadata is as large as a small model's
/// key/value memory.
void Engine::Impl::load(GgufFile file) {
    describe(file);
    if (options.load_text) load_text(file);
    check_memory(file.path());
    load_weights(file, *model, *ops, [&](int64_t done, int64_t total) {
        if (options.progress) options.progress("loading", done, total);
    });
    make_kv();
    arena_memory = host_memory(static_cast<int64_t>(arena_bytes));
    reserve_logits(options.sequences);
}

void Engine::Impl::check_inputs(std::span<const SequenceInput> inputs) const {
    int64_t tokens = 0;
    for (const SequenceInput& input : inputs) {
        check(input.sequence != nullptr, "decode: input without a sequence");
        const auto count = static_cast<int64_t>(input.tokens.size());
        tokens += count;
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

void Engine::Impl::reserve_logits(int64_t rows) {
    if (rows <= logits_capacity) return;
    logits_memory = host_memory(rows * model->info().vocab * 4);
    logits_capacity = rows;
}

Batch Engine::Impl::make_batch(const Pass& pass, std::span<const SequenceInput> inputs) {
    BatchBuffers& b = buffers;
    b.tokens.clear();
    b.positions.clear();
    b.seq_start.assign(1, 0);
    b.page_table.clear();
    b.outputs = pass.outputs;
    int32_t visible = 0;
    for (const Segment& segment : pass.segments) {
        const SequenceInput& input = inputs[static_cast<size_t>(segment.input)];
        const auto* tokens = input.tokens.data() + segment.first;
        b.tokens.insert(b.tokens.end(), tokens, tokens + segment.count);
        for (int32_t i = 0; i < segment.count; ++i) b.positions.push_back(segment.position + i);
        b.seq_start.push_back(static_cast<int32_t>(b.tokens.size()));
        const std::vector<int32_t>& pages = input.sequence->pages_;
        b.page_table.insert(b.page_table.end(), pages.begin(), pages.end());
        b.page_table.resize(static_cast<size_t>(pages_per_sequence) * (b.seq_start.size() - 1), 0);
        visible = std::max(visible, segment.position + segment.count);
    }
    const auto sequences = static_cast<int64_t>(pass.segments.size());
    return {.tokens = int_tensor(b.tokens),
            .positions = int_tensor(b.positions),
            .seq_start = int_tensor(b.seq_start),
            .page_table =
                make_tensor(b.page_table.data(), DType::kI32, {sequences, pages_per_sequence}),
            .outputs = int_tensor(b.outputs),
            .prompt_rows = pass.prompt_rows,
            .prompt_outputs = pass.prompt_outputs,
            .max_visible = visible};
}

void Engine::Impl::run_pass(const Pass& pass, std::span<const SequenceInput> inputs) {
    Arena arena(arena_memory.get(), arena_bytes);
    Exec ex{.arena = arena, .prompt_rows = pass.prompt_rows};
    const Tensor hidden = model->forward(*ops, ex, make_batch(pass, inputs), kv);
    const auto wanted = static_cast<int64_t>(pass.outputs.size());
    if (wanted == 0) return;
    const int64_t vocab = model->info().vocab;
    auto* result = reinterpret_cast<float*>(logits_memory.get());
    Exec head{.arena = arena, .prompt_rows = pass.prompt_outputs};
    const int32_t first = pass.output_indices.front();
    const bool in_order = pass.output_indices.back() - first + 1 == wanted &&
                          std::is_sorted(pass.output_indices.begin(), pass.output_indices.end());
    if (in_order) {
        model->logits(*ops, head, hidden,
                      make_tensor(result + first * vocab, DType::kF32, {wanted, vocab}));
        return;
    }
    if (wanted > staging_capacity) {
        staging_memory = host_memory(wanted * vocab * 4);
        staging_capacity = wanted;
    }
    auto* staging = reinterpret_cast<float*>(staging_memory.get());
    model->logits(*ops, head, hidden, make_tensor(staging, DType::kF32, {wanted, vocab}));
    for (int64_t i = 0; i < wanted; ++i)
        std::memcpy(result + pass.output_indices[static_cast<size_t>(i)] * vocab,
                    staging + i * vocab, static_cast<size_t>(vocab) * sizeof(float));
}

void Engine::Impl::take_pages(Sequence& sequence, int32_t tokens) {
    const int32_t needed = (tokens + kPageTokens - 1) / kPageTokens;
    while (static_cast<int32_t>(sequence.pages_.size()) < needed) {
        check(!free_pages.empty(), "page pool is empty although the plan reserved every page");
        sequence.pages_.push_back(free_pages.back());
        free_pages.pop_back();
    }
}

Engine::Engine(const EngineOptions& options)
    : Engine(options, GgufFile::open(options.model_path)) {}

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
    return sequence;
}

void Engine::truncate(Sequence& sequence, int32_t length) {
    check(length >= 0 && length <= sequence.length_, "truncate beyond the end of a sequence");
    sequence.length_ = length;
    const auto needed = static_cast<size_t>((length + kPageTokens - 1) / kPageTokens);
    while (sequence.pages_.size() > needed) {
        impl_->free_pages.push_back(sequence.pages_.back());
        sequence.pages_.pop_back();
    }
}

Tensor Engine::decode(std::span<const SequenceInput> inputs, const ProgressFn& progress) {
    Impl& impl = *impl_;
    impl.check_inputs(inputs);
    const int64_t wanted = count_outputs(inputs);
    impl.reserve_logits(wanted);
    const std::vector<Pass> passes = cut_passes(inputs, impl.options.ubatch);
    int64_t total = 0;
    for (const SequenceInput& input : inputs) {
        impl.take_pages(*input.sequence,
                        input.sequence->length_ + static_cast<int32_t>(input.tokens.size()));
        total += static_cast<int64_t>(input.tokens.size());
    }
    try {
        int64_t done = 0;
        for (const Pass& pass : passes) {
            if (progress) progress("prompt", done, total);
            impl.run_pass(pass, inputs);
            done += pass.rows;
        }
        if (progress) progress("prompt", done, total);
    } catch (...) {
        for (const SequenceInput& input : inputs)
            truncate(*input.sequence, input.sequence->length_);
        throw;
    }
    for (const SequenceInput& input : inputs)
        input.sequence->length_ += static_cast<int32_t>(input.tokens.size());
    return make_tensor(impl.logits_memory.get(), DType::kF32, {wanted, impl.model->info().vocab});
}

std::vector<int32_t> Engine::sample(const Tensor& logits,
                                    std::span<const SampleParams> params,
                                    std::span<const std::span<const int32_t>> history,
                                    std::span<const float> uniforms) {
    std::vector<int32_t> ids(static_cast<size_t>(logits.rows()), -1);
    Arena arena(impl_->arena_memory.get(), impl_->arena_bytes);
    Exec ex{.arena = arena};
    impl_->ops->sample(ex, logits, params, history, uniforms, int_tensor(ids));
    return ids;
}

Sequence::Sequence(Sequence&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)),
      pages_(std::move(other.pages_)),
      length_(std::exchange(other.length_, 0)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(pages_, other.pages_);
    std::swap(length_, other.length_);
    return *this;
}

Sequence::~Sequence() {
    if (engine_ == nullptr) return;
    engine_->truncate(*this, 0);
    --engine_->impl_->open_sequences;
}

}  // namespace tessera
