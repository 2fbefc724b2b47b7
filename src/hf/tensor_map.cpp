#include "hf/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "hf/quantization.h"
#include "hf/recipe.h"

namespace tessera {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kDraftPrefix = "mtp.";
constexpr std::string_view kDraftLayerPrefix = "mtp.layers.";
constexpr double kScaleOfOne = 1e-6;  // scales this near to 1 are left out, as llama.cpp does
constexpr int64_t kMostNumber = 1'000'000;

/// Takes a number and the dot behind it off the front of `name`.
std::optional<int32_t> take_number(std::string_view& name) {
    int32_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    const size_t length = static_cast<size_t>(end - name.data());
    if (error != std::errc() || number < 0 || number > kMostNumber) return std::nullopt;
    if (length >= name.size() || name[length] != '.') return std::nullopt;
    name.remove_prefix(length + 1);
    return number;
}

/// Whether `name` is `pattern`, where {} stands for a number, which goes to `expert`.
bool fits(std::string_view name, std::string_view pattern, int32_t& expert) {
    const size_t hole = pattern.find("{}");
    if (hole == std::string_view::npos) return name == pattern;
    if (!name.starts_with(pattern.substr(0, hole))) return false;
    name.remove_prefix(hole);
    const std::optional<int32_t> number = take_number(name);
    if (!number || name != pattern.substr(hole + 3)) return false;
    expert = *number;
    return true;
}

bool is_left_out(std::string_view name) {
    return name.starts_with("model.visual.") || name.starts_with("visual.") ||
           name.ends_with(".rotary_emb.inv_freq");
}

/// Row of a head's first half beside the row of its second half: what llama.cpp's rotation of
/// neighbours expects.
std::vector<int32_t> adjacent_pairs(int32_t heads, int32_t head_size) {
    std::vector<int32_t> order;
    for (int32_t head = 0; head < heads; ++head)
        for (int32_t i = 0; i < head_size; ++i)
            order.push_back(head * head_size + i / 2 + (i % 2) * (head_size / 2));
    return order;
}

/// Value heads stand grouped by their key head in a checkpoint. In GGUF the first value head of
/// every key head comes first, so that the key heads repeat as a whole.
std::vector<int32_t> value_head_order(const ModelShape& shape) {
    const int32_t repeats = shape.value_heads / shape.key_heads;
    std::vector<int32_t> order;
    if (repeats == 1) return order;
    for (int32_t repeat = 0; repeat < repeats; ++repeat)
        for (int32_t key = 0; key < shape.key_heads; ++key) order.push_back(key * repeats + repeat);
    return order;
}

/// `order` of units to an order of their rows, behind `before` rows that stay.
std::vector<int32_t> rows_of(const std::vector<int32_t>& order, int32_t unit, int32_t before) {
    std::vector<int32_t> rows;
    if (order.empty()) return rows;
    for (int32_t row = 0; row < before; ++row) rows.push_back(row);
    for (const int32_t from : order)
        for (int32_t row = 0; row < unit; ++row) rows.push_back(before + from * unit + row);
    return rows;
}

class TensorMapper {
  public:
    TensorMapper(const Checkpoint& checkpoint, const JsonObject& config, const ModelShape& shape)
        : checkpoint_(checkpoint), shape_(shape), tied_(config.find_bool("tie_word_embeddings")) {}

    std::vector<GgufTensor> map() {
        for (const Checkpoint::Entry& entry : checkpoint_.tensors()) {
            if (is_left_out(entry.name)) continue;
            const std::optional<std::string> name = weight_name(checkpoint_, entry.name);
            if (name) place(*name);
        }
        for (const auto& [place, stack] : stacks_) add_stack(place, stack);
        check_head();
        std::stable_sort(placed_.begin(), placed_.end(),
                         [](const Placed& a, const Placed& b) { return a.place < b.place; });
        std::vector<GgufTensor> tensors;
        for (Placed& placed : placed_) {
            if (!tensors.empty() && tensors.back().name == placed.tensor.name)
                checkpoint_.fail_tensor(placed.tensor.name, "comes from two tensors");
            tensors.push_back(std::move(placed.tensor));
        }
        return tensors;
    }

