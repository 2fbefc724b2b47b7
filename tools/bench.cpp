#include "tools/bench.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"
#include "engine/machine.h"
#include "tools/bench_result.h"
#include "tools/saturation.h"
#include "tools/terminal.h"
#include "tools/version.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// The rest of the first line of a /proc file that starts with `key`, trimmed; "" when there is
/// none.
std::string proc_value(const char* path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
        return begin == std::string::npos ? std::string() : line.substr(begin);
    }
    return {};
}

/// The largest resident size of this process, without what measuring took.
class PeakMemory {
  public:
    int64_t bytes() const {
        const std::string kib = proc_value("/proc/self/status", "VmHWM");
        const int64_t now = 1024 * std::strtoll(kib.c_str(), nullptr, 10);  // 0 for ""
        return std::max(earlier_, now);
    }
    /// Around work whose memory shall not count.
    template <class Work>
    void leave_out(const Work& work) {
        earlier_ = bytes();
        work();
        std::ofstream("/proc/self/clear_refs") << 5;  // resets VmHWM, proc(5)
    }

  private:
    int64_t earlier_ = 0;
};

/// Whether two tests can run on one loaded engine, whatever its context.
bool same_engine(const BenchTest& a, const BenchTest& b) {
    return a.source == b.source && a.batch == b.batch && a.ubatch == b.ubatch &&
           a.threads == b.threads && a.type_k == b.type_k && a.type_v == b.type_v && a.act == b.act;
}

/// The tests of a list that share an engine, and what that engine needs.
class Bench {
  public:
    Bench(const BenchOptions& options, Engine& engine, PeakMemory& peak)
        : options_(options), engine_(engine), peak_(peak), sequence_(engine.new_sequence()) {}

    std::vector<int64_t> run(const BenchTest& test, std::string_view title) {
        if (options_.warmup) warm_up(test, title);
        std::vector<int64_t> samples;
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            fill(test.n_depth, title);
            say(title, fmt::format("run {}/{}", i + 1, options_.repetitions));
            samples.push_back(timed(test));
        }
        return samples;
    }

    /// One more run with the clock of each op on, apart from the measured ones: reading clocks
    /// costs time.
    OpsRun ops(const BenchTest& test, std::string_view title) {
        if (!ceilings_.has_value()) {
            say(title, "measuring the device's peaks");
            peak_.leave_out([&] { ceilings_ = engine_.ops().measure_ceilings(); });
        }
        fill(test.n_depth, title);
        say(title, "run with the clocks of the ops");
        engine_.set_recording(false);
        engine_.ops().set_op_timing(true);
        engine_.ops().reset_op_counts();
        const double seconds = static_cast<double>(timed(test)) / 1e9;
        engine_.ops().set_op_timing(false);
        engine_.set_recording(true);
        return {engine_.ops().op_counts(), seconds, *ceilings_};
    }

  private:
    void say(std::string_view title, std::string_view what) const {
        if (options_.progress) fmt::print(stderr, "tessera bench: {}: {}\n", title, what);
    }

    int32_t random_token() {
        return static_cast<int32_t>(random_() % static_cast<uint32_t>(engine_.info().vocab));
    }

    void prompt(int32_t count) {
        std::vector<int32_t> tokens;
        for (int32_t done = 0; done < count;) {
            const int32_t size = std::min(count - done, engine_.options().batch);
            tokens.resize(static_cast<size_t>(size));
            for (int32_t& token : tokens) token = random_token();
            const SequenceInput input{.sequence = &sequence_,
                                      .tokens = tokens,
                                      .generated = false,
                                      .logits = SequenceInput::Logits::kLast};
            engine_.decode({&input, 1});
            done += size;
        }
        engine_.wait();
    }

    void generate(int32_t count) {
        for (int32_t i = 0; i < count; ++i) {
            const int32_t token = random_token();
            const SequenceInput input{.sequence = &sequence_,
                                      .tokens = {&token, 1},
                                      .generated = true,
                                      .logits = SequenceInput::Logits::kLast};
            engine_.decode({&input, 1});
            engine_.wait();
        }
    }

    /// Behind the test's depth, so that the filled tokens serve the measured runs too.
    void warm_up(const BenchTest& test, std::string_view title) {
        fill(test.n_depth, title);
        say(title, "warm-up run");
        prompt(test.n_prompt);
        if (test.n_gen > 0) generate(1);
    }

    /// Brings the sequence to `depth` tokens; tokens of an earlier run of that depth are kept.
    void fill(int32_t depth, std::string_view title) {
        if (filled_ != depth || engine_.rewind(sequence_, depth) != depth) {
            say(title, fmt::format("filling {} tokens", depth));
            engine_.rewind(sequence_, 0);
            prompt(depth);
            filled_ = depth;
        }
    }

    int64_t timed(const BenchTest& test) {
        const Clock::time_point start = Clock::now();
        prompt(test.n_prompt);
        generate(test.n_gen);
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    }

    const BenchOptions& options_;
    Engine& engine_;
    PeakMemory& peak_;
    Sequence sequence_;
    std::optional<Ceilings> ceilings_;
    int32_t filled_ = 0;
    // The same tokens in every run of the program; mt19937 is the same everywhere.
    std::mt19937 random_{1};
};

