// Ops along rows: norms, gates, sums, softmax, rope, copies. A row is computed by one thread with
// the same instructions wherever it stands, so neither the number of rows nor the number of threads
// shows in the result. Small ops stay on the caller: handing them to the team costs about a
// microsecond and moves their data to another core.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "backends/cpu/cpu_linear.h"
#include "backends/cpu/isa/rows_kernels.h"
#include "core/codec.h"
#include "ops/checks.h"

namespace tessera::cpu {
namespace {

/// Bytes that an op must touch before threads pay.
constexpr int64_t kWorthBytes = int64_t{48} << 10;

bool worth(int64_t rows, int64_t bytes_per_row) {
    return rows > 1 && rows * bytes_per_row >= kWorthBytes;
}

/// All axes but the last, as one row index.
int64_t row_count(const Tensor& x) {
    int64_t rows = 1;
    for (int32_t axis = 0; axis + 1 < x.rank; ++axis) rows *= x.shape[static_cast<size_t>(axis)];
    return rows;
}

/// Elements before row `index`.
int64_t row_offset(const Tensor& x, int64_t index) {
    int64_t offset = 0;
    for (int32_t axis = x.rank - 2; axis >= 0; --axis) {
        const auto a = static_cast<size_t>(axis);
        offset += index % x.shape[a] * x.stride[a];
        index /= x.shape[a];
    }
    return offset;
}

float* float_row(const Tensor& x, int64_t index) {
    return x.as<float>() + row_offset(x, index);
}

std::byte* byte_row(const Tensor& x, int64_t index) {
    return x.as<std::byte>() + dtype_bytes(x.dtype, row_offset(x, index));
}

double bytes_of(const Tensor& x) {
    const DTypeInfo& info = dtype_info(x.dtype);
    return static_cast<double>(x.elements()) * info.block_bytes / info.block_elements;
}

bool is_integer(DType dtype) {
    return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 ||
           dtype == DType::kI64;
}

/// One element of an integer format.
int64_t load_integer(DType dtype, const std::byte* from, int64_t index) {
    const auto read = [&]<class T>(T value) {
        std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
        return static_cast<int64_t>(value);
    };
    if (dtype == DType::kI8) return read(int8_t{});
    if (dtype == DType::kI16) return read(int16_t{});
    if (dtype == DType::kI32) return read(int32_t{});
    return read(int64_t{});
}

/// Saturates to the format.
void store_integer(DType dtype, int64_t value, int64_t index, std::byte* to) {
    const auto write = [&]<class T>(T) {
        const auto clamped = static_cast<T>(std::clamp<int64_t>(
            value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
        std::memcpy(to + index * static_cast<int64_t>(sizeof(T)), &clamped, sizeof(T));
    };
    if (dtype == DType::kI8) return write(int8_t{});
    if (dtype == DType::kI16) return write(int16_t{});
    if (dtype == DType::kI32) return write(int32_t{});
    write(int64_t{});
}

/// One row between formats. What no kernel does goes through f32 and the host codec.
void copy_row(const RowKernels& kernels,
              DType from_type,
              const std::byte* from,
              DType to_type,
              int64_t count,
              std::byte* to) {
    const auto* halves = reinterpret_cast<const uint16_t*>(from);
    const auto* floats = reinterpret_cast<const float*>(from);
    if (from_type == to_type) {
        std::memcpy(to, from, static_cast<size_t>(dtype_bytes(from_type, count)));
    } else if (from_type == DType::kF32 && to_type == DType::kF16) {
        kernels.f16_from_f32(floats, count, reinterpret_cast<uint16_t*>(to));
    } else if (from_type == DType::kF32 && to_type == DType::kBF16) {
        kernels.bf16_from_f32(floats, count, reinterpret_cast<uint16_t*>(to));
    } else if (from_type == DType::kF16 && to_type == DType::kF32) {
        kernels.f32_from_f16(halves, count, reinterpret_cast<float*>(to));
    } else if (from_type == DType::kBF16 && to_type == DType::kF32) {
        kernels.f32_from_bf16(halves, count, reinterpret_cast<float*>(to));
    } else if (is_integer(from_type) && is_integer(to_type)) {
        for (int64_t i = 0; i < count; ++i)
            store_integer(to_type, load_integer(from_type, from, i), i, to);
    } else {
        constexpr int64_t kChunk = 1024;  // a multiple of every block size
        float values[kChunk];
        for (int64_t begin = 0; begin < count; begin += kChunk) {
            const int64_t length = std::min(kChunk, count - begin);
            dequantize_row(from_type, from + dtype_bytes(from_type, begin), length, values);
            quantize_row(to_type, values, length, to + dtype_bytes(to_type, begin),
                         Nvfp4Policy::kAmax6);
        }
    }
}

void copy_rows(ThreadPool& pool, const RowKernels& kernels, const Tensor& from, const Tensor& to) {
    const int64_t rows = row_count(from), cols = from.cols();
    if (rows == 0 || cols == 0) return;
    parallel_rows(pool, rows, worth(rows, 6 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            copy_row(kernels, from.dtype, byte_row(from, row), to.dtype, cols, byte_row(to, row));
    });
}

constexpr std::string_view kBlockActivations = "activations in blocks: op, then prepare";

/// Formats that rows can be written in without an f32 copy of the whole input.
bool direct(ActWants wants) {
    constexpr unsigned kDirect = 1u << static_cast<unsigned>(ActFormat::kF32) |
                                 1u << static_cast<unsigned>(ActFormat::kBF16);
    const unsigned wanted = static_cast<unsigned>(wants.prompt) | wants.generated;
    return (wanted & ~kDirect) == 0;
}

/// Every row of an input in direct formats: make(row, values) makes it in f32 in a scratch row of
/// its thread.
template <class Make>
void fill_input(ThreadPool& pool,
                const RowKernels& kernels,
                const Exec& ex,
                const GemmInput& input,
                const Tensor& scratch,
                const Make& make) {
    const int64_t rows = input.rows, cols = scratch.cols();
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, rows);
    const auto fill = [&](int64_t row, float* values) {
        const bool is_prompt = row < prompt;
        const int64_t at = is_prompt ? row : row - prompt;
        make(row, values);
        for (const ActView& view : is_prompt ? input.prompt : input.generated) {
            if (view.values.absent()) continue;
            if (view.format == ActFormat::kF32) {
                std::copy_n(values, cols, view.values.row<float>(at));
                continue;
            }
            auto* target = view.values.row<uint16_t>(at);
            kernels.bf16_from_f32(values, cols, target);
            std::fill(target + cols, target + act_stride(cols), uint16_t{0});
        }
    };
    if (!worth(rows, 10 * cols) || pool.size() == 1) {
        for (int64_t row = 0; row < rows; ++row) fill(row, scratch.row<float>(0));
        return;
    }
    pool.run([&](int32_t thread) {
        const Range range = share(rows, 1, thread, pool.size());
        for (int64_t row = range.begin; row < range.end; ++row)
            fill(row, scratch.row<float>(thread));
    });
}

/// Frequencies by pair in radians a position, with linear and YaRN scaling applied.
std::vector<double> rope_frequencies(const RopeParams& params, std::span<const float> factors) {
    constexpr double kPi = 3.14159265358979323846;
    const double base = params.base;
    const auto rotary = static_cast<double>(params.rotary);
    const auto corrected = [&](double turns) {
        return rotary * std::log(params.original_context / (2 * kPi * turns)) /
               (2 * std::log(base));
    };
    double low = 0, high = 0;
    if (params.yarn) {
        low = std::max(0.0, std::floor(corrected(static_cast<double>(params.beta_fast))));
        high = std::min(rotary - 1, std::ceil(corrected(static_cast<double>(params.beta_slow))));
    }
    std::vector<double> out(static_cast<size_t>(params.rotary / 2));
    for (size_t i = 0; i < out.size(); ++i) {
        const auto pair = static_cast<double>(i);
        double frequency = std::pow(base, -2 * pair / rotary);
        if (!factors.empty()) frequency /= static_cast<double>(factors[i]);
        const double scaled = frequency * static_cast<double>(params.freq_scale);
        if (params.yarn) {
            const double place = (pair - low) / std::max(0.001, high - low);
            const double ramp = 1 - std::clamp(place, 0.0, 1.0);
            out[i] = scaled * (1 - ramp) + frequency * ramp;
        } else {
            out[i] = scaled;
        }
    }
    return out;
}

bool same_params(const RopeParams& a, const RopeParams& b) {
    return a.pairs == b.pairs && a.rotary == b.rotary && a.base == b.base &&
           a.freq_scale == b.freq_scale && a.magnitude == b.magnitude && a.yarn == b.yarn &&
           a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow &&
           a.original_context == b.original_context && a.sections == b.sections;
}

/// Which of a token's three positions turns pair `i`.
size_t rope_axis(const RopeParams& params, size_t i) {
    const size_t axis = i % 3;
    return static_cast<int64_t>(i) < 3 * int64_t{params.sections[axis]} ? axis : 0;
}

/// `place`: the position of a token, or `axes` = 3 of them.
void fill_turns(const RopeTable& table, const int32_t* place, int64_t axes, float* turns) {
    const RopeParams& params = table.params;
    const auto rotary = static_cast<size_t>(params.rotary);
    const auto magnitude = static_cast<double>(params.magnitude);
    for (size_t i = 0; i < rotary / 2; ++i) {
        const int32_t position = place[axes == 1 ? 0 : rope_axis(params, i)];
        const double angle = position * table.frequencies[i];
        const auto cosine = static_cast<float>(std::cos(angle) * magnitude);
        const auto sine = static_cast<float>(std::sin(angle) * magnitude);
        const bool adjacent = params.pairs == RopePairs::kAdjacent;
        const size_t first = adjacent ? 2 * i : i;
        const size_t second = adjacent ? first + 1 : first + rotary / 2;
        turns[first] = turns[second] = cosine;
        turns[rotary + first] = -sine;
        turns[rotary + second] = sine;
    }
}

}  // namespace

CpuOps::Rows::Rows(Isa isa, const CpuOptions& options) {
    const bool tiles = options.act_auto || options.act_prompt != ActFormat::kF32;
    kernels = &row_kernels_scalar();
    prompt = prompt_kernels_scalar;
    split = split_kernels_scalar;
    recurrent = &recurrent_kernels_scalar();
#if defined(__x86_64__)
    if (isa >= Isa::kAvx512) {
        kernels = &row_kernels_avx512();
        prompt = isa == Isa::kAmx && tiles ? prompt_kernels_amx : prompt_kernels_avx512;
        split = split_kernels_avx512;
        recurrent =
            isa == Isa::kAmx && tiles ? &recurrent_kernels_amx() : &recurrent_kernels_avx512();
        if (isa == Isa::kAmx && tiles) prompt_operands = Operands::k16Bits;
    } else if (isa == Isa::kAvx2) {
        kernels = &row_kernels_avx2();
        prompt = prompt_kernels_avx2;
        split = split_kernels_avx2;
        recurrent = &recurrent_kernels_avx2();
    }
#else
    static_cast<void>(isa);
    static_cast<void>(tiles);
#endif
}

const float* CpuOps::Rows::turns(ThreadPool& pool,
                                 const Tensor& positions,
                                 const Tensor& freq_factors,
                                 const RopeParams& params) {
    // Two sets (a model with local and global layers) for each of prompt and generated passes.
    constexpr size_t kTables = 4;
    const auto rows = static_cast<size_t>(positions.rows());
    const int64_t axes = positions.rank == 1 ? 1 : positions.cols();
    const size_t count = rows * static_cast<size_t>(axes);
    const size_t row_floats = 2 * static_cast<size_t>(params.rotary);
    std::span<const float> factors;
    if (!freq_factors.absent() && freq_factors.data != nullptr)
        factors = {freq_factors.as<float>(), static_cast<size_t>(params.rotary / 2)};
    RopeTable* table = nullptr;
    for (RopeTable& candidate : rope_tables)
        if (same_params(candidate.params, params) &&
            std::ranges::equal(candidate.factors, factors) && table == nullptr)
            table = &candidate;
    if (table == nullptr) {
        if (rope_tables.size() < kTables) {
            rope_tables.emplace_back();
            table = &rope_tables.back();
        } else {
            table = &rope_tables[next_table++ % kTables];
        }
        table->params = params;
        table->factors.assign(factors.begin(), factors.end());
        table->frequencies = rope_frequencies(params, factors);
        table->positions.clear();
    }
    if (table->turns.size() < rows * row_floats) table->turns.resize(rows * row_floats);
    if (table->positions.capacity() < count) table->positions.reserve(count);
    if (positions.data == nullptr) return nullptr;
    const std::span<const int32_t> wanted(positions.as<int32_t>(), count);
    // A prefix is enough: neighbours do not matter.
    if (table->axes == axes && table->positions.size() >= count &&
        std::equal(wanted.begin(), wanted.end(), table->positions.begin()))
        return table->turns.data();
    table->axes = axes;
    table->positions.assign(wanted.begin(), wanted.end());
    parallel_rows(pool, positions.rows(), rows >= 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            fill_turns(*table, wanted.data() + row * axes, axes,
                       table->turns.data() + static_cast<size_t>(row) * row_floats);
    });
    return table->turns.data();
}

void CpuOps::rms_norm(Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) {
    check_rms_norm(x, gain, out);
    if (ex.planning() || x.elements() == 0) return;
    const double elements = static_cast<double>(x.elements());
    const Timed timed(*this, "rms_norm", 4 * elements, 8 * elements);
    const float* gains = gain.absent() ? nullptr : gain.as<float>();
    const int64_t rows = row_count(x), cols = x.cols();
    parallel_rows(pool_, rows, worth(rows, 8 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            rows_->kernels->rms_norm(float_row(x, row), gains, eps, cols, float_row(out, row));
    });
}

GemmInput CpuOps::rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, ActWants wants) {
    if (!direct(wants)) {
        note_composed(ex, "rms_norm_input", kBlockActivations);
        return Ops::rms_norm_input(ex, x, gain, eps, wants);
    }
    check_rms_norm_input(x, gain);
    const int64_t rows = x.rows(), cols = x.cols();
    const GemmInput input = allocate_input(ex, rows, cols, wants);
    if (ex.planning() || x.elements() == 0) return input;
    const double elements = static_cast<double>(x.elements());
    const Timed timed(*this, "rms_norm_input", 4 * elements, 6 * elements);
    const float* gains = gain.absent() ? nullptr : gain.as<float>();
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, rows);
    const auto norm = [&](const ActView& view, const float* source, int64_t row) {
        if (view.values.absent()) return;
        if (view.format == ActFormat::kF32) {
            rows_->kernels->rms_norm(source, gains, eps, cols, view.values.row<float>(row));
            return;
        }
        auto* target = view.values.row<uint16_t>(row);
        rows_->kernels->rms_norm_bf16(source, gains, eps, cols, target);
        std::fill(target + cols, target + act_stride(cols), uint16_t{0});
    };
    parallel_rows(pool_, rows, worth(rows, 6 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const bool is_prompt = row < prompt;
            for (const ActView& view : is_prompt ? input.prompt : input.generated)
                norm(view, x.row<float>(row), is_prompt ? row : row - prompt);
        }
    });
    return input;
}

