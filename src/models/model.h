#pragma once
// One architecture: what it loads, what it keeps per sequence, and its forward function over the op
// vocabulary.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "ops/ops.h"

namespace tessera {

/// What the rest of the program needs to know of a model.
struct ModelInfo {
    std::string architecture;  ///< "llama"
    std::string name;          ///< general.name
    std::string description;   ///< as llama-bench prints it: "llama 135M NVFP4"
    int64_t parameters = 0;
    int64_t tensor_bytes = 0;  ///< of all tensors in the file
    int32_t layers = 0;
    int32_t width = 0;
    int32_t vocab = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_size = 0;
    int32_t ffn = 0;
    int32_t train_context = 0;
};

/// One layer's need of key/value memory.
struct KvSpec {
    int32_t kv_heads = 0;
    int32_t head_size = 0;
};

/// One recurrent layer's need of memory, see RecurrentView.
struct RecurrentSpec {
    int32_t channels = 0;  ///< of the convolution: 2 key_heads key_size + value_heads value_size
    int32_t taps = 0;
    int32_t key_heads = 0;
    int32_t value_heads = 0;
    int32_t key_size = 0;
    int32_t value_size = 0;
};

/// What the sequences of a batch remember: kv[i] for kv_layers()[i], recurrent[i] for
/// recurrent_layers()[i].
struct Memory {
    std::span<const KvView> kv;
    std::span<const RecurrentView> recurrent;
};

/// A row of the weight table: the same rows give loading, checking, error text and memory estimate.
struct WeightRow {
    std::string tensor;          ///< "blk.3.attn_q.weight"
    std::vector<int64_t> shape;  ///< [rows, cols], [experts, rows, cols] or of a vector; rows-major
                                 ///< as Tensor, the reverse of GGUF order. Leading ones may be
                                 ///< missing in the file
    bool required = true;
    Weight* matrix = nullptr;  ///< uploaded as a Weight ...
    Tensor* vector = nullptr;  ///< ... or as an F32 tensor ...
                               ///< ... or, without either, known and left alone
};

class Model {
  public:
    virtual ~Model() = default;
    virtual const ModelInfo& info() const = 0;
    virtual std::vector<KvSpec> kv_layers() const = 0;
    virtual std::vector<WeightRow> weights() = 0;
    virtual std::vector<RecurrentSpec> recurrent_layers() const { return {}; }
    /// Final hidden rows [M, width] of batch.outputs, after the output norm; all rows extend the
    /// memory.
    virtual Tensor forward(Ops& ops, Exec& ex, const Batch& batch, const Memory& memory) = 0;
    /// Logits [M, vocab] of hidden rows [M, width]; ex.prompt_rows counts among these rows.
    virtual void logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out) = 0;

    /// Whether a block for multi-token prediction was asked for and is there. Its key/value memory
    /// is then the last of kv_layers().
    virtual bool has_draft() const { return false; }
    /// One step of multi-token prediction. Row t holds a token x at position p and the hidden state
    /// of position p - 1 (of forward(), or of draft() when guessing on; zeros at position 0):
    /// hidden rows of batch.outputs that predict the token at p + 1. hidden [T, width].
    virtual Tensor draft(
        Ops& ops, Exec& ex, const Batch& batch, const Tensor& hidden, const Memory& memory);
    /// Bytes of weights that one guess reads, in terms of those that a step of one token reads.
    /// After load_weights or planned_weights.
    virtual double guess_share() { return 0.0; }
    /// Logits of rows that draft() returned.
    virtual void draft_logits(Ops& ops, Exec& ex, const Tensor& hidden, const Tensor& out);
};

struct ModelOptions {
    bool draft = false;  ///< load the block for multi-token prediction, too
};

/// Reads the hyper-parameters and describes the model; loads nothing. UserError(kModel): unknown
/// architecture (with the nearest known name), missing or senseless hyper-parameters, a draft block
/// wanted from a model that has none.
std::unique_ptr<Model> make_model(const GgufFile& file, const ModelOptions& options = {});

/// Architectures that make_model knows.
std::span<const std::string_view> known_architectures();

/// Checks every row of the table against the file as load_weights does and returns the bytes of
/// each allocation that it will make, in order. The model is left with weights that have everything
/// but memory, so that `forward` can be planned.
std::vector<int64_t> planned_weights(const GgufFile& file, Model& model, const Ops& ops);

/// Checks every row of the table against the file and uploads it. UserError(kModel) names a missing
/// or mis-shaped tensor with found and expected shape, and any tensor of the file that the table
/// does not know.
void load_weights(const GgufFile& file,
                  Model& model,
                  Ops& ops,
                  const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace tessera
