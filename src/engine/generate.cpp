#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/draft_pacer.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Thrown through Engine::decode to leave it in the middle of a prompt; never leaves this file.
struct CancelPrompt {};

/// One request on its way.
struct Active {
    GenerateRequest* request = nullptr;
    GenerateResult* result = nullptr;
    TextStream stream;
    bool running = true;

    Active(GenerateRequest& wanted, GenerateResult& made)
        : request(&wanted), result(&made), stream(wanted.options.stops) {}
};

void show(Active& active, const std::string& text) {
    if (text.empty()) return;
    active.result->text += text;
    if (active.request->on_text) active.request->on_text(text);
}

void finish(Active& active, FinishReason reason) {
    show(active, active.stream.finish());
    active.result->finish = reason;
    active.running = false;
}

bool is_cancelled(const GenerateRequest& request) {
    return request.cancelled && request.cancelled();
}

/// The newest tokens that the penalties of this request see.
std::span<const int32_t> history_of(const GenerateRequest& request) {
    const std::span<const int32_t> all(request.tokens);
    if (request.options.repeat_last < 0) return all;
    const size_t wanted = static_cast<size_t>(request.options.repeat_last);
    return wanted >= all.size() ? all : all.last(wanted);
}

/// Takes over a drawn token and decides whether the answer goes on. `held`: tokens that the
/// sequence then holds.
void take(const Engine& engine, Active& active, int32_t token, int32_t held) {
    GenerateRequest& request = *active.request;
    GenerateResult& result = *active.result;
    if (token < 0) {
        finish(active, FinishReason::kNan);
        return;
    }
    result.generated.push_back(token);
    request.tokens.push_back(token);
    const Tokenizer& tokenizer = engine.tokenizer();
    if (tokenizer.is_end(token) && !request.options.ignore_end) {
        finish(active, FinishReason::kEnd);
        return;
    }
    show(active, active.stream.push(tokenizer.piece(token, request.options.render_special)));
    const int32_t limit = request.options.max_tokens;
    if (active.stream.stopped()) {
        finish(active, FinishReason::kStop);
    } else if (limit >= 0 && static_cast<int64_t>(result.generated.size()) >= limit) {
        finish(active, FinishReason::kLength);
    } else if (held >= engine.options().context) {
        finish(active, FinishReason::kContext);
    }
}

/// Draws one token for each of `actives` from the rows of `logits`.
void draw(Engine& engine, const Tensor& logits, std::span<Active* const> actives) {
    std::vector<SampleParams> params;
    std::vector<std::span<const int32_t>> history;
    std::vector<float> uniforms;
    for (const Active* active : actives) {
        const GenerateRequest& request = *active->request;
        params.push_back(request.options.sampling);
        history.push_back(history_of(request));
        uniforms.push_back(uniform_number(request.options.seed, request.options.stream,
                                          request.sequence->length()));
    }
    const std::vector<int32_t> ids = engine.sample(logits, params, history, uniforms);
    for (size_t i = 0; i < actives.size(); ++i)
        take(engine, *actives[i], ids[i], actives[i]->request->sequence->length());
}

/// Runs the part of the prompt that the sequence lacks. False when it was cancelled on the way.
bool run_prompt(Engine& engine, Active& active, const ProgressFn& progress) {
    GenerateRequest& request = *active.request;
    Sequence& sequence = *request.sequence;
    const std::span<const int32_t> all(request.tokens);
    const int64_t total = static_cast<int64_t>(all.size()) - sequence.length();
    const size_t chunk = static_cast<size_t>(engine.options().batch);
    int64_t before = 0;
    const auto report = [&](std::string_view, int64_t done, int64_t) {
        if (is_cancelled(request)) throw CancelPrompt{};
        if (progress) progress("prompt", before + done, total);
    };
    try {
        for (size_t begin = static_cast<size_t>(sequence.length()); begin < all.size();) {
            if (is_cancelled(request)) return false;
            const size_t count = std::min(chunk, all.size() - begin);
            const bool last = begin + count == all.size();
            const SequenceInput input{.sequence = &sequence,
                                      .tokens = all.subspan(begin, count),
                                      .generated = false,
                                      .logits = last && request.options.max_tokens != 0
                                                    ? SequenceInput::Logits::kLast
                                                    : SequenceInput::Logits::kNone};
            const Tensor logits = engine.decode({&input, 1}, report);
            begin += count;
            before += static_cast<int64_t>(count);
            if (!last || request.options.max_tokens == 0) continue;
            Active* const self = &active;
            draw(engine, logits, {&self, 1});
            return true;
        }
    } catch (const CancelPrompt&) {
        return false;
    }
    return true;
}

