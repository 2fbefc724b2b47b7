#include "hf/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace tessera {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kMostLayers = 4096;

/// `rope_parameters` (or `rope_scaling`, as it used to be called); empty when there is neither.
JsonObject rope_of(const JsonObject& config) {
    for (const char* key : {"rope_parameters", "rope_scaling"})
        if (const std::optional<JsonObject> rope = config.find_object(key)) return *rope;
    return JsonObject(Json::object(), config.where());
}

/// A number that stands in `rope_parameters` or, in older files, beside it.
std::optional<double> rope_number(const JsonObject& config, const char* key) {
    const JsonObject rope = rope_of(config);
    const std::optional<double> inside = rope.find_number(key);
    return inside ? inside : config.find_number(key);
}

std::string rope_type(const JsonObject& config) {
    const JsonObject rope = rope_of(config);
    for (const char* key : {"rope_type", "type"})
        if (const std::optional<std::string> type = rope.find_string(key)) return *type;
    return "default";
}

void refuse(const JsonObject& config, std::string_view key, std::string_view why) {
    config.fail_key(key, fmt::format("is {}, {}", shown_json(*config.find(key)), why));
}

/// Properties that would be computed wrongly, silently.
void refuse_unknown_properties(const JsonObject& config, const Family& family) {
    if (config.find_string("hidden_act").value_or("silu") != "silu")
        refuse(config, "hidden_act", "only silu is supported");
    if (config.find_bool("use_sliding_window").value_or(false))
        refuse(config, "use_sliding_window", "sliding windows are not supported");
    if (!config.find_bool("attn_output_gate").value_or(true))
        refuse(config, "attn_output_gate", "attention without gates is not supported");
    if (family.kind == FamilyKind::kMoe) {
        if (config.find_int("decoder_sparse_step", 0, kMost).value_or(1) != 1)
            refuse(config, "decoder_sparse_step",
                   "only layers that all have experts are supported");
        const Json* dense = config.find("mlp_only_layers");
        if (dense != nullptr && !dense->empty())
            refuse(config, "mlp_only_layers", "only layers that all have experts are supported");
    }
    const std::string type = rope_type(config);
    static constexpr std::string_view kTypes[] = {"default", "linear", "yarn", "llama3", "mrope"};
    if (std::find(std::begin(kTypes), std::end(kTypes), type) == std::end(kTypes))
        fail_folder(config.where(), fmt::format("rope scaling '{}' is not supported", type));
}

/// One entry a layer: 1 for recurrent ones.
std::vector<int64_t> recurrent_layers(const JsonObject& config, const ModelShape& shape) {
    const std::vector<std::string> types = config.strings("layer_types");
    if (!types.empty() && std::ssize(types) != shape.layers)
        config.fail_key("layer_types",
                        fmt::format("has {} entries for {} layers", types.size(), shape.layers));
    const int64_t interval = config.find_int("full_attention_interval", 1, kMostLayers).value_or(4);
    std::vector<int64_t> recurrent;
    for (int64_t i = 0; i < shape.layers; ++i) {
        if (types.empty()) {
            recurrent.push_back(shape.family->is_hybrid() && (i + 1) % interval != 0 ? 1 : 0);
            continue;
        }
        const std::string& type = types[static_cast<size_t>(i)];
        const bool is_known =
            type == "full_attention" || (type == "linear_attention" && shape.family->is_hybrid());
        if (!is_known)
            config.fail_key("layer_types",
                            fmt::format("has a layer of '{}', which is not supported", type));
        recurrent.push_back(type == "linear_attention" ? 1 : 0);
    }
    recurrent.resize(static_cast<size_t>(shape.layers + shape.draft_layers), 0);
    return recurrent;
}

void add_rope_scaling(const JsonObject& config, const std::string& prefix, KeyList& keys) {
    const JsonObject rope = rope_of(config);
    const std::string type = rope_type(config);
    if (type != "linear" && type != "yarn") return;
    const double factor = rope.require_number("factor");
    keys.text(prefix + "rope.scaling.type", type);
    keys.f32(prefix + "rope.scaling.factor", factor);
    if (type != "yarn") return;
    const std::optional<int64_t> original =
        rope.find_int("original_max_position_embeddings", 1, kMost);
    keys.u32(prefix + "rope.scaling.original_context_length",
             original ? *original : config.require_int("max_position_embeddings", 1, kMost));
    for (const char* key : {"beta_fast", "beta_slow"})
        if (const std::optional<double> beta = rope.find_number(key))
            keys.f32(prefix + "rope.scaling.yarn_" + key, *beta);
    // GGUF's factor comes on top of the usual magnitude, this one replaces it.
    if (const std::optional<double> magnitude = rope.find_number("attention_factor"))
        keys.f32(prefix + "rope.scaling.attn_factor", *magnitude / (1.0 + 0.1 * std::log(factor)));
}

