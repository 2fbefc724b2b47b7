// Runs of the gated delta net's ops: several sequences in shuffled slots of a poisoned memory. Cut
// runs take a prompt in pieces that end at multiples of kChunkTokens, generated rows one at a time,
// and decode what the uncut run lets a tentative batch accept.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "op_cases/case_run.h"

namespace tessera::op_cases {
namespace {

using Role = Guarded::Role;

constexpr int32_t kLogRows = 8;

struct MemoryShape {
    int64_t channels = 1;
    int64_t held = 1;
    int64_t heads = 1;
    int64_t size = 1;
    int64_t key_size = 1;
    int64_t key_heads = 1;
};

/// The slots of a case: one per sequence and a spare one, in shuffled order, then, where a case
/// saves, one for each sequence to be saved in.
class Memory {
  public:
    Memory(const MemoryCase& shape, const MemoryShape& dims, Random& random)
        : shape_(shape),
          sequences_(static_cast<int64_t>(shape.runs.size())),
          conv_("conv", DType::kF32, {slot_count(), dims.channels, dims.held}, 0, Role::kOutput),
          state_("state",
                 DType::kF32,
                 {slot_count(), dims.heads, dims.size, dims.key_size},
                 0,
                 Role::kOutput),
          conv_log_(
              "conv_log", DType::kF32, {sequences_ + 1, kLogRows, dims.channels}, 0, Role::kOutput),
          delta_log_("delta_log",
                     DType::kF32,
                     {sequences_ + 1, kLogRows,
                      dims.key_heads * dims.key_size + dims.heads * (dims.size + 2)},
                     0,
                     Role::kOutput) {
        order_.resize(static_cast<size_t>(sequences_) + 1);
        std::iota(order_.begin(), order_.end(), 0);
        for (size_t i = order_.size(); i > 1; --i)
            std::swap(order_[i - 1],
                      order_[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
        for (size_t s = 0; s < shape.runs.size(); ++s) {
            if (shape.runs[s].first == 0) continue;
            for (const Guarded* part : {&conv_, &state_}) {
                float* slot = part->tensor().row<float>(order_[s]);
                for (int64_t i = 0; i < part->tensor().stride[0]; ++i)
                    slot[i] = random.uniform(-1.0f, 1.0f);
            }
        }
        // Ops that a case does not run leave their logs as they are: accepting them is harmless.
        if (!shape.accept.empty()) {
            conv_log_.fill_bytes(0);
            delta_log_.fill_bytes(0);
        }
    }

    RecurrentView view() const {
        return {conv_.tensor(), state_.tensor(), conv_log_.tensor(), delta_log_.tensor()};
    }
    int32_t slot(size_t sequence) const { return order_[sequence]; }
    int32_t save_slot(size_t sequence) const {
        return static_cast<int32_t>(sequences_ + 1 + static_cast<int64_t>(sequence));
    }

    /// What the slots hold now; a slot that nobody may write must still be poison.
    void read(bool conv, Outputs& outputs) const {
        const Tensor& tensor = (conv ? conv_ : state_).tensor();
        for (size_t s = 0; s < shape_.runs.size(); ++s) {
            take(tensor, slot(s), outputs.values);
            const bool saved = s < shape_.saves.size() && shape_.saves[s] > 0;
            if (saved) take(tensor, save_slot(s), outputs.values);
            if (!shape_.saves.empty() && !saved && !poisoned(tensor, save_slot(s)))
                outputs.faults.push_back("a slot to save in was written without being asked for");
        }
        if (!poisoned(tensor, order_.back()))
            outputs.faults.push_back("the slot of no sequence was written");
        for (const Guarded* part : {&conv_, &state_, &conv_log_, &delta_log_})
            part->verify(outputs.faults);
    }

  private:
    int64_t slot_count() const { return (shape_.saves.empty() ? 1 : 2) * sequences_ + 1; }
    static void take(const Tensor& tensor, int64_t slot, std::vector<float>& values) {
        const float* first = tensor.row<float>(slot);
        values.insert(values.end(), first, first + tensor.stride[0]);
    }
    static bool poisoned(const Tensor& tensor, int64_t slot) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.row<float>(slot));
        return std::all_of(bytes, bytes + tensor.stride[0] * 4,
                           [](uint8_t byte) { return byte == 0xff; });
    }

