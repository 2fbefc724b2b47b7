// The small types of core: format table, name suggestions, arena, tensor views.

#include <gtest/gtest.h>

#include <array>

#include "core/arena.h"
#include "core/dtype.h"
#include "core/nearest.h"
#include "core/tensor.h"
#include "tests/core/stored_data.h"

namespace tessera {
namespace {

// Guards against a wrong type id or block size: compared with the gguf package's constants.
TEST(DType, TableMatchesTheGgufPackage) {
    const auto rows = test::read_table(test::data_path("formats/dtypes.tsv"));
    ASSERT_EQ(rows.size() + 1, all_dtypes().size());  // F8_E4M3 is ours alone
    for (const std::vector<std::string>& row : rows) {
        const std::optional<DType> dtype = dtype_from_name(row.at(0));
        ASSERT_TRUE(dtype) << row.at(0);
        const DTypeInfo& info = dtype_info(*dtype);
        EXPECT_EQ(std::to_string(info.ggml_id), row.at(1)) << row.at(0);
        EXPECT_EQ(std::to_string(info.block_elements), row.at(2)) << row.at(0);
        EXPECT_EQ(std::to_string(info.block_bytes), row.at(3)) << row.at(0);
        EXPECT_EQ(dtype_from_ggml_id(info.ggml_id), dtype) << row.at(0);
    }
}

// Guards against ids or names that we do not read being taken for others.
TEST(DType, UnknownOnesAreNothing) {
    for (const uint32_t id : {4u, 10u, 20u, 31u, 99u, 0x80000000u, kNoGgmlId})
        EXPECT_FALSE(dtype_from_ggml_id(id));
    for (const char* name : {"", "Q4", "Q4_KX", "IQ4_NL"}) EXPECT_FALSE(dtype_from_name(name));
    EXPECT_EQ(dtype_from_name("nvfp4"), DType::kNVFP4);
    EXPECT_EQ(dtype_from_name("q4_k"), DType::kQ4_K);
}

// Guards against a wrong suggestion, or one where nothing is close.
TEST(NearestName, SuggestsTyposOnly) {
    constexpr std::array<std::string_view, 6> kNames = {
        "--ubatch-size", "--batch-size", "--threads", "nvfp4", "Q4_K", "Q8_0"};
    EXPECT_EQ(nearest_name("--thread", kNames), "--threads");
    EXPECT_EQ(nearest_name("--ubatch_sise", kNames), "--ubatch-size");
    EXPECT_EQ(nearest_name("--btach-size", kNames), "--batch-size");
    EXPECT_EQ(nearest_name("NVPF4", kNames), "nvfp4");
    EXPECT_EQ(nearest_name("q8-0", kNames), "Q8_0");
    EXPECT_EQ(nearest_name("--temperature", kNames), "");
    EXPECT_EQ(nearest_name("", kNames), "");
    EXPECT_EQ(nearest_name(std::string(100000, 'x'), kNames), "");
    EXPECT_EQ(nearest_name("Q4_K", {}), "");
}

// Guards against a plan that differs from the run: the same calls on an arena without memory.
TEST(Arena, PlanEqualsRun) {
    alignas(64) std::array<std::byte, 4096> memory;
    Arena plan(nullptr, 0);
    Arena run(memory.data(), memory.size());
    for (Arena* arena : {&plan, &run}) {
        const Tensor kept = arena->allocate(DType::kF32, {3, 5});
        EXPECT_EQ(kept.data == nullptr, arena->planning());
        {
            const Scope scope(*arena);
            arena->allocate_bytes(1000);
            arena->allocate(DType::kBF16, {7});
        }
        arena->allocate_bytes(1);
    }
    EXPECT_EQ(plan.peak_bytes(), run.peak_bytes());
    EXPECT_EQ(plan.used_bytes(), run.used_bytes());
    EXPECT_GE(run.peak_bytes(), 60u + 1000u + 14u);
    EXPECT_LT(run.used_bytes(), run.peak_bytes());
}

// Guards against memory that overlaps or is not aligned, and against a scope that gives back too
// little.
TEST(Arena, AllocationsAreAlignedAndApart) {
    alignas(64) std::array<std::byte, 1024> memory;
    Arena arena(memory.data(), memory.size());
    std::byte* first = arena.allocate_bytes(65);
    std::byte* second = nullptr;
    {
        const Scope scope(arena);
        second = arena.allocate_bytes(10);
    }
    EXPECT_EQ(second - first, 128);
    EXPECT_EQ(arena.allocate_bytes(10), second);
    EXPECT_DEATH(arena.allocate_bytes(2000), "");
}

// Guards against wrong strides of row slices.
TEST(Tensor, SlicesAndReshapes) {
    std::array<float, 24> numbers{};
    const Tensor tensor = make_tensor(numbers.data(), DType::kF32, {4, 2, 3});
    EXPECT_EQ(tensor.stride[0], 6);
    EXPECT_EQ(tensor.cols(), 3);
    const Tensor slice = tensor.slice_rows(1, 2);
    EXPECT_EQ(slice.rows(), 2);
    EXPECT_EQ(slice.as<float>(), numbers.data() + 6);
    EXPECT_EQ(slice.row<float>(1), numbers.data() + 12);
    EXPECT_TRUE(slice.contiguous());
    const Tensor flat = tensor.reshape({8, 3});
    EXPECT_EQ(flat.row<float>(7), numbers.data() + 21);
    EXPECT_DEATH(tensor.reshape({5, 5}), "");
}

}  // namespace
}  // namespace tessera