/// How many of a head's elements rotate.
int64_t rotary_size(const JsonObject& config, const ModelShape& shape) {
    const double usual = shape.family->is_hybrid() ? 0.25 : 1.0;
    const double part = rope_number(config, "partial_rotary_factor").value_or(usual);
    if (!(part > 0.0 && part <= 1.0))
        fail_folder(config.where(),
                    fmt::format("key 'partial_rotary_factor' is {}, expected 0 to 1", part));
    return static_cast<int64_t>(shape.head_size * part);
}

void add_rope_keys(const JsonObject& config,
                   const ModelShape& shape,
                   const std::string& prefix,
                   KeyList& keys) {
    if (const std::optional<double> base = rope_number(config, "rope_theta"))
        keys.f32(prefix + "rope.freq_base", *base);
    add_rope_scaling(config, prefix, keys);
    const int64_t rotary = rotary_size(config, shape);
    if (shape.family->is_hybrid() || shape.family->adjacent_pairs || rotary != shape.head_size)
        keys.u32(prefix + "rope.dimension_count", rotary);
    if (!shape.family->is_hybrid()) return;
    std::vector<int64_t> sections{11, 11, 10};
    const JsonObject rope = rope_of(config);
    if (const Json* given = rope.find("mrope_section")) {
        const bool fits = given->is_array() && given->size() <= 4 &&
                          std::all_of(given->begin(), given->end(), [](const Json& section) {
                              return section.is_number_integer() && section.get<int64_t>() >= 0 &&
                                     section.get<int64_t>() <= kMost;
                          });
        if (!fits)
            rope.fail_key("mrope_section",
                          fmt::format("is {}, expected up to four integers", shown_json(*given)));
        sections = given->get<std::vector<int64_t>>();
    }
    sections.resize(4, 0);
    keys.i32s(prefix + "rope.dimension_sections", sections);
}

void add_expert_keys(const JsonObject& config,
                     const ModelShape& shape,
                     const std::string& prefix,
                     KeyList& keys) {
    keys.u32(prefix + "expert_count", shape.experts);
    keys.u32(prefix + "expert_used_count",
             config.require_int("num_experts_per_tok", 1, shape.experts));
    keys.u32(prefix + "expert_feed_forward_length",
             config.require_int("moe_intermediate_size", 1, kMost));
    if (shape.family->kind == FamilyKind::kMoe &&
        !config.find_bool("norm_topk_prob").value_or(false))
        keys.boolean(prefix + "expert_weights_norm", false);
    if (shape.family->kind == FamilyKind::kHybridMoe)
        keys.u32(prefix + "expert_shared_feed_forward_length",
                 config.require_int("shared_expert_intermediate_size", 1, kMost));
}

void add_recurrent_keys(const JsonObject& config,
                        const ModelShape& shape,
                        const std::string& prefix,
                        KeyList& keys) {
    keys.u32(prefix + "ssm.conv_kernel", config.require_int("linear_conv_kernel_dim", 1, 64));
    keys.u32(prefix + "ssm.state_size", shape.key_size);
    keys.u32(prefix + "ssm.group_count", shape.key_heads);
    keys.u32(prefix + "ssm.time_step_rank", shape.value_heads);
    keys.u32(prefix + "ssm.inner_size", int64_t{shape.value_heads} * shape.value_size);
    keys.booleans(prefix + "attention.recurrent_layers", recurrent_layers(config, shape));
    keys.u32(prefix + "full_attention_interval",
             config.find_int("full_attention_interval", 1, kMostLayers).value_or(4));
}

}  // namespace

void KeyList::u32(std::string key, int64_t value) {
    entries_.push_back({std::move(key), {.type = GgufType::kU32, .value = value}});
}
void KeyList::f32(std::string key, double value) {
    entries_.push_back(
        {std::move(key),
         {.type = GgufType::kF32, .value = static_cast<double>(static_cast<float>(value))}});
}
void KeyList::boolean(std::string key, bool value) {
    entries_.push_back({std::move(key), {.type = GgufType::kBool, .value = value}});
}
void KeyList::text(std::string key, std::string value) {
    entries_.push_back({std::move(key), {.type = GgufType::kString, .value = std::move(value)}});
}
void KeyList::texts(std::string key, std::vector<std::string> values) {
    entries_.push_back({std::move(key),
                        {.type = GgufType::kArray,
                         .element_type = GgufType::kString,
                         .value = GgufValue::Array(std::move(values))}});
}
void KeyList::i32s(std::string key, std::vector<int64_t> values) {
    entries_.push_back({std::move(key),
                        {.type = GgufType::kArray,
                         .element_type = GgufType::kI32,
                         .value = GgufValue::Array(std::move(values))}});
}
void KeyList::booleans(std::string key, std::vector<int64_t> values) {
    entries_.push_back({std::move(key),
                        {.type = GgufType::kArray,
                         .element_type = GgufType::kBool,
                         .value = GgufValue::Array(std::move(values))}});
}

