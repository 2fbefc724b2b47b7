#pragma once
// A tiny random model in memory, for the tests of what stands above the models.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "models/synth.h"

namespace tessera {

struct TinyOptions {
    std::string backend = "reference";
    int32_t threads = 1;
    int32_t context = 192;
    int32_t batch = 64;
    int32_t ubatch = 32;
    int32_t sequences = 1;
    int32_t checkpoints = 0;
    int32_t draft_max = 0;
    ActPolicy act = ActPolicy::kAuto;
};

inline const std::vector<std::byte>& tiny_bytes() {
    static const std::vector<std::byte> bytes = [] {
        SynthSpec spec;
        spec.type = DType::kQ8_0;
        return synth_gguf(spec, {});
    }();
    return bytes;
}

/// `bytes` must outlive the engine.
inline std::unique_ptr<Engine> tiny_engine(const TinyOptions& wanted,
                                           const std::vector<std::byte>& bytes = tiny_bytes()) {
    EngineOptions options;
    options.backend.name = wanted.backend;
    options.backend.threads = wanted.threads;
    options.context = wanted.context;
    options.batch = wanted.batch;
    options.ubatch = wanted.ubatch;
    options.sequences = wanted.sequences;
    options.checkpoints = wanted.checkpoints;
    options.draft_max = wanted.draft_max;
    options.backend.act = wanted.act;
    return std::make_unique<Engine>(options, GgufFile::parse(bytes, "tiny.gguf"));
}

}  // namespace tessera
