#include "models/qwen35.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/blocks/attention.h"
#include "models/blocks/delta_net.h"
#include "models/blocks/feed_forward.h"
#include "models/hparams.h"
#include "models/weight_table.h"

namespace tessera {
namespace {

struct Layer {
    int32_t memory = 0;  ///< index into Memory::recurrent or Memory::kv
    bool recurrent = false;
    DeltaNetWeights mixer;       ///< recurrent layers
    AttentionWeights attention;  ///< the others
    FeedForwardWeights feed_forward;
};

/// Multi-token prediction: a layer of attention over the next token's embedding and the state.
struct DraftBlock {
    Weight join;  ///< [width, 2 width]
    Tensor token_norm, state_norm;
    Tensor out_norm;   ///< absent: the model's
    Weight embedding;  ///< absent: the model's
    Weight head;       ///< absent: the model's
    Layer layer;
};

class Qwen35Model final : public Model {
  public:
    Qwen35Model(const GgufFile& file, const ModelOptions& options);
    const ModelInfo& info() const override { return hparams_.info; }
    std::vector<KvSpec> kv_layers() const override;
    std::vector<RecurrentSpec> recurrent_layers() const override {
        return std::vector<RecurrentSpec>(static_cast<size_t>(recurrent_count_), spec_);
    }
    std::vector<WeightRow> weights() override;
    Tensor forward(Ops& ops, Exec& ex, const Batch& batch, const Memory& memory) override;
    void logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) override;
    bool has_draft() const override { return draft_; }
    double guess_share() override;
    Tensor draft(Ops& ops,
                 Exec& ex,
                 const Batch& batch,
                 const Tensor& hidden,
                 const Memory& memory) override;
    void draft_logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) override;

  private:
    void read_recurrence(const GgufFile& file);
    void place_layers(const GgufFile& file);
    void add_layer(int32_t index, Layer& layer, std::vector<WeightRow>& rows);
    void add_draft_block(int32_t index, DraftBlock& block, std::vector<WeightRow>& rows);
    void mix(Ops& ops,
             Exec& ex,
             const Layer& layer,
             const Tensor& x,
             const Batch& batch,
             const Memory& memory);
    void feed_forward(Ops& ops, Exec& ex, const Layer& layer, const Tensor& x) const {
        feed_forward_block(ops, ex, layer.feed_forward, hparams_.experts.shape, hparams_.norm_eps,
                           x);
    }
    const Weight& head() const { return head_.absent() ? embedding_ : head_; }

    Hparams hparams_;
    bool draft_ = false;
    AttentionShape shape_;
    RecurrentSpec spec_;
    int32_t recurrent_count_ = 0;
    Weight embedding_;
    Weight head_;  ///< absent: tied to the embedding
    Tensor output_norm_;
    std::vector<Layer> layers_;
    std::vector<DraftBlock> draft_blocks_;  ///< the first one is used
};

Qwen35Model::Qwen35Model(const GgufFile& file, const ModelOptions& options)
    : hparams_(read_hparams(file, *file.get_string("general.architecture"))),
      draft_(options.draft) {
    refuse_draft_without_block(file, hparams_, options);
    const ModelInfo& info = hparams_.info;
    hparams_.rope.pairs = RopePairs::kHalves;
    shape_ = {.heads = info.heads,
              .kv_heads = info.kv_heads,
              .head_size = info.head_size,
              .norm_eps = hparams_.norm_eps,
              .rope = hparams_.rope,
              .freq_factors = {},
              .params = {.scale = hparams_.attention_scale}};
    read_recurrence(file);
    place_layers(file);
}

