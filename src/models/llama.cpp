#include "models/llama.h"

#include <fmt/format.h>

#include "models/blocks/attention.h"
#include "models/blocks/feed_forward.h"
#include "models/hparams.h"
#include "models/weight_table.h"

namespace tessera {
namespace {

struct Layer {
    AttentionWeights attention;
    FeedForwardWeights feed_forward;
};

class LlamaModel final : public Model {
  public:
    explicit LlamaModel(const GgufFile& file);
    const ModelInfo& info() const override { return hparams_.info; }
    std::vector<KvSpec> kv_layers() const override {
        return std::vector<KvSpec>(layers_.size(),
                                   {hparams_.info.kv_heads, hparams_.info.head_size});
    }
    std::vector<WeightRow> weights() override;
    Tensor forward(Ops& ops, Exec& ex, const Batch& batch, const Memory& memory) override;
    void logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) override;

  private:
    void add_layer_weights(int32_t index, std::vector<WeightRow>& rows);
    void feed_forward(Ops& ops, Exec& ex, const Layer& layer, const Tensor& x) const {
        feed_forward_block(ops, ex, layer.feed_forward, hparams_.experts.shape, hparams_.norm_eps,
                           x);
    }

    Hparams hparams_;
    AttentionShape shape_;
    Weight embedding_;
    Weight head_;  ///< absent: tied to the embedding
    Tensor output_norm_;
    std::vector<Layer> layers_;
};

LlamaModel::LlamaModel(const GgufFile& file)
    : hparams_(read_hparams(file, *file.get_string("general.architecture"))) {
    const ModelInfo& info = hparams_.info;
    // llama's rows of q and k are permuted by the converter, which turns the halves of a head into
    // adjacent pairs.
    hparams_.rope.pairs = info.architecture == "llama" ? RopePairs::kAdjacent : RopePairs::kHalves;
    shape_ = {.heads = info.heads,
              .kv_heads = info.kv_heads,
              .head_size = info.head_size,
              .norm_eps = hparams_.norm_eps,
              .rope = hparams_.rope,
              .freq_factors = {},
              .params = {.scale = hparams_.attention_scale}};
    layers_.resize(static_cast<size_t>(info.layers));
}

std::vector<WeightRow> LlamaModel::weights() {
    const ModelInfo& info = hparams_.info;
    std::vector<WeightRow> rows;
    rows.push_back(
        {.tensor = "token_embd.weight", .shape = {info.vocab, info.width}, .matrix = &embedding_});
    for (int32_t i = 0; i < info.layers; ++i) add_layer_weights(i, rows);
    rows.push_back(
        {.tensor = "output_norm.weight", .shape = {info.width}, .vector = &output_norm_});
    rows.push_back({.tensor = "output.weight",
                    .shape = {info.vocab, info.width},
                    .required = false,
                    .matrix = &head_});
    rows.push_back({.tensor = "rope_freqs.weight",
                    .shape = {hparams_.rope.rotary / 2},
                    .required = false,
                    .vector = &shape_.freq_factors});
    return rows;
}

void LlamaModel::add_layer_weights(int32_t index, std::vector<WeightRow>& rows) {
    const ModelInfo& info = hparams_.info;
    const int64_t q_rows = int64_t{info.heads} * info.head_size;
    const int64_t kv_rows = int64_t{info.kv_heads} * info.head_size;
    const bool per_head_norms = info.architecture.starts_with("qwen3");
    const bool biases = info.architecture == "qwen2";
    const bool optional_biases = info.architecture == "llama";
    Layer& layer = layers_[static_cast<size_t>(index)];
    AttentionWeights& a = layer.attention;
    LayerTable table(index, rows);
    table.vector("attn_norm.weight", {info.width}, &a.norm);
    table.matrix("attn_q.weight", {q_rows, info.width}, &a.q);
    table.matrix("attn_k.weight", {kv_rows, info.width}, &a.k);
    table.matrix("attn_v.weight", {kv_rows, info.width}, &a.v);
    table.matrix("attn_output.weight", {info.width, q_rows}, &a.out);
    if (biases || optional_biases) {
        table.vector("attn_q.bias", {q_rows}, &a.q_bias, biases);
        table.vector("attn_k.bias", {kv_rows}, &a.k_bias, biases);
        table.vector("attn_v.bias", {kv_rows}, &a.v_bias, biases);
        table.vector("attn_output.bias", {info.width}, &a.out_bias, false);
    }
    if (per_head_norms) {
        table.vector("attn_q_norm.weight", {info.head_size}, &a.q_norm);
        table.vector("attn_k_norm.weight", {info.head_size}, &a.k_norm);
    }
    table.feed_forward("ffn_norm.weight", info, hparams_.experts, layer.feed_forward);
}

Tensor LlamaModel::forward(Ops& ops, Exec& ex, const Batch& batch, const Memory& memory) {
    const int64_t width = hparams_.info.width;
    const int64_t wanted = batch.outputs.shape[0];
    const Tensor hidden = ex.arena.allocate(DType::kF32, {wanted, width});
    Scope scope(ex.arena);
    const Tensor x = ex.arena.allocate(DType::kF32, {batch.row_count(), width});
    ops.embed(ex, batch.tokens, embedding_, x);
    // After the last keys are stored only the rows whose logits are wanted go on.
    Exec tail{.arena = ex.arena, .prompt_rows = batch.prompt_outputs};
    for (size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        const bool last = i + 1 == layers_.size();
        {
            Scope attention_scope(ex.arena);
            Tensor heads =
                attention_heads(ops, ex, layer.attention, shape_, x, batch, memory.kv[i]);
            if (last) {
                const Tensor all = heads;
                heads = ex.arena.allocate(DType::kF32, {wanted, all.cols()});
                ops.gather_rows(ex, all, batch.outputs, heads);
                ops.gather_rows(ex, x, batch.outputs, hidden);
            }
            attention_output(ops, last ? tail : ex, layer.attention, heads, last ? hidden : x);
        }
        feed_forward(ops, last ? tail : ex, layer, last ? hidden : x);
    }
    ops.rms_norm(ex, hidden, output_norm_, hparams_.norm_eps, hidden);
    return hidden;
}

void LlamaModel::logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) {
    Scope scope(ex.arena);
    const Weight& head = head_.absent() ? embedding_ : head_;
    ops.linear(ex, ops.prepare(ex, hidden, head.wants), head, Tensor{}, out, Accumulate::kNo);
}

}  // namespace

std::unique_ptr<Model> make_llama(const GgufFile& file, const ModelOptions& options) {
    auto model = std::make_unique<LlamaModel>(file);
    if (options.draft)
        throw UserError(ExitCode::kModel,
                        fmt::format("{}: architecture '{}' has no block for multi-token "
                                    "prediction: run without --spec-type draft-mtp",
                                    file.path(), model->info().architecture));
    return model;
}

}  // namespace tessera
