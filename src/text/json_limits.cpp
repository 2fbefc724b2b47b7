// The library's parser does not recurse; its SAX interface is used because only there depth is
// known before memory is spent and integers are seen as they are written.

#include "text/json_limits.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/error.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxDepth = 100;
constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr size_t kMaxValues = 20'000'000;

/// Reads the text for the parser and remembers how far it came.
class Reader {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    Reader(const char* at, const char** reached) : at_(at), reached_(reached) {}
    const char& operator*() const { return *at_; }
    Reader& operator++() {
        *reached_ = ++at_;
        return *this;
    }
    bool operator==(const Reader& other) const { return at_ == other.at_; }
    bool operator!=(const Reader& other) const { return at_ != other.at_; }

  private:
    const char* at_;
    const char** reached_;
};

/// Builds the document. Every handler returns whether parsing goes on.
class Builder {
  public:
    bool null() { return add(nullptr); }
    bool boolean(bool value) { return add(value); }
    bool number_integer(int64_t value) { return add(value); }
    bool number_unsigned(uint64_t value) { return add(value); }
    bool number_float(double value, const std::string& digits) {
        if (digits.find_first_of(".eE") == std::string::npos) {
            return stop("integers beyond 64 bits are not supported");
        }
        return add(value);
    }
    bool string(std::string& value) { return add(std::move(value)); }
    bool binary(std::vector<uint8_t>&) { return stop("binary values are not supported"); }
    bool start_object(size_t) { return open(Json::object()); }
    bool start_array(size_t) { return open(Json::array()); }
    bool key(std::string& name) {
        keys_.back() = std::move(name);
        return true;
    }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
        // The library writes "[json.exception...] parse error at line 1, column 2: reason; last
        // read: '...'"; only the reason is for people.
        std::string reason = error.what();
        if (const size_t colon = reason.find(": "); colon != std::string::npos) {
            reason.erase(0, colon + 2);
        }
        return stop(reason);
    }

    const std::string& message() const { return message_; }
    Json take() { return std::move(root_); }

  private:
    bool stop(std::string message) {
        message_ = std::move(message);
        return false;
    }

    bool add(Json value) {
        if (++values_ > kMaxValues) return stop("more than 20 million values");
        place(std::move(value));
        return true;
    }

    bool open(Json container) {
        if (open_.size() >= kMaxDepth) return stop("nested more than 100 levels deep");
        if (++values_ > kMaxValues) return stop("more than 20 million values");
        open_.push_back(std::move(container));
        keys_.emplace_back();
        return true;
    }

    bool close() {
        Json done = std::move(open_.back());
        open_.pop_back();
        keys_.pop_back();
        place(std::move(done));
        return true;
    }

    void place(Json value) {
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (open_.back().is_array()) {
            open_.back().push_back(std::move(value));
        } else {
            open_.back()[keys_.back()] = std::move(value);
        }
    }

    std::vector<Json> open_;         ///< containers that are not complete, outermost first
    std::vector<std::string> keys_;  ///< the key that each of them waits to fill
    Json root_;
    size_t values_ = 0;
    std::string message_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
    if (text.size() > kMaxBytes) {
        throw UserError(ExitCode::kModel, where + ": the JSON text is larger than 256 MiB");
    }
    Builder builder;
    const char* reached = text.data();
    const Reader begin(text.data(), &reached), end(text.data() + text.size(), &reached);
    if (!Json::sax_parse(begin, end, &builder)) {
        const std::string_view read(text.data(), static_cast<size_t>(reached - text.data()));
        const auto line = std::count(read.begin(), read.end(), '\n') + 1;
        const size_t column = read.size() - (read.rfind('\n') + 1);
        throw UserError(ExitCode::kModel, where + ": line " + std::to_string(line) + ", column " +
                                              std::to_string(column) + ": " + builder.message());
    }
    return builder.take();
}

}  // namespace tessera