void Qwen35Model::read_recurrence(const GgufFile& file) {
    const std::string prefix = hparams_.info.architecture + ".ssm.";
    const auto number = [&](const char* key, int64_t low, int64_t high) {
        return static_cast<int32_t>(required_int(file, prefix + key, low, high));
    };
    spec_.taps = number("conv_kernel", 2, 8);
    spec_.key_size = number("state_size", 1, 1024);
    spec_.key_heads = number("group_count", 1, 4096);
    spec_.value_heads = number("time_step_rank", 1, 4096);
    const int32_t inner = number("inner_size", 1, 1 << 24);
    if (spec_.value_heads % spec_.key_heads != 0 || inner % spec_.value_heads != 0)
        throw UserError(
            ExitCode::kModel,
            fmt::format("{}: keys '{}': time_step_rank {} has to be a multiple of group_count {} "
                        "and to divide inner_size {}",
                        file.path(), prefix, spec_.value_heads, spec_.key_heads, inner));
    spec_.value_size = inner / spec_.value_heads;
    spec_.channels = 2 * spec_.key_heads * spec_.key_size + inner;
}

/// Which layers are recurrent: an explicit list, or all but every n-th.
void Qwen35Model::place_layers(const GgufFile& file) {
    const std::string prefix = hparams_.info.architecture + ".";
    const auto listed = file.get_int_array(prefix + "attention.recurrent_layers");
    if (listed && std::ssize(*listed) < hparams_.info.layers)
        throw UserError(
            ExitCode::kModel,
            fmt::format("{}: key '{}attention.recurrent_layers' has {} entries for {} layers",
                        file.path(), prefix, listed->size(), hparams_.info.layers));
    const int64_t interval = file.find(prefix + "full_attention_interval")
                                 ? required_int(file, prefix + "full_attention_interval", 1, 4096)
                                 : 4;
    int32_t attention_count = 0;
    for (int32_t i = 0; i < hparams_.info.layers; ++i) {
        Layer layer;
        layer.recurrent = listed ? (*listed)[static_cast<size_t>(i)] != 0 : (i + 1) % interval != 0;
        layer.memory = layer.recurrent ? recurrent_count_++ : attention_count++;
        layers_.push_back(layer);
    }
    draft_blocks_.resize(static_cast<size_t>(hparams_.draft_blocks));
    if (draft_) draft_blocks_.front().layer.memory = attention_count;
}

std::vector<KvSpec> Qwen35Model::kv_layers() const {
    const size_t count = layers_.size() - static_cast<size_t>(recurrent_count_) + (draft_ ? 1 : 0);
    return std::vector<KvSpec>(count, {hparams_.info.kv_heads, hparams_.info.head_size});
}

std::vector<WeightRow> Qwen35Model::weights() {
    const ModelInfo& info = hparams_.info;
    std::vector<WeightRow> rows;
    rows.push_back(
        {.tensor = "token_embd.weight", .shape = {info.vocab, info.width}, .matrix = &embedding_});
    for (int32_t i = 0; i < info.layers; ++i) add_layer(i, layers_[static_cast<size_t>(i)], rows);
    rows.push_back(
        {.tensor = "output_norm.weight", .shape = {info.width}, .vector = &output_norm_});
    rows.push_back({.tensor = "output.weight",
                    .shape = {info.vocab, info.width},
                    .required = false,
                    .matrix = &head_});
    const size_t trunk = rows.size();
    for (size_t i = 0; i < draft_blocks_.size(); ++i)
        add_draft_block(info.layers + static_cast<int32_t>(i), draft_blocks_[i], rows);
    if (draft_) return rows;
    for (size_t i = trunk; i < rows.size(); ++i) {
        rows[i].required = false;
        rows[i].matrix = nullptr;
        rows[i].vector = nullptr;
    }
    return rows;
}

