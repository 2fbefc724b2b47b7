// Rows are independent, so a slab of rows is shared among threads by an atomic counter and written
// in order: the file does not depend on the number of threads. NVFP4 with its own matrix scale
// reads a tensor twice (largest value, then codes), which costs less than keeping it in f32.

#include "engine/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <regex>
#include <thread>
#include <unordered_set>

#include "core/error.h"
#include "engine/machine.h"
#include "gguf/gguf_writer.h"

namespace tessera {
namespace {

/// Output bytes that are produced before they are written.
constexpr int64_t kSlabBytes = 16 << 20;

constexpr std::array kTargets{
    QuantizeTarget{"NVFP4", DType::kNVFP4, 39, "4.5 bits: e2m1, e4m3 scale per 16, f32 per matrix"},
    QuantizeTarget{"MXFP4", DType::kMXFP4, 38, "4.25 bits: e2m1, power-of-two scale per 32"},
    QuantizeTarget{"MXFP4_MOE", DType::kMXFP4, 38, "MXFP4 experts, Q8_0 elsewhere"},
    QuantizeTarget{"Q8_0", DType::kQ8_0, 7, "8.5 bits, nearly lossless"},
    QuantizeTarget{"BF16", DType::kBF16, 32, "16 bits, range of f32"},
    QuantizeTarget{"F16", DType::kF16, 1, "16 bits, half precision"},
    QuantizeTarget{"F32", DType::kF32, 0, "32 bits"},
    QuantizeTarget{"Q4_0", DType::kQ4_0, 2, "4.5 bits, symmetric"},
    QuantizeTarget{"Q4_1", DType::kQ4_1, 3, "5 bits, with offset"},
    QuantizeTarget{"Q5_0", DType::kQ5_0, 8, "5.5 bits, symmetric"},
    QuantizeTarget{"Q5_1", DType::kQ5_1, 9, "6 bits, with offset"},
    QuantizeTarget{"Q4_K", DType::kQ4_K, 15, "as Q4_K_M"},
    QuantizeTarget{"Q4_K_M", DType::kQ4_K, 15, "4.5 bits, sensitive tensors in Q6_K"},
    QuantizeTarget{"Q4_K_S", DType::kQ4_K, 14, "4.5 bits, first layers in Q5_K"},
    QuantizeTarget{"Q5_K", DType::kQ5_K, 17, "as Q5_K_M"},
    QuantizeTarget{"Q5_K_M", DType::kQ5_K, 17, "5.5 bits, sensitive tensors in Q6_K"},
    QuantizeTarget{"Q5_K_S", DType::kQ5_K, 16, "5.5 bits"},
    QuantizeTarget{"Q6_K", DType::kQ6_K, 18, "6.6 bits"},
    QuantizeTarget{"COPY", DType::kF32, -1, "every tensor as it is"},
};

constexpr std::array kFormats{DType::kNVFP4, DType::kMXFP4, DType::kQ8_0, DType::kBF16,
                              DType::kF16,   DType::kF32,   DType::kQ4_0, DType::kQ4_1,
                              DType::kQ5_0,  DType::kQ5_1,  DType::kQ4_K, DType::kQ5_K,
                              DType::kQ6_K};

bool contains(std::string_view name, std::string_view part) {
    return name.find(part) != std::string_view::npos;
}

/// Small or sensitive matrices that stay as they are.
bool stays(const GgufTensor& tensor, const QuantizeOptions& options) {
    static constexpr std::array<std::string_view, 12> kKept{"_norm.weight",
                                                            "ffn_gate_inp.weight",
                                                            "ssm_conv1d",
                                                            "shortconv.conv",
                                                            "altup",
                                                            "laurel",
                                                            "per_layer_model_proj",
                                                            "indexer.k_proj.weight",
                                                            "indexer.q_proj.weight",
                                                            "position_embd",
                                                            "token_types",
                                                            "attn_rel_b.weight"};
    const std::string_view name = tensor.name;
    const bool is_vector = tensor.elements() == tensor.shape[0];
    if (options.target->file_type < 0 || is_vector) return true;
    if (options.keep_quantized && is_block_format(tensor.dtype)) return true;
    if (!name.ends_with("weight") || (options.leave_output && name == "output.weight")) return true;
    return std::any_of(kKept.begin(), kKept.end(),
                       [&](std::string_view part) { return contains(name, part); });
}

/// Weights whose `.scale` llama.cpp reads; others go without a second-level scale.
bool may_have_scale(std::string_view name) {
    static constexpr std::array<std::string_view, 18> kNames{
        "attn_q",       "attn_k",         "attn_v",        "attn_output", "attn_qkv",
        "attn_gate",    "ffn_gate",       "ffn_up",        "ffn_down",    "ffn_gate_shexp",
        "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
        "ssm_in",       "ssm_out",        "nextn.eh_proj"};
    if (name == "output.weight") return true;
    if (!name.starts_with("blk.") || !name.ends_with(".weight")) return false;
    const size_t dot = name.find('.', 4);
    if (dot == std::string_view::npos || dot + 1 + 7 > name.size()) return false;
    const std::string_view part = name.substr(dot + 1, name.size() - dot - 1 - 7);
    return std::find(kNames.begin(), kNames.end(), part) != kNames.end();
}

std::string scale_name(std::string_view weight) {
    return std::string(weight.substr(0, weight.size() - std::string_view("weight").size())) +
           "scale";
}

/// The rules of llama-quantize that look at the whole model.
class TypeChooser {
  public:
    TypeChooser(const GgufFile& file, const QuantizeOptions& options)
        : options_(options), tied_(file.find_tensor("output.weight") == nullptr) {
        const std::string arch = file.get_string("general.architecture").value_or("");
        layers_ = file.get_int(arch + ".block_count").value_or(0);
        trunk_ = layers_ - file.get_int(arch + ".nextn_predict_layers").value_or(0);
        for (const auto& [pattern, type] : options.tensor_types) {
            try {
                patterns_.emplace_back(std::regex(pattern), type);
            } catch (const std::regex_error&) {
                throw UserError(
                    ExitCode::kUsage,
                    fmt::format("--tensor-type: '{}' is not a regular expression", pattern));
            }
        }
        used_.resize(patterns_.size());
    }

