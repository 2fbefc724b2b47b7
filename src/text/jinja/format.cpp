#include "text/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/loop.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

void append_hex(std::string& out, std::string_view prefix, uint32_t value, int digits) {
    static constexpr char kHex[] = "0123456789abcdef";
    out += prefix;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[(value >> shift) & 15u];
}

/// Writes values one after the other into one string, watching size and depth.
class ReprWriter {
  public:
    explicit ReprWriter(Heap& heap) : heap_(heap) {}
    std::string take() { return std::move(out_); }

    void write(const Value& value) {
        heap_.step();
        if (static_cast<int64_t>(out_.size()) > kMaxOutputBytes) {
            fail("the template makes a string of more than 64 MiB");
        }
        switch (value.type()) {
            case Type::kMissing:
            case Type::kUndefined:
                out_ += "Undefined";
                break;
            case Type::kNone:
                out_ += "None";
                break;
            case Type::kBool:
                out_ += value.as_bool() ? "True" : "False";
                break;
            case Type::kInt:
                out_ += std::to_string(value.as_int());
                break;
            case Type::kFloat:
                out_ += float_repr(value.as_double());
                break;
            case Type::kString:
                write_string(value);
                break;
            default:
                write_object(value);
        }
    }

  private:
    void write_string(const Value& value) {
        heap_.step(static_cast<int64_t>(value.view().size()) / 512);
        if (value.is_markup()) out_ += "Markup(";
        append_repr(out_, value.view());
        if (value.is_markup()) out_ += ')';
    }

    void write_object(const Value& value) {
        if (++depth_ > kMaxDepth) fail("values are nested more than 200 levels deep");
        switch (value.type()) {
            case Type::kList:
                write_items(value.as<List>()->items, "[", "]");
                break;
            case Type::kTuple:
                write_items(value.as<List>()->items, "(",
                            value.as<List>()->items.size() == 1 ? ",)" : ")");
                break;
            case Type::kDict:
                write_dict(*value.as<Dict>());
                break;
            case Type::kNamespace:
                out_ += "<Namespace ";
                write_dict(value.as<Namespace>()->attributes);
                out_ += '>';
                break;
            case Type::kRange:
                write_range(*value.as<Range>());
                break;
            case Type::kView:
                write_view(*value.as<View>());
                break;
            case Type::kLoop: {
                Loop& loop = *value.as<Loop>();
                out_ += "<LoopContext " + std::to_string(loop.index0 + 1) + "/" +
                        std::to_string(loop.length()) + ">";
                break;
            }
            case Type::kMacro: {
                const std::string& name = value.as<Macro>()->definition->name;
                out_ += "<Macro ";
                if (name.empty()) {
                    out_ += "anonymous";
                } else {
                    append_repr(out_, name);
                }
                out_ += '>';
                break;
            }
            default:
                out_ += "<" + std::string(type_name(value)) + ">";
        }
        --depth_;
    }

    void write_items(const std::vector<Value>& items,
                     std::string_view open,
                     std::string_view close) {
        out_ += open;
        for (size_t i = 0; i < items.size(); ++i) {
            if (i > 0) out_ += ", ";
            write(items[i]);
        }
        out_ += close;
    }

    void write_dict(const Dict& dict) {
        out_ += '{';
        bool first = true;
        for (const auto& [key, value] : dict.entries) {
            if (!first) out_ += ", ";
            first = false;
            write(key);
            out_ += ": ";
            write(value);
        }
        out_ += '}';
    }

    void write_range(const Range& range) {
        out_ += "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop);
        if (range.step != 1) out_ += ", " + std::to_string(range.step);
        out_ += ')';
    }

    void write_view(const View& view) {
        static constexpr std::string_view kNames[] = {"dict_keys([", "dict_values([",
                                                      "dict_items(["};
        out_ += kNames[static_cast<size_t>(view.kind)];
        bool first = true;
        for (const auto& [key, value] : view.dict->entries) {
            if (!first) out_ += ", ";
            first = false;
            if (view.kind == ViewKind::kItems) out_ += '(';
            if (view.kind != ViewKind::kValues) write(key);
            if (view.kind == ViewKind::kItems) out_ += ", ";
            if (view.kind != ViewKind::kKeys) write(value);
            if (view.kind == ViewKind::kItems) out_ += ')';
        }
        out_ += "])";
    }

    Heap& heap_;
    std::string out_;
    int depth_ = 0;
};

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
    out += '"';
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        const char32_t c = next_code_point(text, at);
        switch (c) {
            case U'"':
                out += "\\\"";
                continue;
            case U'\\':
                out += "\\\\";
                continue;
            case U'\n':
                out += "\\n";
                continue;
            case U'\r':
                out += "\\r";
                continue;
            case U'\t':
                out += "\\t";
                continue;
            case U'\b':
                out += "\\b";
                continue;
            case U'\f':
                out += "\\f";
                continue;
            default:
                break;
        }
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
            append_hex(out, "\\u", c, 4);
        } else if (ensure_ascii && c >= 0x10000 && c < kInvalidByte) {
            append_hex(out, "\\u", 0xD800 + ((c - 0x10000) >> 10), 4);
            append_hex(out, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
        } else {
            out += text.substr(begin, at - begin);
        }
    }
    out += '"';
}

std::string json_float(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_repr(value);
}

