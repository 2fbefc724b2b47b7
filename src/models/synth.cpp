#include "models/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <optional>
#include <thread>

#include "core/codec.h"
#include "core/error.h"
#include "gguf/gguf_writer.h"
#include "models/model.h"
#include "models/synth_shapes.h"

namespace tessera {
namespace {

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

bool has(std::string_view name, std::string_view part) {
    return name.find(part) != std::string_view::npos;
}

/// Standard deviation of the logits, as trained models have it: with more, one token has all of the
/// probability and nothing that changes the logits changes the distribution.
constexpr float kLogitDeviation = 3.0f;

Distribution distribution_of(const WeightRow& row, const SynthShape& shape) {
    const std::string_view name = row.tensor;
    // An output matrix that is the embedding too: the last norm makes logits of it. Gains of both
    // signs keep a token from predicting itself, whose embedding is half of what arrives there.
    const bool last_norm =
        name == "output_norm.weight" || name.ends_with("nextn.shared_head_norm.weight");
    if (shape.tied && last_norm)
        return {0.0f, kLogitDeviation / std::sqrt(static_cast<float>(row.shape.back()))};
    // The logarithm of what a state forgets per unit of time, and a time step whose softplus is
    // small more often than not: some heads forget at once, some hardly ever.
    if (name.ends_with("ssm_a")) return {0.0f, 0.8f};
    if (name.ends_with("ssm_dt.bias")) return {-2.0f, 1.0f};
    if (row.shape.size() == 1) return {has(name, "norm") ? 1.0f : 0.0f, 0.1f};
    if (name == "token_embd.weight") return {0.0f, 1.0f};
    const float deviation = 1.0f / std::sqrt(static_cast<float>(row.shape.back()));
    if (name == "output.weight") return {0.0f, kLogitDeviation * deviation};
    const bool to_residual =
        has(name, "attn_output") || has(name, "ffn_down") || has(name, "ssm_out");
    const float depth = std::sqrt(2.0f * static_cast<float>(shape.layers));
    return {0.0f, to_residual ? deviation / depth : deviation};
}

int64_t rows_of(const WeightRow& row) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < row.shape.size(); ++i) rows *= row.shape[i];
    return rows;
}

