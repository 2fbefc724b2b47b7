// Sizes that leave 16 bits somewhere: more rows than a grid's second axis takes, a vocabulary of
// 248,320; and batches of one token and of none. Every row is compared with the reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/gpu.h"
#include "op_cases/runner.h"

namespace tessera {
namespace {

using op_cases::append;
using op_cases::OpCase;

/// More than 65,535, and no multiple of a tile.
constexpr int32_t kRows = 65603;
constexpr int64_t kVocabulary = 248320;

class Sizes : public CardTest {
  protected:
    /// Each case against the reference, twice, recorded, cut and between guards.
    static void expect_right(const std::vector<OpCase>& cases) {
        op_cases::WeightBank bank;
        op_cases::Runner runner(
            [](int32_t) { return make_ops({.name = kCard, .threads = 1, .isa = {}}); }, bank);
        ASSERT_FALSE(cases.empty());
        for (const OpCase& op_case : cases) {
            const op_cases::Verdict verdict = runner.check(op_case);
            EXPECT_TRUE(verdict.ok) << op_cases::case_name(op_case) << ": " << verdict.fault;
        }
    }
};

// Guards against rows on an axis of the grid that ends at 65,535, and 16-bit row numbers.
TEST_F(Sizes, RowKernelsTakeMoreThan65535Rows) {
    std::vector<OpCase> cases;
    append(cases, op_cases::NormCase{.shape = {kRows, 64}});
    append(cases, op_cases::NormCase{.shape = {kRows, 2, 32}, .padding = 1});
    append(cases, op_cases::L2NormCase{.shape = {kRows, 2, 32}});
    append(cases, op_cases::AddCase{.shape = {kRows, 32}});
    append(cases, op_cases::GluCase{.t = kRows, .n = 32});
    append(cases, op_cases::GluCase{.t = kRows, .n = 32, .heads = 2, .padding = 4});
    append(cases, op_cases::SoftmaxCase{.t = kRows, .n = 40, .visible = true});
    append(cases,
           op_cases::RopeCase{.t = kRows, .heads = 2, .head_size = 32, .params = {.rotary = 16}});
    append(cases, op_cases::GatesCase{.t = kRows, .heads = 4});
    expect_right(cases);
}

TEST_F(Sizes, CopiesTakeMoreThan65535Rows) {
    std::vector<OpCase> cases;
    append(cases, op_cases::CopyCase{.shape = {kRows, 32}, .to = DType::kF16, .from_padding = 3});
    append(cases, op_cases::CopyCase{.shape = {kRows, 32}, .to = DType::kQ8_0});
    append(cases, op_cases::CopyCase{.shape = {2, kRows, 3, 5}, .to_padding = 1});
    append(cases, op_cases::ConcatCase{.shape = {kRows, 16}, .axis = 1});
    append(cases, op_cases::ConcatCase{.shape = {kRows, 16}, .axis = 0});
    append(cases, op_cases::GatherCase{.rows = 70000, .cols = 32, .t = kRows});
    append(cases,
           op_cases::GatherCase{
               .embed = true, .table = DType::kQ8_0, .rows = kVocabulary, .cols = 64, .t = kRows});
    expect_right(cases);
}

TEST_F(Sizes, ProductsTakeMoreThan65535Rows) {
    using op_cases::FusedKind;
    std::vector<OpCase> cases;
    for (const FusedKind kind : {FusedKind::kPrepare, FusedKind::kRmsNormInput,
                                 FusedKind::kGluInput, FusedKind::kGatedRmsNormInput})
        append(cases, op_cases::FusedCase{.kind = kind,
                                          .weight = DType::kNVFP4,
                                          .n = 16,
                                          .k = 64,
                                          .t = kRows,
                                          .prompt_rows = kRows - 11});
    for (const int32_t prompt_rows : {0, kRows})
        append(
            cases,
            op_cases::LinearCase{
                .weight = DType::kNVFP4, .n = 24, .k = 64, .t = kRows, .prompt_rows = prompt_rows});
    append(cases, op_cases::LinearCase{
                      .weight = DType::kF32, .n = 24, .k = 32, .t = kRows, .prompt_rows = 100});
    expect_right(cases);
}

TEST_F(Sizes, ExpertsTakeMoreThan65535Rows) {
    std::vector<OpCase> cases;
    append(cases, op_cases::RouteCase{.t = kRows, .experts = 16, .choices = 2});
    append(cases, op_cases::CombineCase{.t = kRows, .choices = 2, .n = 32});
    for (const int32_t prompt_rows : {0, kRows})
        append(cases, op_cases::ExpertCase{.weight = DType::kNVFP4,
                                           .n = 24,
                                           .k = 64,
                                           .experts = 4,
                                           .choices = 2,
                                           .t = kRows,
                                           .prompt_rows = prompt_rows});
    expect_right(cases);
}

/// Sequences of 60 tokens, `kRows` in all.
std::vector<op_cases::Run> many_runs() {
    std::vector<op_cases::Run> runs;
    for (int32_t left = kRows; left > 0; left -= 60)
        runs.push_back({.first = 0, .count = std::min(left, 60)});
    return runs;
}

TEST_F(Sizes, AttentionTakesMoreThan65535Rows) {
    const std::vector<op_cases::Run> runs = many_runs();
    const auto all = static_cast<int32_t>(runs.size());
    std::vector<OpCase> cases;
    for (const int32_t prompts : {0, all})
        append(
            cases,
            op_cases::PagedCase{
                .heads = 2, .kv_heads = 1, .head_size = 32, .runs = runs, .prompt_runs = prompts});
    append(cases, op_cases::PagedCase{.kind = op_cases::PagedKind::kQkNormRopeStore,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_size = 32,
                                      .runs = runs,
                                      .prompt_runs = all,
                                      .rope = {.rotary = 32}});
    expect_right(cases);
}

TEST_F(Sizes, RecurrenceTakesMoreThan65535Rows) {
    std::vector<OpCase> cases;
    for (const int32_t prompts : {0, 1}) {
        const op_cases::MemoryCase one{.runs = {{.first = 0, .count = kRows}},
                                       .prompt_runs = prompts};
        append(cases, op_cases::ConvCase{.channels = 40, .memory = one});
        append(cases, op_cases::DeltaCase{
                          .key_heads = 1, .heads = 2, .key_size = 32, .size = 16, .memory = one});
    }
    expect_right(cases);
}

// Guards against 16-bit or tile-sized assumptions about the output layer.
TEST_F(Sizes, TheOutputLayerTakes248320Rows) {
    std::vector<OpCase> cases;
    for (const DType type : {DType::kNVFP4, DType::kQ8_0, DType::kBF16, DType::kF32})
        for (const int32_t prompt_rows : {0, 3})
            append(cases, op_cases::LinearCase{.weight = type,
                                               .n = kVocabulary,
                                               .k = 64,
                                               .t = prompt_rows + 2,
                                               .prompt_rows = prompt_rows});
    append(cases, op_cases::LinearCase{.weight = DType::kNVFP4, .n = kVocabulary, .k = 256});
    append(cases, op_cases::SoftmaxCase{.t = 2, .n = kVocabulary});
    append(cases, op_cases::ArgmaxCase{.t = 3, .vocabulary = kVocabulary});
    append(cases, op_cases::SampleCase{.t = 4, .vocabulary = kVocabulary, .history = 40});
    append(cases, op_cases::SampleCase{.vocabulary = kVocabulary,
                                       .params = {.top_k = 0, .top_p = 0.9f, .min_p = 0.0f}});
    expect_right(cases);
}

// ---- few rows ----

// Guards against a launch with an empty grid, and against an op that writes although it has no
// rows.
TEST_F(Sizes, OpsWithoutRowsTouchNothing) {
    const auto ops = make_ops({.name = kCard, .threads = 1, .isa = {}});
    constexpr size_t kBytes = size_t{1} << 20;
    const std::vector<std::byte> sentinel(4096, std::byte{0x5a});
    std::byte* const outputs = ops->allocate(sentinel.size());
    ops->copy_to_device(outputs, sentinel.data(), sentinel.size());
    Arena arena(ops->allocate(kBytes), kBytes);
    Exec ex{.arena = arena};
    const std::vector<float> values(size_t{64} * 64, 0.5f);
    const auto* encoded = reinterpret_cast<const std::byte*>(values.data());
    const Weight weight = ops->upload({.name = "w",
                                       .format = DType::kF32,
                                       .rows = 64,
                                       .cols = 64,
                                       .data = encoded,
                                       .scales = {}});
    const Tensor none = make_tensor(outputs, DType::kF32, {0, 64});
    const Tensor heads = make_tensor(outputs, DType::kF32, {0, 2, 32});
    const Tensor ids = make_tensor(outputs, DType::kI32, {0});
    ops->rms_norm(ex, none, Tensor{}, 1e-5f, none);
    ops->l2_norm(ex, heads, 1e-6f);
    ops->add(ex, none, none, none);
    ops->glu(ex, none, none, Glu::kSwiGlu, none);
    ops->softmax(ex, none, Tensor{}, 1.0f, none);
    ops->rope(ex, heads, ids, Tensor{}, {.rotary = 32});
    ops->copy(ex, none, make_tensor(outputs, DType::kF16, {0, 64}));
    ops->gather_rows(ex, none, ids, none);
    ops->embed(ex, ids, weight, none);
    const GemmInput input = ops->prepare(ex, none, weight.wants);
    ops->linear(ex, input, weight, Tensor{}, none, Accumulate::kNo);
    ops->linear(ex, input, weight, Tensor{}, none, Accumulate::kAdd);
    ops->argmax(ex, none, ids);
    ops->combine(ex, none, make_tensor(outputs, DType::kF32, {0, 2}), none, Accumulate::kNo);
    ops->sample(ex, none, {}, {}, {}, ids);
    std::vector<std::byte> found(sentinel.size());
    ops->copy_to_host(found.data(), outputs, found.size());
    EXPECT_EQ(found, sentinel);
}

class FewTokens : public CardTestWith<const char*> {};

// Guards against a sequence without new tokens that shifts those of its neighbours, and against a
// batch of nothing at all.
TEST_P(FewTokens, ASequenceWithoutNewTokensChangesNothing) {
    const auto card = card_engine(card_options(3), model_of(GetParam(), DType::kNVFP4));
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) sequences.push_back(card->new_sequence());
    const std::vector<int32_t> first = some_tokens(65, 1), second = some_tokens(1, 2);
    feed(*card, sequences[1], first, false);
    const uint64_t before = card->memory_hash(sequences[1]);
    std::vector<SequenceInput> inputs = {{.sequence = &sequences[0], .tokens = first},
                                         {.sequence = &sequences[1], .tokens = {}},
                                         {.sequence = &sequences[2], .tokens = second}};
    const Tensor logits = card->decode(inputs);
    EXPECT_EQ(logits.rows(), 2);
    const std::vector<float> together = values_of(*card, logits);
    EXPECT_EQ(card->memory_hash(sequences[1]), before);
    std::vector<float> alone;
    for (const size_t i : {0, 2}) {
        card->rewind(sequences[i], 0);
        const std::vector<float> row = values_of(*card, card->decode({&inputs[i], 1}));
        alone.insert(alone.end(), row.begin(), row.end());
    }
    EXPECT_EQ(together, alone);
    EXPECT_EQ(card->decode({&inputs[1], 1}).rows(), 0);
    EXPECT_EQ(card->memory_hash(sequences[1]), before);
    EXPECT_EQ(sequences[1].length(), 65);
}

INSTANTIATE_TEST_SUITE_P(Card,
                         FewTokens,
                         testing::Values("llama", "qwen3moe", "qwen35", "qwen35moe"),
                         [](const testing::TestParamInfo<const char*>& tested) {
                             return std::string(tested.param);
                         });

}  // namespace
}  // namespace tessera
