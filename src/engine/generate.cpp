#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

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

/// Takes over a drawn token and decides whether the answer goes on.
void accept(const Engine& engine, Active& active, int32_t token) {
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
    } else if (request.sequence->length() >= engine.options().context) {
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
    for (size_t i = 0; i < actives.size(); ++i) accept(engine, *actives[i], ids[i]);
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
    if (request.sequence->length() >= count) engine.truncate(*request.sequence, count - 1);
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

/// One pass over all running answers. Each gets one token further.
void step(Engine& engine, std::span<Active* const> running) {
    std::vector<SequenceInput> inputs;
    for (const Active* active : running) {
        inputs.push_back({.sequence = active->request->sequence,
                          .tokens = std::span<const int32_t>(active->request->tokens).last(1),
                          .generated = true,
                          .logits = SequenceInput::Logits::kLast});
    }
    const Tensor logits = engine.decode(inputs);
    for (const Active* active : running) ++active->result->steps;
    draw(engine, logits, running);
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
        step(engine, running);
        for (const Active* active : running)
            active->result->generate_seconds = seconds_since(begin);
    }
}

}  // namespace tessera
