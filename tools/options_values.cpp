// Texts of the command line to values, and the words for those that do not fit.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/nearest.h"
#include "tools/options.h"

namespace tessera {
namespace {

/// A list that would run for days is a typing error.
constexpr size_t kMaxListValues = 10000;

[[noreturn]] void fail(const Occurrence& given, const std::string& problem) {
    throw UserError(ExitCode::kUsage, given.where + ": " + problem);
}

std::optional<int64_t> integer_of(std::string_view text) {
    int64_t value = 0;
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
    return value;
}

std::string range_text(int64_t least, int64_t most) {
    if (most >= std::numeric_limits<int32_t>::max()) return fmt::format("at least {}", least);
    return fmt::format("from {} to {}", least, most);
}

int64_t checked(const Occurrence& given, std::string_view text, int64_t least, int64_t most) {
    const std::optional<int64_t> value = integer_of(text);
    if (!value) fail(given, fmt::format("'{}' is not a whole number", text));
    if (*value < least || *value > most)
        fail(given,
             fmt::format("{} is out of range, it must be {}", text, range_text(least, most)));
    return *value;
}

/// "first-last", "first-last+step", "first-last*factor".
void append_range(const Occurrence& given,
                  std::string_view part,
                  size_t dash,
                  std::pair<int64_t, int64_t> bounds,
                  std::vector<int64_t>& values) {
    const size_t op = part.find_first_of("+*", dash + 1);
    const int64_t first = checked(given, part.substr(0, dash), bounds.first, bounds.second);
    const std::string_view last_text =
        part.substr(dash + 1, op == std::string_view::npos ? op : op - dash - 1);
    if (last_text.empty()) fail(given, fmt::format("'{}' is not a range first-last", part));
    const int64_t last = checked(given, last_text, bounds.first, bounds.second);
    const bool multiply = op != std::string_view::npos && part[op] == '*';
    int64_t step = 1;
    if (op != std::string_view::npos)
        step = checked(given, part.substr(op + 1), multiply ? 2 : 1, 1 << 30);
    if (last < first) fail(given, fmt::format("the range '{}' runs backwards", part));
    if (multiply && first == 0) fail(given, fmt::format("the range '{}' never leaves 0", part));
    for (int64_t value = first; value <= last; value = multiply ? value * step : value + step) {
        values.push_back(value);
        if (values.size() > kMaxListValues)
            fail(given, fmt::format("more than {} values", kMaxListValues));
    }
}

}  // namespace

int64_t parse_integer(const Occurrence& given, int64_t least, int64_t most) {
    return checked(given, given.text, least, most);
}

double parse_real(const Occurrence& given, double least, double most) {
    double value = 0;
    const char* end = given.text.data() + given.text.size();
    const auto [stop, error] = std::from_chars(given.text.data(), end, value);
    if (error != std::errc() || stop != end || given.text.empty() || !std::isfinite(value))
        fail(given, fmt::format("'{}' is not a number", given.text));
    if (value < least || value > most)
        fail(given,
             fmt::format("{} is out of range, it must be from {} to {}", given.text, least, most));
    return value;
}

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

bool parse_switch(const Occurrence& given) {
    const std::string text = lower_case(given.text);
    for (const char* word : {"1", "on", "enabled", "true", "yes"})
        if (text == word) return true;
    for (const char* word : {"0", "off", "disabled", "false", "no"})
        if (text == word) return false;
    fail(given, fmt::format("'{}' is neither on nor off", given.text));
}

std::vector<std::string> split_list(std::string_view text, char separator) {
    std::vector<std::string> parts;
    size_t start = 0;
    while (true) {
        const size_t end = text.find(separator, start);
        parts.emplace_back(text.substr(start, end - start));
        if (end == std::string_view::npos) return parts;
        start = end + 1;
    }
}

std::vector<int64_t> parse_integer_list(const Occurrence& given, int64_t least, int64_t most) {
    std::vector<int64_t> values;
    for (const std::string& part : split_list(given.text, ',')) {
        const size_t dash = part.find('-', 1);
        if (dash == std::string::npos) {
            values.push_back(checked(given, part, least, most));
        } else {
            append_range(given, part, dash, {least, most}, values);
        }
    }
    return values;
}

size_t parse_choice(const Occurrence& given, std::span<const std::string> known) {
    for (size_t i = 0; i < known.size(); ++i)
        if (lower_case(known[i]) == lower_case(given.text)) return i;
    const std::vector<std::string_view> views(known.begin(), known.end());
    const std::string near = nearest_name(given.text, views);
    const std::string list = fmt::format("{}", fmt::join(known, ", "));
    fail(given, near.empty() ? fmt::format("unknown value '{}' (known: {})", given.text, list)
                             : fmt::format("unknown value '{}'; did you mean {}? (known: {})",
                                           given.text, near, list));
}

std::string unescape(std::string_view text) {
    static constexpr std::string_view kLetters = "nrt'\"\\";
    static constexpr std::string_view kMeaning = "\n\r\t'\"\\";
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
        const size_t letter = next == '\0' ? std::string_view::npos : kLetters.find(next);
        int code = 0;
        if (letter != std::string_view::npos) {
            out += kMeaning[letter];
            ++i;
        } else if (next == 'x' && i + 3 < text.size() &&
                   std::from_chars(&text[i + 2], &text[i + 2] + 2, code, 16).ptr ==
                       &text[i + 2] + 2 &&
                   code >= 0) {
            out += static_cast<char>(code);
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

}  // namespace tessera
