#pragma once
// `tessera bench`: llama-bench's flags, meanings and output.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "models/synth.h"

namespace tessera {

enum class BenchOutput : uint8_t { kNone, kMarkdown, kCsv, kJson, kJsonl };

/// Lists are as typed, in order, ranges already expanded; a benchmark is run for every combination.
/// -p and -n give tests of their own (0 = no such test), -pg one test of prompt then generation.
struct BenchOptions {
    std::vector<std::string> models;
    std::vector<SynthSpec> synth;  ///< --synth ARCH:SHAPE:TYPE, after the models
    std::vector<int32_t> n_prompt{512};
    std::vector<int32_t> n_gen{128};
    std::vector<std::pair<int32_t, int32_t>> prompt_gen;
    std::vector<int32_t> n_depth{0};
    std::vector<int32_t> batch{2048};
    std::vector<int32_t> ubatch{512};
    std::vector<int32_t> threads{0};  ///< 0: one per physical core
    std::vector<DType> type_k{DType::kF16};
    std::vector<DType> type_v{DType::kF16};
    std::vector<int32_t> gpu_layers{-1};  ///< -ngl; shown in the table when given
    std::vector<int32_t> flash_attn{-1};  ///< -fa: 1 on, 0 off, -1 auto; our attention is the same
    std::vector<std::string> load_mode{"auto"};  ///< -lm: "auto", "none", "mmap"
    std::vector<ActPolicy> act{ActPolicy::kAuto};
    Emulation emulate = Emulation::kNone;  ///< kFp4: "auto" among `act` is then nvfp4
    Nvfp4Policy act_nvfp4 = kActNvfp4;
    bool delta_bf16 = false;
    std::string backend = "auto";
    std::string isa;
    int32_t repetitions = 5;
    int32_t delay_s = 0;
    bool warmup = true;
    bool progress = false;
    bool ops = false;  ///< where the time goes op by op: tables on stderr, fields of csv and json
    bool verbose = false;
    BenchOutput output = BenchOutput::kMarkdown;
    BenchOutput output_err = BenchOutput::kNone;
};

/// Returns the exit code; failures are UserErrors.
int run_bench(const BenchOptions& options);

}  // namespace tessera
