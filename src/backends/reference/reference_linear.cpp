// Weights, activation formats and matrix products in plain loops. A product starts from the very
// values that the activation format can hold, so that a quantizing backend is judged by its sums
// and not by the quantization that its user asked for.
#include "backends/reference/reference_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/reference/reference_class.h"
#include "core/numeric.h"
#include "ops/checks.h"

namespace tessera::reference {
namespace {

constexpr int64_t kInt8Block = 32;
constexpr int64_t kNvfp4Block = 64;

int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

uint8_t wants_bit(ActFormat format) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(format));
}

float largest_magnitude(const float* values, int64_t count) {
    float largest = 0.0f;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
    return largest;
}

/// Eight interleaved sums: a fixed order, and the compiler may keep them in vector registers.
/// A product of two f32 is exact in f64.
double dot(const float* a, const float* b, int64_t count) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int64_t lane = 0; lane < 8; ++lane)
            sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    for (; i < count; ++i) sums[i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    double sum = 0.0;
    for (const double part : sums) sum += part;
    return sum;
}

ActView round_bf16(Exec& ex, const Tensor& x) {
    const ActView view{
        ActFormat::kBF16, ex.arena.allocate(DType::kBF16, {x.rows(), x.cols()}), {}, {}};
    if (ex.planning()) return view;
    for (int64_t t = 0; t < x.rows(); ++t)
        for (int64_t k = 0; k < x.cols(); ++k)
            view.values.row<uint16_t>(t)[k] = bf16_from_f32(x.row<float>(t)[k]);
    return view;
}

/// scale = amax / 127, code = nearest even of x * (1 / scale); a last block that K does not fill
/// ends early, which is the same as padding it with zeros. A block of zeros has scale 0.
ActView round_int8(Exec& ex, const Tensor& x) {
    const int64_t blocks = (x.cols() + kInt8Block - 1) / kInt8Block;
    const ActView view{.format = ActFormat::kInt8,
                       .values = ex.arena.allocate(DType::kI8, {x.rows(), x.cols()}),
                       .block_scales = ex.arena.allocate(DType::kF32, {x.rows(), blocks}),
                       .row_scales = {}};
    if (ex.planning()) return view;
    for (int64_t t = 0; t < x.rows(); ++t) {
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t begin = block * kInt8Block;
            const int64_t count = std::min(kInt8Block, x.cols() - begin);
            const float* source = x.row<float>(t) + begin;
            int8_t* codes = view.values.row<int8_t>(t) + begin;
            const float scale = largest_magnitude(source, count) / 127.0f;
            const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            view.block_scales.row<float>(t)[block] = scale;
            for (int64_t i = 0; i < count; ++i)
                codes[i] = static_cast<int8_t>(std::nearbyint(source[i] * inverse));
        }
    }
    return view;
}

/// See nvfp4_row_scale().
ActView round_nvfp4(Exec& ex, const Tensor& x, Nvfp4Policy policy) {
    const ActView view{.format = ActFormat::kNvfp4,
                       .values = ex.arena.allocate(DType::kBF16, {x.rows(), x.cols()}),
                       .block_scales = {},
                       .row_scales = ex.arena.allocate(DType::kF32, {x.rows()})};
    const Scope scope(ex.arena);
    const int64_t padded = round_up(x.cols(), kNvfp4Block);
    const Tensor scaled = ex.arena.allocate(DType::kF32, {padded});
    const Tensor codes = ex.arena.allocate(DType::kNVFP4, {padded});
    if (ex.planning()) return view;
    for (int64_t t = 0; t < x.rows(); ++t) {
        const float* source = x.row<float>(t);
        const float scale = nvfp4_row_scale(largest_magnitude(source, x.cols()), policy);
        float* values = scaled.as<float>();
        std::fill_n(values, padded, 0.0f);
        for (int64_t k = 0; k < x.cols(); ++k) values[k] = source[k] / scale;
        quantize_row(DType::kNVFP4, values, padded, codes.as<std::byte>(), policy);
        dequantize_row(DType::kNVFP4, codes.as<std::byte>(), padded, values);
        view.row_scales.as<float>()[t] = scale;
        for (int64_t k = 0; k < x.cols(); ++k)
            view.values.row<uint16_t>(t)[k] = bf16_from_f32(values[k]);
    }
    return view;
}

