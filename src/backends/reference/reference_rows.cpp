// Norms, gates, softmax, rotation and data movement, one row after the other, in f64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "backends/reference/reference_class.h"
#include "core/numeric.h"
#include "ops/checks.h"

namespace tessera::reference {
namespace {

double activate(Glu kind, double x) {
    switch (kind) {
        case Glu::kSwiGlu:
            return x / (1.0 + std::exp(-x));
        case Glu::kReGlu:
            return std::max(x, 0.0);
        case Glu::kSigmoid:
            return 1.0 / (1.0 + std::exp(-x));
        case Glu::kGeGlu:
            break;
    }
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel for u < 0.
    return x / (1.0 + std::exp(-2.0 * inner));
}

/// Angle of pair i at position 1.
double rope_frequency(const RopeParams& params, const float* freq_factors, int32_t i) {
    const double rotary = params.rotary;
    const double base = static_cast<double>(params.base);
    const double scale = static_cast<double>(params.freq_scale);
    double theta = std::pow(base, -2.0 * i / rotary);
    if (freq_factors != nullptr) theta /= static_cast<double>(freq_factors[i]);
    if (!params.yarn) return theta * scale;
    const auto corner = [&](float beta) {
        return rotary *
               std::log(params.original_context /
                        (2.0 * std::numbers::pi * static_cast<double>(beta))) /
               (2.0 * std::log(base));
    };
    const double low = std::max(0.0, std::floor(corner(params.beta_fast)));
    const double high = std::min(rotary - 1.0, std::ceil(corner(params.beta_slow)));
    const double ramp = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double keep = 1.0 - ramp;
    return theta * scale * (1.0 - keep) + theta * keep;
}

/// Which of a token's positions turns pair `i`.
size_t rope_axis(const RopeParams& params, int32_t i) {
    const auto axis = static_cast<size_t>(i % 3);
    return i < 3 * params.sections[axis] ? axis : 0;
}

double read_plain(DType dtype, const std::byte* row, int64_t i) {
    const void* data = row;
    switch (dtype) {
        case DType::kF32:
            return static_cast<double>(static_cast<const float*>(data)[i]);
        case DType::kF16:
            return static_cast<double>(f32_from_f16(static_cast<const uint16_t*>(data)[i]));
        case DType::kBF16:
            return static_cast<double>(f32_from_bf16(static_cast<const uint16_t*>(data)[i]));
        case DType::kF64:
            return static_cast<const double*>(data)[i];
        case DType::kI8:
            return static_cast<const int8_t*>(data)[i];
        case DType::kI16:
            return static_cast<const int16_t*>(data)[i];
        case DType::kI32:
            return static_cast<const int32_t*>(data)[i];
        case DType::kI64:
            return static_cast<double>(static_cast<const int64_t*>(data)[i]);
        case DType::kF8_E4M3:
            return static_cast<double>(f32_from_e4m3(static_cast<const uint8_t*>(data)[i]));
        default:
            fail_check("copy: not a plain format", std::source_location::current());
    }
}

/// The integer nearest to `value` (ties to even) that the type holds; NaN gives 0.
template <class Integer>
Integer nearest(double value) {
    if (std::isnan(value)) return 0;
    const double rounded = std::nearbyint(value);
    if (rounded <= static_cast<double>(std::numeric_limits<Integer>::min()))
        return std::numeric_limits<Integer>::min();
    if (rounded >= static_cast<double>(std::numeric_limits<Integer>::max()))
        return std::numeric_limits<Integer>::max();
    return static_cast<Integer>(rounded);
}

/// f64 goes to the 8- and 16-bit floats through f32; integers round as the codec rounds them.
void write_plain(DType dtype, double value, std::byte* row, int64_t i) {
    void* data = row;
    switch (dtype) {
        case DType::kF32:
            static_cast<float*>(data)[i] = static_cast<float>(value);
            return;
        case DType::kF16:
            static_cast<uint16_t*>(data)[i] = f16_from_f32(static_cast<float>(value));
            return;
        case DType::kBF16:
            static_cast<uint16_t*>(data)[i] = bf16_from_f32(static_cast<float>(value));
            return;
        case DType::kF64:
            static_cast<double*>(data)[i] = value;
            return;
        case DType::kI8:
            static_cast<int8_t*>(data)[i] = nearest<int8_t>(value);
            return;
        case DType::kI16:
            static_cast<int16_t*>(data)[i] = nearest<int16_t>(value);
            return;
        case DType::kI32:
            static_cast<int32_t*>(data)[i] = nearest<int32_t>(value);
            return;
        case DType::kI64:
            static_cast<int64_t*>(data)[i] = nearest<int64_t>(value);
            return;
        case DType::kF8_E4M3:
            static_cast<uint8_t*>(data)[i] = e4m3_from_f32(static_cast<float>(value));
            return;
        default:
            fail_check("copy: not a plain format", std::source_location::current());
    }
}

/// One row between any two formats; `scratch` holds `count` floats when a block format takes part.
void convert_row(DType from_type,
                 const std::byte* from,
                 DType to_type,
                 std::byte* to,
                 int64_t count,
                 float* scratch) {
    if (from_type == to_type) {
        std::memcpy(to, from, static_cast<size_t>(dtype_bytes(to_type, count)));
        return;
    }
    if (!is_block_format(from_type) && !is_block_format(to_type)) {
        for (int64_t i = 0; i < count; ++i)
            write_plain(to_type, read_plain(from_type, from, i), to, i);
        return;
    }
    dequantize_row(from_type, from, count, scratch);
    if (is_block_format(to_type)) {
        quantize_row(to_type, scratch, count, to, Nvfp4Policy::kAmax6);
        return;
    }
    for (int64_t i = 0; i < count; ++i)
        write_plain(to_type, static_cast<double>(scratch[i]), to, i);
}

void copy_rows(const Tensor& from, const Tensor& to, float* scratch) {
    for (int64_t row = 0; row < row_count(from); ++row)
        convert_row(from.dtype, address(from, row_offset(from, row)), to.dtype,
                    address(to, row_offset(to, row)), from.cols(), scratch);
}

double traffic(const Tensor& tensor) {
    return static_cast<double>(dtype_bytes(tensor.dtype, tensor.elements()));
}

}  // namespace

void ReferenceOps::rms_norm(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) {
    check_rms_norm(x, gain, out);
    if (ex.planning()) return;
    const Counted counted(*this, "rms_norm", 0.0, 2.0 * traffic(x));
    const int64_t cols = x.cols();
    for (int64_t row = 0; row < row_count(x); ++row) {
        const float* source = x.as<float>() + row_offset(x, row);
        float* target = out.as<float>() + row_offset(out, row);
        double squares = 0.0;
        for (int64_t i = 0; i < cols; ++i)
            squares += static_cast<double>(source[i]) * static_cast<double>(source[i]);
        const double mean = squares / static_cast<double>(cols);
        const double factor = 1.0 / std::sqrt(mean + static_cast<double>(eps));
        for (int64_t i = 0; i < cols; ++i) {
            const double g = gain.absent() ? 1.0 : static_cast<double>(gain.as<float>()[i]);
            target[i] = static_cast<float>(static_cast<double>(source[i]) * factor * g);
        }
    }
}

void ReferenceOps::glu(
    Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) {
    check_glu(gate, up, out);
    if (ex.planning()) return;
    const Counted counted(*this, "glu", 0.0, 3.0 * traffic(gate));
    for (int64_t row = 0; row < row_count(gate); ++row) {
        const float* a = gate.as<float>() + row_offset(gate, row);
        const float* b = up.as<float>() + row_offset(up, row);
        float* target = out.as<float>() + row_offset(out, row);
        for (int64_t i = 0; i < gate.cols(); ++i)
            target[i] = static_cast<float>(activate(kind, static_cast<double>(a[i])) *
                                           static_cast<double>(b[i]));
    }
}

void ReferenceOps::add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) {
    check_add(a, b, out);
    if (ex.planning()) return;
    const Counted counted(*this, "add", static_cast<double>(a.elements()), 3.0 * traffic(a));
    for (int64_t row = 0; row < row_count(a); ++row) {
        const float* left = a.as<float>() + row_offset(a, row);
        const float* right = b.as<float>() + row_offset(b, row);
        float* target = out.as<float>() + row_offset(out, row);
        for (int64_t i = 0; i < a.cols(); ++i) target[i] = left[i] + right[i];
    }
}