void start(Engine& engine, Active& active, const ProgressFn& progress) {
    GenerateRequest& request = *active.request;
    GenerateResult& result = *active.result;
    const int32_t count = static_cast<int32_t>(request.tokens.size());
    if (request.sequence->length() >= count) engine.rewind(*request.sequence, count - 1);
    result.prompt_tokens = count;
    result.cached_tokens = request.sequence->length();
    const Clock::time_point begin = Clock::now();
    if (!run_prompt(engine, active, progress)) {
        finish(active, FinishReason::kCancelled);
    } else if (active.running && request.options.max_tokens == 0) {
        finish(active, FinishReason::kLength);
    }
    result.prompt_seconds = seconds_since(begin);
}

/// One pass over all running answers. Each gets one token further; `seen`: by the draft block, too.
void plain_step(Engine& engine, std::span<Active* const> running, bool seen) {
    std::vector<SequenceInput> inputs;
    for (const Active* active : running) {
        inputs.push_back({.sequence = active->request->sequence,
                          .tokens = std::span<const int32_t>(active->request->tokens).last(1),
                          .generated = true,
                          .unseen = !seen,
                          .logits = SequenceInput::Logits::kLast});
    }
    const Tensor logits = engine.decode(inputs);
    for (const Active* active : running) ++active->result->steps;
    draw(engine, logits, running);
}

/// The token that the request draws from one row of logits as the one at absolute `position`.
/// Guesses are drawn with the very number that will draw the real token, which makes them agree
/// more often than two independent draws would.
int32_t draw_at(Engine& engine,
                const Tensor& row,
                const GenerateRequest& request,
                int32_t position) {
    const float uniform = uniform_number(request.options.seed, request.options.stream, position);
    const std::span<const int32_t> history = history_of(request);
    return engine.sample(row, {&request.options.sampling, 1}, {&history, 1}, {&uniform, 1}).front();
}

/// Probability of a token under softmax of one row of logits.
double probability(Engine& engine, const Tensor& device_row, int32_t token) {
    const Tensor row = engine.on_host(device_row);
    const std::span<const float> logits(row.as<float>(), static_cast<size_t>(row.cols()));
    const double peak = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - peak);
    return std::exp(static_cast<double>(logits[static_cast<size_t>(token)]) - peak) / sum;
}

/// One answer in a round of drafting.
struct Round {
    Active* active = nullptr;
    std::vector<int32_t> tokens;  ///< the newest token, then the guesses
    int32_t wanted = 0;           ///< guesses to make
    int32_t kept = 0;             ///< of them that were right
    int32_t guesses() const { return static_cast<int32_t>(tokens.size()) - 1; }
};

/// How many guesses make sense: the limit of the answer and the context end them, too.
int32_t useful_guesses(const Engine& engine, const Active& active, int32_t most) {
    const GenerateRequest& request = *active.request;
    int32_t count = std::min({most, request.options.draft_max, engine.options().draft_max});
    count = std::min(count, engine.options().context - request.sequence->length() - 1);
    if (request.options.max_tokens >= 0)
        count = std::min(count, request.options.max_tokens -
                                    static_cast<int32_t>(active.result->generated.size()) - 1);
    return std::max(count, 0);
}

