#pragma once
// Private to src/hf: the numbers of config.json, and the GGUF keys that they become.

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "hf/family.h"
#include "hf/folder_json.h"

namespace tessera {

/// What the layout of tensors depends on.
struct ModelShape {
    const Family* family = nullptr;
    int32_t layers = 0;
    int32_t draft_layers = 0;  ///< behind them, of multi-token prediction
    int32_t width = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_size = 0;
    int32_t vocab = 0;
    int32_t experts = 0;
    int32_t key_heads = 0;  ///< of recurrent layers, with the next three
    int32_t value_heads = 0;
    int32_t key_size = 0;
    int32_t value_size = 0;
};

/// Collects keys in order.
class KeyList {
  public:
    void u32(std::string key, int64_t value);
    void f32(std::string key, double value);
    void boolean(std::string key, bool value);
    void text(std::string key, std::string value);
    void texts(std::string key, std::vector<std::string> values);
    void i32s(std::string key, std::vector<int64_t> values);
    void booleans(std::string key, std::vector<int64_t> values);
    std::vector<GgufKeyValue> take() { return std::move(entries_); }

  private:
    std::vector<GgufKeyValue> entries_;
};

/// `config` has the keys of `text_config`, where there is one, before its own. UserError(kModel)
/// names the key: missing, out of range, or a property that the forward functions do not have.
ModelShape read_shape(const JsonObject& config, const Family& family);

/// The keys `<architecture>.*`.
void add_shape_keys(const JsonObject& config, const ModelShape& shape, KeyList& keys);

/// The factors by which Llama 3.1 and later divide their rotation frequencies; empty for others.
std::vector<float> rope_factors(const JsonObject& config, const ModelShape& shape);

}  // namespace tessera
