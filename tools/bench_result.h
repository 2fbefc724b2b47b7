#pragma once
// One line of a benchmark's table, and the printers of it. Names, widths and field order follow
// llama-bench, so that its users' scripts and eyes need no change; what is ours comes last.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "engine/engine.h"
#include "tools/bench.h"
#include "tools/bench_ops.h"

namespace tessera {

/// What is measured.
struct BenchTest {
    size_t source = 0;  ///< index into the models, then the synthetic ones
    int32_t n_prompt = 0;
    int32_t n_gen = 0;
    int32_t n_depth = 0;
    int32_t batch = 0;
    int32_t ubatch = 0;
    int32_t threads = 0;
    DType type_k = DType::kF16;
    DType type_v = DType::kF16;
    int32_t gpu_layers = -1;
    int32_t flash_attn = -1;
    std::string load_mode;
    ActPolicy act = ActPolicy::kAuto;
    bool delta_bf16 = false;
    Emulation emulate = Emulation::kNone;
};

/// What `act` came to, as ActPolicy names formats: "nvfp4".
std::string_view act_name(ActFormat act);

/// Every combination of the lists in llama-bench's order: prompt tests, generation tests, pairs.
std::vector<BenchTest> expand_tests(const BenchOptions& options);

struct BenchResult {
    BenchTest test;
    std::string build_commit;
    int32_t build_number = 0;
    std::string cpu_info;
    std::string backend;
    std::string model_filename;
    std::string model_type;
    int64_t model_bytes = 0;
    int64_t model_parameters = 0;
    ActFormat act_prompt = ActFormat::kF32;   ///< what test.act came to, see Engine::prompt_act()
    std::optional<Nvfp4Policy> act_policy{};  ///< where that is NVFP4
    std::string test_time;                    ///< RFC 3339, UTC
    int64_t peak_bytes = 0;                   ///< largest resident size of the process so far
    std::vector<int64_t> samples_ns;
    OpsRun ops;  ///< with --ops; else all zeros
};

/// "pp512", "tg128", "pp512+tg128", with " @ d1024" behind it when there is a depth.
std::string test_name(const BenchTest& test);
/// Tokens per second of each repetition.
std::vector<double> samples_ts(const BenchResult& result);
double mean(std::span<const double> values);
/// Sample standard deviation (n - 1); 0 for fewer than two values.
double sample_deviation(std::span<const double> values);

class BenchPrinter {
  public:
    virtual ~BenchPrinter() = default;
    virtual void begin(const BenchOptions& options) = 0;
    virtual void print(const BenchResult& result) = 0;
    /// `last`: the newest result, nullptr when there was none.
    virtual void end(const BenchResult* last) = 0;
};

/// nullptr for kNone. `file` stays the caller's.
std::unique_ptr<BenchPrinter> make_bench_printer(BenchOutput output, std::FILE* file);

}  // namespace tessera
