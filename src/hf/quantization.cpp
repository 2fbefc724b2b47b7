#include "hf/quantization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/codec.h"
#include "core/error.h"

namespace tessera {
namespace {

constexpr int64_t kBlock = 16;       // elements under one NVFP4 scale
constexpr int64_t kSuperBlock = 64;  // elements of a GGUF block

constexpr std::array<std::string_view, 6> kScaleSuffixes{
    ".weight_scale",        ".weight_scale_2", ".weight_scale_inv",
    ".weight_global_scale", ".input_scale",    ".input_global_scale"};
// Of a quantized key/value cache, which is our own business.
constexpr std::array<std::string_view, 3> kCacheSuffixes{".k_scale", ".v_scale", ".q_scale"};

[[noreturn]] void fail_scheme(const std::string& folder, std::string_view what) {
    fail_folder(folder, fmt::format("quantization {} is not supported; NVFP4 (ModelOpt or "
                                    "compressed-tensors) and FP8 with a scale a matrix or row are",
                                    what));
}

void check_modelopt(const JsonObject& config, const std::string& folder) {
    static constexpr std::array<std::string_view, 5> kKnown{
        "NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION"};
    const auto check_algorithm = [&](const std::string& name) {
        if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end())
            fail_scheme(folder, fmt::format("'modelopt' with quant_algo '{}'", name));
    };
    if (const std::optional<std::string> name = config.find_string("quant_algo"))
        check_algorithm(*name);
    const std::optional<JsonObject> layers = config.find_object("quantized_layers");
    if (!layers) return;
    for (const auto& [layer, entry] : layers->json().items()) {
        const JsonObject options(entry, layers->where() + ": '" + layer + "'");
        if (const std::optional<std::string> name = options.find_string("quant_algo"))
            check_algorithm(*name);
    }
}

void check_compressed_tensors(const JsonObject& config, const std::string& folder) {
    static constexpr std::array<std::string_view, 3> kKnown{"nvfp4-pack-quantized",
                                                            "float-quantized", "naive-quantized"};
    const auto check_format = [&](const std::string& name) {
        if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end())
            fail_scheme(folder, fmt::format("'compressed-tensors' with format '{}'", name));
    };
    const std::optional<JsonObject> transforms = config.find_object("transform_config");
    if (transforms && !transforms->json().empty())
        fail_scheme(folder, "'compressed-tensors' with transformed weights");
    const std::string format = config.find_string("format").value_or("mixed-precision");
    if (format != "mixed-precision") return check_format(format);
    const std::optional<JsonObject> groups = config.find_object("config_groups");
    if (!groups) return;
    for (const auto& [name, entry] : groups->json().items()) {
        const JsonObject group(entry, groups->where() + ": '" + name + "'");
        if (const std::optional<std::string> of_group = group.find_string("format"))
            check_format(*of_group);
    }
}

std::optional<DType> plain_type(SafetensorsType type) {
    switch (type) {
        case SafetensorsType::kF32:
            return DType::kF32;
        case SafetensorsType::kF16:
            return DType::kF16;
        case SafetensorsType::kBF16:
            return DType::kBF16;
        default:
            return std::nullopt;
    }
}

/// Finds and checks what belongs to one weight.
class WeightFinder {
  public:
    WeightFinder(const Checkpoint& checkpoint, const std::string& name)
        : checkpoint_(checkpoint), name_(name) {
        static constexpr std::string_view kSuffix = ".weight";
        base_ = name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
    }

