// Faults of expert products that others had, each under its number in the list of known faults, on
// every instruction set of this machine.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/codec.h"
#include "ops/cpu_fixture.h"

namespace tessera::cpu {
namespace {

constexpr DType kFormats[] = {DType::kF32,  DType::kF16,   DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                              DType::kQ5_0, DType::kQ5_1,  DType::kQ8_0, DType::kQ4_K, DType::kQ5_K,
                              DType::kQ6_K, DType::kMXFP4, DType::kNVFP4};

/// A stack of experts in file format.
struct Stack {
    DType format;
    int64_t rows, cols;
    int32_t experts;
    std::vector<float> scales;
    std::vector<std::byte> data;

    Stack(DType type, int32_t count, int64_t n, int64_t k)
        : format(type), rows(n), cols(k), experts(count) {
        std::mt19937 generator(static_cast<uint32_t>(count * 100 + n));
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<size_t>(k));
        data.resize(expert_bytes() * static_cast<size_t>(count));
        for (int64_t row = 0; row < count * n; ++row) {
            for (float& value : values) value = normal(generator);
            quantize_row(type, values.data(), k, data.data() + row * dtype_bytes(type, k),
                         Nvfp4Policy::kAmax6);
        }
        for (int32_t e = 0; e < count; ++e) scales.push_back(0.5f + 0.125f * static_cast<float>(e));
    }
    size_t expert_bytes() const { return static_cast<size_t>(rows * dtype_bytes(format, cols)); }
    HostWeight host() const {
        return {.name = "experts",
                .format = format,
                .rows = rows,
                .cols = cols,
                .experts = experts,
                .data = data.data(),
                .scales = scales};
    }
    HostWeight host(int32_t expert) const {
        HostWeight one = host();
        one.experts = 1;
        one.data = data.data() + static_cast<size_t>(expert) * expert_bytes();
        one.scales = std::span(scales).subspan(static_cast<size_t>(expert), 1);
        return one;
    }
};

Tensor ids_of(Bench& bench, const std::vector<int32_t>& ids, int64_t choices) {
    return bench.ints(ids).reshape({static_cast<int64_t>(ids.size()) / choices, choices});
}

/// Products of a row per token, or per pair.
Tensor products(
    Bench& bench, const Weight& weight, const Tensor& x, const Tensor& ids, int32_t prompt) {
    const int64_t pairs = ids.elements();
    const Tensor out = bench.make(DType::kF32, {pairs, weight.rows});
    std::fill_n(out.as<float>(), out.elements(), NAN);
    const Scope scope(bench.arena());
    Exec ex = bench.exec(prompt);
    Exec x_ex = bench.exec(static_cast<int32_t>(prompt * x.rows() / ids.rows()));
    const GemmInput input = bench.ops().prepare(x_ex, x, weight.wants);
    const ExpertWork work = bench.ops().group_experts(ex, ids, weight.experts);
    bench.ops().linear_experts(ex, input, work, weight, out);
    return out;
}

Tensor dense(Bench& bench, const Weight& weight, const Tensor& x, int32_t prompt) {
    const Tensor out = bench.make(DType::kF32, {x.rows(), weight.rows});
    const Scope scope(bench.arena());
    Exec ex = bench.exec(prompt);
    const GemmInput input = bench.ops().prepare(ex, x, weight.wants);
    bench.ops().linear(ex, input, weight, Tensor{}, out, Accumulate::kNo);
    return out;
}

/// Memory whose last byte stands before a page that nobody may touch.
class Cliff {
  public:
    explicit Cliff(size_t bytes) : bytes_(bytes) {
        const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        body_ = (bytes + page - 1) / page * page;
        mapped_ = body_ + page;
        base_ = static_cast<std::byte*>(
            mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        EXPECT_EQ(mprotect(base_ + body_, page, PROT_NONE), 0);
    }
    ~Cliff() { munmap(base_, mapped_); }
    Cliff(const Cliff&) = delete;
    Cliff& operator=(const Cliff&) = delete;
    std::byte* data() const { return base_ + body_ - bytes_; }

  private:
    size_t bytes_, body_ = 0, mapped_ = 0;
    std::byte* base_ = nullptr;
};

class Experts : public testing::TestWithParam<std::string> {};

/// M1: staging that reads past the rows of the last expert, seen only where a mapping ends there.
TEST_P(Experts, M1_ReadsNothingBehindTheActivations) {
    for (const DType format : {DType::kF32, DType::kNVFP4, DType::kQ8_0, DType::kQ4_K})
        for (const int64_t tokens : {1, 3, 37})
            for (const bool prompt : {false, true}) {
                Bench bench(GetParam());
                const Stack stack(format, 3, 24, 256);
                const Weight weight = bench.ops().upload(stack.host());
                const int64_t pairs = tokens * 2;
                const Cliff x_memory(static_cast<size_t>(tokens * 256) * 4);
                const Cliff id_memory(static_cast<size_t>(pairs) * 4);
                const Cliff out_memory(static_cast<size_t>(pairs * 24) * 4);
                const Tensor x = make_tensor(x_memory.data(), DType::kF32, {tokens, 256});
                const Tensor ids = make_tensor(id_memory.data(), DType::kI32, {tokens, 2});
                const Tensor out = make_tensor(out_memory.data(), DType::kF32, {pairs, 24});
                std::fill_n(x.as<float>(), x.elements(), 0.5f);
                for (int64_t p = 0; p < pairs; ++p)
                    ids.as<int32_t>()[p] = static_cast<int32_t>(2 - p % 2);
                const auto run = [&](Arena& arena) {
                    Exec ex{arena, prompt ? static_cast<int32_t>(tokens) : 0};
                    const GemmInput input = bench.ops().prepare(ex, x, weight.wants);
                    const ExpertWork work = bench.ops().group_experts(ex, ids, 3);
                    bench.ops().linear_experts(ex, input, work, weight, out);
                };
                Arena plan(nullptr, 0);
                run(plan);
                const Cliff scratch((plan.peak_bytes() + 63) / 64 * 64);
                Arena arena(scratch.data(), plan.peak_bytes());
                run(arena);
                EXPECT_TRUE(std::isfinite(out.row<float>(pairs - 1)[23]));
            }
}

/// M2: helpers that take the experts of a token to be distinct, or ids to be valid.
TEST_P(Experts, M2_RepeatedIdsAreRightAndWrongOnesAreNamed) {
    Bench bench(GetParam());
    const Stack stack(DType::kNVFP4, 4, 40, 128);
    const Weight weight = bench.ops().upload(stack.host());
    const Tensor x = bench.floats({3, 128});
    for (const int32_t prompt : {0, 3}) {
        const Tensor out =
            products(bench, weight, x, ids_of(bench, {2, 2, 2, 0, 3, 0, 1, 1, 3}, 3), prompt);
        const Tensor once = products(bench, weight, x, ids_of(bench, {2, 0, 1}, 1), prompt);
        EXPECT_TRUE(same_bytes(out.slice_rows(0, 1), once.slice_rows(0, 1)));
        EXPECT_TRUE(same_bytes(out.slice_rows(2, 1), once.slice_rows(0, 1)));
        EXPECT_TRUE(same_bytes(out.slice_rows(3, 1), once.slice_rows(1, 1)));
        EXPECT_TRUE(same_bytes(out.slice_rows(5, 1), once.slice_rows(1, 1)));
        EXPECT_TRUE(same_bytes(out.slice_rows(7, 1), once.slice_rows(2, 1)));
    }
    for (const int32_t wrong :
         {-1, 4, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
        try {
            products(bench, weight, x, ids_of(bench, {0, 1, wrong}, 1), 0);
            ADD_FAILURE() << wrong << " passes";
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kFailure);
            EXPECT_EQ(std::string(error.what()),
                      "row 2 asks for expert " + std::to_string(wrong) + " of 4");
        }
    }
}

/// M4: rows that are never written because experts without tokens shift the work list.
TEST_P(Experts, M4_EveryRowIsWrittenWhenAllGoToOneExpert) {
    for (const DType format : {DType::kNVFP4, DType::kQ4_0, DType::kF16}) {
        Bench bench(GetParam(), 2);
        const Stack stack(format, 5, 33, 128);
        const Weight weight = bench.ops().upload(stack.host());
        const Tensor x = bench.floats({70, 128});
        for (const int32_t expert : {0, 2, 4}) {
            const Weight alone = bench.ops().upload(stack.host(expert));
            for (const int32_t prompt : {0, 40, 70}) {
                const Tensor ids = ids_of(bench, std::vector<int32_t>(70, expert), 1);
                EXPECT_TRUE(same_bytes(products(bench, weight, x, ids, prompt),
                                       dense(bench, alone, x, prompt)))
                    << dtype_info(format).name << " expert " << expert << " prompt " << prompt;
            }
        }
    }
}

/// M5: a row of NaN beside valid rows of the same expert.
TEST_P(Experts, M5_RowsOfNanLeaveOthersAlone) {
    for (const DType format : {DType::kNVFP4, DType::kQ8_0, DType::kQ4_K}) {
        Bench bench(GetParam());
        const Stack stack(format, 2, 32, 256);
        const Weight weight = bench.ops().upload(stack.host());
        const Tensor x = bench.floats({20, 256});
        std::vector<int32_t> chosen(20);
        for (size_t t = 0; t < chosen.size(); ++t) chosen[t] = t % 3 == 0 ? 1 : 0;
        const Tensor ids = ids_of(bench, chosen, 1);
        for (const int32_t prompt : {0, 20}) {
            const Tensor clean = products(bench, weight, x, ids, prompt);
            const Tensor spoilt = bench.floats({20, 256});
            std::copy_n(x.as<float>(), x.elements(), spoilt.as<float>());
            std::fill_n(spoilt.row<float>(7), 256, NAN);
            std::fill_n(spoilt.row<float>(19), 256, NAN);
            const Tensor out = products(bench, weight, spoilt, ids, prompt);
            for (int64_t t = 0; t < 20; ++t) {
                if (t == 7 || t == 19) continue;
                EXPECT_TRUE(same_bytes(out.slice_rows(t, 1), clean.slice_rows(t, 1))) << t;
            }
        }
    }
}

/// M12: 2880 columns, no multiple of 256 or 512; every row as the dense product of its expert,
/// which other tests compare with f64 sums.
TEST_P(Experts, M12_OddDepthGivesTheBytesOfTheDenseProduct) {
    for (const DType format : kFormats) {
        const int64_t cols = 2880 % dtype_info(format).block_elements == 0 ? 2880 : 2816;
        Bench bench(GetParam());
        const Stack stack(format, 3, 24, cols);
        const Weight weight = bench.ops().upload(stack.host());
        const Tensor x = bench.floats({35, cols});
        std::vector<int32_t> chosen(70);
        for (size_t p = 0; p < chosen.size(); ++p) chosen[p] = static_cast<int32_t>(p * 7 % 3);
        for (const int32_t prompt : {0, 35}) {
            const Tensor out = products(bench, weight, x, ids_of(bench, chosen, 2), prompt);
            for (int32_t e = 0; e < 3; ++e) {
                const Tensor alone = dense(bench, bench.ops().upload(stack.host(e)), x, prompt);
                for (int64_t p = 0; p < 70; ++p) {
                    if (chosen[static_cast<size_t>(p)] != e) continue;
                    EXPECT_TRUE(same_bytes(out.slice_rows(p, 1), alone.slice_rows(p / 2, 1)))
                        << dtype_info(format).name << " pair " << p << " prompt " << prompt;
                }
            }
        }
    }
}

/// N4: a NaN in the scales of one expert reaching the next through a grouped product.
TEST_P(Experts, N4_NanScalesStayInTheirExpert) {
    Bench bench(GetParam());
    Stack stack(DType::kNVFP4, 2, 20, 128);
    const Weight clean = bench.ops().upload(stack.host());
    stack.scales[0] = NAN;
    std::fill_n(stack.data.data(), stack.expert_bytes(), std::byte{0x7f});
    const Weight spoilt = bench.ops().upload(stack.host());
    const Tensor x = bench.floats({40, 128});
    std::vector<int32_t> chosen(40);
    for (size_t t = 0; t < chosen.size(); ++t) chosen[t] = static_cast<int32_t>(t % 2);
    const Tensor ids = ids_of(bench, chosen, 1);
    for (const int32_t prompt : {0, 40}) {
        const Tensor expected = products(bench, clean, x, ids, prompt);
        const Tensor out = products(bench, spoilt, x, ids, prompt);
        EXPECT_TRUE(std::isnan(out.row<float>(0)[0]));
        for (int64_t t = 1; t < 40; t += 2)
            EXPECT_TRUE(same_bytes(out.slice_rows(t, 1), expected.slice_rows(t, 1))) << t;
    }
}

/// N22: a row's result depending on its neighbours in the batch.
TEST_P(Experts, N22_ARowAloneIsTheRowAmong64) {
    for (const DType format : {DType::kNVFP4, DType::kQ6_K, DType::kBF16}) {
        Bench bench(GetParam(), 2);
        const Stack stack(format, 3, 48, 256);
        const Weight weight = bench.ops().upload(stack.host());
        const Tensor x = bench.floats({64, 256});
        std::vector<int32_t> chosen(128);
        for (size_t p = 0; p < chosen.size(); ++p) chosen[p] = static_cast<int32_t>(p * p % 3);
        const Tensor ids = ids_of(bench, chosen, 2);
        for (const bool prompt : {false, true}) {
            const Tensor all = products(bench, weight, x, ids, prompt ? 64 : 0);
            for (const int64_t t : {0, 31, 63})
                EXPECT_TRUE(same_bytes(products(bench, weight, x.slice_rows(t, 1),
                                                ids.slice_rows(t, 1), prompt ? 1 : 0),
                                       all.slice_rows(2 * t, 2)))
                    << dtype_info(format).name << " row " << t;
        }
    }
}

/// Shares of work that overlap or leave a gap where threads outnumber, or are outnumbered by,
/// experts.
TEST_P(Experts, ThreadsDoNotChangeResults) {
    const Stack stack(DType::kNVFP4, 9, 200, 256);
    std::vector<int32_t> chosen(300);
    for (size_t p = 0; p < chosen.size(); ++p)
        chosen[p] = p < 200 ? 4 : static_cast<int32_t>(p % 9);
    std::vector<std::vector<float>> results[2];
    for (const int32_t threads : {1, 2, 3, 7}) {
        Bench bench(GetParam(), threads);
        const Weight weight = bench.ops().upload(stack.host());
        const Tensor x = bench.floats({300, 256});
        const Tensor ids = ids_of(bench, chosen, 1);
        for (const bool prompt : {false, true})
            results[prompt].push_back(values_of(products(bench, weight, x, ids, prompt ? 300 : 0)));
    }
    for (const auto& family : results)
        for (const std::vector<float>& other : family) EXPECT_EQ(other, family.front());
}

/// A pass that reads experts nobody chose: their codes may not be touched, and the counters name
/// only the chosen ones.
TEST_P(Experts, UnchosenExpertsAreNotRead) {
    Bench bench(GetParam(), 2);
    const Stack stack(DType::kNVFP4, 6, 64, 512);
    Weight weight = bench.ops().upload(stack.host());
    const size_t expert_bytes = 64 * 512 / 2;
    ASSERT_EQ(expert_bytes % static_cast<size_t>(sysconf(_SC_PAGESIZE)), 0u);
    const Cliff codes(6 * expert_bytes);
    std::memcpy(codes.data(), weight.codes, 6 * expert_bytes);
    const Tensor x = bench.floats({3, 512});
    const Tensor ids = ids_of(bench, {1, 4, 4, 1, 1, 1}, 2);
    const Tensor expected[] = {products(bench, weight, x, ids, 0),
                               products(bench, weight, x, ids, 3)};
    weight.codes = codes.data();
    for (const size_t hidden : {0, 2, 3, 5})
        ASSERT_EQ(mprotect(codes.data() + hidden * expert_bytes, expert_bytes, PROT_NONE), 0);
    for (const bool prompt : {false, true}) {
        bench.ops().reset_op_counts();
        EXPECT_TRUE(same_bytes(products(bench, weight, x, ids, prompt ? 3 : 0), expected[prompt]));
        double bytes = 0.0;
        for (const OpCount& count : bench.ops().op_counts())
            if (count.name.starts_with("linear_experts[nvfp4,")) bytes += count.bytes;
        EXPECT_EQ(bytes, 2 * 64 * 512 * 4.5 / 8 + 4 * (3 * 512 + 6 * 64));
    }
}

INSTANTIATE_TEST_SUITE_P(Sets, Experts, testing::ValuesIn(sets()), [](const auto& about) {
    return about.param;
});

}  // namespace
}  // namespace tessera::cpu
