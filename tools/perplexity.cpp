#include "tools/perplexity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/machine.h"
#include "tools/perplexity_file.h"
#include "tools/perplexity_stats.h"
#include "tools/saturation.h"
#include "tools/text_input.h"

namespace tessera {
namespace {

/// What is scored of a text: windows of `length` tokens every `step` tokens; in each, the
/// predictions at positions [first, length - 1), of the tokens one further.
struct Windows {
    int32_t length = 0;
    int32_t step = 0;
    int32_t first = 0;
    int32_t count = 0;
    int32_t scored() const { return length - 1 - first; }
};

/// Scores of one window, one entry per scored position.
struct WindowScores {
    std::vector<double> nll;
    std::vector<uint16_t> words;  ///< rows to write, or the base model's rows to compare with
    std::vector<RowDivergence> rows;
};

enum class Mode : uint8_t { kScore, kWrite, kCompare };

Windows make_windows(const PerplexityOptions& options, const LogitsReader* base, size_t tokens) {
    Windows windows;
    windows.length = base != nullptr ? base->header().context : options.engine.context;
    windows.step = windows.length;
    windows.first = windows.length / 2;
    if (options.stride > 0) {
        windows.length += options.stride / 2;
        windows.step = options.stride;
        windows.first = std::max(0, windows.length - options.stride - 1);
    }
    if (base != nullptr) {
        windows.count = base->header().chunks;
    } else {
        const int64_t least = 2 * int64_t{windows.length};
        const int64_t have = static_cast<int64_t>(tokens);
        if (have < least)
            throw UserError(ExitCode::kFailure,
                            fmt::format("the text has {} tokens, chunks of {} need at least {}: "
                                        "give a longer text or a smaller -c",
                                        have, windows.length, least));
        windows.count = static_cast<int32_t>(
            options.stride > 0 ? (have - windows.length + windows.step - 1) / windows.step
                               : have / windows.length);
    }
    if (options.chunks >= 0) windows.count = std::min(windows.count, options.chunks);
    return windows;
}

/// Runs windows through the engine, several side by side, and scores their rows on all threads.
class Evaluator {
  public:
    Evaluator(Engine& engine, const Windows& windows, Mode mode)
        : engine_(engine), windows_(windows), mode_(mode) {
        for (int32_t i = 0; i < engine.options().sequences; ++i)
            sequences_.push_back(engine.new_sequence());
    }
    size_t group_size() const { return sequences_.size(); }

    /// `tokens[i]` is the text of window i of the group. For kCompare, scores[i].words is filled.
    void run(std::span<const std::vector<int32_t>> tokens, std::span<WindowScores> scores) {
        const size_t scored = static_cast<size_t>(windows_.scored());
        const size_t words = row_words(engine_.info().vocab);
        for (size_t i = 0; i < tokens.size(); ++i) {
            engine_.rewind(sequences_[i], 0);
            scores[i].nll.assign(scored, 0.0);
            if (mode_ == Mode::kWrite) scores[i].words.assign(scored * words, 0);
            if (mode_ == Mode::kCompare) scores[i].rows.assign(scored, {});
        }
        const int32_t rows = std::min(engine_.options().batch, engine_.options().ubatch);
        int32_t piece = std::max(1, rows / static_cast<int32_t>(tokens.size()));
        if (piece > kChunkTokens) piece -= piece % kChunkTokens;
        // The last token of a window predicts nothing and is left out.
        const int32_t end = windows_.length - 1;
        for (int32_t begin = 0; begin < windows_.first; begin += piece)
            decode(tokens, begin, std::min(begin + piece, windows_.first), {});
        for (int32_t begin = windows_.first; begin < end; begin += piece)
            decode(tokens, begin, std::min(begin + piece, end), scores);
    }

  private:
    void decode(std::span<const std::vector<int32_t>> tokens,
                int32_t begin,
                int32_t end,
                std::span<WindowScores> scores) {
        const size_t count = static_cast<size_t>(end - begin);
        std::vector<SequenceInput> inputs;
        for (size_t i = 0; i < tokens.size(); ++i) {
            inputs.push_back({.sequence = &sequences_[i],
                              .tokens = std::span<const int32_t>(tokens[i]).subspan(
                                  static_cast<size_t>(begin), count),
                              .generated = false,
                              .logits = scores.empty() ? SequenceInput::Logits::kNone
                                                       : SequenceInput::Logits::kAll});
        }
        const Tensor logits = engine_.on_host(engine_.decode(inputs));
        if (scores.empty()) return;
        std::atomic<size_t> next{0};
        const auto work = [&] {
            for (size_t row = next++; row < count * tokens.size(); row = next++) {
                const size_t window = row / count;
                const size_t position = static_cast<size_t>(begin) + row % count;
                const std::span<const float> values(logits.row<float>(static_cast<int64_t>(row)),
                                                    static_cast<size_t>(logits.cols()));
                score(values, tokens[window][position + 1],
                      position - static_cast<size_t>(windows_.first), scores[window]);
            }
        };
        std::vector<std::jthread> helpers;
        for (int32_t i = 1; i < engine_.options().backend.threads; ++i) helpers.emplace_back(work);
        work();
    }