    std::optional<StoredWeight> find() {
        weight_.name = name_;
        const SafetensorsTensor* packed = checkpoint_.find(base_ + ".weight_packed");
        const SafetensorsTensor* plain = checkpoint_.find(name_);
        if (packed != nullptr && plain != nullptr)
            checkpoint_.fail_tensor(name_, "is there twice, as '.weight' and '.weight_packed'");
        weight_.elements = packed != nullptr ? packed : plain;
        if (weight_.elements == nullptr) return std::nullopt;
        const std::vector<int64_t>& shape = weight_.elements->shape;
        if (std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n == 0; }))
            checkpoint_.fail_tensor(name_, "is empty");
        if (checkpoint_.find(base_ + ".weight_scale_inv") != nullptr)
            fail_scheme(checkpoint_.folder(), "FP8 in blocks (tensors '.weight_scale_inv')");
        weight_.scales = checkpoint_.find(base_ + ".weight_scale");
        if (packed != nullptr)
            read_nvfp4(".weight_global_scale", ".input_global_scale", /*divisors=*/true);
        else if (plain->type == SafetensorsType::kU8)
            read_nvfp4(".weight_scale_2", ".input_scale", /*divisors=*/false);
        else if (plain->type == SafetensorsType::kF8E4M3)
            read_fp8();
        else
            read_plain();
        return weight_;
    }

  private:
    void read_plain() {
        const SafetensorsTensor& elements = *weight_.elements;
        const std::optional<DType> type = plain_type(elements.type);
        if (!type)
            checkpoint_.fail_tensor(name_, fmt::format("is {}, expected BF16, F16, F32 or a "
                                                       "quantized weight",
                                                       safetensors_type_name(elements.type)));
        if (weight_.scales != nullptr)
            checkpoint_.fail_tensor(base_ + ".weight_scale",
                                    fmt::format("scales weights of {}, which is not supported",
                                                safetensors_type_name(elements.type)));
        weight_.dtype = *type;
        set_shape(elements.shape, 1);
    }

    void read_nvfp4(const char* factor, const char* input_factor, bool divisors) {
        weight_.layout = WeightLayout::kNvfp4;
        weight_.dtype = DType::kNVFP4;
        if (weight_.elements->type != SafetensorsType::kU8 || weight_.elements->shape.size() != 2)
            checkpoint_.fail_tensor(weight_.elements->name,
                                    fmt::format("is {} [{}], expected U8 codes of a matrix",
                                                safetensors_type_name(weight_.elements->type),
                                                fmt::join(weight_.elements->shape, ", ")));
        set_shape(weight_.elements->shape, 2);
        if (weight_.cols % kSuperBlock != 0)
            checkpoint_.fail_tensor(name_, fmt::format("has rows of {} weights; NVFP4 is read in "
                                                       "rows of a multiple of {}",
                                                       weight_.cols, kSuperBlock));
        const std::vector<int64_t> expected{weight_.rows, weight_.cols / kBlock};
        require_scales(SafetensorsType::kF8E4M3, expected);
        weight_.factor = read_factor(factor, divisors);
        weight_.input_factor = read_factor(input_factor, divisors);
    }

    void read_fp8() {
        weight_.layout = WeightLayout::kFp8;
        weight_.dtype = DType::kBF16;
        set_shape(weight_.elements->shape, 1);
        if (weight_.scales == nullptr)
            checkpoint_.fail_tensor(base_ + ".weight_scale", "is missing beside weights of FP8");
        const std::vector<int64_t>& shape = weight_.scales->shape;
        const bool of_rows = weight_.matrices == 1 && !shape.empty() && shape[0] == weight_.rows;
        if (weight_.scales->elements() != 1 && !(of_rows && weight_.scales->elements() == shape[0]))
            checkpoint_.fail_tensor(
                weight_.scales->name,
                fmt::format("is [{}], expected one scale or {} (FP8 in blocks is not supported)",
                            fmt::join(shape, ", "), weight_.rows));
        if (!plain_type(weight_.scales->type)) require_scales(SafetensorsType::kF32, shape);
    }

    void require_scales(SafetensorsType type, const std::vector<int64_t>& shape) const {
        const SafetensorsTensor* scales = weight_.scales;
        if (scales == nullptr)
            checkpoint_.fail_tensor(base_ + ".weight_scale", "is missing beside quantized weights");
        if (scales->type != type || scales->shape != shape)
            checkpoint_.fail_tensor(
                scales->name,
                fmt::format("is {} [{}], expected {} [{}]", safetensors_type_name(scales->type),
                            fmt::join(scales->shape, ", "), safetensors_type_name(type),
                            fmt::join(shape, ", ")));
    }

    /// A single positive number, 1 when the tensor is not there.
    float read_factor(const std::string& suffix, bool is_divisor) const {
        const SafetensorsTensor* tensor = checkpoint_.find(base_ + suffix);
        if (tensor == nullptr) return 1.0f;
        const std::optional<DType> type = plain_type(tensor->type);
        if (!type || tensor->elements() != 1)
            checkpoint_.fail_tensor(
                tensor->name, fmt::format("has {} elements of {}, expected 1 of F32",
                                          tensor->elements(), safetensors_type_name(tensor->type)));
        float value = 0.0f;
        dequantize_row(*type, tensor->data, 1, &value);
        const float factor = is_divisor ? 1.0f / value : value;
        if (!std::isfinite(factor) || !std::isfinite(value) || factor < 0.0f)
            checkpoint_.fail_tensor(tensor->name, fmt::format("holds the scale {}", value));
        return factor;
    }

    /// The last axis holds `per_element` weights an element.
    void set_shape(const std::vector<int64_t>& shape, int64_t per_element) {
        if (shape.size() > 3)
            checkpoint_.fail_tensor(name_, fmt::format("has {} axes", shape.size()));
        if (shape.size() == 3) weight_.matrices = shape[0];
        weight_.rows = shape.empty() ? 1 : shape[shape.size() < 2 ? 0 : shape.size() - 2];
        weight_.cols = shape.size() < 2 ? 1 : shape.back() * per_element;
    }

    const Checkpoint& checkpoint_;
    const std::string& name_;
    std::string base_;
    StoredWeight weight_;
};

}  // namespace

bool check_quantization_scheme(const JsonObject& config, const std::string& folder) {
    std::optional<JsonObject> scheme = config.find_object("quantization_config");
    const std::optional<JsonObject> file = JsonObject::open(folder + "/hf_quant_config.json");
    const std::optional<JsonObject> quantization =
        file ? file->find_object("quantization") : std::nullopt;
    if (quantization) {
        check_modelopt(*quantization, folder);
        if (!scheme) return true;
    }
    if (!scheme) return false;
    const std::string method = scheme->find_string("quant_method").value_or(file ? "modelopt" : "");
    if (method.starts_with("modelopt"))  // some name the number format behind it
        check_modelopt(*scheme, folder);
    else if (method == "compressed-tensors")
        check_compressed_tensors(*scheme, folder);
    else
        fail_scheme(folder, fmt::format("'{}'", method));
    return true;
}

std::optional<std::string> weight_name(const Checkpoint& checkpoint, std::string_view name) {
    for (const std::string_view suffix : kCacheSuffixes)
        if (name.ends_with(suffix)) return std::nullopt;
    for (const std::string_view suffix : kScaleSuffixes) {
        if (!name.ends_with(suffix)) continue;
        const std::string base(name.substr(0, name.size() - suffix.size()));
        if (checkpoint.find(base + ".weight") == nullptr &&
            checkpoint.find(base + ".weight_packed") == nullptr)
            checkpoint.fail_tensor(name, "scales a weight that is missing");
        return std::nullopt;
    }
    static constexpr std::string_view kPacked = "_packed";
    if (name.ends_with(".weight_packed")) name.remove_suffix(kPacked.size());
    return std::string(name);
}

std::optional<StoredWeight> find_weight(const Checkpoint& checkpoint, const std::string& name) {
    return WeightFinder(checkpoint, name).find();
}

}  // namespace tessera
