#include "hf/recipe.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/codec.h"
#include "core/error.h"
#include "core/numeric.h"
#include "hf/folder_json.h"

namespace tessera {
namespace {

constexpr int64_t kBlock = 16;
constexpr int64_t kBlockBytes = kBlock / 2;
constexpr int64_t kBlocksOfGguf = 4;
constexpr uint32_t kNan = 0x7f;

[[noreturn]] void fail_source(const Recipe& recipe,
                              const StoredWeight& source,
                              std::string_view what) {
    fail_folder(recipe.folder, fmt::format("tensor '{}' {}", source.name, what));
}

/// The eight nibbles of `word`, from the lowest, one a byte.
uint64_t spread_nibbles(uint32_t word) {
    uint64_t x = word;
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/// 16 codes, two neighbours a byte, to the order of GGUF: element j beside element j + 8.
void repair_block(const std::byte* source, std::byte* target) {
    uint32_t low = 0;
    uint32_t high = 0;
    std::memcpy(&low, source, sizeof low);
    std::memcpy(&high, source + sizeof low, sizeof high);
    const uint64_t pairs = spread_nibbles(low) | spread_nibbles(high) << 4;
    std::memcpy(target, &pairs, sizeof pairs);
}

int64_t source_row(const Recipe& recipe, int64_t row) {
    return recipe.first_row +
           (recipe.row_order.empty() ? row : recipe.row_order[static_cast<size_t>(row)]);
}

/// One matrix of NVFP4 codes, scales beside their codes. A scale that is NaN would read as 0 and a
/// negative one as positive, so both are refused.
void write_nvfp4(const Recipe& recipe, const StoredWeight& source, std::byte* out) {
    const int64_t blocks = source.cols / kBlock;
    const int64_t per_group = recipe.column_group / kBlock;
    const auto* scales = reinterpret_cast<const uint8_t*>(source.scales->data);
    for (int64_t row = 0; row < recipe.rows; ++row) {
        const int64_t from = source_row(recipe, row);
        const std::byte* codes = source.elements->data + from * blocks * kBlockBytes;
        const uint8_t* row_scales = scales + from * blocks;
        for (int64_t block = 0; block < blocks; ++block) {
            int64_t index = block;
            if (!recipe.column_order.empty())
                index = recipe.column_order[static_cast<size_t>(block / per_group)] * per_group +
                        block % per_group;
            const uint8_t scale = row_scales[index];
            if ((scale & kNan) == kNan || scale > 0x80)
                fail_source(recipe, source,
                            fmt::format("has the block scale {} in row {}",
                                        (scale & kNan) == kNan ? "NaN" : "below zero", from));
            const int64_t place = block % kBlocksOfGguf;
            out[place] = static_cast<std::byte>(scale & kNan);
            repair_block(codes + index * kBlockBytes, out + kBlocksOfGguf + place * kBlockBytes);
            if (place == kBlocksOfGguf - 1) out += kBlocksOfGguf * (1 + kBlockBytes);
        }
    }
}

float f32_from_e4m3(uint8_t code) {
    const float magnitude = f32_from_ue4m3(code & 0x7f);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The f32 values of one source row, columns in their new order.
class RowReader {
  public:
    RowReader(const Recipe& recipe, const StoredWeight& source)
        : recipe_(recipe), source_(source), values_(static_cast<size_t>(source.cols)) {
        if (source.layout != WeightLayout::kFp8) return;
        row_scales_.resize(static_cast<size_t>(source.scales->elements()));
        const DType type = source.scales->type == SafetensorsType::kF32   ? DType::kF32
                           : source.scales->type == SafetensorsType::kF16 ? DType::kF16
                                                                          : DType::kBF16;
        dequantize_row(type, source.scales->data, source.scales->elements(), row_scales_.data());
        for (const float scale : row_scales_)
            if (!std::isfinite(scale))
                fail_source(recipe, source, fmt::format("has the scale {}", scale));
    }

    /// `index` counts rows over all matrices.
    const std::vector<float>& read(int64_t index) {
        const int64_t first = index * source_.cols;
        if (source_.layout == WeightLayout::kFp8)
            read_fp8(index);
        else
            dequantize_row(source_.dtype,
                           source_.elements->data + dtype_bytes(source_.dtype, first), source_.cols,
                           values_.data());
        if (!recipe_.column_order.empty()) move_columns();
        for (float& value : values_) {
            if (recipe_.op == ElementOp::kPlusOne) value += 1.0f;
            if (recipe_.op == ElementOp::kMinusExp) value = -std::exp(value);
        }
        return values_;
    }

  private:
    void read_fp8(int64_t index) {
        const auto* codes =
            reinterpret_cast<const uint8_t*>(source_.elements->data) + index * source_.cols;
        const float scale =
            row_scales_.size() == 1 ? row_scales_[0] : row_scales_[static_cast<size_t>(index)];
        for (size_t i = 0; i < values_.size(); ++i) {
            if ((codes[i] & kNan) == kNan) fail_source(recipe_, source_, "holds a NaN");
            values_[i] = f32_from_e4m3(codes[i]) * scale;
        }
    }

    void move_columns() {
        const size_t group = static_cast<size_t>(recipe_.column_group);
        moved_.resize(values_.size());
        for (size_t g = 0; g < recipe_.column_order.size(); ++g)
            std::memcpy(&moved_[g * group],
                        &values_[static_cast<size_t>(recipe_.column_order[g]) * group],
                        group * sizeof(float));
        values_.swap(moved_);
    }

    const Recipe& recipe_;
    const StoredWeight& source_;
    std::vector<float> values_;
    std::vector<float> moved_;
    std::vector<float> row_scales_;
};

/// One matrix of plain or FP8 weights.
void write_rows(const Recipe& recipe, const StoredWeight& source, int64_t matrix, std::byte* out) {
    const int64_t row_bytes = dtype_bytes(recipe.target, source.cols);
    const bool copies = source.layout == WeightLayout::kPlain && recipe.target == source.dtype &&
                        recipe.op == ElementOp::kNone && recipe.column_order.empty();
    if (copies) {
        const std::byte* first = source.elements->data + matrix * source.rows * row_bytes;
        if (recipe.row_order.empty()) {
            std::memcpy(out, first + recipe.first_row * row_bytes,
                        static_cast<size_t>(recipe.rows * row_bytes));
            return;
        }
        for (int64_t row = 0; row < recipe.rows; ++row)
            std::memcpy(out + row * row_bytes, first + source_row(recipe, row) * row_bytes,
                        static_cast<size_t>(row_bytes));
        return;
    }
    RowReader reader(recipe, source);
    for (int64_t row = 0; row < recipe.rows; ++row) {
        const std::vector<float>& values =
            reader.read(matrix * source.rows + source_row(recipe, row));
        quantize_row(recipe.target, values.data(), source.cols, out + row * row_bytes,
                     Nvfp4Policy::kAmax6);
    }
}

void produce(const Recipe& recipe, std::span<std::byte> out) {
    std::byte* position = out.data();
    for (const StoredWeight& source : recipe.sources) {
        const int64_t bytes = recipe.rows * dtype_bytes(recipe.target, source.cols);
        for (int64_t matrix = 0; matrix < source.matrices; ++matrix) {
            if (source.layout == WeightLayout::kNvfp4)
                write_nvfp4(recipe, source, position);
            else
                write_rows(recipe, source, matrix, position);
            position += bytes;
        }
        SafetensorsFile::release_pages(*source.elements);
        if (source.scales != nullptr) SafetensorsFile::release_pages(*source.scales);
    }
    check(position == out.data() + out.size(), "a recipe fills its tensor");
}

void check_recipe(const Recipe& recipe) {
    const StoredWeight& first = recipe.sources.front();
    for (const StoredWeight& source : recipe.sources)
        if (source.layout != first.layout || source.dtype != first.dtype ||
            source.matrices != first.matrices || source.rows != first.rows ||
            source.cols != first.cols)
            fail_source(
                recipe, source,
                fmt::format("is {} of {} x {}, but '{}' is {} of {} x {}",
                            dtype_info(source.dtype).name, source.rows, source.cols, first.name,
                            dtype_info(first.dtype).name, first.rows, first.cols));
    if (first.layout == WeightLayout::kNvfp4 && !recipe.column_order.empty() &&
        recipe.column_group % kBlock != 0)
        fail_source(recipe, first,
                    fmt::format("has NVFP4 heads of {} columns, which is no multiple of {}",
                                recipe.column_group, kBlock));
    check(recipe.first_row + recipe.rows <= first.rows, "a recipe uses rows that are there");
    check((first.layout == WeightLayout::kNvfp4) == (recipe.target == DType::kNVFP4),
          "NVFP4 stays NVFP4");
}

bool is_view(const Recipe& recipe) {
    const StoredWeight& source = recipe.sources.front();
    return recipe.sources.size() == 1 && source.layout == WeightLayout::kPlain &&
           source.dtype == recipe.target && recipe.op == ElementOp::kNone &&
           recipe.row_order.empty() && recipe.column_order.empty() && recipe.rows == source.rows;
}

}  // namespace

GgufTensor make_tensor_of(Recipe recipe, std::string name, int32_t rank) {
    check_recipe(recipe);
    const StoredWeight& source = recipe.sources.front();
    GgufTensor tensor{.name = std::move(name), .dtype = recipe.target, .rank = rank};
    const int64_t matrices = source.matrices * static_cast<int64_t>(recipe.sources.size());
    if (rank == 1) {
        tensor.shape[0] = recipe.rows * source.cols * matrices;
    } else {
        tensor.shape = {source.cols, recipe.rows, matrices, 1};
        check(rank == 3 || matrices == 1, "a stack of matrices has three axes");
    }
    if (is_view(recipe))
        tensor.data = source.elements->data;
    else
        tensor.produce = [made = std::move(recipe)](std::span<std::byte> out) {
            produce(made, out);
        };
    return tensor;
}

GgufTensor vector_tensor(std::string name, std::vector<float> values) {
    GgufTensor tensor{.name = std::move(name)};
    tensor.shape[0] = static_cast<int64_t>(values.size());
    tensor.produce = [numbers = std::move(values)](std::span<std::byte> out) {
        std::memcpy(out.data(), numbers.data(), out.size());
    };
    return tensor;
}

}  // namespace tessera
