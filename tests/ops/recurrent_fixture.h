#pragma once
// What the tests of the gated delta net share: backends, a small net with its memory and inputs
// between NaN, and the recurrence of the paper in f64.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "ops/cpu_fixture.h"

namespace tessera::recurrent {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A backend with an arena that is poison before every call.
class Machine {
  public:
    explicit Machine(const std::string& set, int32_t threads = 2)
        : ops_(make_ops({.name = set == "reference" ? "reference" : "cpu",
                         .threads = set == "reference" ? 1 : threads,
                         .isa = set == "reference" ? "" : set})),
          memory_(ops_->allocate(kBytes)) {}
    Ops& ops() { return *ops_; }
    template <class Body>
    void run(int32_t prompt_rows, const Body& body) {
        std::memset(memory_, 0xff, kBytes);
        Arena arena(memory_, kBytes);
        Exec ex{arena, prompt_rows};
        body(ex);
    }

  private:
    static constexpr size_t kBytes = size_t{4} << 20;
    std::unique_ptr<Ops> ops_;
    std::byte* memory_;
};

/// The reference and every instruction set of this machine.
inline std::vector<std::string> backends() {
    std::vector<std::string> all = cpu::sets();
    all.insert(all.begin(), "reference");
    return all;
}

struct Dims {
    int64_t key_heads = 1, heads = 2, key_size = 16, size = 16;
    int64_t channels = 20, taps = 4;
};

/// Slots with logs, all NaN.
struct Memory {
    Memory(const Dims& d, int64_t slots, int64_t log_rows)
        : conv(slots * d.channels * (d.taps - 1)),
          state(slots * d.heads * d.size * d.key_size),
          conv_log(slots * log_rows * d.channels),
          delta_log(slots * log_rows * log_floats(d)) {
        view.conv = tensor(conv, {slots, d.channels, d.taps - 1});
        view.state = tensor(state, {slots, d.heads, d.size, d.key_size});
        view.conv_log = tensor(conv_log, {slots, log_rows, d.channels});
        view.delta_log = tensor(delta_log, {slots, log_rows, log_floats(d)});
    }
    std::vector<float> slot(const Tensor& x, int64_t index) const {
        return {x.row<float>(index), x.row<float>(index) + x.stride[0]};
    }
    std::vector<float> state_of(int64_t index) const { return slot(view.state, index); }
    std::vector<float> conv_of(int64_t index) const { return slot(view.conv, index); }

    struct Floats {
        explicit Floats(int64_t count) : values(static_cast<size_t>(count), kNan) {}
        std::vector<float> values;
    };
    Floats conv, state, conv_log, delta_log;
    RecurrentView view;

