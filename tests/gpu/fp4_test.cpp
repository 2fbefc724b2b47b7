// Prompt rows in packed NVFP4 (--emulate fp4) on Hopper: the path of Blackwell cards through a
// whole model. Other cards refuse it (and pass the other tests unasked).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/codec.h"
#include "gpu/prompt_formats.h"

namespace tessera {
namespace {

BackendOptions fp4_backend() {
    BackendOptions options{.name = kCard, .isa = {}};
    options.emulate = Emulation::kFp4;
    return options;
}

/// Why this card emulates no FP4 products, or "".
const std::string& refusal() {
    static const std::string reason = refusal_of(fp4_backend());
    return reason;
}

class EmulatedFp4 : public CardTest {};

// Guards against a card that computes in another way than it was asked for.
TEST_F(EmulatedFp4, IsForHopperAlone) {
    expect_for_hopper_alone(refusal());
}

std::vector<float> all_logits(const std::vector<std::byte>& bytes,
                              const BackendOptions& backend,
                              const std::vector<int32_t>& tokens) {
    EngineOptions options = card_options();
    options.backend = backend;
    const auto engine = card_engine(options, bytes);
    Sequence sequence = engine->new_sequence();
    const SequenceInput input{
        .sequence = &sequence, .tokens = tokens, .logits = SequenceInput::Logits::kAll};
    return values_of(*engine, engine->decode({&input, 1}));
}

/// Squares of the differences of rows, in ascending order.
std::vector<double> row_errors(const std::vector<float>& a,
                               const std::vector<float>& b,
                               size_t rows) {
    std::vector<double> errors(rows);
    for (size_t i = 0; i < a.size(); ++i) {
        const double difference = double{a[i]} - double{b[i]};
        errors[i / (a.size() / rows)] += difference * difference;
    }
    std::ranges::sort(errors);
    return errors;
}

// Guards against codes, scales or rows that are right in an op alone and wrong in a model. Both
// paths multiply the same numbers, and all other kernels are the same general ones; sums in f32 of
// another order differ by a bit or two, and here and there such a bit moves a number to the next
// code of NVFP4. Beside what rounding all numbers to NVFP4 does, squared, that is little: 1e-12
// between two such orders on the CPU, of which single moved numbers are nearly all, up to 1e-7
// each. The bound leaves room for a thousand of them; a scale that is wrong in one block of a row
// takes more. With experts a moved number may send its row to another one: a twelfth of the rows
// may be so.
TEST_F(EmulatedFp4, LogitsAreThoseOfTheSameNumbers) {
    if (!refusal().empty()) return;
    constexpr size_t kRows = 120;
    const std::vector<int32_t> tokens = some_tokens(kRows, 5);
    for (const auto& [architecture, type] : {std::pair{std::string("llama"), DType::kNVFP4},
                                             {"llama", DType::kMXFP4},
                                             {"qwen35", DType::kNVFP4},
                                             {"qwen35moe", DType::kNVFP4},
                                             {"qwen35moe", DType::kMXFP4}}) {
        const std::vector<std::byte>& bytes = model_of(architecture, type);
        BackendOptions plain{.name = kCard, .isa = {}};
        plain.emulate = Emulation::kGeneral;
        const std::vector<float> exact = all_logits(bytes, plain, tokens);
        plain.act = ActPolicy::kNvfp4;
        const std::vector<float> rounded = all_logits(bytes, plain, tokens);
        const std::vector<float> emulated = all_logits(bytes, fp4_backend(), tokens);
        ASSERT_EQ(emulated.size(), rounded.size());
        const std::vector<double> effect = row_errors(rounded, exact, kRows);
        const std::vector<double> errors = row_errors(rounded, emulated, kRows);
        const size_t kept = architecture == "qwen35moe" ? kRows - kRows / 12 : kRows;
        double error = 0.0, allowed = 0.0;
        for (size_t i = 0; i < kept; ++i) {
            error += errors[i];
            allowed += 1e-4 * effect[i];
        }
        EXPECT_GT(allowed, 0.0) << architecture << ": the rows are not rounded at all";
        EXPECT_LE(error, allowed) << architecture;
        RecordProperty(architecture + std::string(dtype_info(type).name),
                       std::to_string(error / allowed));
    }
}

/// Whether a count is that of packed products of such a name.
auto packed_as(std::string_view name) {
    return [name](const OpCount& count) {
        return count.name == name && count.operands == Operands::kFp4;
    };
}

// Guards against sums that depend on the size of a pass, on the tile chosen for it or on rows
// beside, and against prompts that quietly take another kernel, those of experts among them.
TEST_F(EmulatedFp4, AnswersAreTheSameForAnyUbatch) {
    if (!refusal().empty()) return;
    for (const auto& [type, name] : {std::pair{DType::kNVFP4, "linear[nvfp4,fp4]"},
                                     std::pair{DType::kMXFP4, "linear_glu[mxfp4,fp4]"}})
        expect_same_answers_of_models(fp4_backend(), type, packed_as(name));
    for (const auto& [type, name] : {std::pair{DType::kNVFP4, "linear_experts[nvfp4,fp4]"},
                                     std::pair{DType::kMXFP4, "linear_experts[mxfp4,fp4]"},
                                     std::pair{DType::kMXFP4, "linear_experts_glu[mxfp4,fp4]"}})
        expect_same_answers_of_models(fp4_backend(), type, packed_as(name), {"qwen35moe"});
}

// Guards against models that meet a kernel for Hopper, or one with more shared memory than a
// Blackwell card gives a block, where both would end this process, and against calls that quietly
// take another route than that of such cards. Formats of weights and pages which have kernels of
// their own on Hopper.
TEST_F(EmulatedFp4, RunsWhatBlackwellCardsRun) {
    if (!refusal().empty()) return;
    const std::vector<int32_t> tokens = some_tokens(300, 5);
    const auto counts = [&](const std::vector<std::byte>& bytes, DType pages) {
        EngineOptions options = card_options(2);
        options.backend = fp4_backend();
        options.type_k = options.type_v = pages;
        const auto engine = card_engine(options, bytes);
        EXPECT_EQ(engine->ops().delta_rule_operands(), DType::kF16);
        engine->set_recording(false);
        Sequence sequence = engine->new_sequence();
        engine->ops().reset_op_counts();
        feed(*engine, sequence, tokens, false);
        feed(*engine, sequence, std::span(tokens).first(1), true);
        for (const OpCount& count : engine->ops().op_counts()) {
            if (count.operands == Operands::kFp4) {
                EXPECT_EQ(count.fallback, "fp4 products: emulated");
            }
            for (const char* special : {"general", "Hopper"})
                EXPECT_EQ(count.fallback.find(special), std::string::npos)
                    << count.name << ": " << count.fallback;
            for (const char* gated : {"linear_glu[nvfp4]", "linear_glu[mxfp4]"})
                EXPECT_NE(count.name, gated);
        }
        return engine->ops().op_counts();
    };
    const auto calls = [](const std::vector<OpCount>& of, std::string_view name) {
        int64_t sum = 0;
        for (const OpCount& count : of) sum += count.name == name ? count.calls : 0;
        return sum;
    };
    for (const DType pages : {DType::kF16, DType::kBF16, DType::kF8_E4M3})
        EXPECT_GT(calls(counts(model_of("llama", DType::kNVFP4), pages), "attention[prompt]"), 0);
    for (const DType weights : {DType::kMXFP4, DType::kQ8_0, DType::kBF16})
        EXPECT_GT(calls(counts(model_of("llama", weights), DType::kF16), "attention[prompt]"), 0);
    for (const char* architecture : {"qwen35", "qwen35moe"}) {
        const std::vector<OpCount> split =
            counts(model_of(architecture, DType::kNVFP4), DType::kF16);
        EXPECT_GT(calls(split, "gated_delta_rule"), 0) << architecture;
        EXPECT_TRUE(std::ranges::none_of(split, is_plain_delta_rule)) << architecture;
        // Operands of plain 16 bits: for heads of 128.
        const std::vector<OpCount> plain =
            counts(long_headed_model_of(architecture, DType::kNVFP4), DType::kF16);
        EXPECT_TRUE(std::ranges::any_of(plain, is_plain_delta_rule)) << architecture;
        for (const OpCount& count : plain)
            if (count.name == "gated_delta_rule") {
                EXPECT_EQ(count.fallback, "") << architecture;
            }
    }
    EXPECT_GT(make_ops(fp4_backend())
                  ->measure_ceilings()
                  .flops_per_second[static_cast<size_t>(Operands::k16Bits)],
              0.0);
}

// Guards against --emulate general that changes nothing: another order of sums, other bits.
TEST_F(EmulatedFp4, GeneralKernelsAreNotThoseOfHopper) {
    if (!refusal().empty()) return;
    const std::vector<int32_t> tokens = some_tokens(120, 5);
    for (const char* architecture : {"llama", "qwen35"}) {
        const std::vector<std::byte>& bytes = model_of(architecture, DType::kNVFP4);
        BackendOptions backend{.name = kCard, .isa = {}};
        const std::vector<float> special = all_logits(bytes, backend, tokens);
        backend.emulate = Emulation::kGeneral;
        EXPECT_NE(all_logits(bytes, backend, tokens), special) << architecture;
    }
}

// Guards against a self-test that objects to a right product, or that asks nothing.
TEST_F(EmulatedFp4, PassesTheSelfTest) {
    if (!refusal().empty()) return;
    const SelfTest test = make_ops(fp4_backend())->self_test();
    EXPECT_EQ(test.checked, "the FP4 product, its instruction emulated");
    EXPECT_EQ(test.faults, std::vector<std::string>{});
}

// Guards against a NaN or an infinity that leaves its row, by way of a tile or of a scale, and
// against one that packed rows lose, as no code is NaN.
TEST_F(EmulatedFp4, WhatIsNoNumberStaysInItsRow) {
    if (!refusal().empty()) return;
    op_cases::HostedOps ops(make_ops(fp4_backend()), false);
    op_cases::WeightBank bank;
    op_cases::Subject subject(ops, bank);
    SpoiltRows rows;
    const Weight& packed = subject.weight(DType::kNVFP4, rows.kOut, rows.kCols, 0.37f, 0);
    // What rows of other columns are.
    Weight unpacked = packed;
    unpacked.wants.prompt = static_cast<uint8_t>(1u << static_cast<unsigned>(ActFormat::kNvfp4));
    EXPECT_NE(packed.wants, unpacked.wants);
    const std::array<const Weight*, 2> weights{&packed, &unpacked};
    std::array<std::vector<float>, 2> clean;
    for (size_t w = 0; w < weights.size(); ++w)
        clean[w] = rows.product(ops, *weights[w], weights[w]->wants);
    rows.spoil();
    for (size_t w = 0; w < weights.size(); ++w)
        rows.expect_alone(rows.product(ops, *weights[w], weights[w]->wants), clean[w]);
}

// Guards against gated products that fall back unseen, that pair a gate with another feature's up,
// or whose rows are rounded in other steps than those of two products, also where rows are not
// packed any more: of columns that are no multiple of 64, or for a weight of another format.
TEST_F(EmulatedFp4, GatedRowsAreThoseOfTwoProducts) {
    if (!refusal().empty()) return;
    constexpr int64_t kCols = 1088;
    constexpr auto kBf16Bit = static_cast<uint8_t>(1u << static_cast<unsigned>(ActFormat::kBF16));
    op_cases::HostedOps ops(make_ops(fp4_backend()), false);
    op_cases::WeightBank bank;
    op_cases::Subject subject(ops, bank);
    op_cases::Random random(5);
    std::vector<std::byte> memory(size_t{12} << 20);
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        const std::string name = format == DType::kNVFP4 ? "nvfp4" : "mxfp4";
        for (const int32_t tokens : {1, 97, 300}) {
            for (const int64_t n : {32, 1056, 1088}) {
                const Weight gate = subject.weight(format, n, kCols, 1.0f, 0);
                const Weight up = subject.weight(format, n, kCols, 0.37f, 1);
                std::vector<float> x(static_cast<size_t>(tokens * kCols));
                for (float& value : x) value = random.uniform(-4.0f, 4.0f);
                for (const uint8_t wanted : {gate.wants.prompt, kBf16Bit}) {
                    const ActWants wants{wanted, kBf16Bit, gate.wants.nvfp4};
                    Arena arena(memory.data(), memory.size());
                    Exec ex{arena, tokens};
                    const GemmInput input = ops.prepare(
                        ex, make_tensor(x.data(), DType::kF32, {tokens, kCols}), gate.wants);
                    std::vector<float> one, two;
                    ops.reset_op_counts();
                    op_cases::read_input(ops.linear_glu(ex, input, gate, up, Glu::kSwiGlu, wants),
                                         one);
                    const std::vector<OpCount> counts = ops.op_counts();
                    EXPECT_TRUE(std::ranges::any_of(counts, [&](const OpCount& count) {
                        return count.name == "linear_glu[" + name + ",fp4]" && count.calls == 1 &&
                               count.operands == Operands::kFp4;
                    })) << name;
                    op_cases::read_input(
                        ops.Ops::linear_glu(ex, input, gate, up, Glu::kSwiGlu, wants), two);
                    EXPECT_EQ(one, two) << name << " " << tokens << " " << n << " " << +wanted;
                }
            }
        }
    }
}

// The same of experts: of pairs that meet another expert's matrices, scales or factors, or leave in
// another pair's row; tiles of both sizes, prompt and generated pairs of one expert, an expert
// without pairs, a row a pair or a token.
TEST_F(EmulatedFp4, GatedRowsOfExpertsAreThoseOfTwoProducts) {
    if (!refusal().empty()) return;
    constexpr int64_t kCols = 448;
    constexpr int32_t kExperts = 5, kChoices = 2;
    constexpr auto kBf16Bit = static_cast<uint8_t>(1u << static_cast<unsigned>(ActFormat::kBF16));
    op_cases::HostedOps ops(make_ops(fp4_backend()), false);
    op_cases::WeightBank bank;
    op_cases::Subject subject(ops, bank);
    op_cases::Random random(5);
    std::vector<std::byte> memory(size_t{24} << 20);
    const std::vector<float> scales{1.0f, 0.37f, 2.0f, 0.01f, 5.0f};
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        const std::string name = format == DType::kNVFP4 ? "nvfp4" : "mxfp4";
        for (const int32_t tokens : {1, 97, 500}) {
            for (const int64_t n : {32, 160, 288}) {
                const Weight gate = subject.experts(format, n, kCols, kExperts, scales, 0);
                const Weight up = subject.experts(format, n, kCols, kExperts, scales, 1);
                std::vector<int32_t> ids;
                for (int32_t t = 0; t < tokens; ++t)
                    for (const int32_t turn : {0, 1})
                        ids.push_back((t * t + turn) % (kExperts - 1));
                for (const bool per_pair : {false, true}) {
                    const int32_t rows = per_pair ? tokens * kChoices : tokens;
                    std::vector<float> x(static_cast<size_t>(rows * kCols));
                    for (float& value : x) value = random.uniform(-4.0f, 4.0f);
                    for (const uint8_t wanted : {gate.wants.prompt, kBf16Bit}) {
                        const ActWants wants{wanted, gate.wants.generated, gate.wants.nvfp4};
                        Arena arena(memory.data(), memory.size());
                        Exec ex{arena, tokens - tokens / 3};
                        Exec x_rows{arena, ex.prompt_rows * (rows / tokens)};
                        const GemmInput input = ops.prepare(
                            x_rows, make_tensor(x.data(), DType::kF32, {rows, kCols}), gate.wants);
                        const ExpertWork work = ops.group_experts(
                            ex, make_tensor(ids.data(), DType::kI32, {tokens, kChoices}), kExperts);
                        std::vector<float> one, two;
                        ops.reset_op_counts();
                        op_cases::read_input(
                            ops.linear_experts_glu(ex, input, work, gate, up, Glu::kSwiGlu, wants),
                            one);
                        const std::vector<OpCount> counts = ops.op_counts();
                        EXPECT_TRUE(std::ranges::any_of(counts, [&](const OpCount& count) {
                            return count.name == "linear_experts_glu[" + name + ",fp4]" &&
                                   count.calls == 1 && count.operands == Operands::kFp4;
                        })) << name;
                        op_cases::read_input(ops.Ops::linear_experts_glu(ex, input, work, gate, up,
                                                                         Glu::kSwiGlu, wants),
                                             two);
                        EXPECT_EQ(one, two) << name << " " << tokens << " " << n << " " << per_pair
                                            << " " << +wanted;
                    }
                }
            }
        }
    }
}