    DType choose(const GgufTensor& tensor) {
        const bool is_output = tensor.name == "output.weight";
        const bool is_embedding = tensor.name == "token_embd.weight";
        if (is_embedding && options_.embedding_type) return *options_.embedding_type;
        if (is_output && options_.output_type) return *options_.output_type;
        for (size_t i = 0; i < patterns_.size(); ++i) {
            if (!std::regex_search(tensor.name, patterns_[i].first)) continue;
            used_[i] = true;
            return patterns_[i].second;
        }
        const DType type = options_.target->dtype;
        if (options_.pure || !is_block_format(type)) return type;
        if (is_output || is_embedding) return edge_type(type, is_output);
        return layer_type(tensor, type);
    }

    void refuse_unused_patterns() const {
        for (size_t i = 0; i < used_.size(); ++i) {
            if (!used_[i])
                throw UserError(ExitCode::kUsage, fmt::format("--tensor-type: '{}' fits no tensor",
                                                              options_.tensor_types[i].first));
        }
    }

  private:
    /// Output and embedding matrices. FP4 files keep both in Q8_0: a quarter bit per weight of the
    /// whole model, and no GGUF reader takes a second-level scale for an embedding.
    DType edge_type(DType type, bool is_output) const {
        if (!is_output && tied_ && options_.output_type) return *options_.output_type;
        if (type == DType::kNVFP4 || type == DType::kMXFP4) return DType::kQ8_0;
        if (!is_output && !tied_) return type;
        return type == DType::kQ8_0 ? DType::kQ8_0 : DType::kQ6_K;
    }

    DType layer_type(const GgufTensor& tensor, DType type) const {
        if (options_.target->name == "MXFP4_MOE" && tensor.shape[2] == 1) return DType::kQ8_0;
        int64_t layer = -1;
        if (std::sscanf(tensor.name.c_str(), "blk.%ld.", &layer) != 1) return type;
        // Drafts have to agree with the trunk, gates of a recurrence act on every later token, and
        // both are small.
        const bool sensitive = (trunk_ < layers_ && layer >= trunk_) ||
                               contains(tensor.name, "ssm_alpha") ||
                               contains(tensor.name, "ssm_beta");
        if (sensitive && (type == DType::kNVFP4 || type == DType::kMXFP4)) return DType::kQ8_0;
        const bool value = contains(tensor.name, "attn_v.weight");
        const bool down = contains(tensor.name, "ffn_down");
        const int64_t n = layers_;
        const bool more = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
        switch (options_.target->file_type) {
            case 14:
                if ((value && layer < 4) || (down && layer < n / 8)) return DType::kQ5_K;
                return type;
            case 15:
                return (value || down) && more             ? DType::kQ6_K
                       : contains(tensor.name, "attn_qkv") ? DType::kQ5_K
                                                           : type;
            case 17:
                return ((value || down) && more) || contains(tensor.name, "attn_qkv") ? DType::kQ6_K
                                                                                      : type;
            default:
                return type;
        }
    }