/// Guesses for all rounds in lock step, each on top of its last one.
void guess(Engine& engine, std::span<Round> rounds) {
    for (int32_t ahead = 0;; ++ahead) {
        std::vector<Engine::DraftStep> steps;
        std::vector<Round*> open;
        for (Round& round : rounds) {
            if (round.wanted <= ahead) continue;
            open.push_back(&round);
            steps.push_back({round.active->request->sequence, round.tokens.back(), ahead});
        }
        if (steps.empty()) return;
        const Tensor logits = engine.draft(steps);
        for (size_t i = 0; i < open.size(); ++i) {
            Round& round = *open[i];
            GenerateRequest& request = *round.active->request;
            const Tensor row = logits.slice_rows(static_cast<int64_t>(i), 1);
            const size_t before = request.tokens.size();
            request.tokens.insert(request.tokens.end(), round.tokens.begin() + 1,
                                  round.tokens.end());
            const int32_t token =
                draw_at(engine, row, request, request.sequence->length() + ahead + 1);
            request.tokens.resize(before);
            const auto p_min = static_cast<double>(request.options.draft_p_min);
            if (token < 0 || (p_min > 0.0 && probability(engine, row, token) < p_min)) {
                round.wanted = ahead;
            } else {
                round.tokens.push_back(token);
            }
        }
    }
}

/// Draws along the verified rows for as long as the guesses agree; `logits` [1 + guesses, vocab].
void keep_agreeing(Engine& engine, Round& round, const Tensor& logits) {
    Active& active = *round.active;
    Sequence& sequence = *active.request->sequence;
    const int32_t base = sequence.length();
    int32_t rows = 0;
    bool agrees = true;
    while (agrees && active.running && rows <= round.guesses()) {
        const int32_t token =
            draw_at(engine, logits.slice_rows(rows, 1), *active.request, base + rows + 1);
        ++rows;
        take(engine, active, token, base + rows);
        agrees = rows <= round.guesses() && token == round.tokens[static_cast<size_t>(rows)];
        round.kept += agrees ? 1 : 0;
    }
    engine.accept(sequence, rows);
    GenerateResult& result = *active.result;
    ++result.steps;
    if (round.guesses() == 0) return;
    result.drafted += round.guesses();
    result.accepted += round.kept;
    const auto kept = static_cast<size_t>(round.kept);
    if (result.accepted_lengths.size() <= kept) result.accepted_lengths.resize(kept + 1);
    ++result.accepted_lengths[kept];
}

/// Guesses, one pass that verifies them, and as many tokens as agree.
void draft_step(Engine& engine, std::span<Round> rounds) {
    guess(engine, rounds);
    std::vector<SequenceInput> inputs;
    for (const Round& round : rounds)
        inputs.push_back({.sequence = round.active->request->sequence,
                          .tokens = round.tokens,
                          .generated = true,
                          .tentative = true,
                          .logits = SequenceInput::Logits::kAll});
    const Tensor logits = engine.decode(inputs);
    int64_t row = 0;
    for (Round& round : rounds) {
        const auto count = std::ssize(round.tokens);
        keep_agreeing(engine, round, logits.slice_rows(row, count));
        row += count;
    }
}

/// Lets the draft block see the generated tokens that wait for it where at least `least` do.
void follow(Engine& engine, std::span<Active* const> running, int32_t least, DraftPacer& pacer) {
    const Clock::time_point begin = Clock::now();
    int32_t tokens = 0;
    for (const Active* active : running) {
        Sequence& sequence = *active->request->sequence;
        if (engine.waiting(sequence) < least) continue;
        tokens += engine.waiting(sequence);
        engine.follow(sequence);
    }
    if (tokens > 0) pacer.record_follow(seconds_since(begin), tokens);
}

