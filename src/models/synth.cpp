#include "models/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <optional>
#include <thread>

#include "core/codec.h"
#include "core/error.h"
#include "core/nearest.h"
#include "gguf/gguf_writer.h"
#include "models/model.h"

namespace tessera {
namespace {

struct Shape {
    std::string_view name;
    int32_t layers, width, heads, kv_heads, head_size, ffn, vocab, context;
    bool tied;
};

/// Sizes of well-known models: SmolLM2-135M, Llama-3.2-1B, Llama-3.1-8B.
constexpr std::array kShapes{
    Shape{"tiny", 2, 256, 4, 2, 64, 512, 512, 2048, false},
    Shape{"135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, true},
    Shape{"1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true},
    Shape{"8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, false},
};

/// What an architecture adds to the common keys.
struct Architecture {
    std::string_view name;
    float rope_base;
    bool biases;  ///< the optional rows ending in .bias are made, too
};

constexpr std::array kArchitectures{
    Architecture{"llama", 500000.0f, false},
    Architecture{"qwen2", 1000000.0f, true},
    Architecture{"qwen3", 1000000.0f, false},
};

template <class Rows>
std::vector<std::string_view> names_of(const Rows& rows) {
    std::vector<std::string_view> names;
    for (const auto& row : rows) names.push_back(row.name);
    return names;
}

template <class Rows>
const auto& find_row(const Rows& rows, std::string_view what, std::string_view name) {
    for (const auto& row : rows)
        if (row.name == name) return row;
    const std::string near = nearest_name(name, names_of(rows));
    throw UserError(ExitCode::kUsage,
                    fmt::format("unknown {} '{}'{}", what, name,
                                near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

/// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scrambles every bit.
uint64_t scramble(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t hash_name(std::string_view name) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

/// Numbers that are nearly normal: the sum of the four 16-bit parts of a hash, shifted and scaled
/// to mean 0 and variance 1 (Irwin-Hall, n = 4; largest value 3.46). A weight needs no better tail
/// and a logarithm per value would double the time of the large shapes.
void fill_normal(
    uint64_t key, int64_t first, int64_t count, float mean, float deviation, float* values) {
    const float scale = deviation * std::sqrt(3.0f) / 65536.0f;
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t bits =
            scramble(key + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(first + i));
        const uint64_t sum =
            (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        values[i] = mean + scale * (static_cast<float>(sum) - 131070.0f);
    }
}

struct Distribution {
    float mean = 0.0f;
    float deviation = 1.0f;
};

Distribution distribution_of(const WeightRow& row, int32_t layers) {
    if (row.shape.size() == 1) {
        const bool gain = row.tensor.find("norm") != std::string::npos;
        return {gain ? 1.0f : 0.0f, 0.1f};
    }
    if (row.tensor == "token_embd.weight") return {0.0f, 1.0f};
    const float deviation = 1.0f / std::sqrt(static_cast<float>(row.shape.back()));
    const bool to_residual = row.tensor.find("attn_output") != std::string::npos ||
                             row.tensor.find("ffn_down") != std::string::npos;
    const float depth = std::sqrt(2.0f * static_cast<float>(layers));
    return {0.0f, to_residual ? deviation / depth : deviation};
}

// ---- vocabulary ----

/// UTF-8 of a code point below 2048.
std::string utf8(uint32_t code) {
    if (code < 128) return std::string(1, static_cast<char>(code));
    return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

/// The printable characters that byte-level BPE writes for bytes: most stand for themselves, the
/// others follow from U+0100 on (GPT-2's table).
std::vector<std::string> byte_tokens() {
    std::vector<std::string> tokens;
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool itself =
            (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        tokens.push_back(utf8(itself ? byte : next++));
    }
    return tokens;
}

/// One token per byte, a start and an end token, unused ones up to `size`.
void write_byte_vocabulary(GgufWriter& writer, int32_t size) {
    std::vector<std::string> tokens = byte_tokens();
    std::vector<int32_t> types(tokens.size(), 1);
    const auto start = static_cast<uint32_t>(tokens.size());
    for (const char* special : {"<|start|>", "<|end|>"}) {
        tokens.emplace_back(special);
        types.push_back(3);
    }
    // llama.cpp wants at least one merge; this pair is as good as any and its token is there.
    const std::vector<std::string> merges{"t h"};
    tokens.emplace_back("th");
    types.push_back(1);
    while (tokens.size() < static_cast<size_t>(size)) {
        tokens.push_back(fmt::format("<|unused{}|>", tokens.size()));
        types.push_back(5);
    }
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", "gpt-2");
    writer.set_strings("tokenizer.ggml.tokens", std::move(tokens));
    writer.set_i32s("tokenizer.ggml.token_type", types);
    writer.set_strings("tokenizer.ggml.merges", merges);
    writer.set_u32("tokenizer.ggml.bos_token_id", start);
    writer.set_u32("tokenizer.ggml.eos_token_id", start + 1);
    writer.set_bool("tokenizer.ggml.add_bos_token", false);
}

int32_t file_type_of(DType type) {
    switch (type) {
        case DType::kNVFP4:
            return 39;
        case DType::kMXFP4:
            return 38;
        case DType::kF16:
            return 1;
        case DType::kBF16:
            return 32;
        case DType::kQ4_0:
            return 2;
        case DType::kQ4_1:
            return 3;
        case DType::kQ8_0:
            return 7;
        case DType::kQ4_K:
            return 15;
        case DType::kQ5_K:
            return 17;
        case DType::kQ6_K:
            return 18;
        default:
            return 0;
    }
}

/// Builds one model: keys, then the tensors that the model asks for.
class Builder {
  public:
    explicit Builder(const SynthSpec& spec)
        : spec_(spec),
          shape_(find_row(kShapes, "shape", spec.shape)),
          architecture_(find_row(kArchitectures, "architecture", spec.architecture)) {
        if (!spec.vocab_from.empty()) vocabulary_.emplace(GgufFile::open(spec.vocab_from));
        vocab_ = shape_.vocab;
        if (vocabulary_) {
            const auto* tokens = vocabulary_->get_string_array("tokenizer.ggml.tokens");
            if (tokens == nullptr)
                throw UserError(ExitCode::kModel,
                                spec.vocab_from + ": key 'tokenizer.ggml.tokens' is missing");
            vocab_ = static_cast<int32_t>(tokens->size());
        }
        for (const int32_t cols : {shape_.width, shape_.ffn, shape_.heads * shape_.head_size})
            check_width(cols);
        choose_rows();
    }

    void build(GgufWriter& writer, const SynthProgress& progress) {
        write_keys(writer);
        int64_t total = 0;
        for (const WeightRow& row : rows_) {
            std::vector<int64_t> shape(row.shape.rbegin(), row.shape.rend());
            writer.add_tensor(row.tensor, type_of(row), shape);
            if (has_scale(row)) writer.add_tensor(scale_name(row.tensor), DType::kF32, {1});
            total += bytes_of(row);
        }
        writer.begin_data();
        int64_t done = 0;
        for (const WeightRow& row : rows_) {
            write_tensor(writer, row);
            if (has_scale(row)) {
                const float scale = distribution_of(row, shape_.layers).deviation;
                writer.write(reinterpret_cast<const std::byte*>(&scale), sizeof(scale));
            }
            done += bytes_of(row);
            if (progress) progress(done, total);
        }
        writer.finish();
    }

  private:
    void check_width(int32_t cols) const {
        const int32_t block = dtype_info(spec_.type).block_elements;
        if (cols % block != 0)
            throw UserError(ExitCode::kUsage,
                            fmt::format("shape '{}' has matrices of width {}, which {} cannot "
                                        "hold: its blocks have {} elements",
                                        shape_.name, cols, dtype_info(spec_.type).name, block));
    }

    /// Asks the model itself: a file with the keys and one placeholder tensor is enough for that.
    void choose_rows() {
        std::vector<std::byte> bytes;
        GgufWriter writer(bytes);
        write_keys(writer);
        writer.add_tensor("token_embd.weight", DType::kF32, {1, vocab_});
        writer.begin_data();
        const std::vector<float> zeros(static_cast<size_t>(vocab_), 0.0f);
        writer.write(reinterpret_cast<const std::byte*>(zeros.data()), int64_t{vocab_} * 4);
        writer.finish();
        const GgufFile file = GgufFile::parse(bytes, "synth");
        for (WeightRow& row : make_model(file)->weights()) {
            const bool bias = row.tensor.ends_with(".bias") && architecture_.biases &&
                              row.tensor.find("attn_output") == std::string::npos;
            if (row.required || bias || (row.tensor == "output.weight" && !shape_.tied))
                rows_.push_back(std::move(row));
        }
    }

    void write_keys(GgufWriter& writer) const {
        const std::string arch(architecture_.name);
        const auto number = [&](const char* key, int32_t value) {
            writer.set_u32(arch + "." + key, static_cast<uint32_t>(value));
        };
        writer.set_string("general.architecture", arch);
        writer.set_string("general.name", fmt::format("synth {} {}", arch, shape_.name));
        writer.set_string("general.size_label", std::string(shape_.name));
        writer.set_u32("general.file_type", static_cast<uint32_t>(file_type_of(spec_.type)));
        writer.set_u32("general.quantization_version", 2);
        number("block_count", shape_.layers);
        number("context_length", shape_.context);
        number("embedding_length", shape_.width);
        number("feed_forward_length", shape_.ffn);
        number("attention.head_count", shape_.heads);
        number("attention.head_count_kv", shape_.kv_heads);
        number("attention.key_length", shape_.head_size);
        number("attention.value_length", shape_.head_size);
        number("rope.dimension_count", shape_.head_size);
        number("vocab_size", vocab_);
        writer.set_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
        writer.set_f32(arch + ".rope.freq_base", architecture_.rope_base);
        if (!vocabulary_) return write_byte_vocabulary(writer, vocab_);
        for (const GgufKeyValue& entry : vocabulary_->key_values())
            if (entry.key.starts_with("tokenizer.")) writer.set(entry.key, entry.value);
    }

    /// Embedding and output matrix of block formats are kept in Q8_0, as `quantize` does for FP4.
    DType type_of(const WeightRow& row) const {
        if (row.shape.size() == 1) return DType::kF32;
        const bool edge = row.tensor == "token_embd.weight" || row.tensor == "output.weight";
        return edge && is_block_format(spec_.type) ? DType::kQ8_0 : spec_.type;
    }

    /// NVFP4 codes hold N(0, 1); the matrix scale carries the deviation, as in a real file, where
    /// it keeps the block scales in the middle of their range.
    bool has_scale(const WeightRow& row) const { return type_of(row) == DType::kNVFP4; }

    static std::string scale_name(const std::string& weight) {
        return weight.substr(0, weight.size() - std::string_view("weight").size()) + "scale";
    }

    int64_t bytes_of(const WeightRow& row) const {
        const int64_t rows = row.shape.size() == 1 ? 1 : row.shape.front();
        return rows * dtype_bytes(type_of(row), row.shape.back());
    }

    void write_tensor(GgufWriter& writer, const WeightRow& row) const {
        constexpr int64_t kSlabBytes = 16 << 20;
        const DType type = type_of(row);
        const int64_t cols = row.shape.back();
        const int64_t rows = row.shape.size() == 1 ? 1 : row.shape.front();
        const int64_t row_bytes = dtype_bytes(type, cols);
        const int64_t slab_rows = std::clamp<int64_t>(kSlabBytes / row_bytes, 1, rows);
        std::vector<std::byte> slab(static_cast<size_t>(slab_rows * row_bytes));
        for (int64_t first = 0; first < rows; first += slab_rows) {
            const int64_t last = std::min(first + slab_rows, rows);
            fill_slab(row, first, last, slab.data());
            writer.write(slab.data(), (last - first) * row_bytes);
        }
    }

    void fill_slab(const WeightRow& row, int64_t first, int64_t last, std::byte* slab) const {
        const DType type = type_of(row);
        const int64_t cols = row.shape.back();
        const int64_t row_bytes = dtype_bytes(type, cols);
        Distribution spread = distribution_of(row, shape_.layers);
        if (has_scale(row)) spread.deviation = 1.0f;
        const uint64_t key = scramble(spec_.seed ^ hash_name(row.tensor));
        std::atomic<int64_t> next{first};
        const auto work = [&] {
            std::vector<float> values(static_cast<size_t>(cols));
            for (int64_t r = next++; r < last; r = next++) {
                fill_normal(key, r * cols, cols, spread.mean, spread.deviation, values.data());
                quantize_row(type, values.data(), cols, slab + (r - first) * row_bytes,
                             Nvfp4Policy::kAmax6);
            }
        };
        const int64_t wanted =
            spec_.threads > 0 ? spec_.threads : std::thread::hardware_concurrency();
        std::vector<std::thread> team;
        for (int64_t i = 1; i < std::min(wanted, last - first); ++i) team.emplace_back(work);
        work();
        for (std::thread& thread : team) thread.join();
    }

    const SynthSpec& spec_;
    const Shape& shape_;
    const Architecture& architecture_;
    std::optional<GgufFile> vocabulary_;
    int32_t vocab_ = 0;
    std::vector<WeightRow> rows_;
};

}  // namespace

std::vector<std::string_view> synth_shapes() {
    return names_of(kShapes);
}

std::vector<std::string_view> synth_architectures() {
    return names_of(kArchitectures);
}

std::vector<std::byte> synth_gguf(const SynthSpec& spec, const SynthProgress& progress) {
    Builder builder(spec);
    std::vector<std::byte> bytes;
    GgufWriter writer(bytes);
    builder.build(writer, progress);
    return bytes;
}

void write_synth(const SynthSpec& spec, const std::string& path, const SynthProgress& progress) {
    Builder builder(spec);
    GgufWriter writer(path);
    builder.build(writer, progress);
}

}  // namespace tessera