  private:
    /// Layer (-1 before, layers + drafts behind), row of the tables, scales behind weights.
    using Place = std::tuple<int32_t, std::string, int32_t>;
    struct Placed {
        Place place;
        GgufTensor tensor;
    };
    struct Stack {
        std::string target;
        std::string source;  ///< with {} for the number
        std::vector<std::string> names;
    };

    void place(const std::string& name) {
        std::string_view rest = name;
        int32_t layer = 0;
        if (rest.starts_with(kLayerPrefix)) {
            rest.remove_prefix(kLayerPrefix.size());
            layer = require_layer(name, take_number(rest), 0, shape_.layers);
            return place_in_layer(name, rest, layer);
        }
        if (rest.starts_with(kDraftLayerPrefix)) {
            rest.remove_prefix(kDraftLayerPrefix.size());
            layer = require_layer(name, take_number(rest), shape_.layers, shape_.draft_layers);
            return place_in_layer(name, rest, layer);
        }
        if (rest.starts_with(kDraftPrefix)) {
            rest.remove_prefix(kDraftPrefix.size());
            for (const TensorRow& row : draft_rows())
                if (row.source == rest)
                    return add(name, row, fmt::format("blk.{}.{}", shape_.layers, row.target),
                               shape_.layers);
            fail_unknown(name);
        }
        if (name == "lm_head.weight" && tied_.value_or(false)) return;
        for (const TensorRow& row : top_rows())
            if (row.source == rest)
                return add(name, row, std::string(row.target),
                           row.target.starts_with("token") ? -1 : behind());
        fail_unknown(name);
    }

    void place_in_layer(const std::string& name, std::string_view rest, int32_t layer) {
        for (const std::span<const TensorRow> rows : shape_.family->layer_rows) {
            for (const TensorRow& row : rows) {
                int32_t expert = 0;
                if (!fits(rest, row.source, expert)) continue;
                std::string target = fmt::format("blk.{}.{}", layer, row.target);
                if (row.work != TensorWork::kExpert)
                    return add(name, row, std::move(target), layer);
                return collect(name, rest, row, layer, expert);
            }
        }
        fail_unknown(name);
    }

    [[noreturn]] void fail_unknown(const std::string& name) const {
        checkpoint_.fail_tensor(name, fmt::format("is not part of the architecture '{}', so the "
                                                  "model would be computed wrongly",
                                                  shape_.family->model_type));
    }

    int32_t require_layer(const std::string& name,
                          std::optional<int32_t> number,
                          int32_t first,
                          int32_t count) const {
        if (!number || *number >= count)
            checkpoint_.fail_tensor(name, fmt::format("is of no layer, there are {}", count));
        return first + *number;
    }

    int32_t behind() const { return shape_.layers + shape_.draft_layers; }

    /// A tensor that could not be tied has to be there.
    void check_head() const {
        const bool has_head = checkpoint_.find("lm_head.weight") != nullptr ||
                              checkpoint_.find("lm_head.weight_packed") != nullptr;
        if (tied_ == false && !has_head) checkpoint_.fail_tensor("lm_head.weight", "is missing");
    }

    void collect(const std::string& name,
                 std::string_view rest,
                 const TensorRow& row,
                 int32_t layer,
                 int32_t expert) {
        if (expert >= shape_.experts)
            checkpoint_.fail_tensor(name,
                                    fmt::format("is of no expert, there are {}", shape_.experts));
        Stack& stack = stacks_[{layer, std::string(row.target), 0}];
        if (stack.names.empty()) {
            stack.target = fmt::format("blk.{}.{}", layer, row.target);
            stack.source = name.substr(0, name.size() - rest.size()) + std::string(row.source);
            stack.names.resize(static_cast<size_t>(shape_.experts));
        }
        stack.names[static_cast<size_t>(expert)] = name;
    }

