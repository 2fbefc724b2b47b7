// Weights and activations of the CPU backend: which formats a weight asks for, packing at load,
// embeddings, and rounding of activations. Products stand in cpu_linear_product.cpp, layouts in
// isa/linear_layout.h.
#include "backends/cpu/cpu_linear.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_linear_pack.h"
#include "backends/cpu/isa/linear_kernels.h"
#include "core/error.h"
#include "core/numeric.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kAlignment = 64;
/// Elements below which another thread costs more than it saves.
constexpr int64_t kParallelElements = 1 << 15;

int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

uint8_t bit_of(ActFormat format) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(format));
}

bool is_fp4(DType stored) {
    return stored == DType::kNVFP4 || stored == DType::kMXFP4;
}

const LinearKernels& kernels_of(Isa isa) {
    switch (isa) {
#if defined(__x86_64__)
        case Isa::kAvx2:
            return linear_kernels_avx2();
        case Isa::kAvx512:
            return linear_kernels_avx512();
        case Isa::kAmx:
            return linear_kernels_amx();
#endif
        default:
            return linear_kernels_scalar();
    }
}

ActFormat default_prompt(Isa isa) {
    if (isa == Isa::kAmx) return ActFormat::kBF16;
    return isa == Isa::kScalar ? ActFormat::kF32 : ActFormat::kInt8;
}
ActFormat default_generated(Isa isa) {
    if (isa == Isa::kAmx) return ActFormat::kBF16;
    return isa == Isa::kScalar ? ActFormat::kF32 : ActFormat::kInt8;
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

/// Bytes of one matrix: codes, then scales, each from a multiple of 64 on.
int64_t matrix_bytes(const PackedShape& shape) {
    return shape.matrix_code_bytes() + shape.matrix_scale_bytes();
}

PackedShape shape_of(const HostWeight& weight) {
    return packed_shape(stored_format(weight.format), weight.rows, weight.cols);
}

/// Rounds a row to the numbers of kNvfp4, see nvfp4_row_scale(). `padded` and `codes` hold whole
/// blocks of 64.
float round_nvfp4(const float* x,
                  int64_t cols,
                  Nvfp4Policy policy,
                  uint16_t* out,
                  float* padded,
                  std::byte* codes) {
    float amax = 0.0f;
    for (int64_t k = 0; k < cols; ++k) amax = std::max(amax, std::fabs(x[k]));
    const float scale = nvfp4_row_scale(amax, policy);
    const int64_t whole = round_up(cols, 64);
    for (int64_t k = 0; k < cols; ++k) padded[k] = x[k] / scale;
    std::fill(padded + cols, padded + whole, 0.0f);
    quantize_row(DType::kNVFP4, padded, whole, codes, policy);
    dequantize_row(DType::kNVFP4, codes, whole, padded);
    for (int64_t k = 0; k < cols; ++k) out[k] = bf16_from_f32(padded[k]);
    return scale;
}

/// Blocks of 32, the last one possibly short.
void round_int8(
    const LinearKernels& kernels, const float* x, int64_t cols, int8_t* codes, float* scales) {
    const int64_t units = cols / kUnitCols;
    kernels.quantize_bytes(x, units, codes, scales);
    const int64_t rest = cols - units * kUnitCols;
    if (rest == 0) return;
    float padded[kUnitCols] = {};
    int8_t tail[kUnitCols];
    std::copy_n(x + units * kUnitCols, rest, padded);
    kernels.quantize_bytes(padded, 1, tail, scales + units);
    std::copy_n(tail, rest, codes + units * kUnitCols);
}

struct RoundRows {
    const LinearKernels& kernels;
    const Tensor& x;
    int64_t first;  ///< row of x that is row 0 of the view
    float* padded;  ///< kNvfp4: scratch of this thread
    std::byte* codes;
    Nvfp4Policy policy;

    void row(const ActView& view, int64_t t) const {
        const float* source = x.row<float>(first + t);
        const int64_t cols = x.cols();
        if (view.format == ActFormat::kInt8)
            return round_int8(kernels, source, cols, view.values.row<int8_t>(t),
                              view.block_scales.row<float>(t));
        uint16_t* out = view.values.row<uint16_t>(t);
        if (view.format == ActFormat::kNvfp4)
            view.row_scales.as<float>()[t] = round_nvfp4(source, cols, policy, out, padded, codes);
        else
            kernels.round_bf16(source, cols, out);
        std::fill(out + cols, out + act_stride(cols), uint16_t{0});
    }
};

void allocate_views(
    Exec& ex, int64_t rows, int64_t cols, uint8_t wants, bool skip_f32, ActViews& views) {
    size_t count = 0;
    for (const ActFormat format :
         {ActFormat::kF32, ActFormat::kBF16, ActFormat::kInt8, ActFormat::kNvfp4}) {
        if ((wants & bit_of(format)) == 0) continue;
        check(count < views.size(), "an activation in more formats than a view each");
        ActView& view = views[count++];
        view.format = format;
        if (format == ActFormat::kF32) {
            if (!skip_f32) view.values = ex.arena.allocate(DType::kF32, {rows, cols});
        } else if (format == ActFormat::kInt8) {
            view.values = ex.arena.allocate(DType::kI8, {rows, cols});
            view.block_scales =
                ex.arena.allocate(DType::kF32, {rows, round_up(cols, kUnitCols) / kUnitCols});
        } else {
            const int64_t stride = act_stride(cols);
            view.values = ex.arena.allocate(DType::kBF16, {rows, stride});
            view.values.shape[1] = cols;
            if (format == ActFormat::kNvfp4)
                view.row_scales = ex.arena.allocate(DType::kF32, {rows});
        }
    }
    check((wants & bit_of(ActFormat::kFp8)) == 0, "the CPU backend has no fp8 activations");
}

GemmInput make_input(Exec& ex, int64_t rows, int64_t cols, ActWants wants, bool skip_f32) {
    GemmInput input;
    input.rows = rows;
    input.cols = cols;
    input.nvfp4 = wants.nvfp4;
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, rows);
    if (prompt > 0) allocate_views(ex, prompt, cols, wants.prompt, skip_f32, input.prompt);
    if (rows > prompt)
        allocate_views(ex, rows - prompt, cols, wants.generated, skip_f32, input.generated);
    return input;
}

}  // namespace