  private:
    static int64_t log_floats(const Dims& d) {
        return d.key_heads * d.key_size + d.heads * (d.size + 2);
    }
    static Tensor tensor(Floats& floats, std::initializer_list<int64_t> shape) {
        return make_tensor(floats.values.data(), DType::kF32, shape);
    }
};

/// Inputs of `rows` tokens, every row with NaN behind it.
struct Inputs {
    Inputs(const Dims& dims, int64_t row_count, uint32_t seed) : d(dims), rows(row_count) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        const auto make = [&](std::vector<float>& memory, int64_t heads, int64_t size) {
            constexpr int64_t kPadding = 3;
            const int64_t stride = heads * (size + 1) + kPadding;
            memory.assign(static_cast<size_t>(rows * stride), kNan);
            Tensor x = make_tensor(memory.data(), DType::kF32, {rows, heads, size});
            x.stride = {stride, size + 1, 1, 0};
            for (int64_t t = 0; t < rows; ++t)
                for (int64_t h = 0; h < heads; ++h) {
                    float* row = x.row<float>(t) + h * x.stride[1];
                    double squares = 1e-9;
                    for (int64_t i = 0; i < size; ++i) {
                        row[i] = normal(random);
                        squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
                    }
                    for (int64_t i = 0; i < size; ++i)
                        row[i] *= static_cast<float>(1.0 / std::sqrt(squares));
                }
            return x;
        };
        q = make(memory_[0], d.key_heads, d.key_size);
        k = make(memory_[1], d.key_heads, d.key_size);
        v = make(memory_[2], d.heads, d.size);
        out = make(memory_[3], d.heads, d.size);
        u = flat(make(memory_[4], 1, d.channels));
        conv_out = flat(make(memory_[5], 1, d.channels));
        log_decay = flat(make(memory_[6], 1, d.heads));
        beta = flat(make(memory_[7], 1, d.heads));
        std::uniform_real_distribution<float> unit(0.01f, 1.0f);
        for (int64_t t = 0; t < rows; ++t)
            for (int64_t h = 0; h < d.heads; ++h) {
                log_decay.row<float>(t)[h] = std::log(unit(random));
                beta.row<float>(t)[h] = unit(random);
            }
        taps_.resize(static_cast<size_t>(d.channels * d.taps));
        for (float& tap : taps_) tap = normal(random);
        taps = make_tensor(taps_.data(), DType::kF32, {d.channels, d.taps});
    }
    Inputs(const Inputs&) = delete;
    Inputs& operator=(const Inputs&) = delete;

    /// Keys that share the part (1 - own) of one direction, from row `from` on.
    void align_keys(float own, int64_t from) const {
        for (int64_t t = std::max<int64_t>(from, 1); t < rows; ++t)
            for (int64_t h = 0; h < d.key_heads; ++h) {
                const float* first = k.row<float>(0) + h * k.stride[1];
                float* row = k.row<float>(t) + h * k.stride[1];
                double squares = 1e-9;
                for (int64_t i = 0; i < d.key_size; ++i) {
                    row[i] = (1.0f - own) * first[i] + own * row[i];
                    squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
                }
                for (int64_t i = 0; i < d.key_size; ++i)
                    row[i] *= static_cast<float>(1.0 / std::sqrt(squares));
            }
    }
    void set_gates(const std::function<float(int64_t, int64_t)>& decay,
                   const std::function<float(int64_t, int64_t)>& strength) const {
        for (int64_t t = 0; t < rows; ++t)
            for (int64_t h = 0; h < d.heads; ++h) {
                log_decay.row<float>(t)[h] = decay(t, h);
                beta.row<float>(t)[h] = strength(t, h);
            }
    }
    /// Rows [begin, begin + count) of an output.
    std::vector<float> values(const Tensor& x, int64_t begin, int64_t count) const {
        std::vector<float> all;
        for (int64_t t = begin; t < begin + count; ++t)
            for (int64_t h = 0; h < (x.rank == 3 ? x.shape[1] : 1); ++h) {
                const float* row = x.row<float>(t) + (x.rank == 3 ? h * x.stride[1] : 0);
                all.insert(all.end(), row, row + x.cols());
            }
        return all;
    }
    std::vector<float> outputs() const { return values(out, 0, rows); }

    Dims d;
    int64_t rows;
    Tensor q, k, v, out, u, conv_out, log_decay, beta, taps;

  private:
    static Tensor flat(Tensor x) {
        x.rank = 2;
        x.shape = {x.shape[0], x.shape[2], 1, 1};
        x.stride = {x.stride[0], 1, 0, 0};
        return x;
    }
    std::vector<float> memory_[8];
    std::vector<float> taps_;
};

/// `count` rows of the inputs for one sequence.
struct Part {
    int32_t slot = 0;
    int32_t position = 0;  ///< of the first row
    int32_t count = 0;
    int32_t save_slot = -1;
    int32_t save_position = 0;
};

enum class Kind : uint8_t { kPrompt, kGenerated, kTentative };

