#include "hf/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/error.h"
#include "hf/folder_json.h"

namespace tessera {
namespace {

constexpr size_t kShownName = 120;

std::string shown_name(std::string_view name) {
    std::string text;
    for (const char c : name.substr(0, kShownName))
        text += c >= ' ' && c <= '~' ? std::string(1, c)
                                     : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return name.size() > kShownName ? text + "..." : text;
}

/// The name as a model without images has it.
std::string plain_name(std::string name) {
    static constexpr std::string_view kWrapper = "language_model.";
    const size_t found = name.find(kWrapper);
    if (found != std::string::npos && (found == 0 || name[found - 1] == '.'))
        name.erase(found, kWrapper.size());
    static constexpr std::string_view kBare[] = {"layers.", "embed_tokens.", "norm."};
    for (const std::string_view start : kBare)
        if (name.starts_with(start)) return "model." + name;
    return name.starts_with("model.mtp.") ? name.substr(6) : name;
}

/// A name without a path, so that an index cannot lead out of its folder.
bool is_plain_file_name(std::string_view name) {
    return !name.empty() && name != ".." && name.find('/') == std::string_view::npos &&
           name.find('\0') == std::string_view::npos && name.ends_with(".safetensors");
}

}  // namespace

void Checkpoint::fail_tensor(std::string_view name, std::string_view what) const {
    fail_folder(folder_, fmt::format("tensor '{}' {}", shown_name(name), what));
}

Checkpoint Checkpoint::open(const std::string& folder) {
    namespace fs = std::filesystem;
    Checkpoint checkpoint;
    checkpoint.folder_ = folder;
    const std::string whole = folder + "/model.safetensors";
    const std::string index = whole + ".index.json";
    std::error_code error;
    if (fs::exists(whole, error)) {
        checkpoint.add_file(whole);
    } else if (fs::exists(index, error)) {
        checkpoint.read_index(index);
    } else {
        const bool torch = fs::exists(folder + "/pytorch_model.bin", error) ||
                           fs::exists(folder + "/pytorch_model.bin.index.json", error);
        fail_folder(folder, torch ? "holds weights in PyTorch's own format only; save them as "
                                    "safetensors"
                                  : "has no model.safetensors and no model.safetensors.index.json");
    }
    checkpoint.build_names();
    return checkpoint;
}

void Checkpoint::add_file(const std::string& path) {
    files_.push_back(SafetensorsFile::open(path));
}

void Checkpoint::read_index(const std::string& path) {
    const std::optional<JsonObject> index = JsonObject::open(path);
    const std::optional<JsonObject> map = index->find_object("weight_map");
    if (!map) index->fail_key("weight_map", "is missing");
    std::map<std::string, std::vector<std::string>> names_of_shard;
    for (const auto& [name, file] : map->json().items()) {
        if (!file.is_string() || !is_plain_file_name(file.get<std::string>()))
            map->fail_key(
                shown_name(name),
                fmt::format("is {}, expected the name of a safetensors file", shown_json(file)));
        names_of_shard[file.get<std::string>()].push_back(name);
    }
    if (names_of_shard.empty()) index->fail_key("weight_map", "lists no tensors");
    for (const auto& [file, names] : names_of_shard) {
        const std::string shard = folder_ + "/" + file;
        std::error_code error;
        if (!std::filesystem::exists(shard, error))
            fail_folder(shard, fmt::format("is missing, {} lists it (incomplete download?)", path));
        add_file(shard);
        for (const std::string& name : names)
            if (files_.back().find_tensor(name) == nullptr)
                fail_folder(shard, fmt::format("has no tensor '{}', which {} places there",
                                               shown_name(name), path));
    }
}

void Checkpoint::build_names() {
    for (const SafetensorsFile& file : files_)
        for (const SafetensorsTensor& tensor : file.tensors())
            tensors_.push_back({plain_name(tensor.name), &tensor});
    std::sort(tensors_.begin(), tensors_.end(),
              [](const Entry& a, const Entry& b) { return a.name < b.name; });
    for (const Entry& entry : tensors_)
        if (!index_.emplace(entry.name, entry.tensor).second)
            fail_tensor(entry.tensor->name, "is there twice");
}

const SafetensorsTensor* Checkpoint::find(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : found->second;
}

}  // namespace tessera