void CpuOps::glu(Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) {
    check_glu(gate, up, out);
    if (ex.planning() || gate.elements() == 0) return;
    const double elements = static_cast<double>(gate.elements());
    const Timed timed(*this, "glu", 8 * elements, 12 * elements);
    const int64_t rows = row_count(gate), cols = gate.cols();
    parallel_rows(pool_, rows, worth(rows, 12 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            rows_->kernels->glu(kind, float_row(gate, row), float_row(up, row), cols,
                                float_row(out, row));
    });
}

GemmInput CpuOps::glu_input(
    Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants) {
    if (!direct(wants)) {
        note_composed(ex, "glu_input", kBlockActivations);
        return Ops::glu_input(ex, gate, up, kind, wants);
    }
    check_glu_input(gate, up);
    const int64_t heads = gate.rank == 3 ? gate.shape[1] : 1, cols = gate.cols();
    const GemmInput input = allocate_input(ex, gate.rows(), heads * cols, wants);
    const Scope scope(ex.arena);
    const Tensor rows = ex.arena.allocate(DType::kF32, {pool_.size(), heads * cols});
    if (ex.planning() || gate.elements() == 0) return input;
    const double elements = static_cast<double>(gate.elements());
    const Timed timed(*this, "glu_input", 8 * elements, 10 * elements);
    fill_input(pool_, *rows_->kernels, ex, input, rows, [&](int64_t row, float* out) {
        for (int64_t head = row * heads; head < (row + 1) * heads; ++head, out += cols)
            rows_->kernels->glu(kind, float_row(gate, head), float_row(up, head), cols, out);
    });
    return input;
}

