#include "models/hparams.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera {
namespace {

[[noreturn]] void fail(const GgufFile& file, const std::string& message) {
    throw UserError(ExitCode::kModel, fmt::format("{}: {}", file.path(), message));
}

/// Parameter count as people write it: 135M, 1.2B.
std::string short_count(int64_t parameters) {
    const double count = static_cast<double>(parameters);
    if (count < 1e6) return fmt::format("{:.0f}K", count / 1e3);
    if (count < 1e9) return fmt::format("{:.0f}M", count / 1e6);
    return fmt::format("{:.1f}B", count / 1e9);
}

/// Format that most matrix bytes of the file have.
std::string_view main_format(const GgufFile& file) {
    std::vector<int64_t> bytes(all_dtypes().size());
    for (const GgufTensor& tensor : file.tensors())
        if (tensor.rank > 1 && tensor.name != "token_embd.weight" && tensor.name != "output.weight")
            bytes[static_cast<size_t>(tensor.dtype)] += tensor.bytes;
    size_t best = 0;
    for (size_t i = 1; i < bytes.size(); ++i)
        if (bytes[i] > bytes[best]) best = i;
    return all_dtypes()[best].name;
}

void read_rope(const GgufFile& file, const std::string& prefix, Hparams& hparams) {
    RopeParams& rope = hparams.rope;
    const ModelInfo& info = hparams.info;
    const int64_t rotary = file.get_int(prefix + "rope.dimension_count").value_or(info.head_size);
    if (rotary <= 0 || rotary % 2 != 0 || rotary > info.head_size)
        fail(file, fmt::format("key '{}rope.dimension_count' is {}, expected an even number up to "
                               "the head size {}",
                               prefix, rotary, info.head_size));
    rope.rotary = static_cast<int32_t>(rotary);
    rope.base = static_cast<float>(file.get_float(prefix + "rope.freq_base").value_or(10000.0));
    if (!(rope.base > 0.0f) || !std::isfinite(rope.base))
        fail(file, fmt::format("key '{}rope.freq_base' is {}, expected a positive number", prefix,
                               rope.base));
    const std::string type = file.get_string(prefix + "rope.scaling.type").value_or("none");
    const double factor = file.get_float(prefix + "rope.scaling.factor").value_or(1.0);
    const std::string original = prefix + "rope.scaling.original_context_length";
    rope.original_context = file.find(original) == nullptr
                                ? info.train_context
                                : static_cast<int32_t>(required_int(file, original, 1, 1 << 30));
    if (type == "none") return;
    if (type != "linear" && type != "yarn")
        fail(file, fmt::format("key '{}rope.scaling.type' is '{}', known are none, linear, yarn",
                               prefix, type));
    if (!(factor > 0.0))
        fail(file, fmt::format("key '{}rope.scaling.factor' is {}, expected a positive number",
                               prefix, factor));
    rope.freq_scale = static_cast<float>(1.0 / factor);
    rope.yarn = type == "yarn";
    if (!rope.yarn) return;
    const auto number = [&](const char* key, double fallback) {
        return static_cast<float>(file.get_float(prefix + key).value_or(fallback));
    };
    rope.beta_fast = number("rope.scaling.yarn_beta_fast", 32.0);
    rope.beta_slow = number("rope.scaling.yarn_beta_slow", 1.0);
    rope.magnitude =
        static_cast<float>(1.0 + 0.1 * std::log(factor)) * number("rope.scaling.attn_factor", 1.0);
}

void check_heads(const GgufFile& file, const std::string& prefix, ModelInfo& info) {
    if (info.heads % info.kv_heads != 0)
        fail(file, fmt::format("key '{}attention.head_count' is {}, not a multiple of "
                               "head_count_kv {}",
                               prefix, info.heads, info.kv_heads));
    const std::string key = prefix + "attention.key_length";
    if (!file.find(key) && info.width % info.heads != 0)
        fail(file, fmt::format("key '{}embedding_length' is {}, not a multiple of head_count {}",
                               prefix, info.width, info.heads));
    info.head_size = file.find(key) ? static_cast<int32_t>(required_int(file, key, 1, 4096))
                                    : info.width / info.heads;
    const std::string value_key = prefix + "attention.value_length";
    if (file.get_int(value_key).value_or(info.head_size) != info.head_size)
        fail(file, fmt::format("key '{}' differs from key_length {}, which is not supported",
                               value_key, info.head_size));
}

ExpertHparams read_experts(const GgufFile& file, const std::string& prefix) {
    ExpertHparams experts;
    const auto number = [&](const char* key, int64_t low, int64_t high) {
        return static_cast<int32_t>(required_int(file, prefix + key, low, high));
    };
    if (file.get_int(prefix + "expert_count").value_or(0) == 0) return experts;
    experts.shape.experts = number("expert_count", 1, 1 << 16);
    experts.shape.choices = number("expert_used_count", 1, experts.shape.experts);
    experts.ffn = number("expert_feed_forward_length", 1, 1 << 24);
    if (file.find(prefix + "expert_shared_feed_forward_length"))
        experts.shared_ffn = number("expert_shared_feed_forward_length", 0, 1 << 24);
    const int64_t gating = file.get_int(prefix + "expert_gating_func").value_or(1);
    if (gating != 1 && gating != 2)
        fail(file, fmt::format("key '{}expert_gating_func' is {}, known are 1 (softmax) and 2 "
                               "(sigmoid)",
                               prefix, gating));
    experts.shape.route.sigmoid = gating == 2;
    experts.shape.route.normalize = file.get_bool(prefix + "expert_weights_norm").value_or(true);
    const double scale = file.get_float(prefix + "expert_weights_scale").value_or(0.0);
    if (!std::isfinite(scale))
        fail(file, fmt::format("key '{}expert_weights_scale' is {}", prefix, scale));
    experts.shape.route.scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
    return experts;
}

}  // namespace