ModelShape read_shape(const JsonObject& config, const Family& family) {
    refuse_unknown_properties(config, family);
    const auto number = [&](const char* key, int64_t most) {
        return static_cast<int32_t>(config.require_int(key, 1, most));
    };
    ModelShape shape{.family = &family};
    shape.layers = number("num_hidden_layers", kMostLayers);
    shape.width = number("hidden_size", 1 << 20);
    shape.heads = number("num_attention_heads", 4096);
    shape.kv_heads =
        static_cast<int32_t>(config.find_int("num_key_value_heads", 1, 4096).value_or(shape.heads));
    shape.head_size = static_cast<int32_t>(
        config.find_int("head_dim", 1, 4096).value_or(shape.width / shape.heads));
    shape.vocab = number("vocab_size", kMost);
    if (family.has_experts()) shape.experts = number("num_experts", 65536);
    if (!family.is_hybrid()) return shape;
    shape.key_heads = number("linear_num_key_heads", 4096);
    shape.value_heads = number("linear_num_value_heads", 4096);
    shape.key_size = number("linear_key_head_dim", 4096);
    shape.value_size = number("linear_value_head_dim", 4096);
    if (shape.value_heads % shape.key_heads != 0)
        config.fail_key("linear_num_value_heads",
                        fmt::format("is {}, no multiple of linear_num_key_heads {}",
                                    shape.value_heads, shape.key_heads));
    return shape;
}

void add_shape_keys(const JsonObject& config, const ModelShape& shape, KeyList& keys) {
    const Family& family = *shape.family;
    const std::string prefix = std::string(family.architecture) + ".";
    keys.u32(prefix + "block_count", shape.layers + shape.draft_layers);
    keys.u32(prefix + "context_length", config.require_int("max_position_embeddings", 1, kMost));
    keys.u32(prefix + "embedding_length", shape.width);
    if (const auto ffn = config.find_int("intermediate_size", 1, kMost); ffn || !shape.experts)
        keys.u32(prefix + "feed_forward_length",
                 ffn ? *ffn : config.require_int("intermediate_size", 1, kMost));
    keys.u32(prefix + "attention.head_count", shape.heads);
    keys.u32(prefix + "attention.head_count_kv", shape.kv_heads);
    if (config.find("head_dim") != nullptr) {
        keys.u32(prefix + "attention.key_length", shape.head_size);
        keys.u32(prefix + "attention.value_length", shape.head_size);
    }
    keys.f32(prefix + "attention.layer_norm_rms_epsilon", config.require_number("rms_norm_eps"));
    add_rope_keys(config, shape, prefix, keys);
    if (family.adjacent_pairs) keys.u32(prefix + "vocab_size", shape.vocab);
    if (family.has_experts()) add_expert_keys(config, shape, prefix, keys);
    if (family.is_hybrid()) add_recurrent_keys(config, shape, prefix, keys);
    if (!family.is_hybrid()) recurrent_layers(config, shape);  // refuses other kinds of layers
    if (shape.draft_layers > 0) keys.u32(prefix + "nextn_predict_layers", shape.draft_layers);
}

std::vector<float> rope_factors(const JsonObject& config, const ModelShape& shape) {
    if (rope_type(config) != "llama3") return {};
    const JsonObject rope = rope_of(config);
    const double base = rope_number(config, "rope_theta").value_or(10000.0);
    const double factor = rope.require_number("factor");
    const double low = rope.require_number("low_freq_factor");
    const double high = rope.require_number("high_freq_factor");
    const double context = rope.require_number("original_max_position_embeddings");
    if (!(base > 0.0 && factor > 0.0 && low > 0.0 && high > low && context > 0.0))
        fail_folder(rope.where(), "numbers of rope scaling 'llama3' contradict each other");
    std::vector<float> factors;
    for (int32_t i = 0; i < shape.head_size; i += 2) {
        const double frequency = std::pow(base, -static_cast<double>(i) / shape.head_size);
        const double turns = context * frequency / (2.0 * std::numbers::pi);
        const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
        factors.push_back(static_cast<float>(1.0 / ((1.0 - share) / factor + share)));
    }
    return factors;
}

}  // namespace tessera
