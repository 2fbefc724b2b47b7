// Planning and loading: everything before the first token.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/backends.h"
#include "engine/engine_impl.h"
#include "engine/machine.h"
#include "engine/vocab_from_gguf.h"

namespace tessera {
namespace {

/// Hidden states that may wait for the draft block; it then takes them in one pass.
constexpr int32_t kRecentRows = 32;

std::string gib(int64_t bytes) {
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
}

}  // namespace

void Engine::Impl::prepare_options() {
    if (options.context <= 0) options.context = model->info().train_context;
    options.sequences = std::max(options.sequences, 1);
    options.ubatch = std::max(1, std::min(options.ubatch, options.batch));
    options.draft_max = std::max(options.draft_max, 0);
    if (!model->recurrent_layers().empty()) {
        // Passes of a prompt end at the borders of chunks.
        options.ubatch = std::max(options.ubatch / kChunkTokens, 1) * kChunkTokens;
        options.batch = std::max(options.batch / kChunkTokens, 1) * kChunkTokens;
    } else {
        options.checkpoints = 0;
    }
    options.draft_max = std::min(options.draft_max, options.ubatch - 1);
    options.batch = std::max(options.batch, options.ubatch);
    pool.emplace(StatePoolShape{.layers = model->recurrent_layers(),
                                .sequences = options.sequences,
                                .checkpoints = options.checkpoints,
                                .log_rows = drafting() ? options.draft_max + 1 : 0,
                                .width = drafting() ? model->info().width : 0,
                                .recent_rows = kRecentRows + options.draft_max});
    pages_per_sequence = (options.context + kPageTokens - 1) / kPageTokens;
    check_kv_types();
}

void Engine::Impl::check_kv_types() const {
    for (const DType type : {options.type_k, options.type_v}) {
        const bool known = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 ||
                           type == DType::kF8_E4M3 || type == DType::kQ8_0;
        if (!known)
            throw UserError(
                ExitCode::kUsage,
                fmt::format("key/value cache type '{}' is not supported; known are f32, "
                            "f16, bf16, fp8, q8_0",
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

/// One layer's pages of keys or values at `memory`, which is null while planning.
Tensor Engine::Impl::pages_of(const KvSpec& spec, DType type, std::byte* memory) const {
    return make_tensor(
        memory, type,
        {pages_per_sequence * options.sequences, spec.kv_heads, kPageTokens, spec.head_size});
}

std::vector<KvView> Engine::Impl::planned_kv() const {
    std::vector<KvView> planned;
    for (const KvSpec& spec : model->kv_layers())
        planned.push_back(
            {pages_of(spec, options.type_k, nullptr), pages_of(spec, options.type_v, nullptr)});
    return planned;
}

Tensor Engine::Impl::planned_integers(Exec& ex, int64_t count) {
    return ops->stage(ex, make_tensor(nullptr, DType::kI32, {count}));
}

/// The batch of a pass, staged as a run stages it.
Batch Engine::Impl::planned_batch(Exec& ex, int64_t rows, int64_t sequences, int64_t outputs) {
    return {.tokens = planned_integers(ex, rows),
            .positions = planned_integers(ex, rows),
            .seq_start = planned_integers(ex, sequences + 1),
            .page_table =
                ops->stage(ex, make_tensor(nullptr, DType::kI32, {sequences, pages_per_sequence})),
            .outputs = planned_integers(ex, outputs),
            .prompt_rows = ex.prompt_rows,
            .prompt_outputs = ex.prompt_rows,
            .max_visible = options.context};
}

/// Arena that a pass of prompt rows, of generated rows or of both needs, by running it without
/// memory.
int64_t Engine::Impl::plan_pass(int32_t rows, int32_t prompt_rows) {
    const std::vector<KvView> pages = planned_kv();
    const Memory planned{.kv = pages, .recurrent = pool->views()};
    Arena arena(nullptr, 0);
    Exec ex{.arena = arena, .prompt_rows = prompt_rows};
    const int64_t sequences = std::min(options.sequences, rows);
    const int64_t vocab = model->info().vocab, width = model->info().width;
    Batch batch = planned_batch(ex, rows, sequences, rows);
    for (Tensor* part : {&batch.slots, &batch.save_slots, &batch.save_positions})
        *part = planned_integers(ex, sequences);
    if (drafting()) planned_integers(ex, rows);  // the rows whose logits are wanted
    const Tensor hidden = model->forward(*ops, ex, batch, planned);
    if (drafting()) {
        Scope scope(arena);
        const Tensor states = arena.allocate(DType::kF32, {sequences + rows, width});
        const Tensor shifted = arena.allocate(DType::kF32, {rows, width});
        ops->stage(ex, make_tensor(nullptr, DType::kF32, {1, width}));
        ops->gather_rows(ex, states, planned_integers(ex, rows), shifted);
        planned_integers(ex, rows);  // positions as the draft block counts them
        const Tensor guess = model->draft(*ops, ex, batch, shifted, planned);
        model->draft_logits(*ops, ex, guess.slice_rows(0, sequences),
                            make_tensor(nullptr, DType::kF32, {sequences, vocab}));
        for (const RecurrentView& view : pool->views())
            ops->accept_recurrent(ex, planned_integers(ex, 1), planned_integers(ex, 1), view);
    }
    const Tensor wanted = arena.allocate(DType::kF32, {drafting() ? rows : 0, width});
    model->logits(*ops, ex, drafting() ? wanted : hidden,
                  make_tensor(nullptr, DType::kF32, {rows, vocab}));
    return static_cast<int64_t>(arena.peak_bytes());
}

/// Arena of the draft block for sequences each with every state that may wait for it: for a guess,
/// or, as rows of a prompt, to follow without one.
int64_t Engine::Impl::plan_guess(int64_t sequences, bool bulk) {
    const int64_t vocab = model->info().vocab;
    const int64_t rows = sequences * (kRecentRows + options.draft_max);
    const std::vector<KvView> pages = planned_kv();
    Arena arena(nullptr, 0);
    Exec ex{.arena = arena, .prompt_rows = bulk ? static_cast<int32_t>(rows) : 0};
    const Tensor hidden = arena.allocate(DType::kF32, {rows, int64_t{model->info().width}});
    const Batch batch = planned_batch(ex, rows, sequences, sequences);
    const Tensor guess =
        model->draft(*ops, ex, batch, hidden, {.kv = pages, .recurrent = pool->views()});
    if (!bulk)
        model->draft_logits(*ops, ex, guess, make_tensor(nullptr, DType::kF32, {sequences, vocab}));
    return static_cast<int64_t>(arena.peak_bytes());
}

size_t Engine::Impl::plan_arena() {
    int64_t peak = 0;
    if (drafting()) peak = std::max(plan_guess(options.sequences, false), plan_guess(1, true));
    for (const int32_t prompt_rows : {options.ubatch, options.ubatch / 2, 0})
        peak = std::max(peak, plan_pass(options.ubatch, prompt_rows));
    // A row for each sequence is drawn at once, also when their prompts take many passes.
    Arena arena(nullptr, 0);
    Exec ex{.arena = arena};
    const auto rows =
        static_cast<size_t>(options.sequences) * static_cast<size_t>(options.draft_max + 1);
    const std::vector<SampleParams> params(rows);
    const std::vector<std::span<const int32_t>> history(rows);
    const std::vector<float> uniforms(rows);
    const auto count = static_cast<int64_t>(rows);
    ops->sample(ex, make_tensor(nullptr, DType::kF32, {count, model->info().vocab}), params,
                history, uniforms, arena.allocate(DType::kI32, {count}));
    return static_cast<size_t>(std::max(peak, static_cast<int64_t>(arena.peak_bytes())));
}

/// In the order of load(): a card's rounding follows from the sizes one by one.
void Engine::Impl::make_plan(const GgufFile& file) {
    std::vector<int64_t> blocks;
    const auto planned = [&](const std::vector<int64_t>& more) {
        blocks.insert(blocks.end(), more.begin(), more.end());
        return std::accumulate(more.begin(), more.end(), int64_t{0});
    };
    plan.weight_bytes = planned(planned_weights(file, *model, *ops));
    std::vector<int64_t> pages;
    for (const KvView& layer : planned_kv())
        for (const Tensor& part : {layer.keys, layer.values})
            pages.push_back(dtype_bytes(part.dtype, part.elements()));
    plan.kv_bytes = planned(pages);
    plan.state_bytes = planned(pool->blocks());
    arena_bytes = plan_arena();
    const int64_t row_bytes = int64_t{model->info().vocab} * 4, sequences = options.sequences;
    std::vector<int64_t> compute{static_cast<int64_t>(arena_bytes)};
    if (!ops->on_host())
        for (const int64_t bytes : resident_bytes()) compute.push_back(bytes);
    compute.push_back(sequences * (drafting() ? options.draft_max + 1 : 1) * row_bytes);
    if (drafting()) compute.push_back(sequences * row_bytes);
    plan.compute_bytes = planned(compute);
    plan.reserve_bytes = bytes_beside(*ops, blocks);
}

void Engine::Impl::check_memory(const std::string& path) const {
    const int64_t limit = options.memory_limit_bytes > 0 ? options.memory_limit_bytes
                          : ops->on_host()               ? available_memory_bytes()
                                                         : ops->available_bytes();
    if (limit > 0 && plan.total() > limit)
        throw UserError(
            ExitCode::kMemory,
            fmt::format(
                "{} needs {} (weights {}, {} sequence(s) of {} tokens {}, compute {}{}), but {} "
                "are available{}: lower the context (-c), the cache types (-ctk, -ctv) or take "
                "{}",
                path, gib(plan.total()), gib(plan.weight_bytes), options.sequences, options.context,
                gib(plan.kv_bytes + plan.state_bytes), gib(plan.compute_bytes),
                plan.reserve_bytes > 0 ? ", reserve " + gib(plan.reserve_bytes) : "", gib(limit),
                ops->on_host() ? "" : fmt::format(" on {}", ops->name()),
                ops->on_host() ? "a smaller model" : "--backend cpu"));
}

void Engine::Impl::make_kv() {
    const int64_t pages = int64_t{pages_per_sequence} * options.sequences;
    for (const KvSpec& spec : model->kv_layers()) {
        const auto layer = [&](DType type) {
            const int64_t values = pages * spec.kv_heads * kPageTokens * spec.head_size;
            return pages_of(spec, type,
                            ops->allocate(static_cast<size_t>(dtype_bytes(type, values))));
        };
        const Tensor keys = layer(options.type_k);
        kv.push_back({keys, layer(options.type_v)});
    }
    for (int64_t page = pages - 1; page >= 0; --page)
        free_pages.push_back(static_cast<int32_t>(page));
    pool->allocate(*ops);
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
    model = make_model(file, {.draft = options.draft_max > 0});
    ops = make_ops(options.backend);
    const int32_t layers = model->info().layers;
    if (!ops->on_host() && options.backend.gpu_layers < layers)
        throw UserError(
            ExitCode::kUsage,
            options.backend.gpu_layers == 0
                ? fmt::format("-ngl 0 and a backend on a card ({}) contradict", ops->name())
                : fmt::format("-ngl {}: this model has {} layers and only whole models run on "
                              "a GPU: leave -ngl away, or take 0 for the CPU",
                              options.backend.gpu_layers, layers));
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
    guess_share = model->guess_share();
    make_kv();
    arena_memory = working_memory(*ops, static_cast<int64_t>(arena_bytes));
    make_resident();
    reserve_logits(int64_t{options.sequences} * (drafting() ? options.draft_max + 1 : 1));
    recording = !options.backend.synchronous;
    if (drafting())
        draft_logits_memory =
            working_memory(*ops, int64_t{options.sequences} * model->info().vocab * 4);
    buffers.zeros.assign(static_cast<size_t>(model->info().width), 0.0f);
}

}  // namespace tessera
