#pragma once
// Private to src/hf: the safetensors files of a folder as one list of tensors.

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gguf/safetensors.h"

namespace tessera {

/// All tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` lists.
/// The prefixes by which models with images wrap their language model are taken off the names:
/// "model.language_model.layers.0" is "model.layers.0".
class Checkpoint {
  public:
    struct Entry {
        std::string name;
        const SafetensorsTensor* tensor = nullptr;
    };

    /// UserError(kModel), one line: no such files, a damaged index, a shard that is missing or
    /// lacks what the index says of it, a tensor in two shards.
    static Checkpoint open(const std::string& folder);

    const std::string& folder() const { return folder_; }
    /// In order of names.
    const std::vector<Entry>& tensors() const { return tensors_; }
    const SafetensorsTensor* find(std::string_view name) const;
    /// Hands over what the tensors point into.
    std::vector<SafetensorsFile> take_files() { return std::move(files_); }

    /// Throws UserError(kModel) "<folder>: tensor '<name>' <what>".
    [[noreturn]] void fail_tensor(std::string_view name, std::string_view what) const;

  private:
    void read_index(const std::string& path);
    void add_file(const std::string& path);
    void build_names();

    std::string folder_;
    std::vector<SafetensorsFile> files_;
    std::vector<Entry> tensors_;
    std::unordered_map<std::string_view, const SafetensorsTensor*> index_;
};

}  // namespace tessera