class JsonWriter {
  public:
    JsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}
    std::string take() { return std::move(out_); }

    void write(const Value& value) {
        heap_.step();
        if (static_cast<int64_t>(out_.size()) > kMaxOutputBytes) {
            fail("the template makes a string of more than 64 MiB");
        }
        switch (value.type()) {
            case Type::kNone:
                out_ += "null";
                break;
            case Type::kBool:
                out_ += value.as_bool() ? "true" : "false";
                break;
            case Type::kInt:
                out_ += std::to_string(value.as_int());
                break;
            case Type::kFloat:
                out_ += json_float(value.as_double());
                break;
            case Type::kString:
                heap_.step(static_cast<int64_t>(value.view().size()) / 512);
                append_json_string(out_, value.view(), style_.ensure_ascii);
                break;
            case Type::kList:
            case Type::kTuple:
                write_list(value.as<List>()->items);
                break;
            case Type::kDict:
                write_dict(*value.as<Dict>());
                break;
            default:
                fail("object of type " + std::string(type_name(value)) +
                     " is not JSON serializable");
        }
    }

  private:
    void new_line() {
        if (!style_.has_indent) return;
        out_ += '\n';
        for (int i = 0; i < depth_; ++i) out_ += style_.indent;
    }

    void write_list(const std::vector<Value>& items) {
        if (items.empty()) {
            out_ += "[]";
            return;
        }
        out_ += '[';
        ++depth_;
        for (size_t i = 0; i < items.size(); ++i) {
            if (i > 0) out_ += style_.item_separator;
            new_line();
            write(items[i]);
        }
        --depth_;
        new_line();
        out_ += ']';
    }

    void write_dict(const Dict& dict) {
        if (dict.entries.empty()) {
            out_ += "{}";
            return;
        }
        std::vector<const std::pair<Value, Value>*> entries;
        for (const auto& entry : dict.entries) entries.push_back(&entry);
        if (style_.sort_keys) {
            std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
                return less(heap_, a->first, b->first);
            });
        }
        out_ += '{';
        ++depth_;
        for (size_t i = 0; i < entries.size(); ++i) {
            if (i > 0) out_ += style_.item_separator;
            new_line();
            append_json_string(out_, key_text(entries[i]->first), style_.ensure_ascii);
            out_ += style_.key_separator;
            write(entries[i]->second);
        }
        --depth_;
        new_line();
        out_ += '}';
    }

    static std::string key_text(const Value& key) {
        switch (key.type()) {
            case Type::kString:
                return std::string(key.view());
            case Type::kNone:
                return "null";
            case Type::kBool:
                return key.as_bool() ? "true" : "false";
            case Type::kInt:
                return std::to_string(key.as_int());
            case Type::kFloat:
                return json_float(key.as_double());
            default:
                fail("JSON keys must be str, int, float, bool or None, not " +
                     std::string(type_name(key)));
        }
    }

    Heap& heap_;
    const JsonStyle& style_;
    std::string out_;
    int depth_ = 0;
};

}  // namespace

std::string float_repr(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    char buffer[40];
    const std::to_chars_result end =
        std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
    std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
    std::string out;
    if (text[0] == '-') {
        out = "-";
        text.remove_prefix(1);
    }
    const size_t e = text.find('e');
    int exponent = 0;
    const size_t sign = text[e + 1] == '+' ? 2 : 1;
    std::from_chars(text.data() + e + sign, text.data() + text.size(), exponent);
    std::string digits(text.substr(0, 1));
    if (e > 2) digits += text.substr(2, e - 2);
    const int count = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16) {
        out += digits.substr(0, 1);
        if (count > 1) out += "." + digits.substr(1);
        const std::string magnitude = std::to_string(std::abs(exponent));
        return out + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
    }
    if (exponent < 0) {
        return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    }
    if (count <= exponent + 1) {
        return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
    }
    const size_t point = static_cast<size_t>(exponent + 1);
    return out + digits.substr(0, point) + "." + digits.substr(point);
}

void append_repr(std::string& out, std::string_view text) {
    const bool has_single = text.find('\'') != std::string_view::npos;
    const bool has_double = text.find('"') != std::string_view::npos;
    const char quote = has_single && !has_double ? '"' : '\'';
    out += quote;
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        const char32_t c = next_code_point(text, at);
        if (c == static_cast<char32_t>(quote) || c == U'\\') {
            out += '\\';
            out += static_cast<char>(c);
        } else if (c == U'\n') {
            out += "\\n";
        } else if (c == U'\r') {
            out += "\\r";
        } else if (c == U'\t') {
            out += "\\t";
        } else if (is_printable(c)) {
            out += text.substr(begin, at - begin);
        } else if (c >= kInvalidByte) {
            append_hex(out, "\\udc", c - kInvalidByte, 2);
        } else if (c < 0x100) {
            append_hex(out, "\\x", c, 2);
        } else if (c < 0x10000) {
            append_hex(out, "\\u", c, 4);
        } else {
            append_hex(out, "\\U", c, 8);
        }
    }
    out += quote;
}

std::string to_repr(Heap& heap, const Value& value) {
    ReprWriter writer(heap);
    writer.write(value);
    return writer.take();
}

std::string to_string(Heap& heap, const Value& value) {
    if (value.is_string()) return std::string(value.view());
    if (value.is_undefined()) return "";
    return to_repr(heap, value);
}

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style) {
    JsonWriter writer(heap, style);
    writer.write(value);
    return writer.take();
}

}  // namespace tessera::jinja
