#include "models/synth_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "core/error.h"
#include "core/nearest.h"

namespace tessera {
namespace {

constexpr std::array kArchitectures{
    SynthArchitecture{.name = "llama", .rope_base = 500000.0f},
    SynthArchitecture{.name = "qwen2", .rope_base = 1000000.0f, .biases = true},
    SynthArchitecture{.name = "qwen3", .rope_base = 1000000.0f},
    SynthArchitecture{.name = "qwen3moe", .rope_base = 1000000.0f, .experts = true},
    SynthArchitecture{
        .name = "qwen35", .rope_base = 10000000.0f, .norm_eps = 1e-6f, .hybrid = true},
    SynthArchitecture{.name = "qwen35moe",
                      .rope_base = 10000000.0f,
                      .norm_eps = 1e-6f,
                      .hybrid = true,
                      .experts = true},
};

/// Sizes of well-known models: SmolLM2-135M, Llama-3.2-1B, Llama-3.1-8B.
constexpr std::array kPlainShapes{
    SynthShape{"tiny", 2, 256, 4, 2, 64, 512, 512, 2048, false},
    SynthShape{"135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, true},
    SynthShape{"1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true},
    SynthShape{"8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, false},
};

/// Qwen3-30B-A3B.
constexpr std::array kExpertShapes{
    SynthShape{"tiny", 2, 256, 4, 2, 64, 0, 512, 2048, false, {}, {8, 2, 128, 0}},
    SynthShape{
        "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 0, 151936, 40960, false, {}, {128, 8, 768, 0}},
};

/// Qwen3.5-0.8B, Qwen3.5-27B, Qwen3.6-35B-A3B. The tiny one has two value heads to a key head and,
/// for formats with large blocks, inner matrices that are too narrow.
constexpr std::array kHybridShapes{
    SynthShape{"tiny", 4, 256, 4, 2, 64, 512, 512, 2048, false, {2, 4, 32}, {8, 2, 128, 128}},
    SynthShape{"0.8b", 24, 1024, 8, 2, 256, 3584, 248320, 262144, true, {16, 16, 128}},
    SynthShape{"qwen3.5-27b", 64, 5120, 24, 4, 256, 17408, 248320, 262144, false, {16, 48, 128}},
    SynthShape{"qwen3.6-35b-a3b",
               40,
               2048,
               16,
               2,
               256,
               0,
               248320,
               262144,
               false,
               {16, 32, 128},
               {256, 8, 512, 512}},
};

/// All shapes of the structure; not each has the feed-forward block that is wanted.
std::span<const SynthShape> table_of(const SynthArchitecture& architecture) {
    if (architecture.hybrid) return kHybridShapes;
    if (architecture.experts) return kExpertShapes;
    return kPlainShapes;
}

bool fits(const SynthArchitecture& architecture, const SynthShape& shape) {
    return architecture.experts ? shape.experts.count > 0 : shape.ffn > 0;
}

std::string hint(std::string_view near) {
    return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

std::vector<std::string_view> shapes_of(const SynthArchitecture& architecture) {
    std::vector<std::string_view> names;
    for (const SynthShape& shape : table_of(architecture))
        if (fits(architecture, shape)) names.push_back(shape.name);
    return names;
}

}  // namespace

const SynthArchitecture& find_synth_architecture(std::string_view name) {
    for (const SynthArchitecture& row : kArchitectures)
        if (row.name == name) return row;
    throw UserError(ExitCode::kUsage, fmt::format("unknown architecture '{}'{}", name,
                                                  hint(nearest_name(name, synth_architectures()))));
}

const SynthShape& find_synth_shape(const SynthArchitecture& architecture, std::string_view name) {
    for (const SynthShape& shape : table_of(architecture))
        if (shape.name == name && fits(architecture, shape)) return shape;
    const std::vector<std::string_view> own = shapes_of(architecture);
    const std::vector<std::string_view> all = synth_shapes();
    if (std::find(all.begin(), all.end(), name) != all.end())
        throw UserError(ExitCode::kUsage,
                        fmt::format("shape '{}' is not one of architecture {}, which has {}", name,
                                    architecture.name, fmt::join(own, ", ")));
    throw UserError(ExitCode::kUsage,
                    fmt::format("unknown shape '{}'{}", name, hint(nearest_name(name, own))));
}

std::vector<std::string_view> synth_architectures() {
    std::vector<std::string_view> names;
    for (const SynthArchitecture& row : kArchitectures) names.push_back(row.name);
    return names;
}

std::vector<std::string_view> synth_shapes() {
    std::vector<std::string_view> names;
    for (const SynthArchitecture& architecture : kArchitectures)
        for (const std::string_view name : shapes_of(architecture))
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    return names;
}

std::vector<std::string_view> synth_shapes(std::string_view architecture) {
    return shapes_of(find_synth_architecture(architecture));
}

}  // namespace tessera
