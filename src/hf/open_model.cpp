#include "hf/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/nearest.h"
#include "hf/checkpoint.h"
#include "hf/family.h"
#include "hf/folder_json.h"
#include "hf/quantization.h"
#include "hf/recipe.h"
#include "hf/shape.h"
#include "hf/tensor_map.h"
#include "hf/tokenizer_json.h"

namespace tessera {
namespace {

constexpr int64_t kFileTypeNvfp4 = 39;  // LLAMA_FTYPE_MOSTLY_NVFP4

std::string without_slash(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

JsonObject read_config(const std::string& folder) {
    std::optional<JsonObject> config = JsonObject::open(folder + "/config.json");
    if (!config)
        fail_folder(folder, "has no config.json; expected a GGUF file or the folder of a model");
    return *std::move(config);
}

/// Models with images keep what concerns text in an object of its own.
JsonObject text_config(const JsonObject& config) {
    const std::optional<JsonObject> text = config.find_object("text_config");
    if (!text) return config;
    JsonObject merged = text->over(config);
    // Whether the head is the embedding is a property of the whole.
    Json json = merged.json();
    if (const Json* tied = config.find("tie_word_embeddings")) json["tie_word_embeddings"] = *tied;
    return JsonObject(std::move(json), config.where());
}

const Family& require_family(const JsonObject& config) {
    const std::optional<std::string> type = config.find_string("model_type");
    if (!type) config.fail_key("model_type", "is missing");
    if (const Family* family = find_family(*type)) return *family;
    std::vector<std::string_view> names;
    for (const Family& family : known_families()) names.push_back(family.model_type);
    const std::string nearest = nearest_name(*type, names);
    config.fail_key(
        "model_type",
        fmt::format("is '{}', which is not supported; {} {}", *type,
                    nearest.empty() ? "known are" : "nearest known:",
                    nearest.empty() ? fmt::format("{}", fmt::join(names, ", ")) : nearest));
}

/// `general.file_type` of most matrices.
int64_t file_type_of(const std::vector<GgufTensor>& tensors) {
    static constexpr std::pair<DType, int64_t> kTypes[] = {
        {DType::kNVFP4, kFileTypeNvfp4}, {DType::kBF16, 32}, {DType::kF16, 1}, {DType::kF32, 0}};
    std::vector<int64_t> elements(std::size(kTypes));
    for (const GgufTensor& tensor : tensors)
        for (size_t i = 0; i < elements.size(); ++i)
            if (tensor.rank > 1 && tensor.dtype == kTypes[i].first) {
                if (i == 0) return kFileTypeNvfp4;
                elements[i] += tensor.elements();
            }
    return kTypes[std::max_element(elements.begin(), elements.end()) - elements.begin()].second;
}

GgufFile open_folder(const std::string& folder) {
    const JsonObject whole = read_config(folder);
    const Family& family = require_family(whole);
    const JsonObject config = text_config(whole);
    check_quantization_scheme(config, folder);
    Checkpoint checkpoint = Checkpoint::open(folder);
    ModelShape shape = read_shape(config, family);
    if (family.is_hybrid()) shape.draft_layers = count_draft_layers(checkpoint);
    GgufParts parts;
    parts.path = folder;
    parts.tensors = map_tensors(checkpoint, config, shape);
    const std::vector<float> factors = rope_factors(config, shape);
    if (!factors.empty()) parts.tensors.push_back(vector_tensor("rope_freqs.weight", factors));
    KeyList keys;
    keys.text("general.architecture", std::string(family.architecture));
    keys.text("general.type", "model");
    keys.text("general.name",
              std::filesystem::absolute(folder).lexically_normal().filename().string());
    keys.u32("general.file_type", file_type_of(parts.tensors));
    keys.u32("general.quantization_version", 2);
    add_shape_keys(config, shape, keys);
    add_tokenizer_keys(folder, config, shape.vocab, keys);
    parts.key_values = keys.take();
    parts.files = checkpoint.take_files();
    return GgufFile::from_parts(std::move(parts));
}

}  // namespace

GgufFile open_model(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) return open_folder(without_slash(path));
    const std::string name = std::filesystem::path(path).filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".json"))
        fail_folder(path, "is one file of a model; give the folder that it is in");
    return GgufFile::open(path);
}

}  // namespace tessera
