// Which kernels products on a card take.
#include <algorithm>

#include "gpu/gpu.h"

namespace tessera {
namespace {

class Products : public CardTest {};

int64_t calls_of(const std::vector<OpCount>& counts, std::string_view name) {
    const auto count = std::ranges::find(counts, name, &OpCount::name);
    return count == counts.end() ? 0 : static_cast<int64_t>(count->calls);
}

// Guards against weights of few features that go to the kernel for many, which is slow and right:
// no other test would see it. All that read one input and have one format are one launch a layer.
TEST_F(Products, OfFewFeaturesShareALaunch) {
    const auto card = card_engine(card_options(), model_of("llama", DType::kQ8_0));
    card->set_recording(false);
    Sequence sequence = card->new_sequence();
    card->ops().reset_op_counts();
    feed(*card, sequence, some_tokens(40, 3), false);
    constexpr int64_t kLayers = 2;  // of the tiny shape
    EXPECT_EQ(calls_of(card->ops().op_counts(), "linear_many[q8_0,narrow]"), kLayers);

    // Generated rows have a kernel of their own whatever the weight.
    card->ops().reset_op_counts();
    feed(*card, sequence, some_tokens(1, 4), true);
    EXPECT_EQ(calls_of(card->ops().op_counts(), "linear_many[q8_0,narrow]"), 0);
}

}  // namespace
}  // namespace tessera