GemmInput CpuOps::gated_rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& z, ActWants wants) {
    if (!direct(wants)) {
        note_composed(ex, "gated_rms_norm_input", kBlockActivations);
        return Ops::gated_rms_norm_input(ex, x, gain, eps, z, wants);
    }
    check_gated_rms_norm_input(x, gain, z);
    const int64_t heads = x.shape[1], cols = x.cols();
    const GemmInput input = allocate_input(ex, x.rows(), heads * cols, wants);
    const Scope scope(ex.arena);
    const Tensor rows = ex.arena.allocate(DType::kF32, {pool_.size(), heads * cols});
    if (ex.planning() || x.elements() == 0) return input;
    const double elements = static_cast<double>(x.elements());
    const Timed timed(*this, "gated_rms_norm_input", 12 * elements, 10 * elements);
    const float* gains = gain.absent() ? nullptr : gain.as<float>();
    fill_input(pool_, *rows_->kernels, ex, input, rows, [&](int64_t row, float* out) {
        for (int64_t head = row * heads; head < (row + 1) * heads; ++head, out += cols) {
            rows_->kernels->rms_norm(float_row(x, head), gains, eps, cols, out);
            rows_->kernels->glu(Glu::kSwiGlu, float_row(z, head), out, cols, out);
        }
    });
    return input;
}

