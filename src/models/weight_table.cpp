#include "models/weight_table.h"

#include <fmt/format.h>

#include <utility>

namespace tessera {

void LayerTable::matrix(const char* part,
                        std::vector<int64_t> shape,
                        Weight* target,
                        bool required) {
    rows_.push_back({.tensor = fmt::format("blk.{}.{}", index_, part),
                     .shape = std::move(shape),
                     .required = required,
                     .matrix = target});
}

void LayerTable::vector(const char* part,
                        std::vector<int64_t> shape,
                        Tensor* target,
                        bool required) {
    rows_.push_back({.tensor = fmt::format("blk.{}.{}", index_, part),
                     .shape = std::move(shape),
                     .required = required,
                     .vector = target});
}

void LayerTable::feed_forward(const char* norm,
                              const ModelInfo& info,
                              const ExpertHparams& experts,
                              FeedForwardWeights& w) {
    const bool has_experts = experts.shape.experts > 0;
    vector(norm, {info.width}, has_experts ? &w.moe.norm : &w.dense.norm);
    if (has_experts) {
        moe(info, experts, w.moe);
    } else {
        dense(info, w.dense);
    }
}

void LayerTable::dense(const ModelInfo& info, FfnWeights& ffn) {
    matrix("ffn_gate.weight", {info.ffn, info.width}, &ffn.gate);
    matrix("ffn_up.weight", {info.ffn, info.width}, &ffn.up);
    matrix("ffn_down.weight", {info.width, info.ffn}, &ffn.down);
}

void LayerTable::moe(const ModelInfo& info, const ExpertHparams& experts, MoeWeights& moe) {
    const int64_t count = experts.shape.experts, ffn = experts.ffn, shared = experts.shared_ffn;
    matrix("ffn_gate_inp.weight", {count, info.width}, &moe.router);
    vector("exp_probs_b.bias", {count}, &moe.selection_bias, false);
    matrix("ffn_gate_exps.weight", {count, ffn, info.width}, &moe.gate);
    matrix("ffn_up_exps.weight", {count, ffn, info.width}, &moe.up);
    matrix("ffn_down_exps.weight", {count, info.width, ffn}, &moe.down);
    if (shared == 0) return;
    matrix("ffn_gate_inp_shexp.weight", {1, info.width}, &moe.shared_router);
    matrix("ffn_gate_shexp.weight", {shared, info.width}, &moe.shared_gate);
    matrix("ffn_up_shexp.weight", {shared, info.width}, &moe.shared_up);
    matrix("ffn_down_shexp.weight", {info.width, shared}, &moe.shared_down);
}

}  // namespace tessera