int64_t experts_of(const WeightRow& row) {
    return row.shape.size() == 3 ? row.shape.front() : 1;
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
          architecture_(find_synth_architecture(spec.architecture)),
          shape_(find_synth_shape(architecture_, spec.shape)) {
        if (!spec.vocab_from.empty()) vocabulary_.emplace(GgufFile::open(spec.vocab_from));
        vocab_ = shape_.vocab;
        if (vocabulary_) {
            const auto* tokens = vocabulary_->get_string_array("tokenizer.ggml.tokens");
            if (tokens == nullptr)
                throw UserError(ExitCode::kModel,
                                spec.vocab_from + ": key 'tokenizer.ggml.tokens' is missing");
            vocab_ = static_cast<int32_t>(tokens->size());
        }
        for (const int32_t cols : {shape_.width, architecture_.experts ? 0 : shape_.ffn,
                                   shape_.heads * shape_.head_size})
            check_width(cols);
        choose_rows();
    }

    void build(GgufWriter& writer, const SynthProgress& progress) {
        write_keys(writer);
        int64_t total = 0;
        for (const WeightRow& row : rows_) {
            std::vector<int64_t> shape(row.shape.rbegin(), row.shape.rend());
            while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
            writer.add_tensor(row.tensor, type_of(row), shape);
            if (has_scale(row))
                writer.add_tensor(scale_name(row.tensor), DType::kF32, {experts_of(row)});
            total += bytes_of(row);
        }
        writer.begin_data();
        int64_t done = 0;
        for (const WeightRow& row : rows_) {
            write_tensor(writer, row);
            if (has_scale(row)) {
                const std::vector<float> scales(static_cast<size_t>(experts_of(row)),
                                                distribution_of(row, shape_).deviation);
                writer.write(reinterpret_cast<const std::byte*>(scales.data()),
                             experts_of(row) * int64_t{sizeof(float)});
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
        const std::unique_ptr<Model> model = make_model(file, {.draft = architecture_.hybrid});
        for (WeightRow& row : model->weights()) {
            const bool bias = row.tensor.ends_with(".bias") && architecture_.biases &&
                              row.tensor.find("attn_output") == std::string::npos;
            const bool draft_norm = row.tensor.ends_with("nextn.shared_head_norm.weight");
            const bool head = row.tensor == "output.weight" && !shape_.tied;
            if (row.required || bias || draft_norm || head) rows_.push_back(std::move(row));
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
        number("block_count", shape_.layers + (architecture_.hybrid ? 1 : 0));
        number("context_length", shape_.context);
        number("embedding_length", shape_.width);
        if (!architecture_.experts) number("feed_forward_length", shape_.ffn);
        number("attention.head_count", shape_.heads);
        number("attention.head_count_kv", shape_.kv_heads);
        number("attention.key_length", shape_.head_size);
        number("attention.value_length", shape_.head_size);
        number("rope.dimension_count", rotary());
        number("vocab_size", vocab_);
        if (architecture_.experts) {
            number("expert_count", shape_.experts.count);
            number("expert_used_count", shape_.experts.used);
            number("expert_feed_forward_length", shape_.experts.ffn);
            if (shape_.experts.shared_ffn > 0)
                number("expert_shared_feed_forward_length", shape_.experts.shared_ffn);
        }
        if (architecture_.hybrid) write_hybrid_keys(writer, arch);
        writer.set_f32(arch + ".attention.layer_norm_rms_epsilon", architecture_.norm_eps);
        writer.set_f32(arch + ".rope.freq_base", architecture_.rope_base);
        if (!vocabulary_) return write_byte_vocabulary(writer, vocab_);
        for (const GgufKeyValue& entry : vocabulary_->key_values())
            if (entry.key.starts_with("tokenizer.")) writer.set(entry.key, entry.value);
    }

    /// The hybrids rotate a quarter of each head.
    int32_t rotary() const {
        return architecture_.hybrid ? shape_.head_size / 4 : shape_.head_size;
    }

    void write_hybrid_keys(GgufWriter& writer, const std::string& arch) const {
        const SynthRecurrence& recurrence = shape_.recurrence;
        const auto number = [&](const char* key, int32_t value) {
            writer.set_u32(arch + "." + key, static_cast<uint32_t>(value));
        };
        number("nextn_predict_layers", 1);
        number("full_attention_interval", kSynthAttentionInterval);
        number("ssm.conv_kernel", 4);
        number("ssm.state_size", recurrence.head_size);
        number("ssm.group_count", recurrence.key_heads);
        number("ssm.time_step_rank", recurrence.value_heads);
        number("ssm.inner_size", recurrence.value_heads * recurrence.head_size);
        const int32_t pairs = rotary() / 2;
        writer.set_i32s(arch + ".rope.dimension_sections",
                        {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
    }

    /// Block formats leave out what real files keep finer: embedding and output matrix (as
    /// `quantize` does for FP4), the projections of the gates and the draft block (for whose scales
    /// llama.cpp has no place) in Q8_0, routers in F32. What does not divide into blocks falls back
    /// to Q8_0, or to BF16.
    DType type_of(const WeightRow& row) const {
        const std::string_view name = row.tensor;
        if (row.matrix == nullptr || has(name, "ffn_gate_inp")) return DType::kF32;
        if (!is_block_format(spec_.type)) return spec_.type;
        const auto divides = [&](DType type) {
            return row.shape.back() % dtype_info(type).block_elements == 0;
        };
        const bool fine = name == "token_embd.weight" || name == "output.weight" ||
                          has(name, "ssm_alpha") || has(name, "ssm_beta") ||
                          name.starts_with(fmt::format("blk.{}.", shape_.layers));
        if (!fine && divides(spec_.type)) return spec_.type;
        return divides(DType::kQ8_0) ? DType::kQ8_0 : DType::kBF16;
    }

    /// NVFP4 codes hold N(0, 1); the matrix scale carries the deviation, as in a real file, where
    /// it keeps the block scales in the middle of their range.
    bool has_scale(const WeightRow& row) const { return type_of(row) == DType::kNVFP4; }

    static std::string scale_name(const std::string& weight) {
        return weight.substr(0, weight.size() - std::string_view("weight").size()) + "scale";
    }

    int64_t bytes_of(const WeightRow& row) const {
        return rows_of(row) * dtype_bytes(type_of(row), row.shape.back());
    }

    void write_tensor(GgufWriter& writer, const WeightRow& row) const {
        constexpr int64_t kSlabBytes = 16 << 20;
        const DType type = type_of(row);
        const int64_t cols = row.shape.back();
        const int64_t rows = rows_of(row);
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
        Distribution spread = distribution_of(row, shape_);
        if (has_scale(row)) spread.deviation = 1.0f;
        const uint64_t key = scramble(spec_.seed ^ hash_name(row.tensor));
        std::atomic<int64_t> next{first};
        const auto work = [&] {
            std::vector<float> values(static_cast<size_t>(cols));
            for (int64_t r = next++; r < last; r = next++) {
                fill_normal(key, r * cols, cols, spread.mean, spread.deviation, values.data());
                if (row.tensor.ends_with("ssm_a"))
                    for (float& value : values) value = -std::exp(value);
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
    const SynthArchitecture& architecture_;
    const SynthShape& shape_;
    std::optional<GgufFile> vocabulary_;
    int32_t vocab_ = 0;
    std::vector<WeightRow> rows_;
};

}  // namespace

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