void step(Engine& engine, std::span<Active* const> running, DraftPacer& pacer) {
    constexpr int32_t kMany = 30;  // wait before the engine would skip some
    constexpr int32_t kFew = 4;    // wait, and drafting takes them with its first guess
    const int32_t most = pacer.next();
    if (most > 0)
        follow(engine, running, kFew, pacer);
    else if (pacer.follows())
        follow(engine, running, kMany, pacer);
    const Clock::time_point begin = Clock::now();
    std::vector<Round> rounds;
    int32_t wanted = 0;
    for (Active* active : running) {
        Round round{.active = active,
                    .tokens = {active->request->tokens.back()},
                    .wanted = useful_guesses(engine, *active, most)};
        wanted = std::max(wanted, round.wanted);
        rounds.push_back(std::move(round));
    }
    if (wanted == 0) {
        plain_step(engine, running, pacer.sees());
        pacer.record(seconds_since(begin), 0, 0);
        return;
    }
    draft_step(engine, rounds);
    // As many as were wanted, even when improbable ones were not verified: they took their time.
    int32_t kept = wanted;
    for (const Round& round : rounds) kept = std::min(kept, round.kept);
    pacer.record(seconds_since(begin), wanted, kept);
}

void check_requests(const Engine& engine, std::span<const GenerateRequest> requests) {
    check(requests.size() <= static_cast<size_t>(engine.options().batch),
          "more requests than one batch has rows");
    for (const GenerateRequest& request : requests) {
        check(request.sequence != nullptr, "a request without a sequence");
        if (request.tokens.empty()) throw UserError(ExitCode::kFailure, "the prompt has no tokens");
        if (static_cast<int64_t>(request.tokens.size()) > engine.options().context) {
            throw UserError(
                ExitCode::kFailure,
                fmt::format(
                    "the prompt has {} tokens, the context holds {}: raise -c or shorten it",
                    request.tokens.size(), engine.options().context));
        }
    }
}

}  // namespace

float uniform_number(uint64_t seed, uint64_t stream, int64_t position) {
    constexpr uint64_t kMultiplier0 = 0xD2511F53u;
    constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
    constexpr uint32_t kWeyl0 = 0x9E3779B9u;
    constexpr uint32_t kWeyl1 = 0xBB67AE85u;
    const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
    const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
    const uint64_t place = static_cast<uint64_t>(position);
    std::array<uint32_t, 4> counter{low(place), high(place), low(stream), high(stream)};
    uint32_t key0 = low(seed);
    uint32_t key1 = high(seed);
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = kMultiplier0 * counter[0];
        const uint64_t product1 = kMultiplier1 * counter[2];
        counter = {high(product1) ^ counter[1] ^ key0, low(product1),
                   high(product0) ^ counter[3] ^ key1, low(product0)};
        key0 += kWeyl0;
        key1 += kWeyl1;
    }
    return static_cast<float>(counter[0] >> 8) * 0x1p-24f;
}

std::vector<GenerateResult> generate(Engine& engine,
                                     std::span<GenerateRequest> requests,
                                     const ProgressFn& progress) {
    check_requests(engine, requests);
    std::vector<GenerateResult> results(requests.size());
    std::vector<Active> actives;
    actives.reserve(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) actives.emplace_back(requests[i], results[i]);
    for (Active& active : actives) start(engine, active, progress);

    int32_t draft_max = 0;
    bool adaptive = true;
    for (const GenerateRequest& request : requests) {
        draft_max = std::max(draft_max, request.options.draft_max);
        adaptive = adaptive && request.options.draft_adaptive;
    }
    DraftPacer pacer(std::min(draft_max, engine.options().draft_max), adaptive,
                     engine.guess_cost());
    const Clock::time_point begin = Clock::now();
    std::vector<Active*> running;
    while (true) {
        running.clear();
        for (Active& active : actives) {
            if (!active.running) continue;
            if (is_cancelled(*active.request)) {
                finish(active, FinishReason::kCancelled);
                active.result->generate_seconds = seconds_since(begin);
                continue;
            }
            running.push_back(&active);
        }
        if (running.empty()) return results;
        step(engine, running, pacer);
        for (const Active* active : running)
            active->result->generate_seconds = seconds_since(begin);
    }
}

}  // namespace tessera
