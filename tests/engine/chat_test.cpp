#include "engine/chat.h"

#include <gtest/gtest.h>

#include "engine/tiny_engine.h"

namespace tessera {
namespace {

constexpr const char* kTemplate =
    "{% for message in messages %}{{ '[' + message['role'] + ']' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}";

GenerateOptions greedy(int32_t tokens) {
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = tokens;
    options.ignore_end = true;
    return options;
}

ChatOptions chat_options() {
    return {.template_source = kTemplate, .template_arguments = {}};
}

GenerateResult ask(Chat& chat, std::string_view text) {
    return chat.ask(text, greedy(12), {}, {}, {});
}

// The answer to the last message of a conversation that no sequence has seen before.
std::string cold_answer(const TinyOptions& options, std::vector<ChatMessage> messages) {
    const auto engine = tiny_engine(options);
    Sequence sequence = engine->new_sequence();
    GenerateRequest request;
    request.sequence = &sequence;
    request.tokens = ChatFormat(*engine, chat_options()).encode(messages);
    request.options = greedy(12);
    return generate(*engine, {&request, 1}, {}).front().text;
}

TEST(ChatFormat, RendersRolesAndTheGenerationPrompt) {
    const auto engine = tiny_engine({});
    const std::vector<ChatMessage> messages{{"system", "s"}, {"user", "u"}};
    EXPECT_EQ(ChatFormat(*engine, chat_options()).render(messages),
              "[system]s\n[user]u\n[assistant]");
}

// Guards against template arguments that are dropped on the way (enable_thinking).
TEST(ChatFormat, PassesTemplateArguments) {
    const auto engine = tiny_engine({});
    ChatOptions options{.template_source = "{{ mood if mood is defined else 'none' }}",
                        .template_arguments = {}};
    EXPECT_EQ(ChatFormat(*engine, options).render({}), "none");
    options.template_arguments = {{"mood", "good"}};
    EXPECT_EQ(ChatFormat(*engine, options).render({}), "good");
}

// Guards against reuse that changes the answer, and against "reuse" that runs everything again.
TEST(Chat, ReusedPrefixAnswersAsColdStart) {
    for (const char* backend : {"reference", "cpu"}) {
        const TinyOptions tiny{.backend = backend, .context = 512};
        const auto engine = tiny_engine(tiny);
        Chat chat(*engine, chat_options(), "You are terse.");
        int32_t earlier = 0;
        for (const char* question : {"Who are you?", "Why?", "And then?"}) {
            const GenerateResult warm = ask(chat, question);
            EXPECT_GE(warm.cached_tokens, earlier) << backend;
            EXPECT_EQ(warm.cached_tokens > 0, earlier > 0) << backend;
            earlier = warm.prompt_tokens - 4;
            std::vector<ChatMessage> messages = chat.messages();
            EXPECT_EQ(messages.back().content, warm.text);
            messages.pop_back();
            EXPECT_EQ(warm.text, cold_answer(tiny, messages)) << backend << question;
        }
    }
}

// Guards against a message that stays in the history although its answer never came.
TEST(Chat, QuestionThatDoesNotFitIsTakenBack) {
    const auto engine = tiny_engine({.context = 256});
    Chat chat(*engine, chat_options(), "");
    const std::string first = ask(chat, "Hello").text;
    EXPECT_THROW(ask(chat, std::string(600, 'x')), UserError);
    ASSERT_EQ(chat.messages().size(), 2u);
    const std::string after = ask(chat, "Again").text;
    std::vector<ChatMessage> messages{{"user", "Hello"}, {"assistant", first}, {"user", "Again"}};
    EXPECT_EQ(after, cold_answer({.context = 256}, messages));
}

// Guards against a cancelled answer that spoils the turns after it.
TEST(Chat, InterruptedAnswerStaysInTheHistory) {
    const auto engine = tiny_engine({.context = 256});
    Chat chat(*engine, chat_options(), "");
    std::string shown;
    const GenerateResult cut = chat.ask(
        "Hello", greedy(12), [&](std::string_view text) { shown += text; },
        [&] { return shown.size() >= 3; }, {});
    EXPECT_EQ(cut.finish, FinishReason::kCancelled);
    ASSERT_EQ(chat.messages().size(), 2u);
    EXPECT_EQ(chat.messages().back().content, shown);
    const std::string after = ask(chat, "Go on").text;
    std::vector<ChatMessage> messages{{"user", "Hello"}, {"assistant", shown}, {"user", "Go on"}};
    EXPECT_EQ(after, cold_answer({.context = 256}, messages));
}

// Guards against an empty answer in the history of a question that was cancelled in its prompt.
TEST(Chat, CancelledQuestionIsTakenBack) {
    const auto engine = tiny_engine({});
    Chat chat(*engine, chat_options(), "");
    const GenerateResult cut = chat.ask("Hello", greedy(12), {}, [] { return true; }, {});
    EXPECT_EQ(cut.finish, FinishReason::kCancelled);
    EXPECT_TRUE(chat.messages().empty());
    EXPECT_EQ(ask(chat, "Hello").text, cold_answer({}, {{"user", "Hello"}}));
}

TEST(Chat, ResetKeepsOnlyTheSystemMessage) {
    const auto engine = tiny_engine({.context = 256});
    Chat chat(*engine, chat_options(), "Be brief.");
    const std::string first = ask(chat, "Hello").text;
    ask(chat, "More");
    chat.reset();
    ASSERT_EQ(chat.messages().size(), 1u);
    EXPECT_EQ(ask(chat, "Hello").text, first);
}

TEST(CommonPrefix, CountsEqualLeadingTokens) {
    const std::vector<int32_t> left{1, 2, 3};
    EXPECT_EQ(common_prefix(left, std::vector<int32_t>{1, 2, 4, 5}), 2);
    EXPECT_EQ(common_prefix(left, std::vector<int32_t>{1, 2}), 2);
    EXPECT_EQ(common_prefix(left, std::vector<int32_t>{}), 0);
}

}  // namespace
}  // namespace tessera