// Guards against scales of MXFP4 that are wrong by a power of two, in rows of any size, against the
// largest scale of a row that is that of a block of zeros, and against small blocks that are
// anything but exact or 0. A product with one number of x is a weight as the product has it.
TEST_F(EmulatedFp4, WeightsOfMxfp4AreExact) {
    if (!refusal().empty()) return;
    constexpr int64_t kBlocks = 22, kCols = kBlocks * 32;
    constexpr std::array kLargest{0, 1, 5, 9, 10, 17, 18, 100, 127, 128, 135, 200, 239};
    constexpr auto kRows = static_cast<int64_t>(kLargest.size());
    constexpr float kX = 2688.0f;  // codes, scales and their products with weights are exact
    std::vector<std::byte> bytes;
    std::vector<float> expected, values(32);
    for (const int largest : kLargest) {
        for (int block = 0; block < kBlocks; ++block) {
            const bool zeros = block == 3;
            const int code = zeros ? 255 : std::max(0, largest - block);
            const size_t first = bytes.size();
            bytes.push_back(static_cast<std::byte>(code));
            for (int i = 0; i < 16; ++i)
                bytes.push_back(static_cast<std::byte>(zeros ? 0x80 : i % 8 + 16 * (15 - i)));
            dequantize_row(DType::kMXFP4, bytes.data() + first, 32, values.data());
            for (const float value : values)
                expected.push_back(zeros || largest - code > 17 ? 0.0f : value);
        }
    }
    op_cases::HostedOps ops(make_ops(fp4_backend()), false);
    const Weight weight = ops.upload({.name = "weight",
                                      .format = DType::kMXFP4,
                                      .rows = kRows,
                                      .cols = kCols,
                                      .data = bytes.data(),
                                      .scales = {}});
    std::vector<float> x(kCols * kCols);
    for (int64_t k = 0; k < kCols; ++k) x[static_cast<size_t>(k * kCols + k)] = kX;
    const std::vector<float> out = multiply_prompt(ops, weight, x, weight.wants);
    for (int64_t n = 0; n < kRows; ++n)
        for (int64_t k = 0; k < kCols; ++k)
            ASSERT_EQ(out[static_cast<size_t>(k * kRows + n)],
                      expected[static_cast<size_t>(n * kCols + k)] * kX)
                << "largest " << kLargest[static_cast<size_t>(n)] << ", column " << k;
}

}  // namespace
}  // namespace tessera