    const QuantizeOptions& options_;
    bool tied_;
    int64_t layers_ = 0, trunk_ = 0;
    std::vector<std::pair<std::regex, DType>> patterns_;
    std::vector<bool> used_;
};

/// What a tensor needs for a second-level scale: at most three axes, and one factor for all of its
/// matrices or one for each where the input brings factors along.
void check_scalable(const GgufFile& file, const GgufTensor& tensor) {
    if (tensor.shape[3] != 1)
        throw UserError(ExitCode::kModel,
                        fmt::format("{}: tensor '{}' has four axes, a matrix or a list of matrices "
                                    "was expected",
                                    file.path(), tensor.name));
    const GgufTensor* factors = file.find_tensor(scale_name(tensor.name));
    if (factors == nullptr) return;
    if (factors->dtype != DType::kF32 ||
        (factors->elements() != 1 && factors->elements() != tensor.shape[2]))
        throw UserError(ExitCode::kModel,
                        fmt::format("{}: tensor '{}' has {} elements of {}, expected {} of F32",
                                    file.path(), factors->name, factors->elements(),
                                    dtype_info(factors->dtype).name, tensor.shape[2]));
}

/// A format whose block divides the width.
DType fallback(DType wanted, int64_t cols) {
    const auto fits = [&](DType type) { return cols % dtype_info(type).block_elements == 0; };
    if (fits(wanted)) return wanted;
    DType next = DType::kQ8_0;
    if (wanted == DType::kQ4_K) next = DType::kQ5_0;
    if (wanted == DType::kQ5_K) next = DType::kQ5_1;
    return fits(next) ? next : DType::kF16;
}

int64_t bytes_of(const TensorChoice& choice) {
    const GgufTensor& tensor = *choice.tensor;
    const int64_t rows = tensor.elements() / tensor.shape[0];
    const int64_t scale = choice.own_scale ? 4 * tensor.shape[2] : 0;
    return rows * dtype_bytes(choice.target, tensor.shape[0]) + scale;
}

/// Threads over the rows of one tensor at a time.
class RowWorkers {
  public:
    explicit RowWorkers(int32_t threads) : threads_(threads) {}

    /// Calls task(row) for every row in [first, last), from several threads.
    template <class Task>
    void run(int64_t first, int64_t last, const Task& task) const {
        constexpr int64_t kGrain = 4;
        std::atomic<int64_t> next{first};
        const auto work = [&] {
            while (true) {
                const int64_t row = next.fetch_add(kGrain);
                if (row >= last) return;
                for (int64_t r = row; r < std::min(row + kGrain, last); ++r) task(r);
            }
        };
        const int64_t useful = (last - first + kGrain - 1) / kGrain;
        std::vector<std::thread> team;
        for (int64_t i = 1; i < std::min<int64_t>(threads_, useful); ++i) team.emplace_back(work);
        work();
        for (std::thread& thread : team) thread.join();
    }

  private:
    int32_t threads_;
};

class Converter {
  public:
    Converter(const GgufFile& file,
              const QuantizeOptions& options,
              GgufWriter& writer,
              const QuantizeProgress& progress,
              int64_t total)
        : file_(file),
          options_(options),
          writer_(writer),
          progress_(progress),
          total_(total),
          workers_(options.threads > 0 ? options.threads : physical_cores()) {}

    void convert(const TensorChoice& choice) {
        const GgufTensor& tensor = *choice.tensor;
        data_ = tensor_bytes(tensor, buffer_).data();
        std::vector<float> scales;
        if (choice.own_scale) scales = matrix_scales(tensor);
        if (choice.target == tensor.dtype) {
            copy(tensor);
        } else {
            encode(choice, scales);
        }
        if (choice.own_scale) write_scales(tensor, scales);
        file_.release_pages(tensor);
    }