void ReferenceOps::softmax(
    Exec& ex, const Tensor& x, const Tensor& visible, float scale, const Tensor& out) {
    check_softmax(x, visible, out);
    if (ex.planning()) return;
    const Counted counted(*this, "softmax", 0.0, 2.0 * traffic(x));
    const auto scaled = [&](float value) {
        return static_cast<double>(scale) * static_cast<double>(value);
    };
    for (int64_t t = 0; t < x.rows(); ++t) {
        const float* source = x.row<float>(t);
        float* target = out.row<float>(t);
        const int64_t seen = visible.absent() ? x.cols() : visible.as<int32_t>()[t];
        check(seen >= 1 && seen <= x.cols(), "softmax: visible columns");
        double largest = scaled(source[0]);
        for (int64_t i = 1; i < seen; ++i) largest = std::max(largest, scaled(source[i]));
        double sum = 0.0;
        for (int64_t i = 0; i < seen; ++i) sum += std::exp(scaled(source[i]) - largest);
        for (int64_t i = 0; i < seen; ++i)
            target[i] = static_cast<float>(std::exp(scaled(source[i]) - largest) / sum);
        std::fill(target + seen, target + x.cols(), 0.0f);
    }
}

void ReferenceOps::rope(Exec& ex,
                        const Tensor& x,
                        const Tensor& positions,
                        const Tensor& freq_factors,
                        const RopeParams& params) {
    const int32_t half = params.rotary / 2;
    check_rope(x, positions, freq_factors, params);
    const Scope scope(ex.arena);
    const Tensor table = ex.arena.allocate(DType::kF64, {half});
    if (ex.planning()) return;
    const Counted counted(*this, "rope", 0.0, 2.0 * traffic(x));
    auto* frequency = table.as<double>();
    const float* factors = freq_factors.absent() ? nullptr : freq_factors.as<float>();
    for (int32_t i = 0; i < half; ++i) frequency[i] = rope_frequency(params, factors, i);
    const double magnitude = static_cast<double>(params.magnitude);
    for (int64_t row = 0; row < row_count(x); ++row) {
        float* head = x.as<float>() + row_offset(x, row);
        const int32_t* place = positions.row<int32_t>(row / x.shape[1]);
        for (int32_t i = 0; i < half; ++i) {
            const bool adjacent = params.pairs == RopePairs::kAdjacent;
            float& first = head[adjacent ? 2 * i : i];
            float& second = head[adjacent ? 2 * i + 1 : i + half];
            const double a = static_cast<double>(first);
            const double b = static_cast<double>(second);
            const double angle =
                place[positions.rank == 1 ? 0 : rope_axis(params, i)] * frequency[i];
            const double cosine = magnitude * std::cos(angle);
            const double sine = magnitude * std::sin(angle);
            first = static_cast<float>(a * cosine - b * sine);
            second = static_cast<float>(a * sine + b * cosine);
        }
    }
}