CpuOps::Linear::Linear(Isa chosen, const CpuOptions& options)
    : kernels(&kernels_of(chosen)),
      isa(chosen),
      act_prompt(options.act_auto ? default_prompt(chosen) : options.act_prompt),
      act_generated(options.act_auto ? default_generated(chosen) : options.act_generated),
      nvfp4(options.nvfp4) {
    if (act_prompt == ActFormat::kFp8 || act_generated == ActFormat::kFp8)
        throw UserError(
            ExitCode::kUsage,
            "--act fp8 needs a Hopper card (H100, H200); the CPU takes auto, f32, bf16, int8 "
            "or nvfp4");
    labels.resize(kDTypes);
    expert_labels.resize(kDTypes);
    multiplied.resize(kDTypes);
    for (int i = 0; i < kDTypes; ++i) {
        const DType format = static_cast<DType>(i);
        const bool tiles = kernels->panels != nullptr && format != DType::kF32;
        const std::string name = "[" + lower(dtype_info(format).name) + ",";
        const Isa rows_isa = isa == Isa::kAmx ? Isa::kAvx512 : isa;
        const ActFormat act = act_of(format, act_prompt);
        const bool bf16 = act == ActFormat::kBF16 || act == ActFormat::kNvfp4;
        for (size_t prompt = 0; prompt < 2; ++prompt) {
            const bool int8 =
                act_of(format, prompt == 1 ? act_prompt : act_generated) == ActFormat::kInt8;
            multiplied[static_cast<size_t>(i)][prompt] = prompt == 1 && tiles && bf16
                                                             ? Operands::k16Bits
                                                         : int8 ? Operands::kInt8
                                                                : Operands::kF32;
            const Isa runs = prompt == 1 && tiles && bf16 ? isa : rows_isa;
            const std::string kernel = name + std::string(isa_name(runs)) + "]";
            labels[static_cast<size_t>(i)][prompt] = "linear" + kernel;
            expert_labels[static_cast<size_t>(i)][prompt] = "linear_experts" + kernel;
        }
    }
}