ActView round_fp8(Exec& ex, const Tensor& x) {
    const ActView view{.format = ActFormat::kFp8,
                       .values = ex.arena.allocate(DType::kF8_E4M3, {x.rows(), x.cols()}),
                       .block_scales = {},
                       .row_scales = ex.arena.allocate(DType::kF32, {x.rows()})};
    if (ex.planning()) return view;
    for (int64_t t = 0; t < x.rows(); ++t) {
        const float* source = x.row<float>(t);
        const float scale =
            std::max(largest_magnitude(source, x.cols()) / kFp8Largest, kFp8LeastScale);
        const float inverse = 1.0f / scale;
        view.row_scales.as<float>()[t] = scale;
        for (int64_t k = 0; k < x.cols(); ++k)
            view.values.row<uint8_t>(t)[k] = e4m3_from_f32(source[k] * inverse);
    }
    return view;
}

void round_rows(Exec& ex, const Tensor& x, uint8_t wants, Nvfp4Policy policy, ActViews& views) {
    size_t count = 0;
    for (const ActFormat format : {ActFormat::kF32, ActFormat::kBF16, ActFormat::kInt8,
                                   ActFormat::kNvfp4, ActFormat::kFp8}) {
        if ((wants & wants_bit(format)) == 0) continue;
        check(count < views.size(), "prepare: more formats than views");
        ActView& view = views[count++];
        if (format == ActFormat::kF32) view = {format, x, {}, {}};
        if (format == ActFormat::kBF16) view = round_bf16(ex, x);
        if (format == ActFormat::kInt8) view = round_int8(ex, x);
        if (format == ActFormat::kNvfp4) view = round_nvfp4(ex, x, policy);
        if (format == ActFormat::kFp8) view = round_fp8(ex, x);
    }
}

}  // namespace

const ActView* find_view(const ActViews& views, uint8_t wants) {
    for (const ActView& view : views)
        if (!view.values.absent() && (wants & wants_bit(view.format)) != 0) return &view;
    return nullptr;
}

void decode_act(const ActView& view, int64_t t, int64_t cols, float* out) {
    for (int64_t k = 0; k < cols; ++k) {
        switch (view.format) {
            case ActFormat::kF32:
                out[k] = view.values.row<float>(t)[k];
                break;
            case ActFormat::kInt8:
                out[k] = view.values.row<int8_t>(t)[k];
                break;
            case ActFormat::kFp8:
                out[k] = f32_from_e4m3(view.values.row<uint8_t>(t)[k]);
                break;
            default:
                out[k] = f32_from_bf16(view.values.row<uint16_t>(t)[k]);
                break;
        }
    }
}

double act_dot(const ActView& view, int64_t t, const float* x, const float* w, int64_t cols) {
    if (!view.row_scales.absent())
        return dot(x, w, cols) * static_cast<double>(view.row_scales.as<float>()[t]);
    if (view.format != ActFormat::kInt8) return dot(x, w, cols);
    double sum = 0.0;
    for (int64_t begin = 0; begin < cols; begin += kInt8Block) {
        const int64_t count = std::min(kInt8Block, cols - begin);
        const float scale = view.block_scales.row<float>(t)[begin / kInt8Block];
        sum += dot(x + begin, w + begin, count) * static_cast<double>(scale);
    }
    return sum;
}

int64_t ReferenceOps::upload_bytes(const HostWeight& weight) const {
    return weight.experts * weight.rows * dtype_bytes(weight.format, weight.cols);
}

ActWants ReferenceOps::wants(DType /*weight_format*/, int32_t /*experts*/) const {
    return {.prompt = wants_bit(options_.act_prompt),
            .generated = wants_bit(options_.act_generated),
            .nvfp4 = options_.nvfp4};
}

Weight ReferenceOps::upload(const HostWeight& weight) {
    const auto bytes = static_cast<size_t>(upload_bytes(weight));
    std::byte* codes = allocate(bytes);
    std::memcpy(codes, weight.data, bytes);
    const auto experts = static_cast<size_t>(weight.experts);
    check(weight.scales.size() <= 1 || weight.scales.size() == experts, "upload: scale count");
    auto* scales = reinterpret_cast<float*>(allocate(experts * sizeof(float)));
    for (size_t e = 0; e < experts; ++e) {
        if (weight.scales.empty())
            scales[e] = 1.0f;
        else
            scales[e] = weight.scales[weight.scales.size() == 1 ? 0 : e];
    }
    return {.format = weight.format,
            .rows = weight.rows,
            .cols = weight.cols,
            .experts = weight.experts,
            .codes = codes,
            .scales = nullptr,
            .outer_scale = scales,
            .wants = wants(weight.format, weight.experts)};
}

