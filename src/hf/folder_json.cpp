#include "hf/folder_json.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "text/json_limits.h"

namespace tessera {
namespace {

constexpr uintmax_t kMostBytes = uintmax_t{256} << 20;
constexpr size_t kShownBytes = 60;

}  // namespace

void fail_folder(std::string_view where, std::string_view what) {
    throw UserError(ExitCode::kModel, fmt::format("{}: {}", where, what));
}

std::optional<std::string> read_folder_file(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return std::nullopt;
    if (!std::filesystem::is_regular_file(path, error)) fail_folder(path, "is not a regular file");
    if (std::filesystem::file_size(path, error) > kMostBytes)
        fail_folder(path, "has more than 256 MiB");
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file) fail_folder(path, "cannot be read");
    return text;
}

std::string shown_json(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
    return text;
}

JsonObject::JsonObject(Json json, std::string where)
    : json_(std::move(json)), where_(std::move(where)) {
    if (!json_.is_object())
        fail_folder(where_, fmt::format("is {}, expected an object", shown_json(json_)));
}

std::optional<JsonObject> JsonObject::open(const std::string& path) {
    const std::optional<std::string> text = read_folder_file(path);
    if (!text) return std::nullopt;
    return JsonObject(parse_json(*text, path), path);
}

const Json* JsonObject::find(std::string_view key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void JsonObject::fail_key(std::string_view key, std::string_view what) const {
    fail_folder(where_, fmt::format("key '{}' {}", key, what));
}

std::optional<int64_t> JsonObject::find_int(std::string_view key, int64_t low, int64_t high) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    // Beyond 63 bits an unsigned number would turn negative, which no range of ours excludes.
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{1} << 62);
    const int64_t number = fits ? value->get<int64_t>() : 0;
    if (!fits || number < low || number > high)
        fail_key(key, fmt::format("is {}, expected an integer from {} to {}", shown_json(*value),
                                  low, high));
    return number;
}

std::optional<double> JsonObject::find_number(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>()))
        fail_key(key, fmt::format("is {}, expected a number", shown_json(*value)));
    return value->get<double>();
}

std::optional<bool> JsonObject::find_bool(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean())
        fail_key(key, fmt::format("is {}, expected true or false", shown_json(*value)));
    return value->get<bool>();
}

std::optional<std::string> JsonObject::find_string(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string())
        fail_key(key, fmt::format("is {}, expected a string", shown_json(*value)));
    return value->get<std::string>();
}

std::vector<std::string> JsonObject::strings(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array())
        fail_key(key, fmt::format("is {}, expected a list", shown_json(*value)));
    std::vector<std::string> texts;
    for (const Json& element : *value) {
        if (!element.is_string())
            fail_key(key, fmt::format("has the element {}, expected strings", shown_json(element)));
        texts.push_back(element.get<std::string>());
    }
    return texts;
}

std::optional<JsonObject> JsonObject::find_object(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return JsonObject(*value, fmt::format("{}: '{}'", where_, key));
}

int64_t JsonObject::require_int(std::string_view key, int64_t low, int64_t high) const {
    const std::optional<int64_t> value = find_int(key, low, high);
    if (!value) fail_key(key, "is missing");
    return *value;
}

double JsonObject::require_number(std::string_view key) const {
    const std::optional<double> value = find_number(key);
    if (!value) fail_key(key, "is missing");
    return *value;
}

JsonObject JsonObject::over(const JsonObject& fallback) const {
    Json merged = fallback.json_;
    for (const auto& [key, value] : json_.items())
        if (!value.is_null()) merged[key] = value;
    return JsonObject(std::move(merged), fallback.where_);
}

}  // namespace tessera