/// NVFP4 activations belong to FP4 weights; plain weights gain nothing from activations coarser
/// than themselves.
ActFormat CpuOps::Linear::act_of(DType stored, ActFormat chosen) const {
    if (chosen == ActFormat::kF32 || stored == DType::kF32) return ActFormat::kF32;
    if (chosen == ActFormat::kNvfp4 && !is_fp4(stored)) return ActFormat::kBF16;
    if (chosen == ActFormat::kInt8 && kernels->bytes[static_cast<size_t>(stored)] == nullptr)
        return ActFormat::kF32;
    return chosen;
}

ActWants CpuOps::Linear::wants(DType format) const {
    const DType stored = stored_format(format);
    return {bit_of(act_of(stored, act_prompt)), bit_of(act_of(stored, act_generated)), nvfp4};
}

int64_t act_stride(int64_t cols) {
    return (round_up(cols, kUnitCols) / kUnitCols | 1) * kUnitCols;
}

GemmInput allocate_input(Exec& ex, int64_t rows, int64_t cols, ActWants wants) {
    return make_input(ex, rows, cols, wants, /*skip_f32=*/false);
}

int64_t CpuOps::upload_bytes(const HostWeight& weight) const {
    return weight.experts * matrix_bytes(shape_of(weight)) +
           round_up(weight.experts * static_cast<int64_t>(sizeof(float)), kAlignment);
}

Weight CpuOps::upload(const HostWeight& weight) {
    check(weight.scales.size() <= 1 || weight.scales.size() == static_cast<size_t>(weight.experts),
          "upload: one scale, or one per expert");
    const PackedShape shape = shape_of(weight);
    const int64_t codes_bytes = shape.matrix_code_bytes() * weight.experts;
    const int64_t scales_bytes = shape.matrix_scale_bytes() * weight.experts;
    std::byte* codes = allocate_weight(static_cast<size_t>(upload_bytes(weight)));
    std::byte* scales = codes + codes_bytes;
    float* outer = reinterpret_cast<float*>(scales + scales_bytes);
    for (int32_t expert = 0; expert < weight.experts; ++expert) {
        const size_t index = static_cast<size_t>(expert);
        outer[index] = weight.scales.empty()       ? 1.0f
                       : weight.scales.size() == 1 ? weight.scales[0]
                                                   : weight.scales[index];
    }
    const int64_t expert_bytes = weight.rows * dtype_bytes(weight.format, weight.cols);
    const int64_t blocks = shape.blocks * weight.experts;
    // The thread that packs a row block is the one that will multiply it: on machines with several
    // memory nodes its pages stay close.
    pool_.run([&](int32_t thread) {
        const Range range = share(blocks, 1, thread, pool_.size());
        for (int64_t i = range.begin; i < range.end; ++i) {
            const int64_t expert = i / shape.blocks, block = i % shape.blocks;
            pack_block({.format = weight.format,
                        .rows = weight.rows,
                        .cols = weight.cols,
                        .source = weight.data + expert * expert_bytes,
                        .block = block,
                        .codes = codes + expert * shape.matrix_code_bytes() +
                                 block * shape.block_code_bytes(),
                        .scales = scales + expert * shape.matrix_scale_bytes() +
                                  block * shape.block_scale_bytes()});
        }
    });
    Weight out;
    out.format = stored_format(weight.format);
    out.rows = weight.rows;
    out.cols = weight.cols;
    out.experts = weight.experts;
    out.codes = codes;
    out.scales = scales;
    out.outer_scale = outer;
    out.wants = linear_->wants(weight.format);
    return out;
}

