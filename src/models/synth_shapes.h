#pragma once
// The architectures and sizes that synthetic models come in: plain numbers.

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

/// Of the gated delta net layers.
struct SynthRecurrence {
    int32_t key_heads, value_heads, head_size;
};

struct SynthExperts {
    int32_t count, used, ffn, shared_ffn;
};

struct SynthShape {
    std::string_view name;
    int32_t layers, width, heads, kv_heads, head_size;
    int32_t ffn;  ///< of a dense feed-forward block; 0: the shape has experts only
    int32_t vocab, context;
    bool tied;
    SynthRecurrence recurrence{};
    SynthExperts experts{};
};

/// What an architecture adds to the common keys.
struct SynthArchitecture {
    std::string_view name;
    float rope_base;
    float norm_eps = 1e-5f;
    bool biases = false;   ///< the optional rows ending in .bias are made, too
    bool hybrid = false;   ///< gated delta net layers, an output gate and a draft block
    bool experts = false;  ///< instead of a dense feed-forward block
};

/// In a hybrid model every one of this many layers is one of attention, the others are recurrent.
inline constexpr int32_t kSynthAttentionInterval = 4;

/// UserError(kUsage) with the nearest known name.
const SynthArchitecture& find_synth_architecture(std::string_view name);
/// The shape of that name for this architecture. UserError(kUsage): no such shape (with the nearest
/// known name), or only for other architectures (with those that this one has).
const SynthShape& find_synth_shape(const SynthArchitecture& architecture, std::string_view name);

/// Names, each once.
std::vector<std::string_view> synth_architectures();
std::vector<std::string_view> synth_shapes();
/// The shapes of one architecture.
std::vector<std::string_view> synth_shapes(std::string_view architecture);

}  // namespace tessera