    void score(std::span<const float> logits,
               int32_t token,
               size_t index,
               WindowScores& scores) const {
        const size_t words = row_words(static_cast<int32_t>(logits.size()));
        const std::span<uint16_t> stored =
            mode_ == Mode::kScore ? std::span<uint16_t>()
                                  : std::span(scores.words).subspan(index * words, words);
        switch (mode_) {
            case Mode::kScore:
                scores.nll[index] = token_nll(logits, token);
                break;
            case Mode::kWrite:
                scores.nll[index] = store_row(logits, token, stored);
                break;
            case Mode::kCompare:
                scores.rows[index] = compare_row(logits, token, stored);
                scores.nll[index] = scores.rows[index].nll;
                break;
        }
    }

    Engine& engine_;
    Windows windows_;
    Mode mode_;
    std::vector<Sequence> sequences_;
};

/// Adds up windows in order and prints the running estimate.
class Report {
  public:
    Report(const PerplexityOptions& options, Mode mode, const Windows& windows)
        : options_(options), mode_(mode), windows_(windows) {}

    void add(int32_t window, const WindowScores& scores) {
        for (const double nll : scores.nll) {
            if (std::isnan(nll))
                throw UserError(ExitCode::kFailure,
                                fmt::format("model produced NaN in chunk {}", window + 1));
            sum_.add(nll);
        }
        for (const RowDivergence& row : scores.rows) divergence_.add(row);
        if (mode_ == Mode::kCompare) {
            fmt::print("{}", divergence_.running_line(window + 1));
        } else if (options_.output_type == 0) {
            fmt::print("[{}]{:.4f},", window + 1, sum_.perplexity().value);
        } else {
            const Estimate mean = sum_.mean_nll();
            fmt::print("{:8d}  {:.4f}  {:4f}  {:4f}\n", window * windows_.step,
                       std::exp(mean.value), mean.value, mean.error);
        }
        std::fflush(stdout);
    }

    void begin() const {
        if (mode_ == Mode::kCompare) fmt::print("{}", DivergenceStats::heading());
    }

    void end() const {
        if (mode_ == Mode::kCompare) {
            fmt::print("\n{}", divergence_.report());
            return;
        }
        const Estimate ppl = sum_.perplexity();
        fmt::print("\nFinal estimate: PPL = {:.4f} +/- {:.5f}\n", ppl.value, ppl.error);
    }

