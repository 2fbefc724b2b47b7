#include "text/chat_template.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/jinja/filters.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tessera {
namespace {

constexpr size_t kMaxSourceBytes = size_t{16} << 20;

[[noreturn]] void fail_at(const std::string& where, int line, const std::string& message) {
    throw UserError(ExitCode::kModel, where + ": line " + std::to_string(line) + ": " + message);
}

jinja::Value convert(jinja::Heap& heap, const nlohmann::ordered_json& json, int depth) {
    if (depth > jinja::kMaxDepth) jinja::fail("variables are nested more than 200 levels deep");
    using Kind = nlohmann::ordered_json::value_t;
    switch (json.type()) {
        case Kind::boolean:
            return jinja::Value::boolean(json.get<bool>());
        case Kind::number_integer:
            return jinja::Value::integer(json.get<int64_t>());
        case Kind::number_unsigned: {
            const uint64_t number = json.get<uint64_t>();
            if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
                jinja::fail("integers beyond 64 bits are not supported");
            }
            return jinja::Value::integer(static_cast<int64_t>(number));
        }
        case Kind::number_float:
            return jinja::Value::real(json.get<double>());
        case Kind::string:
            return heap.string(json.get_ref<const std::string&>());
        case Kind::array: {
            std::vector<jinja::Value> items;
            items.reserve(json.size());
            for (const auto& item : json) items.push_back(convert(heap, item, depth + 1));
            return heap.list(std::move(items));
        }
        case Kind::object: {
            auto* dict = heap.make<jinja::Dict>();
            for (const auto& [key, item] : json.items()) {
                dict->set(heap, heap.string(key), convert(heap, item, depth + 1));
            }
            return jinja::Value(dict);
        }
        default:
            return {};
    }
}

}  // namespace

struct ChatTemplate::Impl {
    jinja::Template source;
    std::string where;
};

ChatTemplate::ChatTemplate(const std::string& source, const std::string& where)
    : impl_(std::make_unique<Impl>()) {
    impl_->where = where;
    if (source.size() > kMaxSourceBytes) fail_at(where, 1, "the template is larger than 16 MiB");
    if (!jinja::is_valid_utf8(source)) fail_at(where, 1, "the template is not valid UTF-8");
    try {
        impl_->source = jinja::parse(source);
    } catch (const jinja::SyntaxError& error) {
        fail_at(where, error.line(), error.what());
    }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& variables) const {
    check(variables.is_object(), "template variables are an object");
    jinja::Heap heap;
    jinja::Dict* context = heap.make<jinja::Dict>();
    int line = 1;
    try {
        jinja::add_globals(heap, *context);
        for (const auto& [name, value] : variables.items()) {
            context->set(heap, heap.string(name), convert(heap, value, 1));
        }
        jinja::Runtime runtime(heap, *context);
        try {
            return runtime.run(impl_->source);
        } catch (const jinja::Error&) {
            line = runtime.line();
            throw;
        }
    } catch (const jinja::Error& error) {
        fail_at(impl_->where, line, error.what());
    }
}

}  // namespace tessera