int64_t required_int(const GgufFile& file, const std::string& key, int64_t low, int64_t high) {
    const std::optional<int64_t> value = file.get_int(key);
    if (!value) fail(file, fmt::format("key '{}' is missing", key));
    if (*value < low || *value > high)
        fail(file, fmt::format("key '{}' is {}, expected {} to {}", key, *value, low, high));
    return *value;
}

Hparams read_hparams(const GgufFile& file, const std::string& architecture) {
    const std::string prefix = architecture + ".";
    Hparams hparams;
    ModelInfo& info = hparams.info;
    const auto number = [&](const char* key, int64_t low, int64_t high) {
        return static_cast<int32_t>(required_int(file, prefix + key, low, high));
    };
    const auto optional_number = [&](const char* key, int64_t low, int64_t high) {
        return file.find(prefix + key) ? number(key, low, high) : 0;
    };
    info.architecture = architecture;
    info.name = file.get_string("general.name").value_or("");
    info.layers = number("block_count", 1, 4096);
    hparams.draft_blocks = optional_number("nextn_predict_layers", 0, info.layers - 1);
    info.layers -= hparams.draft_blocks;
    info.width = number("embedding_length", 1, 1 << 20);
    info.heads = number("attention.head_count", 1, 4096);
    info.kv_heads = file.find(prefix + "attention.head_count_kv")
                        ? number("attention.head_count_kv", 1, 4096)
                        : info.heads;
    hparams.experts = read_experts(file, prefix);
    info.ffn = hparams.experts.shape.experts > 0
                   ? optional_number("feed_forward_length", 0, 1 << 24)
                   : number("feed_forward_length", 1, 1 << 24);
    info.train_context = number("context_length", 1, 1 << 30);
    const GgufTensor* embedding = file.find_tensor("token_embd.weight");
    if (embedding == nullptr) fail(file, "tensor 'token_embd.weight' is missing");
    if (embedding->shape[1] > (1 << 30)) fail(file, "tensor 'token_embd.weight' has too many rows");
    info.vocab = static_cast<int32_t>(embedding->shape[1]);
    check_heads(file, prefix, info);
    const double eps = file.get_float(prefix + "attention.layer_norm_rms_epsilon").value_or(1e-5);
    if (!(eps >= 0.0) || eps > 1.0)
        fail(file, fmt::format("key '{}attention.layer_norm_rms_epsilon' is {}", prefix, eps));
    hparams.norm_eps = static_cast<float>(eps);
    hparams.attention_scale =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(info.head_size)));
    read_rope(file, prefix, hparams);
    for (const GgufTensor& tensor : file.tensors()) {
        if (!tensor.name.ends_with("scale")) info.parameters += tensor.elements();
        info.tensor_bytes += tensor.bytes;
    }
    info.description =
        fmt::format("{} {} {}", architecture, short_count(info.parameters), main_format(file));
    return hparams;
}

void refuse_draft_without_block(const GgufFile& file,
                                const Hparams& hparams,
                                const ModelOptions& options) {
    if (!options.draft || hparams.draft_blocks == 1) return;
    const std::string& name = hparams.info.architecture;
    if (hparams.draft_blocks > 1)
        fail(file, fmt::format("key '{}.nextn_predict_layers' is {}: drafting with one block is "
                               "known, run without --spec-type",
                               name, hparams.draft_blocks));
    fail(file, fmt::format("the model has no block for multi-token prediction (key "
                           "'{}.nextn_predict_layers'): run without --spec-type draft-mtp",
                           name));
}

}  // namespace tessera
