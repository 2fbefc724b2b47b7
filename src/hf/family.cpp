#include "hf/family.h"

#include <algorithm>

namespace tessera {
namespace {

using enum TensorWork;

constexpr TensorRow kAttention[] = {
    {"input_layernorm.weight", "attn_norm.weight", kNorm},
    {"self_attn.q_proj.weight", "attn_q.weight", kQueryRows},
    {"self_attn.q_proj.bias", "attn_q.bias", kQueryRows},
    {"self_attn.k_proj.weight", "attn_k.weight", kKeyRows},
    {"self_attn.k_proj.bias", "attn_k.bias", kKeyRows},
    {"self_attn.v_proj.weight", "attn_v.weight", kCopy},
    {"self_attn.v_proj.bias", "attn_v.bias", kVector},
    {"self_attn.o_proj.weight", "attn_output.weight", kCopy},
    {"self_attn.o_proj.bias", "attn_output.bias", kVector},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", kNorm},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", kNorm},
};
constexpr TensorRow kNormBeforeFfn[] = {
    {"post_attention_layernorm.weight", "ffn_norm.weight", kNorm},
};
constexpr TensorRow kNormAfterAttention[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight", kNorm},
};
constexpr TensorRow kDenseFfn[] = {
    {"mlp.gate_proj.weight", "ffn_gate.weight", kCopy},
    {"mlp.up_proj.weight", "ffn_up.weight", kCopy},
    {"mlp.down_proj.weight", "ffn_down.weight", kCopy},
};
constexpr TensorRow kExperts[] = {
    {"mlp.gate.weight", "ffn_gate_inp.weight", kF32Matrix},
    {"mlp.experts.{}.gate_proj.weight", "ffn_gate_exps.weight", kExpert},
    {"mlp.experts.{}.up_proj.weight", "ffn_up_exps.weight", kExpert},
    {"mlp.experts.{}.down_proj.weight", "ffn_down_exps.weight", kExpert},
    {"mlp.experts.gate_up_proj", "ffn_gate_exps.weight", kStackGateUp},
    {"mlp.experts.down_proj", "ffn_down_exps.weight", kStack},
};
constexpr TensorRow kSharedExpert[] = {
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", kF32Matrix},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", kCopy},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", kCopy},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", kCopy},
};
constexpr TensorRow kDeltaNet[] = {
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight", kKeysThenValues},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight", kValueRows},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight", kValueHeads},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight", kValueHeads},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight", kConvolution},
    {"linear_attn.dt_bias", "ssm_dt.bias", kValueHeadsF32},
    {"linear_attn.A_log", "ssm_a", kMinusExpHeads},
    {"linear_attn.norm.weight", "ssm_norm.weight", kVector},
    {"linear_attn.out_proj.weight", "ssm_out.weight", kValueColumns},
};
constexpr TensorRow kTop[] = {
    {"model.embed_tokens.weight", "token_embd.weight", kCopy},
    {"model.norm.weight", "output_norm.weight", kNorm},
    {"lm_head.weight", "output.weight", kCopy},
};
constexpr TensorRow kDraft[] = {
    {"fc.weight", "nextn.eh_proj.weight", kCopy},
    {"pre_fc_norm_embedding.weight", "nextn.enorm.weight", kNorm},
    {"pre_fc_norm_hidden.weight", "nextn.hnorm.weight", kNorm},
    {"norm.weight", "nextn.shared_head_norm.weight", kNorm},
    {"embed_tokens.weight", "nextn.embed_tokens.weight", kCopy},
    {"lm_head.weight", "nextn.shared_head_head.weight", kCopy},
};

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .architecture = "llama",
     .adjacent_pairs = true,
     .layer_rows = {kAttention, kNormBeforeFfn, kDenseFfn}},
    {.model_type = "qwen2",
     .architecture = "qwen2",
     .layer_rows = {kAttention, kNormBeforeFfn, kDenseFfn}},
    {.model_type = "qwen3",
     .architecture = "qwen3",
     .layer_rows = {kAttention, kNormBeforeFfn, kDenseFfn}},
    {.model_type = "qwen3_moe",
     .architecture = "qwen3moe",
     .kind = FamilyKind::kMoe,
     .layer_rows = {kAttention, kNormBeforeFfn, kExperts}},
    {.model_type = "qwen3_5",
     .architecture = "qwen35",
     .kind = FamilyKind::kHybrid,
     .zero_centred_norms = true,
     .layer_rows = {kAttention, kNormAfterAttention, kDeltaNet, kDenseFfn}},
    {.model_type = "qwen3_5_text",
     .architecture = "qwen35",
     .kind = FamilyKind::kHybrid,
     .zero_centred_norms = true,
     .layer_rows = {kAttention, kNormAfterAttention, kDeltaNet, kDenseFfn}},
    {.model_type = "qwen3_5_moe",
     .architecture = "qwen35moe",
     .kind = FamilyKind::kHybridMoe,
     .zero_centred_norms = true,
     .layer_rows = {kAttention, kNormAfterAttention, kDeltaNet, kExperts, kSharedExpert}},
    {.model_type = "qwen3_5_moe_text",
     .architecture = "qwen35moe",
     .kind = FamilyKind::kHybridMoe,
     .zero_centred_norms = true,
     .layer_rows = {kAttention, kNormAfterAttention, kDeltaNet, kExperts, kSharedExpert}},
};

}  // namespace

std::span<const Family> known_families() {
    return kFamilies;
}

const Family* find_family(std::string_view model_type) {
    const auto* found =
        std::find_if(std::begin(kFamilies), std::end(kFamilies),
                     [&](const Family& family) { return family.model_type == model_type; });
    return found == std::end(kFamilies) ? nullptr : found;
}

std::span<const TensorRow> top_rows() {
    return kTop;
}

std::span<const TensorRow> draft_rows() {
    return kDraft;
}

}  // namespace tessera