  private:
    const PerplexityOptions& options_;
    Mode mode_;
    Windows windows_;
    PerplexitySum sum_;
    DivergenceStats divergence_;
};

/// Tokens of a window, with BOS in the place of its first token when the vocabulary asks for BOS.
std::vector<int32_t> window_tokens(const Engine& engine,
                                   std::span<const int32_t> all,
                                   const Windows& windows,
                                   int32_t index) {
    const auto begin = all.begin() + int64_t{index} * windows.step;
    std::vector<int32_t> tokens(begin, begin + windows.length);
    const Tokenizer& tokenizer = engine.tokenizer();
    if (tokenizer.source().add_bos && tokenizer.bos() >= 0) tokens.front() = tokenizer.bos();
    return tokens;
}

std::vector<int32_t> read_tokens(const PerplexityOptions& options,
                                 const Engine& engine,
                                 const LogitsReader* base) {
    if (base != nullptr) {
        if (base->header().vocab != engine.info().vocab)
            throw UserError(
                ExitCode::kModel,
                fmt::format("{}: was made with a vocabulary of {}, the model has {}",
                            options.logits_file, base->header().vocab, engine.info().vocab));
        return base->header().tokens;
    }
    const std::string text = options.file.empty() ? options.prompt : read_text_file(options.file);
    return engine.tokenizer().encode(text, /*add_special=*/true, /*parse_special=*/false);
}

/// The options that the engine gets: one sequence for each window that runs at a time.
EngineOptions engine_options(const PerplexityOptions& options, const LogitsReader* base) {
    EngineOptions engine = options.engine;
    if (engine.backend.threads <= 0) engine.backend.threads = physical_cores();
    if (base != nullptr) engine.context = base->header().context;
    if (engine.context < 4) throw UserError(ExitCode::kUsage, "-c: chunks need at least 4 tokens");
    engine.sequences = std::clamp(engine.batch / engine.context, 1, 64);
    if (options.chunks > 0) engine.sequences = std::min(engine.sequences, options.chunks);
    engine.context += options.stride / 2;
    return engine;
}

void check_options(const PerplexityOptions& options) {
    if (options.chunks == 0) throw UserError(ExitCode::kUsage, "--chunks: 0 chunks score nothing");
    if (options.kl_divergence && options.logits_file.empty())
        throw UserError(ExitCode::kUsage, "--kl-divergence needs --kl-divergence-base FILE");
    if (options.stride > 0 && !options.logits_file.empty())
        throw UserError(ExitCode::kUsage,
                        "--ppl-stride does not go together with --kl-divergence-base");
    if (!options.kl_divergence && options.file.empty() && options.prompt.empty())
        throw UserError(ExitCode::kUsage, "a text is needed: -f FILE (or -p TEXT)");
}

void print_eta(double seconds_per_group, int32_t windows, size_t group) {
    const double minutes = seconds_per_group * windows / static_cast<double>(group) / 60;
    fmt::print(stderr, "{:.2f} seconds per pass - ETA ", seconds_per_group);
    if (minutes >= 60) fmt::print(stderr, "{:.0f} hours ", std::floor(minutes / 60));
    fmt::print(stderr, "{:.2f} minutes\n", std::fmod(minutes, 60.0));
}

struct Job {
    std::vector<int32_t> tokens;
    Windows windows;
    Mode mode = Mode::kScore;
    std::unique_ptr<LogitsReader> reader;
    std::unique_ptr<LogitsWriter> writer;
};

void evaluate(const PerplexityOptions& options, Engine& engine, Job& job) {
    Evaluator evaluator(engine, job.windows, job.mode);
    Report report(options, job.mode, job.windows);
    const int32_t group = static_cast<int32_t>(evaluator.group_size());
    const size_t stored =
        static_cast<size_t>(job.windows.scored()) * row_words(engine.info().vocab);
    for (int32_t first = 0; first < job.windows.count; first += group) {
        const auto begin = std::chrono::steady_clock::now();
        const int32_t count = std::min(group, job.windows.count - first);
        std::vector<std::vector<int32_t>> tokens;
        std::vector<WindowScores> scores(static_cast<size_t>(count));
        for (int32_t i = 0; i < count; ++i) {
            tokens.push_back(window_tokens(engine, job.tokens, job.windows, first + i));
            if (!job.reader) continue;
            WindowScores& base = scores[static_cast<size_t>(i)];
            base.words.resize(stored);
            job.reader->read(base.words);
        }
        evaluator.run(tokens, scores);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (first == 0) {
            if (options.progress)
                print_eta(took.count(), job.windows.count, static_cast<size_t>(count));
            report.begin();
        }
        for (int32_t i = 0; i < count; ++i) {
            const WindowScores& done = scores[static_cast<size_t>(i)];
            if (job.writer) job.writer->write(done.words);
            report.add(first + i, done);
        }
    }
    if (job.writer) job.writer->finish();
    report.end();
}

}  // namespace

int run_perplexity(const PerplexityOptions& options) {
    check_options(options);
    Job job;
    if (options.kl_divergence) {
        job.mode = Mode::kCompare;
        job.reader = std::make_unique<LogitsReader>(options.logits_file);
    } else if (!options.logits_file.empty()) {
        job.mode = Mode::kWrite;
    }
    Engine engine(engine_options(options, job.reader.get()));
    job.tokens = read_tokens(options, engine, job.reader.get());
    job.windows = make_windows(options, job.reader.get(), job.tokens.size());
    if (job.mode == Mode::kWrite) {
        const size_t used =
            static_cast<size_t>(job.windows.count) * static_cast<size_t>(job.windows.length);
        job.writer = std::make_unique<LogitsWriter>(
            options.logits_file,
            LogitsHeader{.context = job.windows.length,
                         .vocab = engine.info().vocab,
                         .chunks = job.windows.count,
                         .tokens = {job.tokens.begin(),
                                    job.tokens.begin() + static_cast<std::ptrdiff_t>(used)}});
    }
    if (options.progress)
        fmt::print(stderr, "perplexity: {} tokens, {} chunks of {}, {} side by side\n",
                   job.tokens.size(), job.windows.count, job.windows.length,
                   engine.options().sequences);
    evaluate(options, engine, job);
    note_saturation(engine);
    return static_cast<int>(ExitCode::kOk);
}

}  // namespace tessera