/// Runs convolution and delta rule over `parts`, whose rows start at row `begin` of the inputs.
inline void run(Machine& machine,
                const Inputs& inputs,
                const Memory& memory,
                int32_t begin,
                const std::vector<Part>& parts,
                Kind kind) {
    std::vector<int32_t> tokens, positions, starts = {0}, slots, save_slots, save_positions;
    for (const Part& part : parts) {
        for (int32_t i = 0; i < part.count; ++i) positions.push_back(part.position + i);
        starts.push_back(static_cast<int32_t>(positions.size()));
        slots.push_back(part.slot);
        save_slots.push_back(part.save_slot);
        save_positions.push_back(part.save_position);
    }
    tokens = positions;
    const auto ints = [](std::vector<int32_t>& values) {
        return make_tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
    };
    Batch batch;
    batch.tokens = ints(tokens);
    batch.positions = ints(positions);
    batch.seq_start = ints(starts);
    batch.slots = ints(slots);
    batch.save_slots = ints(save_slots);
    batch.save_positions = ints(save_positions);
    batch.prompt_rows = kind == Kind::kPrompt ? batch.row_count() : 0;
    batch.tentative = kind == Kind::kTentative;
    const auto rows = [&](const Tensor& x) { return x.slice_rows(begin, starts.back()); };
    machine.run(batch.prompt_rows, [&](Exec& ex) {
        machine.ops().causal_conv(ex, rows(inputs.u), inputs.taps, batch, memory.view,
                                  rows(inputs.conv_out));
        machine.ops().gated_delta_rule(ex, rows(inputs.q), rows(inputs.k), rows(inputs.v),
                                       rows(inputs.log_decay), rows(inputs.beta), batch,
                                       memory.view, rows(inputs.out));
    });
}

inline void accept(Machine& machine, const Memory& memory, int32_t slot, int32_t count) {
    machine.run(0, [&](Exec& ex) {
        machine.ops().accept_recurrent(ex, make_tensor(&slot, DType::kI32, {1}),
                                       make_tensor(&count, DType::kI32, {1}), memory.view);
    });
}

/// The recurrence of the contract in f64 from a state of zeros.
struct Slow {
    std::vector<double> out, state;
};
inline Slow slowly(const Inputs& in) {
    const Dims& d = in.d;
    const auto state_size = static_cast<size_t>(d.heads * d.size * d.key_size);
    Slow slow{.out = {}, .state = std::vector<double>(state_size)};
    for (int64_t t = 0; t < in.rows; ++t)
        for (int64_t h = 0; h < d.heads; ++h) {
            const int64_t shared = h % d.key_heads;
            const float* k = in.k.row<float>(t) + shared * in.k.stride[1];
            const float* q = in.q.row<float>(t) + shared * in.q.stride[1];
            const double decay = std::exp(static_cast<double>(in.log_decay.row<float>(t)[h]));
            for (int64_t row = 0; row < d.size; ++row) {
                double* s = slow.state.data() + (h * d.size + row) * d.key_size;
                double seen = 0, sum = 0;
                for (int64_t i = 0; i < d.key_size; ++i) {
                    s[i] *= decay;
                    seen += s[i] * static_cast<double>(k[i]);
                }
                const double v = in.v.row<float>(t)[h * in.v.stride[1] + row];
                const double delta = static_cast<double>(in.beta.row<float>(t)[h]) * (v - seen);
                for (int64_t i = 0; i < d.key_size; ++i) {
                    s[i] += delta * static_cast<double>(k[i]);
                    sum += s[i] * static_cast<double>(q[i]);
                }
                slow.out.push_back(sum / std::sqrt(static_cast<double>(d.key_size)));
            }
        }
    return slow;
}

/// |a - b| / |b|; NaN and infinities give NaN.
inline double distance(const std::vector<float>& a, const std::vector<double>& b) {
    double error = 0, power = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        const double difference = static_cast<double>(a.at(i)) - b[i];
        error += difference * difference;
        power += b[i] * b[i];
    }
    return error == 0 ? 0 : std::sqrt(error / power);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tessera::recurrent