    void add_stack(const Place& place, const Stack& stack) {
        Recipe recipe = new_recipe();
        for (size_t i = 0; i < stack.names.size(); ++i) {
            if (stack.names[i].empty()) {
                const size_t hole = stack.source.find("{}");
                checkpoint_.fail_tensor(stack.source.substr(0, hole) + std::to_string(i) +
                                            stack.source.substr(hole + 2),
                                        "is missing");
            }
            recipe.sources.push_back(find(stack.names[i]));
        }
        recipe.rows = recipe.sources.front().rows;
        recipe.target = recipe.sources.front().dtype;
        if (recipe.sources.front().matrices != 1)
            checkpoint_.fail_tensor(stack.names.front(), "has three axes, expected two");
        finish(std::move(recipe), stack.target, 3, place);
    }

    StoredWeight find(const std::string& name) const {
        std::optional<StoredWeight> weight = find_weight(checkpoint_, name);
        check(weight.has_value(), "a weight that is listed is there");
        return *weight;
    }

    Recipe new_recipe() const {
        Recipe recipe;
        recipe.folder = checkpoint_.folder();
        return recipe;
    }

    void require_rows(const StoredWeight& weight, int64_t rows) const {
        if (weight.rows != rows || weight.matrices != 1)
            checkpoint_.fail_tensor(weight.name,
                                    fmt::format("has {} rows, expected {}", weight.rows, rows));
    }

    void add(const std::string& name, const TensorRow& row, std::string target, int32_t layer) {
        const StoredWeight weight = find(name);
        Recipe recipe = new_recipe();
        recipe.rows = weight.rows;
        recipe.target = weight.dtype;
        const Place place{layer, std::string(row.target), 0};
        int32_t rank = weight.elements->shape.size() < 2 ? 1 : weight.matrices > 1 ? 3 : 2;
        switch (row.work) {
            case TensorWork::kStackGateUp:
                return add_gate_up(weight, layer);
            case TensorWork::kConvolution:
                return add_convolution(weight, std::move(target), place);
            case TensorWork::kStack:
                if (weight.elements->shape.size() != 3 || weight.matrices != shape_.experts)
                    checkpoint_.fail_tensor(
                        name, fmt::format("is no stack of {} matrices", shape_.experts));
                rank = 3;
                break;
            default:
                set_order(row.work, weight, recipe);
        }
        if (rank == 1 || row.target.ends_with("_norm.weight") || row.work == TensorWork::kF32Matrix)
            force_f32(weight, recipe);
        recipe.sources = {weight};
        finish(std::move(recipe), std::move(target), rank, place);
    }

    void force_f32(const StoredWeight& weight, Recipe& recipe) const {
        if (weight.layout == WeightLayout::kNvfp4)
            checkpoint_.fail_tensor(weight.name, "is NVFP4, expected floating-point numbers");
        recipe.target = DType::kF32;
    }

    /// Which rows or columns move, and what is done to the numbers.
    void set_order(TensorWork work, const StoredWeight& weight, Recipe& recipe) const {
        const int32_t keys = 2 * shape_.key_heads * shape_.key_size;
        const int32_t values = shape_.value_heads * shape_.value_size;
        switch (work) {
            case TensorWork::kNorm:
                if (shape_.family->zero_centred_norms) recipe.op = ElementOp::kPlusOne;
                break;
            case TensorWork::kQueryRows:
            case TensorWork::kKeyRows: {
                if (!shape_.family->adjacent_pairs) break;
                const int32_t heads =
                    work == TensorWork::kQueryRows ? shape_.heads : shape_.kv_heads;
                require_rows(weight, int64_t{heads} * shape_.head_size);
                recipe.row_order = adjacent_pairs(heads, shape_.head_size);
                break;
            }
            case TensorWork::kMinusExpHeads:
                recipe.op = ElementOp::kMinusExp;
                [[fallthrough]];
            case TensorWork::kValueHeads:
            case TensorWork::kValueHeadsF32:
                require_rows(weight, shape_.value_heads);
                recipe.row_order = value_head_order(shape_);
                break;
            case TensorWork::kValueRows:
                require_rows(weight, values);
                recipe.row_order = rows_of(value_head_order(shape_), shape_.value_size, 0);
                break;
            case TensorWork::kKeysThenValues:
                require_rows(weight, keys + values);
                recipe.row_order = rows_of(value_head_order(shape_), shape_.value_size, keys);
                break;
            case TensorWork::kValueColumns:
                if (weight.cols != values)
                    checkpoint_.fail_tensor(weight.name, fmt::format("has {} columns, expected {}",
                                                                     weight.cols, values));
                recipe.column_order = value_head_order(shape_);
                recipe.column_group = shape_.value_size;
                break;
            default:
                break;
        }
    }

