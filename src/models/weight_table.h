#pragma once
// Writes the rows of a model's weight table, layer by layer.

#include <string>
#include <vector>

#include "models/blocks/attention.h"
#include "models/blocks/ffn.h"
#include "models/blocks/moe.h"
#include "models/hparams.h"
#include "models/model.h"

namespace tessera {

/// Rows "blk.<index>.<part>" appended to `rows`. Shapes are rows-major.
class LayerTable {
  public:
    LayerTable(int32_t index, std::vector<WeightRow>& rows) : index_(index), rows_(rows) {}
    void matrix(const char* part, std::vector<int64_t> shape, Weight* target, bool required = true);
    void vector(const char* part, std::vector<int64_t> shape, Tensor* target, bool required = true);

    /// ffn_gate, ffn_up, ffn_down.
    void dense_ffn(const ModelInfo& info, FfnWeights& ffn);
    /// Router, experts and, when `expert_ffn.shared` > 0, the shared expert.
    void moe(const ModelInfo& info, const ExpertHparams& experts, MoeWeights& moe);

  private:
    int32_t index_;
    std::vector<WeightRow>& rows_;
};

}  // namespace tessera
