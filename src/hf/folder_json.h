#pragma once
// Private to src/hf: the JSON files of a Hugging Face folder, read with types and ranges checked.
// Every failure is a UserError(kModel) whose one line names the file and the key.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

using Json = nlohmann::ordered_json;

/// Throws UserError(kModel) "<where>: <what>".
[[noreturn]] void fail_folder(std::string_view where, std::string_view what);

/// The text of a file, nothing when it is not there. UserError when it cannot be read or has more
/// than 256 MiB.
std::optional<std::string> read_folder_file(const std::string& path);

/// An object of a JSON file with what messages call it. A key that is null counts as absent.
class JsonObject {
  public:
    /// UserError unless `json` is an object.
    JsonObject(Json json, std::string where);
    /// The object in a file, nothing when the file is not there.
    static std::optional<JsonObject> open(const std::string& path);

    const std::string& where() const { return where_; }
    const Json& json() const { return json_; }
    const Json* find(std::string_view key) const;

    std::optional<int64_t> find_int(std::string_view key, int64_t low, int64_t high) const;
    std::optional<double> find_number(std::string_view key) const;
    std::optional<bool> find_bool(std::string_view key) const;
    std::optional<std::string> find_string(std::string_view key) const;
    /// Absent: empty.
    std::vector<std::string> strings(std::string_view key) const;
    /// The object under `key`, called "<where>: '<key>'"; nothing when absent.
    std::optional<JsonObject> find_object(std::string_view key) const;

    int64_t require_int(std::string_view key, int64_t low, int64_t high) const;
    double require_number(std::string_view key) const;

    /// These keys, and behind them those of `fallback`.
    JsonObject over(const JsonObject& fallback) const;

    [[noreturn]] void fail_key(std::string_view key, std::string_view what) const;

  private:
    Json json_;
    std::string where_;
};

/// `value` for a one-line message: cut, without line breaks.
std::string shown_json(const Json& value);

}  // namespace tessera