double Qwen35Model::guess_share() {
    if (!draft_) return 0.0;
    const auto bytes = [&](const Weight& w) {
        const int32_t used =
            w.experts > 1 ? std::min(w.experts, hparams_.experts.shape.choices) : w.experts;
        return static_cast<double>(used) *
               static_cast<double>(dtype_bytes(w.format, w.cols * w.rows));
    };
    const auto layer_bytes = [&](Layer& layer) {
        std::vector<WeightRow> rows;
        add_layer(0, layer, rows);
        double sum = 0.0;
        for (const WeightRow& row : rows)
            if (row.matrix != nullptr) sum += bytes(*row.matrix);
        return sum;
    };
    double step = bytes(head());
    for (Layer& layer : layers_) step += layer_bytes(layer);
    // Of several blocks the first one guesses.
    DraftBlock& block = draft_blocks_.front();
    const double guess = bytes(block.head.absent() ? head() : block.head) + bytes(block.join) +
                         layer_bytes(block.layer);
    return guess / step;
}

void Qwen35Model::add_layer(int32_t index, Layer& layer, std::vector<WeightRow>& rows) {
    const ModelInfo& info = hparams_.info;
    LayerTable table(index, rows);
    if (layer.recurrent) {
        DeltaNetWeights& m = layer.mixer;
        const int64_t heads = spec_.value_heads, values = heads * spec_.value_size;
        table.vector("attn_norm.weight", {info.width}, &m.norm);
        table.matrix("attn_qkv.weight", {spec_.channels, info.width}, &m.qkv);
        table.matrix("attn_gate.weight", {values, info.width}, &m.z);
        table.matrix("ssm_alpha.weight", {heads, info.width}, &m.alpha);
        table.matrix("ssm_beta.weight", {heads, info.width}, &m.beta);
        table.vector("ssm_conv1d.weight", {spec_.channels, spec_.taps}, &m.taps);
        table.vector("ssm_dt.bias", {heads}, &m.dt_bias);
        table.vector("ssm_a", {heads}, &m.rate);
        table.vector("ssm_norm.weight", {spec_.value_size}, &m.gain);
        table.matrix("ssm_out.weight", {info.width, values}, &m.out);
    } else {
        AttentionWeights& a = layer.attention;
        const int64_t q_rows = int64_t{info.heads} * info.head_size;
        const int64_t kv_rows = int64_t{info.kv_heads} * info.head_size;
        table.vector("attn_norm.weight", {info.width}, &a.norm);
        table.matrix("attn_q.weight", {2 * q_rows, info.width}, &a.q);
        table.matrix("attn_k.weight", {kv_rows, info.width}, &a.k);
        table.matrix("attn_v.weight", {kv_rows, info.width}, &a.v);
        table.matrix("attn_output.weight", {info.width, q_rows}, &a.out);
        table.vector("attn_q_norm.weight", {info.head_size}, &a.q_norm);
        table.vector("attn_k_norm.weight", {info.head_size}, &a.k_norm);
    }
    table.feed_forward("post_attention_norm.weight", info, hparams_.experts, layer.feed_forward);
}

void Qwen35Model::add_draft_block(int32_t index, DraftBlock& block, std::vector<WeightRow>& rows) {
    const ModelInfo& info = hparams_.info;
    add_layer(index, block.layer, rows);
    LayerTable table(index, rows);
    table.matrix("nextn.eh_proj.weight", {info.width, 2 * int64_t{info.width}}, &block.join);
    table.vector("nextn.enorm.weight", {info.width}, &block.token_norm);
    table.vector("nextn.hnorm.weight", {info.width}, &block.state_norm);
    table.vector("nextn.shared_head_norm.weight", {info.width}, &block.out_norm, false);
    table.matrix("nextn.embed_tokens.weight", {info.vocab, info.width}, &block.embedding, false);
    table.matrix("nextn.shared_head_head.weight", {info.vocab, info.width}, &block.head, false);
}

void Qwen35Model::mix(Ops& ops,
                      Exec& ex,
                      const Layer& layer,
                      const Tensor& x,
                      const Batch& batch,
                      const Memory& memory) {
    const auto place = static_cast<size_t>(layer.memory);
    if (layer.recurrent) {
        delta_net_block(ops, ex, layer.mixer, spec_, hparams_.norm_eps, x, batch,
                        memory.recurrent[place]);
    } else {
        gated_attention_block(ops, ex, layer.attention, shape_, x, batch, memory.kv[place]);
    }
}

