// Registry of architectures and the loader that all of them share.
#include "models/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include "core/codec.h"
#include "core/nearest.h"
#include "models/llama.h"
#include "models/qwen35.h"

namespace tessera {
namespace {

struct Architecture {
    std::string_view name;
    std::unique_ptr<Model> (*make)(const GgufFile& file, const ModelOptions& options);
};
constexpr std::array kArchitectures = {
    Architecture{"llama", &make_llama},   Architecture{"qwen2", &make_llama},
    Architecture{"qwen3", &make_llama},   Architecture{"qwen3moe", &make_llama},
    Architecture{"qwen35", &make_qwen35}, Architecture{"qwen35moe", &make_qwen35},
};
constexpr std::array<std::string_view, kArchitectures.size()> kNames = [] {
    std::array<std::string_view, kArchitectures.size()> names{};
    for (size_t i = 0; i < names.size(); ++i) names[i] = kArchitectures[i].name;
    return names;
}();

[[noreturn]] void fail(const GgufFile& file, const std::string& message) {
    throw UserError(ExitCode::kModel, fmt::format("{}: {}", file.path(), message));
}

/// Shape of a file tensor in our order, outermost first, without padding axes.
std::vector<int64_t> rows_major_shape(const GgufTensor& tensor) {
    std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
    std::reverse(shape.begin(), shape.end());
    return shape;
}

bool is_integer(DType dtype) {
    return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 ||
           dtype == DType::kI64;
}

/// The tensor of a row of the table, with the shape checked; nullptr for an absent optional one.
const GgufTensor* find_checked(const GgufFile& file, const WeightRow& row) {
    const GgufTensor* tensor = file.find_tensor(row.tensor);
    if (tensor == nullptr) {
        if (row.required) fail(file, fmt::format("tensor '{}' is missing", row.tensor));
        return nullptr;
    }
    if (is_integer(tensor->dtype))
        fail(file, fmt::format("tensor '{}' is {}, expected floating-point numbers", row.tensor,
                               dtype_info(tensor->dtype).name));
    const std::vector<int64_t> found = rows_major_shape(*tensor);
    const auto missing_ones = std::ssize(row.shape) - std::ssize(found);
    const bool fits = missing_ones >= 0 &&
                      std::all_of(row.shape.begin(), row.shape.begin() + missing_ones,
                                  [](int64_t extent) { return extent == 1; }) &&
                      std::equal(found.begin(), found.end(), row.shape.begin() + missing_ones);
    if (!fits)
        fail(file, fmt::format("tensor '{}' is [{}], expected [{}]", row.tensor,
                               fmt::join(found, ", "), fmt::join(row.shape, ", ")));
    return tensor;
}

/// Names that the second-level scale of `<base>.weight` goes by.
std::array<std::string, 2> scale_names(const std::string& tensor) {
    const std::string base = tensor.substr(0, tensor.rfind(".weight"));
    return {base + ".scale", tensor + ".scale"};
}

/// The second-level scale of a matrix: empty when the file has none.
std::vector<float> read_scale(const GgufFile& file, const std::string& tensor, int64_t count) {
    for (const std::string& name : scale_names(tensor)) {
        const GgufTensor* scale = file.find_tensor(name);
        if (scale == nullptr) continue;
        if (scale->dtype != DType::kF32 || scale->elements() != count)
            fail(file, fmt::format("tensor '{}' has {} elements of {}, expected {} of F32", name,
                                   scale->elements(), dtype_info(scale->dtype).name, count));
        std::vector<float> values(static_cast<size_t>(count));
        std::vector<std::byte> buffer;
        dequantize_row(DType::kF32, tensor_bytes(*scale, buffer).data(), count, values.data());
        for (const float value : values)
            if (!std::isfinite(value))
                fail(file, fmt::format("tensor '{}' holds the scale {}", name, value));
        return values;
    }
    return {};
}

int32_t expert_count(const WeightRow& row) {
    return row.shape.size() == 3 ? static_cast<int32_t>(row.shape[0]) : 1;
}

HostWeight host_weight(const WeightRow& row,
                       const GgufTensor& tensor,
                       const std::byte* data,
                       std::span<const float> scale) {
    const size_t last = row.shape.size() - 1;
    return {.name = row.tensor,
            .format = tensor.dtype,
            .rows = row.shape[last - 1],
            .cols = row.shape[last],
            .experts = expert_count(row),
            .data = data,
            .scales = scale};
}

Tensor vector_tensor(std::byte* memory, const WeightRow& row) {
    if (row.shape.size() == 2)
        return make_tensor(memory, DType::kF32, {row.shape[0], row.shape[1]});
    return make_tensor(memory, DType::kF32, {row.shape[0]});
}

/// Small F32 vectors (norm gains, biases, taps of a convolution) live as they are.
Tensor load_vector(const GgufTensor& tensor,
                   const WeightRow& row,
                   Ops& ops,
                   std::vector<std::byte>& buffer) {
    const int64_t count = tensor.elements();
    std::vector<float> values(static_cast<size_t>(count));
    dequantize_row(tensor.dtype, tensor_bytes(tensor, buffer).data(), count, values.data());
    std::byte* memory = ops.allocate(values.size() * sizeof(float));
    ops.copy_to_device(memory, values.data(), values.size() * sizeof(float));
    return vector_tensor(memory, row);
}

void refuse_unknown_tensors(const GgufFile& file, std::span<const WeightRow> rows) {
    std::unordered_set<std::string> known;
    for (const WeightRow& row : rows) {
        known.insert(row.tensor);
        for (const std::string& name : scale_names(row.tensor)) known.insert(name);
        known.insert(row.tensor.substr(0, row.tensor.rfind(".weight")) + ".input_scale");
    }
    for (const GgufTensor& tensor : file.tensors())
        if (!known.contains(tensor.name))
            fail(file, fmt::format("tensor '{}' is not part of the architecture, so the model "
                                   "would be computed wrongly",
                                   tensor.name));
}

}  // namespace

Tensor Model::draft(Ops&, Exec&, const Batch&, const Tensor&, const Memory&) {
    check(false, "draft: the model has no block for it");
    return {};
}

void Model::draft_logits(Ops&, Exec&, const Tensor&, const Tensor&) {
    check(false, "draft_logits: the model has no block for it");
}

std::span<const std::string_view> known_architectures() {
    return kNames;
}

std::unique_ptr<Model> make_model(const GgufFile& file, const ModelOptions& options) {
    const std::optional<std::string> name = file.get_string("general.architecture");
    if (!name) fail(file, "key 'general.architecture' is missing");
    for (const Architecture& architecture : kArchitectures)
        if (architecture.name == *name) return architecture.make(file, options);
    fail(file, fmt::format("architecture '{}' is not supported; nearest known: {}", *name,
                           nearest_name(*name, kNames)));
}

std::vector<int64_t> planned_weights(const GgufFile& file, Model& model, const Ops& ops) {
    const std::vector<WeightRow> rows = model.weights();
    refuse_unknown_tensors(file, rows);
    std::vector<int64_t> blocks;
    for (const WeightRow& row : rows) {
        const GgufTensor* tensor = find_checked(file, row);
        if (tensor == nullptr) continue;
        if (row.matrix != nullptr) {
            const HostWeight host = host_weight(row, *tensor, tensor->data, {});
            blocks.push_back(ops.upload_bytes(host));
            *row.matrix = {.format = tensor->dtype,
                           .rows = host.rows,
                           .cols = host.cols,
                           .experts = host.experts,
                           .wants = ops.wants(tensor->dtype, host.experts)};
        } else if (row.vector != nullptr) {
            blocks.push_back(tensor->elements() * static_cast<int64_t>(sizeof(float)));
            *row.vector = vector_tensor(nullptr, row);
        }
    }
    return blocks;
}

void load_weights(const GgufFile& file,
                  Model& model,
                  Ops& ops,
                  const std::function<void(int64_t done, int64_t total)>& progress) {
    const std::vector<WeightRow> rows = model.weights();
    refuse_unknown_tensors(file, rows);
    const int64_t total = model.info().tensor_bytes;
    int64_t done = 0;
    std::vector<std::byte> buffer;  // of a produced tensor
    for (const WeightRow& row : rows) {
        const GgufTensor* tensor = find_checked(file, row);
        if (tensor == nullptr) continue;
        if (row.matrix != nullptr) {
            const std::vector<float> scale = read_scale(file, row.tensor, expert_count(row));
            *row.matrix =
                ops.upload(host_weight(row, *tensor, tensor_bytes(*tensor, buffer).data(), scale));
            file.release_pages(*tensor);
        } else if (row.vector != nullptr) {
            *row.vector = load_vector(*tensor, row, ops, buffer);
        }
        done += tensor->bytes;
        if (progress) progress(done, total);
    }
}

}  // namespace tessera
