#include "gguf/gguf_split.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "gguf/messages.h"

namespace tessera {
namespace {

constexpr int64_t kMostShards = 65535;  // split.count is 16 bits wide

std::optional<int64_t> integer(const GgufContents& contents, std::string_view key) {
    for (const GgufKeyValue& entry : contents.key_values) {
        if (entry.key != key) continue;
        if (const int64_t* number = std::get_if<int64_t>(&entry.value.value)) return *number;
    }
    return std::nullopt;
}

/// The part of `path` before "-00001-of-00003.gguf" (numbers as they are, the count given).
std::string shard_prefix(const std::string& path, int64_t count) {
    const std::string tail = fmt::format("-of-{:05}.gguf", count);
    const size_t number_bytes = 6;  // "-00001"
    const bool long_enough = path.size() > tail.size() + number_bytes;
    const size_t tail_start = long_enough ? path.size() - tail.size() : 0;
    const size_t number_start = long_enough ? tail_start - number_bytes : 0;
    const std::string_view number = std::string_view(path).substr(number_start, number_bytes);
    const bool named_so = long_enough && path.ends_with(tail) && number[0] == '-' &&
                          number.find_first_not_of("0123456789", 1) == std::string_view::npos;
    if (!named_so)
        fail_file(path, fmt::format("is one of {} shards, but its name does not end in "
                                    "-NNNNN{}, so the others cannot be found",
                                    count, tail));
    return path.substr(0, number_start);
}

void check_shard(const GgufContents& shard, const std::string& path, int64_t index, int64_t count) {
    const std::optional<int64_t> its_count = integer(shard, "split.count");
    const std::optional<int64_t> its_index = integer(shard, "split.no");
    if (its_count != count)
        fail_file(path, fmt::format("key 'split.count' is {}, expected {}",
                                    its_count ? std::to_string(*its_count) : "missing", count));
    if (its_index != index)
        fail_file(path, fmt::format("key 'split.no' is {}, expected {}",
                                    its_index ? std::to_string(*its_index) : "missing", index));
}

void check_duplicates(const GgufShards& shards, const std::string& path) {
    std::unordered_set<std::string_view> seen;
    for (const GgufTensor& tensor : shards.contents.tensors)
        if (!seen.insert(tensor.name).second)
            fail_file(path, fmt::format("tensor {} is in two shards", quoted_name(tensor.name)));
}

}  // namespace

GgufShards open_gguf_shards(const std::string& path, int64_t count) {
    if (count > kMostShards)
        fail_file(path, fmt::format("key 'split.count' is {}, at most {} shards are allowed", count,
                                    kMostShards));
    const std::string prefix = shard_prefix(path, count);
    GgufShards shards;
    for (int64_t index = 0; index < count; ++index) {
        const std::string name = fmt::format("{}-{:05}-of-{:05}.gguf", prefix, index + 1, count);
        shards.mappings.emplace_back(name);
        GgufContents shard = parse_gguf(shards.mappings.back().bytes(), name);
        check_shard(shard, name, index, count);
        if (index == 0) {
            shards.contents = std::move(shard);
            continue;
        }
        shards.contents.tensors.insert(shards.contents.tensors.end(),
                                       std::make_move_iterator(shard.tensors.begin()),
                                       std::make_move_iterator(shard.tensors.end()));
    }
    check_duplicates(shards, path);
    const int64_t found = static_cast<int64_t>(shards.contents.tensors.size());
    const std::optional<int64_t> promised = integer(shards.contents, "split.tensors.count");
    if (promised && *promised != found)
        fail_file(path, fmt::format("key 'split.tensors.count' is {}, the shards hold {} tensors",
                                    *promised, found));
    return shards;
}

}  // namespace tessera