void ReferenceOps::copy(Exec& ex, const Tensor& from, const Tensor& to) {
    check_copy(from, to);
    const Scope scope(ex.arena);
    const Tensor scratch = ex.arena.allocate(DType::kF32, {from.cols()});
    if (ex.planning()) return;
    const Counted counted(*this, "copy", 0.0, traffic(from) + traffic(to));
    copy_rows(from, to, scratch.as<float>());
}

void ReferenceOps::concat(
    Exec& ex, const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out) {
    check_concat(a, b, axis, out);
    if (ex.planning()) return;
    const Counted counted(*this, "concat", 0.0, 2.0 * traffic(out));
    const auto joined = static_cast<size_t>(axis);
    Tensor head = out;
    head.shape[joined] = a.shape[joined];
    Tensor tail = out;
    tail.shape[joined] = b.shape[joined];
    tail.data = address(out, a.shape[joined] * out.stride[joined]);
    copy_rows(a, head, nullptr);
    copy_rows(b, tail, nullptr);
}

void ReferenceOps::gather_rows(Exec& ex, const Tensor& x, const Tensor& ids, const Tensor& out) {
    check_gather_rows(x, ids, out);
    if (ex.planning()) return;
    const Counted counted(*this, "gather_rows", 0.0, 2.0 * traffic(out));
    for (int64_t i = 0; i < ids.rows(); ++i) {
        const int32_t id = ids.as<int32_t>()[i];
        check(id >= 0 && id < x.rows(), "gather_rows: row out of range");
        std::copy_n(x.row<float>(id), x.cols(), out.row<float>(i));
    }
}

}  // namespace tessera::reference