void CpuOps::l2_norm(Exec& ex, const Tensor& x, float eps) {
    check_l2_norm(x);
    if (ex.planning() || x.elements() == 0) return;
    const double elements = static_cast<double>(x.elements());
    const Timed timed(*this, "l2_norm", 3 * elements, 8 * elements);
    const int64_t rows = row_count(x), cols = x.cols();
    parallel_rows(pool_, rows, worth(rows, 8 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            rows_->kernels->l2_norm(float_row(x, row), eps, cols);
    });
}

void CpuOps::add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) {
    check_add(a, b, out);
    if (ex.planning() || a.elements() == 0) return;
    const double elements = static_cast<double>(a.elements());
    const Timed timed(*this, "add", elements, 12 * elements);
    const int64_t rows = row_count(a), cols = a.cols();
    parallel_rows(pool_, rows, worth(rows, 12 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            rows_->kernels->add(float_row(a, row), float_row(b, row), cols, float_row(out, row));
    });
}

void CpuOps::softmax(
    Exec& ex, const Tensor& x, const Tensor& visible, float scale, const Tensor& out) {
    check_softmax(x, visible, out);
    if (ex.planning() || x.elements() == 0) return;
    const double elements = static_cast<double>(x.elements());
    const Timed timed(*this, "softmax", 8 * elements, 8 * elements);
    const int64_t rows = x.rows(), cols = x.cols();
    parallel_rows(pool_, rows, worth(rows, 8 * cols), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int64_t seen =
                visible.absent() ? cols : std::min<int64_t>(visible.as<int32_t>()[row], cols);
            check(seen >= 1, "softmax: a row sees nothing");
            rows_->kernels->softmax(x.row<float>(row), scale, seen, cols, out.row<float>(row));
        }
    });
}