Tensor Qwen35Model::forward(Ops& ops, Exec& ex, const Batch& batch, const Memory& memory) {
    const int64_t width = hparams_.info.width;
    const Tensor hidden = ex.arena.allocate(DType::kF32, {batch.outputs.shape[0], width});
    Scope scope(ex.arena);
    const Tensor x = ex.arena.allocate(DType::kF32, {batch.row_count(), width});
    ops.embed(ex, batch.tokens, embedding_, x);
    for (size_t i = 0; i + 1 < layers_.size(); ++i) {
        mix(ops, ex, layers_[i], x, batch, memory);
        feed_forward(ops, ex, layers_[i], x);
    }
    // After the last mixer only the rows whose logits are wanted go on.
    mix(ops, ex, layers_.back(), x, batch, memory);
    ops.gather_rows(ex, x, batch.outputs, hidden);
    Exec tail{.arena = ex.arena, .prompt_rows = batch.prompt_outputs};
    feed_forward(ops, tail, layers_.back(), hidden);
    ops.rms_norm(ex, hidden, output_norm_, hparams_.norm_eps, hidden);
    return hidden;
}

void Qwen35Model::logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) {
    Scope scope(ex.arena);
    ops.linear(ex, ops.prepare(ex, hidden, head().wants), head(), Tensor{}, out, Accumulate::kNo);
}

Tensor Qwen35Model::draft(
    Ops& ops, Exec& ex, const Batch& batch, const Tensor& hidden, const Memory& memory) {
    const DraftBlock& block = draft_blocks_.front();
    const int64_t rows = batch.row_count(), width = hparams_.info.width;
    const float eps = hparams_.norm_eps;
    const Tensor result = ex.arena.allocate(DType::kF32, {batch.outputs.shape[0], width});
    Scope scope(ex.arena);
    const Tensor x = ex.arena.allocate(DType::kF32, {rows, width});
    {
        Scope join_scope(ex.arena);
        const Tensor joined = ex.arena.allocate(DType::kF32, {rows, 2 * width});
        const Tensor part = ex.arena.allocate(DType::kF32, {rows, width});
        const Tensor state = ex.arena.allocate(DType::kF32, {rows, width});
        const Weight& table = block.embedding.absent() ? embedding_ : block.embedding;
        ops.embed(ex, batch.tokens, table, part);
        ops.rms_norm(ex, part, block.token_norm, eps, part);
        ops.rms_norm(ex, hidden, block.state_norm, eps, state);
        ops.concat(ex, part, state, 1, joined);
        ops.linear(ex, ops.prepare(ex, joined, block.join.wants), block.join, Tensor{}, x,
                   Accumulate::kNo);
    }
    if (batch.outputs.rows() == 0) {
        // One layer: of rows without a result nothing is used but their keys and values.
        store_keys_values(ops, ex, block.layer.attention, shape_, x, batch,
                          memory.kv[static_cast<size_t>(block.layer.memory)]);
        return result;
    }
    mix(ops, ex, block.layer, x, batch, memory);
    ops.gather_rows(ex, x, batch.outputs, result);
    Exec tail{.arena = ex.arena, .prompt_rows = batch.prompt_outputs};
    feed_forward(ops, tail, block.layer, result);
    ops.rms_norm(ex, result, block.out_norm.absent() ? output_norm_ : block.out_norm, eps, result);
    return result;
}

void Qwen35Model::draft_logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) {
    Scope scope(ex.arena);
    const DraftBlock& block = draft_blocks_.front();
    const Weight& weight = block.head.absent() ? head() : block.head;
    ops.linear(ex, ops.prepare(ex, hidden, weight.wants), weight, Tensor{}, out, Accumulate::kNo);
}

}  // namespace

std::unique_ptr<Model> make_qwen35(const GgufFile& file, const ModelOptions& options) {
    return std::make_unique<Qwen35Model>(file, options);
}

}  // namespace tessera