  private:
    const std::byte* row_data(const GgufTensor& tensor, int64_t row) const {
        return data_ + row * dtype_bytes(tensor.dtype, tensor.shape[0]);
    }

    void copy(const GgufTensor& tensor) {
        for (int64_t offset = 0; offset < tensor.bytes; offset += kSlabBytes) {
            const int64_t bytes = std::min(kSlabBytes, tensor.bytes - offset);
            writer_.write(data_ + offset, bytes);
            advance(bytes);
        }
    }

    /// Largest magnitude of each matrix, as NVFP4's second-level scale.
    std::vector<float> matrix_scales(const GgufTensor& tensor) const {
        const auto matrices = static_cast<size_t>(tensor.shape[2]);
        std::vector<float> largest(matrices, 0.0f);
        std::mutex mutex;
        const int64_t rows = tensor.shape[1];
        workers_.run(0, rows * tensor.shape[2], [&](int64_t row) {
            thread_local std::vector<float> values;
            values.resize(static_cast<size_t>(tensor.shape[0]));
            dequantize_row(tensor.dtype, row_data(tensor, row), tensor.shape[0], values.data());
            float amax = 0.0f;
            for (const float value : values) amax = std::max(amax, std::fabs(value));
            const std::lock_guard<std::mutex> lock(mutex);
            float& of_matrix = largest[static_cast<size_t>(row / rows)];
            of_matrix = std::max(of_matrix, amax);
        });
        for (float& scale : largest) scale = nvfp4_tensor_scale(&scale, 1);
        return largest;
    }

    void encode(const TensorChoice& choice, const std::vector<float>& scales) {
        const GgufTensor& tensor = *choice.tensor;
        const int64_t cols = tensor.shape[0];
        const int64_t rows = tensor.elements() / cols;
        const int64_t row_bytes = dtype_bytes(choice.target, cols);
        const int64_t slab = std::clamp<int64_t>(kSlabBytes / row_bytes, 1, rows);
        slab_.resize(static_cast<size_t>(slab * row_bytes));
        std::atomic<bool> finite{true};
        for (int64_t first = 0; first < rows; first += slab) {
            const int64_t last = std::min(first + slab, rows);
            workers_.run(first, last, [&](int64_t row) {
                thread_local std::vector<float> values;
                values.resize(static_cast<size_t>(cols));
                dequantize_row(tensor.dtype, row_data(tensor, row), cols, values.data());
                const float scale =
                    scales.empty() ? 1.0f : scales[static_cast<size_t>(row / tensor.shape[1])];
                for (float& value : values) {
                    if (!std::isfinite(value)) finite = false;
                    value /= scale;
                }
                if (finite)
                    quantize_row(choice.target, values.data(), cols,
                                 slab_.data() + (row - first) * row_bytes, options_.policy);
            });
            if (!finite)
                throw UserError(ExitCode::kModel,
                                fmt::format("{}: tensor '{}' holds a NaN or an infinity",
                                            file_.path(), tensor.name));
            writer_.write(slab_.data(), (last - first) * row_bytes);
            advance((last - first) * dtype_bytes(tensor.dtype, cols));
        }
    }

    /// An input that has a second-level scale already keeps it as a factor.
    void write_scales(const GgufTensor& tensor, std::vector<float>& scales) {
        if (const GgufTensor* before = file_.find_tensor(scale_name(tensor.name))) {
            std::vector<float> factors(static_cast<size_t>(before->elements()));
            std::vector<std::byte> buffer;
            dequantize_row(before->dtype, tensor_bytes(*before, buffer).data(), before->elements(),
                           factors.data());
            for (size_t i = 0; i < scales.size(); ++i)
                scales[i] *= factors[factors.size() == 1 ? 0 : i];
        }
        writer_.write(reinterpret_cast<const std::byte*>(scales.data()),
                      static_cast<int64_t>(scales.size() * sizeof(float)));
    }

    void advance(int64_t bytes) {
        done_ += bytes;
        if (progress_) progress_(done_, total_);
    }