/// Makes engines from the list of models; keeps the bytes of a synthetic one alive.
class Sources {
  public:
    explicit Sources(const BenchOptions& options) : options_(options) {}

    std::string name(size_t index) const {
        if (index < options_.models.size()) return options_.models[index];
        const SynthSpec& spec = options_.synth[index - options_.models.size()];
        return fmt::format("{}:{}:{}", spec.architecture, spec.shape, dtype_info(spec.type).name);
    }

    std::unique_ptr<Engine> load(std::span<const BenchTest> tests) {
        const BenchTest& test = tests.front();
        EngineOptions engine;
        engine.backend = {.name = options_.backend,
                          .threads = test.threads,
                          .act = test.act,
                          .act_nvfp4 = options_.act_nvfp4,
                          .isa = options_.isa,
                          .gpu_layers = test.gpu_layers < 0 ? kAllLayers : test.gpu_layers,
                          .emulate = test.emulate,
                          .delta_bf16 = test.delta_bf16};
        if (!noted_)
            engine.backend.note = [this](std::string_view text) {
                print_note(text);
                noted_ = true;
            };
        for (const BenchTest& one : tests)
            engine.context = std::max(engine.context, one.n_depth + one.n_prompt + one.n_gen);
        engine.batch = test.batch;
        engine.ubatch = std::min(test.ubatch, test.batch);
        engine.type_k = test.type_k;
        engine.type_v = test.type_v;
        engine.load_text = false;
        ProgressBar bar(ProgressUnit::kBytes);
        if (options_.progress || Terminal::of(STDERR_FILENO).tty)
            engine.progress = [&](std::string_view what, int64_t done, int64_t total) {
                bar.update(what, done, total);
            };
        std::unique_ptr<Engine> loaded = make(engine, test.source, bar);
        bar.clear();
        return loaded;
    }

  private:
    std::unique_ptr<Engine> make(EngineOptions& engine, size_t index, ProgressBar& bar) {
        if (index < options_.models.size()) {
            engine.model_path = options_.models[index];
            return std::make_unique<Engine>(engine);
        }
        if (made_ != static_cast<int64_t>(index)) {
            bytes_.clear();
            bytes_ = synth_gguf(options_.synth[index - options_.models.size()],
                                [&](int64_t done, int64_t total) {
                                    if (engine.progress) bar.update("making", done, total);
                                });
            made_ = static_cast<int64_t>(index);
        }
        return std::make_unique<Engine>(engine, GgufFile::parse(bytes_, name(index)));
    }

