#include "tools/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf/open_model.h"
#include "models/model.h"
#include "ops/batch.h"
#include "tools/options_table.h"
#include "tools/terminal.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

/// Elements of an array that text output shows.
constexpr size_t kShownElements = 6;
constexpr size_t kShownBytes = 72;

void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string type_name(GgufType type) {
    static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                             "bool", "string", "array", "u64", "i64", "f64"};
    return kNames[static_cast<size_t>(type)];
}

std::string type_text(const GgufValue& value) {
    if (value.type != GgufType::kArray) return type_name(value.type);
    const auto& array = std::get<GgufValue::Array>(value.value);
    const size_t size = std::visit([](const auto& elements) { return elements.size(); }, array);
    return fmt::format("{}[{}]", type_name(value.element_type), size);
}

/// One line without control characters, cut at a character boundary.
std::string shown(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, kShownBytes)) {
        if (c == '\n') {
            out += "\\n";
        } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
            out += c;
        }
    }
    if (text.size() <= kShownBytes) return out;
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) out.pop_back();
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xc0) out.pop_back();
    return out + "...";
}

std::string element_text(const std::string& element) {
    return "'" + shown(element) + "'";
}
template <class Number>
std::string element_text(Number element) {
    return fmt::format("{}", element);
}

std::string value_text(const GgufValue& value) {
    return std::visit(
        [](const auto& content) -> std::string {
            using Content = std::decay_t<decltype(content)>;
            if constexpr (std::is_same_v<Content, GgufValue::Array>) {
                return std::visit(
                    [](const auto& elements) {
                        std::string text = "[";
                        for (size_t i = 0; i < std::min(elements.size(), kShownElements); ++i)
                            text += (i == 0 ? "" : ", ") + element_text(elements[i]);
                        return text + (elements.size() > kShownElements ? ", ...]" : "]");
                    },
                    content);
            } else if constexpr (std::is_same_v<Content, std::string>) {
                return shown(content);
            } else {
                return element_text(content);
            }
        },
        value.value);
}

Json json_value(const GgufValue& value) {
    return std::visit(
        [](const auto& content) -> Json {
            using Content = std::decay_t<decltype(content)>;
            if constexpr (std::is_same_v<Content, GgufValue::Array>)
                return std::visit([](const auto& elements) { return Json(elements); }, content);
            else
                return Json(content);
        },
        value.value);
}