    const GgufFile& file_;
    const QuantizeOptions& options_;
    GgufWriter& writer_;
    const QuantizeProgress& progress_;
    int64_t total_;
    int64_t done_ = 0;
    RowWorkers workers_;
    std::vector<std::byte> slab_;
    const std::byte* data_ = nullptr;  ///< of the current tensor
    std::vector<std::byte> buffer_;    ///< where it is produced, if it is
};

void write_keys(const GgufFile& file, const QuantizeOptions& options, GgufWriter& writer) {
    for (const GgufKeyValue& entry : file.key_values()) {
        if (entry.key.starts_with("split.")) continue;
        writer.set(entry.key, entry.value);
    }
    const auto is_block = [](const GgufTensor& tensor) { return is_block_format(tensor.dtype); };
    const bool keeps = options.keep_quantized &&
                       std::any_of(file.tensors().begin(), file.tensors().end(), is_block);
    if (options.target->file_type >= 0 && !keeps) {
        writer.set_u32("general.quantization_version", 2);
        writer.set_u32("general.file_type", static_cast<uint32_t>(options.target->file_type));
    }
    for (const auto& [key, value] : options.kv_overrides) {
        if (key == "general.alignment" || key.starts_with("split."))
            throw UserError(ExitCode::kUsage,
                            fmt::format("--override-kv: '{}' describes the file that is read, not "
                                        "the model",
                                        key));
        writer.set(key, value);
    }
}

std::vector<int64_t> shape_of(const GgufTensor& tensor) {
    return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

}  // namespace

std::span<const QuantizeTarget> quantize_targets() {
    return kTargets;
}

const QuantizeTarget* find_quantize_target(std::string_view name) {
    const auto same = [](std::string_view a, std::string_view b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
            return std::toupper(static_cast<unsigned char>(x)) ==
                   std::toupper(static_cast<unsigned char>(y));
        });
    };
    for (const QuantizeTarget& target : kTargets)
        if (same(target.name, name)) return &target;
    for (const QuantizeTarget& target : kTargets)
        if (target.file_type >= 0 && std::to_string(target.file_type) == name) return &target;
    return nullptr;
}

std::span<const DType> quantize_formats() {
    return kFormats;
}

std::vector<TensorChoice> plan_quantize(const GgufFile& file, const QuantizeOptions& options) {
    TypeChooser chooser(file, options);
    std::vector<TensorChoice> plan;
    std::unordered_set<std::string> replaced_scales;
    for (const GgufTensor& tensor : file.tensors()) {
        TensorChoice choice;
        choice.tensor = &tensor;
        choice.target = tensor.dtype;
        if (!stays(tensor, options)) {
            const DType wanted = chooser.choose(tensor);
            choice.target = fallback(wanted, tensor.shape[0]);
            choice.fell_back = choice.target != wanted;
        }
        const bool changes = choice.target != tensor.dtype;
        if (changes && is_block_format(tensor.dtype) && !options.allow_requantize)
            throw UserError(
                ExitCode::kModel,
                fmt::format("{}: tensor '{}' is {} already; --allow-requantize accepts the loss",
                            file.path(), tensor.name, dtype_info(tensor.dtype).name));
        choice.own_scale = changes && choice.target == DType::kNVFP4 && may_have_scale(tensor.name);
        if (choice.own_scale) {
            check_scalable(file, tensor);
            replaced_scales.insert(scale_name(tensor.name));
        }
        choice.bytes_after = bytes_of(choice);
        plan.push_back(choice);
    }
    chooser.refuse_unused_patterns();
    std::erase_if(plan, [&](const TensorChoice& choice) {
        return replaced_scales.contains(choice.tensor->name);
    });
    return plan;
}

void quantize_file(const GgufFile& file,
                   const QuantizeOptions& options,
                   const std::vector<TensorChoice>& plan,
                   const QuantizeProgress& progress) {
    std::error_code ignored;
    if (std::filesystem::equivalent(file.path(), options.output + ".part", ignored))
        throw UserError(ExitCode::kUsage,
                        fmt::format("{} is where the output is written until it is complete: give "
                                    "the output another name",
                                    file.path()));
    GgufWriter writer(options.output);
    write_keys(file, options, writer);
    int64_t total = 0;
    for (const TensorChoice& choice : plan) {
        const GgufTensor& tensor = *choice.tensor;
        writer.add_tensor(tensor.name, choice.target, shape_of(tensor));
        if (choice.own_scale)
            writer.add_tensor(scale_name(tensor.name), DType::kF32, {tensor.shape[2]});
        total += tensor.bytes;
    }
    writer.begin_data();
    Converter converter(file, options, writer, progress, total);
    for (const TensorChoice& choice : plan) converter.convert(choice);
    writer.finish();
}

}  // namespace tessera