void ReferenceOps::embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) {
    check(ids.dtype == DType::kI32 && ids.rows() == out.rows() && out.cols() == table.cols,
          "embed: shapes");
    if (ex.planning()) return;
    const int64_t row_bytes = dtype_bytes(table.format, table.cols);
    const Counted counted(*this, "embed", 0.0, static_cast<double>(ids.rows() * row_bytes));
    for (int64_t t = 0; t < ids.rows(); ++t) {
        const int32_t id = ids.as<int32_t>()[t];
        check(id >= 0 && id < table.rows, "embed: token id out of range");
        dequantize_row(table.format, table.codes + id * row_bytes, table.cols, out.row<float>(t));
        for (int64_t k = 0; k < table.cols; ++k) out.row<float>(t)[k] *= table.outer_scale[0];
    }
}

GemmInput ReferenceOps::prepare(Exec& ex, const Tensor& x, ActWants wants) {
    check(x.rank == 2 && x.dtype == DType::kF32, "prepare: x is F32 [T, K]");
    GemmInput input{
        .rows = x.rows(), .cols = x.cols(), .prompt = {}, .generated = {}, .nvfp4 = wants.nvfp4};
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows());
    round_rows(ex, x.slice_rows(0, prompt), wants.prompt, wants.nvfp4, input.prompt);
    round_rows(ex, x.slice_rows(prompt, x.rows() - prompt), wants.generated, wants.nvfp4,
               input.generated);
    if (!ex.planning())
        Counted(*this, "prepare", 0.0, static_cast<double>(x.elements()) * sizeof(float));
    return input;
}

void ReferenceOps::linear(Exec& ex,
                          const GemmInput& x,
                          const Weight& weight,
                          const Tensor& bias,
                          const Tensor& out,
                          Accumulate accumulate) {
    check_linear(x, weight, bias, out);
    const Scope scope(ex.arena);
    const int64_t cols = weight.cols;
    const Tensor weight_row = ex.arena.allocate(DType::kF32, {cols});
    const Tensor values = ex.arena.allocate(DType::kF32, {x.rows, cols});
    if (ex.planning()) return;
    const int64_t row_bytes = dtype_bytes(weight.format, cols);
    const Counted counted(*this, "linear", 2.0 * static_cast<double>(x.rows * weight.rows * cols),
                          static_cast<double>(weight.rows * row_bytes) +
                              4.0 * static_cast<double>(x.rows * (cols + weight.rows)));
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows);
    const ActView* prompt_view = find_view(x.prompt, weight.wants.prompt);
    const ActView* generated_view = find_view(x.generated, weight.wants.generated);
    check(prompt == 0 || prompt_view != nullptr, "linear: prompt rows lack the wanted format");
    check(prompt == x.rows || generated_view != nullptr,
          "linear: generated rows lack the wanted format");
    for (int64_t t = 0; t < x.rows; ++t) {
        if (t < prompt)
            decode_act(*prompt_view, t, cols, values.row<float>(t));
        else
            decode_act(*generated_view, t - prompt, cols, values.row<float>(t));
    }
    for (int64_t n = 0; n < weight.rows; ++n) {
        dequantize_row(weight.format, weight.codes + n * row_bytes, cols, weight_row.as<float>());
        for (int64_t t = 0; t < x.rows; ++t) {
            const bool is_prompt = t < prompt;
            const double product =
                act_dot(is_prompt ? *prompt_view : *generated_view, is_prompt ? t : t - prompt,
                        values.row<float>(t), weight_row.as<float>(), cols);
            double sum = product * static_cast<double>(weight.outer_scale[0]);
            if (!bias.absent()) sum += static_cast<double>(bias.as<float>()[n]);
            float& target = out.row<float>(t)[n];
            if (accumulate == Accumulate::kAdd) sum += static_cast<double>(target);
            target = static_cast<float>(sum);
        }
    }
}

}  // namespace tessera::reference