std::vector<int64_t> shape_of(const GgufTensor& tensor) {
    return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

struct Estimate {
    int32_t context = 0;
    MemoryPlan plan;
};

/// What an engine with these options would take.
Estimate estimate_memory(const GgufFile& file, const Model& model, const EngineOptions& options) {
    return {.context = options.context > 0 ? options.context : model.info().train_context,
            .plan = plan_memory(options, file)};
}

void print_keys(const GgufFile& file) {
    size_t width = 0;
    for (const GgufKeyValue& entry : file.key_values()) width = std::max(width, entry.key.size());
    width = std::min<size_t>(width, 48);
    for (const GgufKeyValue& entry : file.key_values())
        print(fmt::format("  {:{}}  {:14} {}\n", shown(entry.key), width, type_text(entry.value),
                          value_text(entry.value)));
}

void print_tensors(const GgufFile& file) {
    size_t width = 0;
    for (const GgufTensor& tensor : file.tensors()) width = std::max(width, tensor.name.size());
    for (const GgufTensor& tensor : file.tensors()) {
        std::string shape;
        for (const int64_t extent : shape_of(tensor))
            shape += (shape.empty() ? "" : " x ") + std::to_string(extent);
        print(fmt::format("  {:{}}  {:6} {:>18}  {:>8}\n", shown(tensor.name), width,
                          dtype_info(tensor.dtype).name, shape,
                          bytes_text(static_cast<double>(tensor.bytes))));
    }
}

void print_text(const GgufFile& file,
                Model* model,
                const Estimate& estimate,
                const InspectOptions& options) {
    const std::string kind = file.version() == 0 ? std::string("Hugging Face folder")
                                                 : fmt::format("GGUF version {}", file.version());
    print(fmt::format("{}\n  {}, {}, {} keys, {} tensors\n", file.path(), kind,
                      bytes_text(static_cast<double>(file.file_bytes())), file.key_values().size(),
                      file.tensors().size()));
    print("\nKeys\n");
    print_keys(file);
    if (options.tensors) {
        print("\nTensors\n");
        print_tensors(file);
    }
    if (model == nullptr) return;
    const ModelInfo& info = model->info();
    const auto bytes = [](int64_t count) { return bytes_text(static_cast<double>(count)); };
    print(fmt::format(
        "\nModel\n  {}: {} layers, width {}, {} heads ({} for keys) of {}, ffn {}, vocabulary {}, "
        "{} parameters, {:.2f} bits each\n",
        info.description, info.layers, info.width, info.heads, info.kv_heads, info.head_size,
        info.ffn, info.vocab, info.parameters,
        8.0 * static_cast<double>(info.tensor_bytes) / static_cast<double>(info.parameters)));
    const MemoryPlan& plan = estimate.plan;
    print(
        fmt::format("\nMemory for a context of {} tokens (-c), cache {}/{} (-ctk, -ctv)\n"
                    "  weights {}, cache {}, state {}, compute {}{}, together {}\n",
                    estimate.context, cache_type_name(options.engine.type_k),
                    cache_type_name(options.engine.type_v), bytes(plan.weight_bytes),
                    bytes(plan.kv_bytes), bytes(plan.state_bytes), bytes(plan.compute_bytes),
                    plan.reserve_bytes > 0 ? ", reserve " + bytes(plan.reserve_bytes) : "",
                    bytes(plan.total())));
}

void add_model(Json& json, Model& model, const Estimate& estimate) {
    const ModelInfo& info = model.info();
    json["model"] = {{"architecture", info.architecture},
                     {"description", info.description},
                     {"parameters", info.parameters},
                     {"tensor_bytes", info.tensor_bytes},
                     {"layers", info.layers},
                     {"width", info.width},
                     {"heads", info.heads},
                     {"kv_heads", info.kv_heads},
                     {"head_size", info.head_size},
                     {"ffn", info.ffn},
                     {"vocab", info.vocab},
                     {"train_context", info.train_context}};
    json["memory"] = {{"context", estimate.context},
                      {"weight_bytes", estimate.plan.weight_bytes},
                      {"kv_bytes", estimate.plan.kv_bytes},
                      {"state_bytes", estimate.plan.state_bytes},
                      {"compute_bytes", estimate.plan.compute_bytes},
                      {"reserve_bytes", estimate.plan.reserve_bytes}};
}

Json json_of(const GgufFile& file, const InspectOptions& options) {
    Json json;
    json["file"] = file.path();
    json["version"] = file.version();
    json["alignment"] = file.alignment();
    json["file_bytes"] = file.file_bytes();
    Json& keys = json["metadata"] = Json::object();
    for (const GgufKeyValue& entry : file.key_values())
        keys[entry.key] = {{"type", type_text(entry.value)}, {"value", json_value(entry.value)}};
    if (!options.tensors) return json;
    Json& tensors = json["tensors"] = Json::array();
    for (const GgufTensor& tensor : file.tensors())
        tensors.push_back({{"name", tensor.name},
                           {"type", dtype_info(tensor.dtype).name},
                           {"shape", shape_of(tensor)},
                           {"bytes", tensor.bytes}});
    return json;
}

std::string json_text(const Json& json) {
    // Keys of a file need not be UTF-8; what is not becomes U+FFFD.
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void add_ops(const Ops& ops, bool as_json, Json& json) {
    if (as_json) {
        json["backend"] = {{"name", ops.name()},
                           {"description", ops.description()},
                           {"overrides", ops.overrides()}};
        return;
    }
    print(fmt::format("Backend {}: {}\nFused ops with kernels of their own:\n", ops.name(),
                      ops.description()));
    for (const std::string_view name : ops.overrides()) print(fmt::format("  {}\n", name));
}

}  // namespace

int run_inspect(const InspectOptions& options) {
    const std::unique_ptr<Ops> ops = make_ops(options.engine.backend);
    EngineOptions engine = options.engine;
    engine.backend.note = nullptr;  // said once
    Json json = Json::object();
    if (!options.engine.model_path.empty()) {
        const GgufFile file = open_model(options.engine.model_path);
        // A file of an architecture that we do not run can still be looked at.
        std::unique_ptr<Model> model;
        Estimate estimate;
        std::string problem;
        try {
            model = make_model(file);
            estimate = estimate_memory(file, *model, engine);
        } catch (const UserError& error) {
            model.reset();
            problem = error.what();
        }
        if (options.json) {
            json = json_of(file, options);
            if (model) add_model(json, *model, estimate);
            if (!problem.empty()) json["problem"] = problem;
        } else {
            print_text(file, model.get(), estimate, options);
        }
        if (!problem.empty())
            std::fprintf(stderr, "tessera: this model cannot be run: %s\n", problem.c_str());
    }
    if (options.ops) add_ops(*ops, options.json, json);
    if (options.json) print(json_text(json));
    return 0;
}

}  // namespace tessera