void CpuOps::rope(Exec& ex,
                  const Tensor& x,
                  const Tensor& positions,
                  const Tensor& freq_factors,
                  const RopeParams& params) {
    check_rope(x, positions, freq_factors, params);
    const float* turns = rows_->turns(pool_, positions, freq_factors, params);
    if (ex.planning() || x.elements() == 0) return;
    const double elements = static_cast<double>(x.elements());
    const Timed timed(*this, "rope", 3 * elements, 8 * elements);
    const int64_t rows = x.rows(), heads = x.shape[1];
    parallel_rows(pool_, rows, worth(rows, 8 * heads * x.cols()), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            for (int64_t head = 0; head < heads; ++head)
                rows_->kernels->rope(turns + row * 2 * params.rotary, params.pairs, params.rotary,
                                     x.row<float>(row) + head * x.stride[1]);
    });
}

void CpuOps::copy(Exec& ex, const Tensor& from, const Tensor& to) {
    check_copy(from, to);
    if (ex.planning() || from.elements() == 0) return;
    const Timed timed(*this, "copy", 0, bytes_of(from) + bytes_of(to));
    copy_rows(pool_, *rows_->kernels, from, to);
}

void CpuOps::concat(Exec& ex, const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out) {
    check_concat(a, b, axis, out);
    const auto joined = static_cast<size_t>(axis);
    if (ex.planning() || out.elements() == 0) return;
    const Timed timed(*this, "concat", 0, 2 * bytes_of(out));
    Tensor first = out, second = out;
    first.shape = a.shape;
    second.shape = b.shape;
    second.data =
        out.as<std::byte>() + dtype_bytes(out.dtype, a.shape[joined] * out.stride[joined]);
    copy_rows(pool_, *rows_->kernels, a, first);
    copy_rows(pool_, *rows_->kernels, b, second);
}

void CpuOps::gather_rows(Exec& ex, const Tensor& x, const Tensor& ids, const Tensor& out) {
    check_gather_rows(x, ids, out);
    if (ex.planning() || out.elements() == 0) return;
    const Timed timed(*this, "gather_rows", 0, 2 * bytes_of(out));
    const int64_t rows = out.rows(), row_bytes = out.cols() * 4;
    const auto* indices = ids.as<int32_t>();
    parallel_rows(pool_, rows, worth(rows, 2 * row_bytes), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            check(indices[row] >= 0 && indices[row] < x.rows(), "gather_rows: row out of range");
            std::memcpy(out.row<float>(row), x.row<float>(indices[row]),
                        static_cast<size_t>(row_bytes));
        }
    });
}

}  // namespace tessera::cpu