    /// [channels, 1, taps] is read as a stack of one-row matrices: the same bytes as a matrix.
    void add_convolution(StoredWeight weight, std::string target, const Place& place) {
        const int32_t keys = 2 * shape_.key_heads * shape_.key_size;
        const int32_t values = shape_.value_heads * shape_.value_size;
        if (weight.layout != WeightLayout::kPlain || weight.rows * weight.matrices != keys + values)
            checkpoint_.fail_tensor(weight.name,
                                    fmt::format("has {} channels, expected {}",
                                                weight.rows * weight.matrices, keys + values));
        weight.rows *= weight.matrices;
        weight.matrices = 1;
        Recipe recipe = new_recipe();
        recipe.rows = weight.rows;
        recipe.row_order = rows_of(value_head_order(shape_), shape_.value_size, keys);
        recipe.sources = {weight};
        finish(std::move(recipe), std::move(target), 2, place);
    }

    void add_gate_up(const StoredWeight& weight, int32_t layer) {
        if (weight.elements->shape.size() != 3 || weight.matrices != shape_.experts ||
            weight.rows % 2 != 0)
            checkpoint_.fail_tensor(
                weight.name, fmt::format("is no stack of {} pairs of matrices", shape_.experts));
        int64_t first_row = 0;
        for (const char* part : {"ffn_gate_exps.weight", "ffn_up_exps.weight"}) {
            Recipe recipe = new_recipe();
            recipe.first_row = first_row;
            recipe.rows = weight.rows / 2;
            recipe.target = weight.dtype;
            recipe.sources = {weight};
            finish(std::move(recipe), fmt::format("blk.{}.{}", layer, part), 3, {layer, part, 0});
            first_row += recipe.rows;
        }
    }

    void finish(Recipe recipe, const std::string& target, int32_t rank, Place place) {
        static constexpr std::string_view kWeight = ".weight";
        const auto add_scale = [&](const char* suffix, float StoredWeight::*factor, int32_t order) {
            std::vector<float> values;
            for (const StoredWeight& source : recipe.sources) values.push_back(source.*factor);
            if (std::all_of(values.begin(), values.end(),
                            [](float value) { return std::fabs(value - 1.0) < kScaleOfOne; }))
                return;
            GgufTensor scale = vector_tensor(
                target.substr(0, target.size() - kWeight.size()) + suffix, std::move(values));
            placed_.push_back({{std::get<0>(place), std::get<1>(place), order}, std::move(scale)});
        };
        if (recipe.sources.front().layout == WeightLayout::kNvfp4) {
            add_scale(".scale", &StoredWeight::factor, 1);
            add_scale(".input_scale", &StoredWeight::input_factor, 2);
        }
        placed_.push_back({std::move(place), make_tensor_of(std::move(recipe), target, rank)});
    }

    const Checkpoint& checkpoint_;
    const ModelShape& shape_;
    std::optional<bool> tied_;
    std::map<Place, Stack> stacks_;
    std::vector<Placed> placed_;
};

}  // namespace

int32_t count_draft_layers(const Checkpoint& checkpoint) {
    int32_t count = 0;
    for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
        std::string_view name = entry.name;
        if (!name.starts_with(kDraftPrefix)) continue;
        count = std::max(count, 1);
        if (!name.starts_with(kDraftLayerPrefix)) continue;
        name.remove_prefix(kDraftLayerPrefix.size());
        if (const std::optional<int32_t> layer = take_number(name))
            count = std::max(count, *layer + 1);
    }
    return count;
}

std::vector<GgufTensor> map_tensors(const Checkpoint& checkpoint,
                                    const JsonObject& config,
                                    const ModelShape& shape) {
    return TensorMapper(checkpoint, config, shape).map();
}

}  // namespace tessera