void CpuOps::embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) {
    check(out.rows() == ids.elements() && out.cols() == table.cols && table.experts == 1,
          "embed: shapes");
    const int64_t rows = ids.elements(), cols = table.cols;
    if (ex.planning() || rows == 0) return;
    const PackedShape shape = packed_shape(table.format, table.rows, cols);
    const double elements = static_cast<double>(rows * cols);
    const Timed timed(*this, "embed", elements, 5 * elements);
    const float outer = table.outer_scale[0];
    const auto decode = [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const int64_t id = ids.as<int32_t>()[t];
            check(id >= 0 && id < table.rows, "embed: id outside the table");
            const int64_t block = id / kBlockRows;
            float* values = out.row<float>(t);
            unpack_row(table.format, table.codes + block * shape.block_code_bytes(),
                       table.scales + block * shape.block_scale_bytes(), id % kBlockRows, cols,
                       values);
            for (int64_t k = 0; k < cols; ++k) values[k] *= outer;
        }
    };
    if (rows == 1) return decode(0, 1);
    pool_.run([&](int32_t thread) {
        const Range range = share(rows, 1, thread, pool_.size());
        decode(range.begin, range.end);
    });
}

GemmInput CpuOps::prepare(Exec& ex, const Tensor& x, ActWants wants) {
    check(x.rank == 2 && x.dtype == DType::kF32, "prepare: x");
    const int64_t rows = x.rows(), cols = x.cols();
    GemmInput input = make_input(ex, rows, cols, wants, /*skip_f32=*/true);
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, rows);
    // Views are in order of ActFormat: f32 comes first, and is x itself.
    const uint8_t f32 = bit_of(ActFormat::kF32);
    if (prompt > 0 && (wants.prompt & f32) != 0) input.prompt[0].values = x.slice_rows(0, prompt);
    if (rows > prompt && (wants.generated & f32) != 0)
        input.generated[0].values = x.slice_rows(prompt, rows - prompt);
    const bool rounds = (prompt > 0 && (wants.prompt & ~f32) != 0) ||
                        (rows > prompt && (wants.generated & ~f32) != 0);
    const bool nvfp4 = ((wants.prompt | wants.generated) & bit_of(ActFormat::kNvfp4)) != 0;
    const int64_t padded = nvfp4 ? round_up(cols, 64) : 0;
    const Scope scope(ex.arena);
    Tensor values, codes;
    if (nvfp4) {
        values = ex.arena.allocate(DType::kF32, {pool_.size(), padded});
        codes = ex.arena.allocate(DType::kNVFP4, {pool_.size(), padded});
    }
    if (ex.planning() || rows == 0 || !rounds) return input;
    const Timed timed(*this, "prepare", 0, 6 * static_cast<double>(x.elements()));
    const auto round = [&](int32_t thread, int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const bool is_prompt = t < prompt;
            const RoundRows rounder{*linear_->kernels,
                                    x,
                                    is_prompt ? int64_t{0} : prompt,
                                    values.as<float>() + thread * padded,
                                    codes.as<std::byte>() + thread * (padded / 64 * 36),
                                    wants.nvfp4};
            for (const ActView& view : is_prompt ? input.prompt : input.generated) {
                if (view.values.absent() || view.format == ActFormat::kF32) continue;
                rounder.row(view, is_prompt ? t : t - prompt);
            }
        }
    };
    if (rows * cols < kParallelElements) {
        round(0, 0, rows);
        return input;
    }
    pool_.run([&](int32_t thread) {
        const Range range = share(rows, 1, thread, pool_.size());
        round(thread, range.begin, range.end);
    });
    return input;
}

}  // namespace tessera::cpu