    const BenchOptions& options_;
    std::vector<std::byte> bytes_;
    int64_t made_ = -1;   ///< index that bytes_ belongs to
    bool noted_ = false;  ///< why no card is used
};

BenchResult describe(const BenchTest& test, Engine& engine, std::string_view backend) {
    BenchResult result;
    result.test = test;
    if (test.threads == 0) result.test.threads = physical_cores();
    // What ran: models without the rule and other cards know nothing of the switch.
    result.test.delta_bf16 =
        engine.plan().state_bytes > 0 && engine.ops().delta_rule_operands() == DType::kBF16;
    result.act_prompt = engine.prompt_act();
    if (result.act_prompt == ActFormat::kNvfp4 || result.act_prompt == ActFormat::kFp4)
        result.act_policy = engine.options().backend.act_nvfp4;
    result.build_commit = build_commit();
    result.build_number = build_number();
    result.cpu_info = proc_value("/proc/cpuinfo", "model name");
    result.backend = backend;
    result.model_type = engine.info().description;
    result.model_bytes = engine.info().tensor_bytes;
    result.model_parameters = engine.info().parameters;
    result.test_time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    return result;
}

/// The printers of stdout and stderr. The heading waits for the first result, so that a failure
/// leaves no half table.
class Printers {
  public:
    explicit Printers(const BenchOptions& options)
        : options_(options),
          printers_{make_bench_printer(options.output, stdout),
                    make_bench_printer(options.output_err, stderr)} {}

    void print(const BenchResult& result) {
        for (const auto& printer : printers_) {
            if (!printer) continue;
            if (!last_.has_value()) printer->begin(options_);
            printer->print(result);
        }
        std::fflush(stdout);
        last_ = result;
    }

    void end() {
        for (const auto& printer : printers_)
            if (printer) printer->end(last_.has_value() ? &*last_ : nullptr);
    }

  private:
    const BenchOptions& options_;
    std::array<std::unique_ptr<BenchPrinter>, 2> printers_;
    std::optional<BenchResult> last_;
};

void check_options(const BenchOptions& options) {
    if (options.models.empty() && options.synth.empty())
        throw UserError(ExitCode::kUsage,
                        "no model: give -m FILE (or set TESSERA_ARG_MODEL), or --synth "
                        "ARCH:SHAPE[:TYPE]");
}

}  // namespace

int run_bench(const BenchOptions& options) {
    check_options(options);
    const std::vector<BenchTest> tests = expand_tests(options);
    if (tests.empty())
        throw UserError(ExitCode::kUsage, "nothing to measure: -p, -n and -pg are all 0");
    Printers printers(options);
    Sources sources(options);
    PeakMemory peak;
    for (size_t first = 0; first < tests.size();) {
        size_t end = first + 1;
        while (end < tests.size() && same_engine(tests[first], tests[end])) ++end;
        const std::unique_ptr<Engine> engine =
            sources.load(std::span(tests).subspan(first, end - first));
        Bench bench(options, *engine, peak);
        for (; first < end; ++first) {
            const BenchTest& test = tests[first];
            const std::string title =
                fmt::format("benchmark {}/{} ({})", first + 1, tests.size(), test_name(test));
            if (options.delay_s > 0)
                std::this_thread::sleep_for(std::chrono::seconds(options.delay_s));
            BenchResult result = describe(test, *engine, engine->ops().name());
            result.model_filename = sources.name(test.source);
            result.samples_ns = bench.run(test, title);
            result.peak_bytes = peak.bytes();
            if (options.ops) result.ops = bench.ops(test, title);
            printers.print(result);
            if (options.ops)
                fmt::print(stderr, "\n{}\n{}\n", test_name(test), ops_tables(result.ops));
        }
        note_saturation(*engine);
    }
    printers.end();
    return static_cast<int>(ExitCode::kOk);
}

}  // namespace tessera
