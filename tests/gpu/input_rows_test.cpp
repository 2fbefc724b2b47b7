// Rows of matrix inputs, bit for bit. How many rows come together and whether they are aligned
// decide which kernel makes them, and must decide nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.h"
#include "op_cases/case_run.h"
#include "op_cases/hosted_ops.h"

namespace tessera {
namespace {

using op_cases::FusedKind;
using op_cases::HostedOps;

/// More than a card has multiprocessors: whole rows go to blocks from there on.
constexpr int64_t kRows = 300;

/// An op and the heads that make a row of it, all of which fill the registers of a block exactly.
struct Producer {
    FusedKind kind;
    int64_t heads, head;
    int64_t cols() const { return heads * head; }
};
constexpr std::array kProducers{Producer{FusedKind::kGatedRmsNormInput, 48, 128},
                                Producer{FusedKind::kGatedRmsNormInput, 4, 128},
                                Producer{FusedKind::kRmsNormInput, 1, 5120},
                                Producer{FusedKind::kGluInput, 24, 256}};

constexpr uint8_t bit(ActFormat format) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(format));
}
/// Of prompt rows. Every card makes them all, whatever its products take.
constexpr std::array<uint8_t, 5> kWanted{
    bit(ActFormat::kBF16), bit(ActFormat::kFp8),
    bit(ActFormat::kF32) | bit(ActFormat::kBF16) | bit(ActFormat::kFp8), bit(ActFormat::kNvfp4),
    bit(ActFormat::kFp4)};

std::string name_of(const Producer& of, uint8_t wanted) {
    constexpr std::array kNames{"gated_rms_norm_input", "rms_norm_input", "glu_input"};
    const size_t name = of.kind == FusedKind::kGatedRmsNormInput ? 0
                        : of.kind == FusedKind::kRmsNormInput    ? 1
                                                                 : 2;
    return kNames[name] + (" " + std::to_string(of.heads)) + " x " + std::to_string(of.head) +
           ", formats " + std::to_string(wanted);
}

/// Values, scales of blocks and scales of rows of each view, as they are stored.
using Stored = std::array<std::vector<std::byte>, 9>;

void append(const GemmInput& input, Stored& to) {
    for (size_t view = 0; view < input.prompt.size(); ++view) {
        const ActView& of = input.prompt[view];
        size_t part = 3 * view;
        for (const Tensor* tensor : {&of.values, &of.block_scales, &of.row_scales}) {
            std::vector<std::byte>& bytes = to[part++];
            if (tensor->absent()) continue;
            const auto* first = tensor->as<std::byte>();
            bytes.insert(bytes.end(), first,
                         first + dtype_bytes(tensor->dtype, tensor->elements()));
        }
    }
}

struct How {
    int64_t piece;  ///< rows of a call
    size_t off;     ///< floats between a multiple of 16 bytes and the first row
};

/// All rows of the op. Squares of two of them leave f32, upwards and downwards.
Stored rows_of(HostedOps& ops, const Producer& of, uint8_t wanted, const How& how) {
    // Offsets are from there, and HostedOps keeps them.
    static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ % 16 == 0);
    constexpr float kEps = 1e-6f;
    const int64_t cols = of.cols();
    op_cases::Random random(7);
    const auto filled = [&](int64_t count, size_t off) {
        std::vector<float> values(off + static_cast<size_t>(count));
        for (size_t i = off; i < values.size(); ++i) values[i] = random.uniform(-4.0f, 4.0f);
        return values;
    };
    std::vector<float> x = filled(kRows * cols, how.off), other = filled(kRows * cols, how.off);
    std::vector<float> gains = filled(of.head, 0);
    for (const auto& [row, factor] : {std::pair{5, 1e20f}, std::pair{204, 1e-30f}})
        for (int64_t i = 0; i < cols; ++i)
            x[how.off + static_cast<size_t>(row * cols + i)] *= factor;
    const Tensor gain = make_tensor(gains.data(), DType::kF32, {of.head});
    const ActWants wants{wanted, 0, Nvfp4Policy::kSearch};
    Stored stored;
    std::vector<std::byte> memory;
    for (int64_t begin = 0; begin < kRows; begin += how.piece) {
        const int64_t count = std::min(how.piece, kRows - begin);
        const auto part = [&](std::vector<float>& values) {
            float* const first = values.data() + how.off + begin * cols;
            return of.kind == FusedKind::kRmsNormInput
                       ? make_tensor(first, DType::kF32, {count, cols})
                       : make_tensor(first, DType::kF32, {count, of.heads, of.head});
        };
        const auto make = [&](Arena& arena) {
            Exec ex{arena, static_cast<int32_t>(count)};
            if (of.kind == FusedKind::kRmsNormInput)
                return ops.rms_norm_input(ex, part(x), gain, kEps, wants);
            if (of.kind == FusedKind::kGluInput)
                return ops.glu_input(ex, part(x), part(other), Glu::kSigmoid, wants);
            return ops.gated_rms_norm_input(ex, part(x), gain, kEps, part(other), wants);
        };
        Arena plan(nullptr, 0);
        make(plan);
        // What nobody writes differs between the ways to call.
        memory.assign(plan.peak_bytes(),
                      static_cast<std::byte>(how.piece + 2 * static_cast<int64_t>(how.off)));
        Arena arena(memory.data(), memory.size());
        append(make(arena), stored);
    }
    return stored;
}

class InputRows : public CardTest {
  protected:
    /// That the rows made in this way are those of one call on aligned rows.
    static void expect_same_bits(const How& how) {
        HostedOps ops(make_ops({.name = kCard, .isa = {}}), /*recorded=*/false);
        for (const Producer& of : kProducers)
            for (const uint8_t wanted : kWanted) {
                const Stored whole = rows_of(ops, of, wanted, {.piece = kRows, .off = 0});
                EXPECT_GE(whole[0].size(), static_cast<size_t>(kRows * of.cols() / 2));
                // Not a comparison of gtest, which would print megabytes.
                EXPECT_TRUE(rows_of(ops, of, wanted, how) == whole)
                    << name_of(of, wanted) << ", " << how.piece << " rows a call, " << how.off
                    << " floats off";
            }
        EXPECT_EQ(ops.take_faults(), std::vector<std::string>{});
    }
};

// Guards against sums of a head or of a row, and scales, whose bits follow the size of a pass: from
// as many rows as multiprocessors on, a block takes a whole row.
TEST_F(InputRows, AreTheSameHoweverManyComeTogether) {
    for (const int64_t piece : {64, 1}) expect_same_bits({.piece = piece, .off = 0});
}

// Guards against the kernel of rows that are not aligned, which has other loads, threads and loops.
TEST_F(InputRows, AreTheSameWhereTheyAreNotAligned) {
    for (const int64_t piece : {kRows, int64_t{64}}) expect_same_bits({.piece = piece, .off = 1});
}

}  // namespace
}  // namespace tessera
