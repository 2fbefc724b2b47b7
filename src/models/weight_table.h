#pragma once
// Writes the rows of a model's weight table, layer by layer.

#include <string>
#include <vector>

#include "models/blocks/feed_forward.h"
#include "models/hparams.h"
#include "models/model.h"

namespace tessera {

/// Rows "blk.<index>.<part>" appended to `rows`. Shapes are rows-major.
class LayerTable {
  public:
    LayerTable(int32_t index, std::vector<WeightRow>& rows) : index_(index), rows_(rows) {}
    void matrix(const char* part, std::vector<int64_t> shape, Weight* target, bool required = true);
    void vector(const char* part, std::vector<int64_t> shape, Tensor* target, bool required = true);

    /// The norm called `norm` and ffn_gate, ffn_up, ffn_down; or, in a model with experts, router,
    /// experts and, when experts.shared_ffn > 0, the shared expert.
    void feed_forward(const char* norm,
                      const ModelInfo& info,
                      const ExpertHparams& experts,
                      FeedForwardWeights& w);

  private:
    void dense(const ModelInfo& info, FfnWeights& ffn);
    void moe(const ModelInfo& info, const ExpertHparams& experts, MoeWeights& moe);

    int32_t index_;
    std::vector<WeightRow>& rows_;
};

}  // namespace tessera
