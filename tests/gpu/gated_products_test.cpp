// What the op cases do not say of products of prompt rows: that a gated product is one, with the
// bits of its composition (near them where rows are e4m3), and that sums too long for one chunk of
// columns have the same bits however many rows share them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "backends/reference/reference_ops.h"
#include "gpu/gpu.h"
#include "op_cases/runner.h"

namespace tessera {
namespace {

using op_cases::Body;
using op_cases::FusedCase;
using op_cases::LinearCase;
using op_cases::Outputs;

class GatedProducts : public CardTest {
  protected:
    void SetUp() override {
        CardTest::SetUp();
        if (!IsSkipped()) start(ActPolicy::kAuto);
    }

    void start(ActPolicy act) {
        BackendOptions options{.name = kCard, .threads = 1, .isa = {}};
        options.act = act;
        subject_.reset();
        ops_ = std::make_unique<op_cases::HostedOps>(make_ops(options), /*recorded=*/false);
        subject_ = std::make_unique<op_cases::Subject>(*ops_, bank_);
        hopper_ = ops_->description().find("sm_90") != std::string::npos;
    }

    int64_t calls(std::string_view label) const {
        for (const OpCount& count : ops_->op_counts())
            if (count.name == label) return count.calls;
        return 0;
    }

    static size_t different_bits(const Outputs& a, const Outputs& b) {
        EXPECT_EQ(a.values.size(), b.values.size());
        size_t different = 0;
        for (size_t i = 0; i < std::min(a.values.size(), b.values.size()); ++i)
            different +=
                std::bit_cast<uint32_t>(a.values[i]) != std::bit_cast<uint32_t>(b.values[i]);
        return different;
    }

    op_cases::WeightBank bank_;
    std::unique_ptr<op_cases::HostedOps> ops_;
    std::unique_ptr<op_cases::Subject> subject_;
    bool hopper_ = false;
};

// Guards against a gated product that falls back unseen, and against one that rounds in another
// order than two products and a pass.
TEST_F(GatedProducts, GatedOnesHaveTheBitsOfTheirComposition) {
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        for (const int32_t t : {1, 97, 256, 450}) {
            const FusedCase shape{.weight = format,
                                  .n = 1056,
                                  .k = 1024,
                                  .t = t,
                                  .prompt_rows = t,
                                  .magnitude = 4.0f};
            ops_->reset_op_counts();
            const Outputs fused = execute(shape, {.subject = *subject_, .seed = 7});
            const std::string label =
                format == DType::kNVFP4 ? "linear_glu[nvfp4]" : "linear_glu[mxfp4]";
            EXPECT_EQ(calls(label), hopper_ ? 1 : 0) << label << " of " << t;
            const Outputs composed =
                execute(shape, {.subject = *subject_, .seed = 7, .body = Body::kDefault});
            EXPECT_TRUE(fused.faults.empty() && composed.faults.empty());
            EXPECT_EQ(different_bits(fused, composed), 0u) << label << " of " << t;
        }
    }
}

// Guards against a gated product of e4m3 that falls back unseen, takes another order of columns or
// another scale than its rows, or lets the rows beside count. It may round to bf16 what its
// composition does not: 1.5e-4.
TEST_F(GatedProducts, GatedOnesOfE4m3AreNearTheirComposition) {
    if (!hopper_) return;
    constexpr double kBound = 4e-4;
    start(ActPolicy::kFp8);
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        for (const int32_t t : {97, 450}) {
            const FusedCase shape{.weight = format,
                                  .n = 1056,
                                  .k = 1024,
                                  .t = t,
                                  .prompt_rows = t,
                                  .magnitude = 4.0f};
            ops_->reset_op_counts();
            const Outputs fused = execute(shape, {.subject = *subject_, .seed = 7});
            const std::string label =
                format == DType::kNVFP4 ? "linear_glu[nvfp4,fp8]" : "linear_glu[mxfp4,fp8]";
            EXPECT_EQ(calls(label), 1) << label << " of " << t;
            const Outputs composed =
                execute(shape, {.subject = *subject_, .seed = 7, .body = Body::kDefault});
            EXPECT_TRUE(fused.faults.empty() && composed.faults.empty());
            double nmse = 0.0;
            const auto difference =
                op_cases::compare_values(fused.values, composed.values, kBound, nmse);
            EXPECT_FALSE(difference.has_value()) << label << ": " << difference.value_or("");
            const Outputs parts = execute(shape, {.subject = *subject_, .seed = 7, .cut = 65});
            EXPECT_EQ(different_bits(fused, parts), 0u) << label << " of " << t;
        }
    }
}

// Guards against chunks of columns whose order of addition follows the rows, and against sums that
// are lost or added twice between blocks. Tensor cores cut off what they add, 7e-6 of the result in
// a chunk: an NMSE of 5e-11.
TEST_F(GatedProducts, LongSumsAreTheSameHoweverManyRowsShareThem) {
    constexpr double kBound = 1e-10;
    const std::unique_ptr<Ops> exact =
        make_reference_ops({.act_prompt = ActFormat::kBF16, .act_generated = ActFormat::kBF16});
    op_cases::Subject reference(*exact, bank_);
    struct Size {
        int64_t n, k;
        int32_t t;
    };
    // Few tiles, whose chunks blocks share; whole waves of tiles, each the work of a cluster; whole
    // ones and then shared ones; a tail of features alone in chunks.
    for (const Size& size : {Size{300, 6016, 1},
                             {300, 6016, 100},
                             {300, 6016, 300},
                             {300, 12352, 100},
                             {300, 12352, 300},
                             {4352, 6016, 260},
                             {2304, 6016, 2048},
                             {17000, 2112, 1},
                             {17000, 2112, 100},
                             {17000, 2112, 700}}) {
        const LinearCase shape{.weight = DType::kNVFP4,
                               .n = size.n,
                               .k = size.k,
                               .t = size.t,
                               .prompt_rows = size.t,
                               .bias = true,
                               .add = true,
                               .padding = 1,
                               .outer_scale = 0.37f};
        const std::string what = fmt::format("{} rows of {} for {}", size.t, size.k, size.n);
        const Outputs all = execute(shape, {.subject = *subject_, .seed = 3});
        EXPECT_TRUE(all.faults.empty()) << what;
        for (const int32_t cut : {1, 64, 160}) {
            if (cut >= size.t || (cut == 1 && size.n > 300)) continue;
            const Outputs parts = execute(shape, {.subject = *subject_, .seed = 3, .cut = cut});
            EXPECT_EQ(different_bits(all, parts), 0u) << what << " by " << cut;
        }
        if (size.t > 300) continue;  // the reference would take minutes
        const Outputs expected = execute(shape, {.subject = reference, .seed = 3});
        double nmse = 0.0;
        const auto difference = op_cases::compare_values(all.values, expected.values, kBound, nmse);
        EXPECT_FALSE(difference.has_value()) << what << ": " << difference.value_or("");
    }
}

}  // namespace
}  // namespace tessera