    const MemoryCase& shape_;
    int64_t sequences_;
    std::vector<int32_t> order_;
    Guarded conv_, state_, conv_log_, delta_log_;
};

/// Rows [begin, begin + count) of run `run`.
struct Piece {
    size_t run = 0;
    int32_t begin = 0;
    int32_t count = 0;
};

/// Pieces that go into one call; prompts come first. Their rows in the operands are contiguous.
struct Call {
    std::vector<Piece> pieces{};
    int32_t first_row = 0;
    int32_t rows = 0;
    int32_t prompt_rows = 0;
    bool tentative = false;
};

/// The calls of a case: one, or as many as its rows may be cut into.
std::vector<Call> calls_of(const MemoryCase& shape, bool cut) {
    std::vector<Call> calls;
    int32_t row = 0;
    const auto add = [&](size_t run, int32_t begin, int32_t count, bool fresh, bool tentative) {
        if (fresh || calls.empty()) calls.push_back({.first_row = row});
        Call& call = calls.back();
        call.pieces.push_back({run, begin, count});
        call.rows += count;
        if (run < static_cast<size_t>(shape.prompt_runs)) call.prompt_rows += count;
        call.tentative = tentative;
        row += count;
    };
    for (size_t s = 0; s < shape.runs.size(); ++s) {
        const Run& run = shape.runs[s];
        if (!cut) {
            add(s, 0, run.count, false, !shape.accept.empty());
            continue;
        }
        const bool prompt = s < static_cast<size_t>(shape.prompt_runs);
        const int32_t accepted = shape.accept.empty() ? run.count : shape.accept[s];
        for (int32_t begin = 0; begin < run.count;) {
            const bool tentative = begin >= accepted;
            int32_t count = tentative ? run.count - begin : 1;
            if (prompt)
                count =
                    std::min(run.count - begin, kChunkTokens - (run.first + begin) % kChunkTokens);
            add(s, begin, count, true, tentative);
            begin += count;
        }
    }
    return calls;
}

/// The batch of one call and the memory behind it.
class CallBatch {
  public:
    CallBatch(const MemoryCase& shape, const Memory& memory, const Call& call) {
        starts_.push_back(0);
        for (const Piece& piece : call.pieces) {
            const int32_t first = shape.runs[piece.run].first + piece.begin;
            for (int32_t i = 0; i < piece.count; ++i) positions_.push_back(first + i);
            starts_.push_back(static_cast<int32_t>(positions_.size()));
            slots_.push_back(memory.slot(piece.run));
            const int32_t save = piece.run < shape.saves.size() ? shape.saves[piece.run] : 0;
            const bool here = save > first && save <= first + piece.count;
            save_slots_.push_back(here ? memory.save_slot(piece.run) : -1);
            // Poison where nothing is to be saved.
            save_positions_.push_back(here ? save : 12345);
        }
        tokens_.assign(positions_.size(), 0);
        batch_.tokens = ints(tokens_);
        batch_.positions = ints(positions_);
        batch_.seq_start = ints(starts_);
        batch_.slots = ints(slots_);
        batch_.save_slots = ints(save_slots_);
        batch_.save_positions = ints(save_positions_);
        batch_.prompt_rows = call.prompt_rows;
        batch_.max_visible = 1 + *std::ranges::max_element(positions_);
        batch_.tentative = call.tentative;
    }
    const Batch& view() const { return batch_; }

