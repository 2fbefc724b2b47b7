#pragma once
// Private to src/gguf: the JSON header of a safetensors file to tensor descriptions.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/safetensors.h"

namespace tessera {

struct SafetensorsHeader {
    struct Entry {
        SafetensorsTensor tensor;  ///< name, type and shape; data are not placed yet
        uint64_t begin = 0;        ///< data offsets, not checked against the file yet
        uint64_t end = 0;
    };
    std::vector<Entry> entries;
    std::map<std::string, std::string, std::less<>> metadata;
};

/// UserError(kModel) unless `json` is one object of tensor entries with exactly dtype, shape and
/// data_offsets each, without repeated names.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::string_view file);

}  // namespace tessera
