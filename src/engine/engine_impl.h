#pragma once
// What an Engine holds; shared by engine_load.cpp (planning and loading), engine.cpp (running) and
// engine_draft.cpp (multi-token prediction).

#include <array>
#include <compare>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/passes.h"
#include "engine/state_pool.h"

namespace tessera {

using HostMemory = std::unique_ptr<std::byte, void (*)(void*)>;

/// `bytes` of uninitialised memory, 64-byte aligned.
HostMemory host_memory(int64_t bytes);
/// The same where `ops` compute. Memory of a device lives as long as the backend.
HostMemory working_memory(Ops& ops, int64_t bytes);

/// Host copies of the index tensors of one pass; sized once for the largest pass.
struct BatchBuffers {
    std::vector<int32_t> tokens, positions, seq_start, page_table, outputs, all_rows;
    std::vector<int32_t> slots, save_slots, save_positions, shift, places;
    std::vector<int32_t> packed;  ///< all of them for a device
    std::vector<float> zeros;     ///< the hidden state before the first token
};

inline Tensor int_tensor(std::vector<int32_t>& values) {
    return make_tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
}

/// What decides which ops a piece of work asks for, and on which addresses.
struct RecordingKey {
    enum Kind : uint8_t { kPass, kDraft, kAccept };
    Kind kind = kPass;
    int32_t rows = 0;
    int32_t sequences = 0;
    int32_t outputs = 0;
    int32_t visible = 0;
    bool tentative = false;
    bool advance = false;
    const void* logits = nullptr;
    auto operator<=>(const RecordingKey&) const = default;
};

struct Recorded {
    std::unique_ptr<Recording> ops;
    Tensor result;
};

/// What a device keeps from one pass of generated tokens to the next, so that the host has nothing
/// to send between two tokens.
struct Resident {
    HostMemory memory = host_memory(0);        ///< the index tensors of the last such pass
    std::vector<int32_t> packed;               ///< what they hold; empty: nothing to go on from
    HostMemory drawn_memory = host_memory(0);  ///< the tokens drawn last, as many as sequences
    std::vector<int32_t> drawn;                ///< the same on the host
};

/// Rows of one sequence for the draft block: tokens at positions from `position` on, each with the
/// hidden state before it.
struct DraftRows {
    Sequence* sequence = nullptr;
    int32_t position = 0;
    std::span<const int32_t> tokens;
    Tensor hidden;  ///< [tokens, width]
};

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
    std::optional<StatePool> pool;
    int32_t open_sequences = 0;
    double guess_share = 0.0;  ///< of the model

    HostMemory arena_memory = host_memory(0);
    size_t arena_bytes = 0;
    HostMemory logits_memory = host_memory(0);
    HostMemory draft_logits_memory = host_memory(0);
    HostMemory staging_memory =
        host_memory(0);  ///< one pass of logits when inputs are not in processing order
    HostMemory host_logits_memory = host_memory(0);  ///< logits that somebody wants to look at
    int64_t host_logits_capacity = 0;
    int64_t logits_capacity = 0;
    int64_t staging_capacity = 0;
    BatchBuffers buffers;
    Resident resident;
    std::map<RecordingKey, Recorded> recordings;
    bool recording = true;

    explicit Impl(const EngineOptions& given) : options(given) {}

    // engine_load.cpp
    void prepare_options();
    void check_kv_types() const;
    Tensor pages_of(const KvSpec& spec, DType type, std::byte* memory) const;
    std::vector<KvView> planned_kv() const;
    Tensor planned_integers(Exec& ex, int64_t count);
    Batch planned_batch(Exec& ex, int64_t rows, int64_t sequences, int64_t outputs);
    int64_t plan_pass(int32_t rows, int32_t prompt_rows);
    int64_t plan_guess(int64_t sequences, bool bulk);
    size_t plan_arena();
    void describe(const GgufFile& file);
    void make_plan(const GgufFile& file);
    void check_memory(const std::string& path) const;
    void load_text(const GgufFile& file);
    void load(GgufFile file);
    void make_kv();

    // engine.cpp, engine_pass.cpp
    Memory memory() const { return {.kv = kv, .recurrent = pool->views()}; }
    bool drafting() const { return options.draft_max > 0; }
    void check_inputs(std::span<const SequenceInput> inputs) const;
    void take_pages(Sequence& sequence, int32_t tokens);
    void release_pages(Sequence& sequence, int32_t tokens);
    void plan_saves(const Pass& pass, std::span<const SequenceInput> inputs);
    int32_t checkpoint_slot(Sequence& sequence);
    void clear_rows();
    int32_t add_rows(const Sequence& sequence, int32_t position, std::span<const int32_t> tokens);
    Tensor page_table();
    Tensor staged(Exec& ex, std::vector<int32_t>& values);
    void pack(Batch& batch);
    static Batch packed_at(int32_t* memory, Batch batch);
    Batch staged(Exec& ex, Batch batch);
    std::array<int64_t, 2> resident_bytes() const;
    void make_resident();
    bool follows_drawn(const Batch& batch) const;
    Batch placed(Exec& ex, const Pass& pass, Batch batch, bool& advance);
    Tensor run_recorded(const RecordingKey& key, const std::function<Tensor()>& work);
    int32_t visible_bound(int32_t visible) const;
    Batch make_batch(const Pass& pass, std::span<const SequenceInput> inputs);
    void reserve_logits(int64_t rows);
    void run_pass(const Pass& pass, std::span<const SequenceInput> inputs);
    void head_rows(Arena& arena, const Pass& pass, const Tensor& hidden);
    void note_saves(const Pass& pass, std::span<const SequenceInput> inputs);
    void drop_saves();

    // engine_draft.cpp: what the draft block has seen and what waits for it
    Tensor recent_rows(const Sequence& sequence, int32_t first, int32_t count) const;
    Tensor chain_row(const Sequence& sequence) const;
    void follow_pass(Arena& arena,
                     const Pass& pass,
                     std::span<const SequenceInput> inputs,
                     const Batch& batch,
                     const Tensor& hidden);
    Tensor prompt_places(Exec& ex,
                         const Pass& pass,
                         std::span<const SequenceInput> inputs,
                         const Batch& batch);
    void follow_prompts(Arena& arena,
                        const Pass& pass,
                        std::span<const SequenceInput> inputs,
                        const Batch& batch,
                        const Tensor& hidden);
    void follow_accepted(Sequence& sequence, int32_t count);
    void follow_waiting(Sequence& sequence);
    void make_room(Sequence& sequence, int32_t count) const;
    static void skip_tokens(Sequence& sequence, int32_t count);
    void prepare_follow(Sequence& sequence, const SequenceInput& input);
    Tensor run_draft(Arena& arena, std::span<const DraftRows> rows, bool want_last);
};

}  // namespace tessera