  private:
    static Tensor ints(std::vector<int32_t>& values) {
        return make_tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
    }
    std::vector<int32_t> tokens_, positions_, starts_, slots_, save_slots_, save_positions_;
    Batch batch_;
};

/// Runs `op(ex, batch, first row, rows)` over the calls of a case and accepts what it accepts.
template <class Op>
void drive_memory(const MemoryCase& shape,
                  const Memory& memory,
                  const Request& request,
                  const Op& op,
                  Outputs& outputs) {
    const Request whole{.subject = request.subject,
                        .seed = request.seed,
                        .cut = 0,
                        .body = request.body,
                        .poison = request.poison,
                        .repeats = request.repeats};
    for (const Call& call : calls_of(shape, request.cut > 0)) {
        const CallBatch batch(shape, memory, call);
        drive(
            whole, {call.rows, call.prompt_rows},
            [&](Exec& ex, int32_t, int32_t) { op(ex, batch.view(), call.first_row, call.rows); },
            outputs);
    }
    if (shape.accept.empty() || request.cut > 0) return;
    std::vector<int32_t> slots, counts = shape.accept;
    for (size_t s = 0; s < shape.runs.size(); ++s) slots.push_back(memory.slot(s));
    const auto count = static_cast<int64_t>(slots.size());
    drive(
        whole, {static_cast<int32_t>(count), 0},
        [&](Exec& ex, int32_t, int32_t) {
            request.subject.ops.accept_recurrent(
                ex, make_tensor(slots.data(), DType::kI32, {count}),
                make_tensor(counts.data(), DType::kI32, {count}), memory.view());
        },
        outputs);
}

int32_t rows_of(const MemoryCase& shape) {
    int32_t rows = 0;
    for (const Run& run : shape.runs) rows += run.count;
    return rows;
}

float log_decay_of(Decay kind, Random& random) {
    switch (kind) {
        case Decay::kWeak:
            return random.uniform(-0.1f, 0.0f);
        case Decay::kNone:
            return 0.0f;
        case Decay::kStrong:
            return -30.0f;
        case Decay::kVanishing:
            return -27.631021f;
        case Decay::kBeyondExp:
            return random.uniform(-300.0f, -88.0f);
        case Decay::kWide:
            return std::log(random.uniform(0.01f, 1.0f));
        case Decay::kMixed:
            break;
    }
    constexpr int32_t kKinds = static_cast<int32_t>(Decay::kMixed);
    const int32_t pick = random.below(4 * kKinds);
    if (pick == 0) return -std::numeric_limits<float>::infinity();
    // Mostly weak ones, or nothing would be left to see.
    return log_decay_of(pick < kKinds ? static_cast<Decay>(pick) : Decay::kWeak, random);
}

/// Rows of unit length along the last axis.
void fill_directions(Random& random, Keys kind, const Guarded& guarded) {
    const Tensor& x = guarded.tensor();
    std::vector<float> common(static_cast<size_t>(x.cols()));
    for (float& value : common) value = random.uniform(-1.0f, 1.0f);
    constexpr float kStep = 0.3f;
    for (int64_t t = 0; t < x.rows(); ++t) {
        for (float& value : common)
            if (kind == Keys::kTurning) value += kStep * random.uniform(-1.0f, 1.0f);
        for (int64_t h = 0; h < x.shape[1]; ++h) {
            float* row = x.row<float>(t) + h * x.stride[1];
            double squares = 1e-6;
            for (int64_t i = 0; i < x.cols(); ++i) {
                const float own = random.uniform(-1.0f, 1.0f);
                const float shared = common[static_cast<size_t>(i)];
                row[i] = kind == Keys::kSame || kind == Keys::kTurning ? shared
                         : kind == Keys::kNearlySame                   ? shared + 0.05f * own
                         : kind == Keys::kAlike                        ? shared + own
                                                                       : own;
                if (kind == Keys::kZeroRows && t % 3 == 0) row[i] = 0.0f;
                squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
            }
            const auto factor = static_cast<float>(1.0 / std::sqrt(squares));
            for (int64_t i = 0; i < x.cols(); ++i) row[i] *= factor;
        }
    }
}

}  // namespace

Outputs execute(const ConvCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const int32_t rows = rows_of(shape.memory);
    const Memory memory(shape.memory, {.channels = shape.channels, .held = shape.taps - 1}, random);
    Guarded u("u", DType::kF32, {rows, shape.channels}, shape.padding, Role::kInput);
    u.fill(random, -2.0f, 2.0f);
    u.seal();
    Guarded taps("taps", DType::kF32, {shape.channels, shape.taps}, 0, Role::kInput);
    taps.fill(random, -1.0f, 1.0f);
    taps.seal();
    Guarded out("out", DType::kF32, {rows, shape.channels}, shape.padding * 2, Role::kOutput);
    drive_memory(
        shape.memory, memory, request,
        [&](Exec& ex, const Batch& batch, int32_t first, int32_t count) {
            request.subject.ops.causal_conv(ex, u.tensor().slice_rows(first, count), taps.tensor(),
                                            batch, memory.view(),
                                            out.tensor().slice_rows(first, count));
        },
        outputs);
    out.read(outputs.values);
    memory.read(/*conv=*/true, outputs);
    for (const Guarded* operand : {&u, &taps, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const DeltaInputCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const int32_t rows = rows_of(shape.memory);
    const int64_t channels = shape.channels();
    const float most = shape.magnitude;
    const Memory memory(shape.memory, {.channels = channels, .held = shape.taps - 1}, random);
    const auto input = [&](const char* name, std::vector<int64_t> extents, float low, float high) {
        Guarded made(name, DType::kF32, extents, 0, Role::kInput);
        made.fill(random, low, high);
        made.seal();
        return made;
    };
    Guarded u("u", DType::kF32, {rows, channels}, shape.padding, Role::kInput);
    u.fill(random, -most, most);
    u.seal();
    const Guarded taps = input("taps", {channels, shape.taps}, -1.0f, 1.0f);
    const Guarded bias = input("bias", {shape.heads}, -most, most);
    const Guarded rate = input("rate", {shape.heads}, -8.0f, 0.0f);
    Guarded a("a", DType::kF32, {rows, shape.heads}, shape.padding, Role::kOutput);
    a.fill(random, -most, most);
    Guarded b("b", DType::kF32, {rows, shape.heads}, shape.padding * 3, Role::kOutput);
    b.fill(random, -most, most);
    Guarded qkv("qkv", DType::kF32, {rows, channels}, shape.padding * 2, Role::kOutput);
    const Ops::DeltaNetInput how{.taps = taps.tensor(),
                                 .bias = bias.tensor(),
                                 .rate = rate.tensor(),
                                 .eps = 1e-6f,
                                 .key_heads = shape.key_heads,
                                 .key_size = shape.key_size};
    drive_memory(
        shape.memory, memory, request,
        [&](Exec& ex, const Batch& batch, int32_t first, int32_t count) {
            const auto part = [&](const Guarded& x) { return x.tensor().slice_rows(first, count); };
            Ops& ops = request.subject.ops;
            if (request.body == Body::kDefault)
                ops.Ops::delta_net_input(ex, part(u), part(a), part(b), how, batch, memory.view(),
                                         part(qkv));
            else
                ops.delta_net_input(ex, part(u), part(a), part(b), how, batch, memory.view(),
                                    part(qkv));
        },
        outputs);
    for (const Guarded* result : {&qkv, &a, &b}) result->read(outputs.values);
    memory.read(/*conv=*/true, outputs);
    for (const Guarded* operand : {&u, &a, &b, &qkv}) operand->verify(outputs.faults);
    for (const Guarded* operand : {&taps, &bias, &rate}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const L2NormCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded x("x", DType::kF32, shape.shape, shape.padding, Role::kOutput);
    x.fill(random, -shape.magnitude, shape.magnitude);
    drive(
        request, {static_cast<int32_t>(shape.shape.front()), 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.l2_norm(ex, x.tensor().slice_rows(begin, count), shape.eps);
        },
        outputs);
    x.read(outputs.values);
    x.verify(outputs.faults);
    return outputs;
}

Outputs execute(const GatesCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const std::vector<int64_t> extents = {shape.t, shape.heads};
    Guarded a("a", DType::kF32, extents, shape.padding, Role::kInput);
    a.fill(random, -shape.magnitude, shape.magnitude);
    a.seal();
    Guarded b("b", DType::kF32, extents, shape.padding, Role::kInput);
    b.fill(random, -shape.magnitude, shape.magnitude);
    b.seal();
    Guarded bias("bias", DType::kF32, {shape.heads}, 0, Role::kInput);
    bias.fill(random, -shape.magnitude, shape.magnitude);
    bias.seal();
    std::vector<float> rates(static_cast<size_t>(shape.heads));
    for (float& rate : rates) rate = -std::exp(random.uniform(-3.0f, shape.largest_a_log));
    Guarded rate("rate", DType::kF32, {shape.heads}, 0, Role::kInput);
    rate.set(std::span<const float>(rates));
    rate.seal();
    Guarded log_decay("log_decay", DType::kF32, extents, shape.padding * 2, Role::kOutput);
    Guarded beta("beta", DType::kF32, extents, shape.padding * 2, Role::kOutput);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.delta_gates(
                ex, a.tensor().slice_rows(begin, count), b.tensor().slice_rows(begin, count),
                bias.tensor(), rate.tensor(), log_decay.tensor().slice_rows(begin, count),
                beta.tensor().slice_rows(begin, count));
        },
        outputs);
    log_decay.read(outputs.values);
    beta.read(outputs.values);
    for (const Guarded* operand : {&a, &b, &bias, &rate, &log_decay, &beta})
        operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const DeltaCase& shape, const Request& request) {
    Outputs outputs;
    // The sizes that the form with 16-bit operands takes; tolerances want to know.
    const DType operands = request.subject.ops.delta_rule_operands();
    if (operands != DType::kF32 && shape.key_size == 128 && shape.size % 64 == 0)
        outputs.wants.prompt = 1u << static_cast<unsigned>(
                                   operands == DType::kBF16 ? ActFormat::kBF16 : ActFormat::kFp8);
    Random random(request.seed);
    const int32_t rows = rows_of(shape.memory);
    const Memory memory(shape.memory,
                        {.heads = shape.heads,
                         .size = shape.size,
                         .key_size = shape.key_size,
                         .key_heads = shape.key_heads},
                        random);
    const std::vector<int64_t> key_extents = {rows, shape.key_heads, shape.key_size};
    Guarded q("q", DType::kF32, key_extents, shape.padding, Role::kInput);
    fill_directions(random, Keys::kRandom, q);
    q.seal();
    Guarded k("k", DType::kF32, key_extents, shape.padding * 3, Role::kInput);
    fill_directions(random, shape.keys, k);
    k.seal();
    const std::vector<int64_t> value_extents = {rows, shape.heads, shape.size};
    Guarded v("v", DType::kF32, value_extents, shape.padding, Role::kInput);
    v.fill(random, -1.0f, 1.0f);
    v.seal();
    std::vector<float> decays(static_cast<size_t>(rows * shape.heads)), betas(decays.size());
    for (float& decay : decays) decay = log_decay_of(shape.decay, random);
    for (float& beta : betas)
        beta = shape.beta == Beta::kUniform ? random.uniform(0.0f, 1.0f)
               : shape.beta == Beta::kOne   ? 1.0f
                                            : 0.0f;
    Guarded log_decay("log_decay", DType::kF32, {rows, shape.heads}, shape.padding, Role::kInput);
    log_decay.set(std::span<const float>(decays));
    log_decay.seal();
    Guarded beta("beta", DType::kF32, {rows, shape.heads}, shape.padding * 2, Role::kInput);
    beta.set(std::span<const float>(betas));
    beta.seal();
    Guarded out("out", DType::kF32, value_extents, shape.padding * 2, Role::kOutput);
    drive_memory(
        shape.memory, memory, request,
        [&](Exec& ex, const Batch& batch, int32_t first, int32_t count) {
            const auto part = [&](const Guarded& x) { return x.tensor().slice_rows(first, count); };
            request.subject.ops.gated_delta_rule(ex, part(q), part(k), part(v), part(log_decay),
                                                 part(beta), batch, memory.view(), part(out));
        },
        outputs);
    out.read(outputs.values);
    memory.read(/*conv=*/false, outputs);
    for (const Guarded* operand : {&q, &k, &v, &log_decay, &beta, &out})
        operand->verify(outputs.faults);
    return outputs;
}

}  // namespace tessera::op_cases
