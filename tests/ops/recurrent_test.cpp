// The gated delta net on the reference and on every instruction set. The tests carry the ids of
// the faults of other engines that they guard against.
#include <gtest/gtest.h>

#include "ops/recurrent_fixture.h"

namespace tessera::recurrent {
namespace {

constexpr double kClose = 1e-5;  ///< chunk form against the recurrence, relative

class Recurrent : public testing::TestWithParam<std::string> {
  protected:
    Recurrent() : machine_(GetParam()) {}

    /// A fresh prompt of all rows, against f64.
    void expect_close(const Inputs& in, Kind kind = Kind::kPrompt) {
        const Memory memory(in.d, 1, 8);
        run(machine_, in, memory, 0, {{.count = static_cast<int32_t>(in.rows)}}, kind);
        const Slow slow = slowly(in);
        EXPECT_LE(distance(in.outputs(), slow.out), kClose) << in.rows << " rows";
        EXPECT_LE(distance(memory.state_of(0), slow.state), kClose) << in.rows << " rows";
    }

    Machine machine_;
};

// G1: the decay to the end of a short last chunk read where a whole chunk ends.
TEST_P(Recurrent, G1EveryLengthEndsInTheStateOfTheRecurrence) {
    for (int32_t rows = 1; rows <= 200; ++rows)
        expect_close(Inputs({.size = 19}, rows, static_cast<uint32_t>(rows)));
}

// G3: exp(-G) overflows when decays are about 1e-12.
TEST_P(Recurrent, G3VanishingDecaysStayFinite) {
    for (const int64_t strong : {1, 32, 64}) {
        const Inputs in({}, 130, 3);
        in.set_gates([&](int64_t t, int64_t) { return t % 64 < strong ? -27.631f : -0.01f; },
                     [](int64_t, int64_t) { return 0.7f; });
        expect_close(in);
    }
}

// G4: exp split into two factors, one 0 and one infinite, below -88.
TEST_P(Recurrent, G4DecaysBelowTheRangeOfExpClearTheState) {
    for (const float low : {-88.5f, -104.0f, -1000.0f, -1e30f, -HUGE_VALF})
        for (const int64_t at : {0, 1, 40, 63, 64}) {
            const Inputs in({}, 100, 4);
            in.set_gates([&](int64_t t, int64_t) { return t == at ? low : -0.001f; },
                         [](int64_t, int64_t) { return 0.5f; });
            expect_close(in);
        }
}

// G5: (I + L) is worst with identical keys that nothing forgets. Nor may 16-bit parts show where
// keys of the largest size nearly repeat, in sums that are small against their terms.
TEST_P(Recurrent, G5KeysThatRepeatWithoutDecay) {
    for (const int64_t key_size : {32, 128})
        for (const float own : {0.0f, 0.01f, 0.3f, 0.5f})
            for (const bool mixed : {false, true})
                for (const int64_t rows : {31, 128}) {
                    const Inputs in({.key_size = key_size, .size = 40}, rows, 5);
                    in.align_keys(own, 0);
                    in.set_gates(
                        [&](int64_t t, int64_t) { return mixed && t % 5 == 0 ? -30.0f : 0.0f; },
                        [](int64_t, int64_t h) { return h == 0 ? 1.0f : 0.4f; });
                    SCOPED_TRACE(own);
                    expect_close(in);
                }
}

// Guards against a precision that is chosen by what follows in the chunk.
TEST_P(Recurrent, LaterTokensDoNotShow) {
    for (const int32_t at : {5, 31, 33, 50}) {
        const Inputs unlike({.key_size = 128, .size = 32}, 64, 6);
        const Inputs alike({.key_size = 128, .size = 32}, 64, 6);
        alike.align_keys(0.0f, at);
        for (const Inputs* in : {&unlike, &alike}) {
            in->set_gates([](int64_t, int64_t) { return 0.0f; },
                          [](int64_t, int64_t) { return 1.0f; });
            const Memory memory(in->d, 1, 1);
            run(machine_, *in, memory, 0, {{.count = 64}}, Kind::kPrompt);
        }
        EXPECT_TRUE(same_bits(unlike.values(unlike.out, 0, at), alike.values(alike.out, 0, at)))
            << at;
    }
}

// G7: exp(A_log) is infinite where softplus is 0.
TEST_P(Recurrent, G7InfiniteRateTimesNothingIsNothing) {
    std::vector<float> a = {-200.0f, 0.0f, 30.0f, -200.0f}, b = {-100.0f, 100.0f, 0.0f, 1.0f};
    std::vector<float> bias = {0.0f, 0.0f, 0.0f, 0.0f};
    std::vector<float> rate = {-HUGE_VALF, -2.0f, -0.5f, -1.0f}, decay(4, kNan), beta(4, kNan);
    const auto row = [](std::vector<float>& x) {
        return make_tensor(x.data(), DType::kF32, {1, 4});
    };
    machine_.run(0, [&](Exec& ex) {
        machine_.ops().delta_gates(ex, row(a), row(b), row(bias).reshape({4}),
                                   row(rate).reshape({4}), row(decay), row(beta));
    });
    EXPECT_EQ(decay[0], 0.0f);
    EXPECT_NEAR(decay[1], -2.0 * std::log(2.0), 1e-6);
    EXPECT_EQ(decay[2], -15.0f);
    EXPECT_EQ(decay[3], 0.0f);
    EXPECT_EQ(beta[1], 1.0f);
    EXPECT_EQ(beta[2], 0.5f);
    EXPECT_LT(beta[0], 1e-30f);
}

// G8: forms that gate only one of the two triangular products agree while gates are near 1.
TEST_P(Recurrent, G8StrongRandomGates) {
    for (const int64_t rows : {64, 150}) expect_close(Inputs({.heads = 3}, rows, 8));
}

// G9: a prompt shorter than the window of the convolution.
TEST_P(Recurrent, G9PromptsOfOneToFourTokensThenDecoding) {
    for (int32_t prompt = 1; prompt <= 4; ++prompt) {
        const Inputs whole({}, 9, 9), split({}, 9, 9);
        const Memory one(whole.d, 1, 1), two(whole.d, 1, 1);
        run(machine_, whole, one, 0, {{.count = 9}}, Kind::kPrompt);
        run(machine_, split, two, 0, {{.count = prompt}}, Kind::kPrompt);
        for (int32_t t = prompt; t < 9; ++t)
            run(machine_, split, two, t, {{.position = t, .count = 1}}, Kind::kGenerated);
        EXPECT_TRUE(
            same_bits(whole.values(whole.conv_out, 0, 9), split.values(split.conv_out, 0, 9)))
            << prompt;
        EXPECT_TRUE(same_bits(one.conv_of(0), two.conv_of(0))) << prompt;
        const std::vector<float> state = one.state_of(0);
        EXPECT_LE(distance(two.state_of(0), {state.begin(), state.end()}), kClose) << prompt;
    }
}

// G15: what an earlier request left in a slot.
TEST_P(Recurrent, G15AFreshSequenceIgnoresItsSlot) {
    for (const Kind kind : {Kind::kPrompt, Kind::kGenerated}) {
        const Inputs in({}, 5, 15);
        expect_close(in, kind);  // slots start as NaN
        EXPECT_FALSE(std::isnan(in.conv_out.row<float>(4)[0]));
    }
    // A tentative batch of a fresh sequence, then what it accepts.
    const Inputs in({}, 4, 16);
    const Memory memory(in.d, 1, 4), serial(in.d, 1, 4);
    run(machine_, in, memory, 0, {{.count = 4}}, Kind::kTentative);
    accept(machine_, memory, 0, 3);
    run(machine_, in, serial, 0, {{.count = 3}}, Kind::kGenerated);
    EXPECT_TRUE(same_bits(memory.state_of(0), serial.state_of(0)));
    EXPECT_TRUE(same_bits(memory.conv_of(0), serial.conv_of(0)));
}

// G19, G27: sequences in one batch as each of them alone, in any slots, whatever their lengths.
TEST_P(Recurrent, G19G27NeighboursDoNotShow) {
    for (const Kind kind : {Kind::kPrompt, Kind::kGenerated}) {
        const std::vector<int32_t> lengths = kind == Kind::kPrompt
                                                 ? std::vector<int32_t>{3, 130, 1, 64}
                                                 : std::vector<int32_t>{1, 4, 1, 2};
        const Inputs together({.heads = 4}, 200, 19), alone({.heads = 4}, 200, 19);
        const Memory shared(together.d, 6, 4), own(together.d, 6, 4);
        std::vector<Part> parts;
        int32_t begin = 0;
        for (size_t s = 0; s < lengths.size(); ++s) {
            parts.push_back({.slot = static_cast<int32_t>(5 - s), .count = lengths[s]});
            run(machine_, alone, own, begin, {parts.back()}, kind);
            begin += lengths[s];
        }
        run(machine_, together, shared, 0, parts, kind);
        EXPECT_TRUE(
            same_bits(together.values(together.out, 0, begin), alone.values(alone.out, 0, begin)));
        EXPECT_TRUE(same_bits(together.values(together.conv_out, 0, begin),
                              alone.values(alone.conv_out, 0, begin)));
        EXPECT_TRUE(same_bits(shared.state.values, own.state.values));
        EXPECT_TRUE(same_bits(shared.conv.values, own.conv.values));
    }
}

// G24, S16: the state restored is one token off, or right while the window is not.
TEST_P(Recurrent, G24S16AcceptingEqualsDecodingOneByOne) {
    for (const Dims& dims : {Dims{}, Dims{.heads = 3, .key_size = 22, .size = 13, .taps = 3}})
        for (int32_t rows = 1; rows <= 5; ++rows)
            for (int32_t count = 0; count <= rows; ++count) {
                const Inputs draft(dims, 70 + rows, 24), serial(dims, 70 + rows, 24);
                const Memory one(dims, 2, 5), two(dims, 2, 5);
                const Part prompt{.slot = 1, .count = 70};
                run(machine_, draft, one, 0, {prompt}, Kind::kPrompt);
                run(machine_, serial, two, 0, {prompt}, Kind::kPrompt);
                const Part verify{.slot = 1, .position = 70, .count = rows};
                run(machine_, draft, one, 70, {verify}, Kind::kTentative);
                EXPECT_TRUE(same_bits(one.state_of(1), two.state_of(1))) << "tentative rows count";
                EXPECT_TRUE(same_bits(one.conv_of(1), two.conv_of(1))) << "tentative rows count";
                accept(machine_, one, 1, count);
                for (int32_t t = 70; t < 70 + rows; ++t) {
                    if (t == 70 + count) {
                        EXPECT_TRUE(same_bits(one.state_of(1), two.state_of(1)));
                        EXPECT_TRUE(same_bits(one.conv_of(1), two.conv_of(1)));
                    }
                    run(machine_, serial, two, t, {{.slot = 1, .position = t, .count = 1}},
                        Kind::kGenerated);
                }
                if (count == rows) {
                    EXPECT_TRUE(same_bits(one.state_of(1), two.state_of(1)));
                    EXPECT_TRUE(same_bits(one.conv_of(1), two.conv_of(1)));
                }
                EXPECT_TRUE(same_bits(draft.outputs(), serial.outputs())) << "verification";
            }
}

// G25: a kernel for many tokens that changes what one token computes.
TEST_P(Recurrent, G25GeneratedRowsAreTheSameInAnyNumber) {
    const Inputs one({.heads = 3, .key_size = 20, .size = 21}, 150, 25);
    const Memory serial(one.d, 1, 1);
    for (int32_t t = 0; t < 150; ++t)
        run(machine_, one, serial, t, {{.position = t, .count = 1}}, Kind::kGenerated);
    for (const int32_t step : {2, 5, 67, 150}) {
        const Inputs many(one.d, 150, 25);
        const Memory memory(one.d, 1, 1);
        for (int32_t t = 0; t < 150; t += step)
            run(machine_, many, memory, t, {{.position = t, .count = std::min(step, 150 - t)}},
                Kind::kGenerated);
        EXPECT_TRUE(same_bits(one.outputs(), many.outputs())) << step;
        EXPECT_TRUE(same_bits(serial.state_of(0), memory.state_of(0))) << step;
    }
}

// Guards against results that depend on -ub, and against checkpoints that are not what a prompt
// of that length would have left.
TEST_P(Recurrent, PromptsCutAtChunksAndTheirSavesAreTheSame) {
    const Inputs whole({.heads = 3}, 230, 31);
    const Memory memory(whole.d, 2, 1);
    run(machine_, whole, memory, 0, {{.count = 230, .save_slot = 1, .save_position = 128}},
        Kind::kPrompt);
    for (const int32_t first : {64, 128, 192}) {
        const Inputs cut({.heads = 3}, 230, 31);
        const Memory own(cut.d, 2, 1);
        run(machine_, cut, own, 0, {{.count = first}}, Kind::kPrompt);
        if (first == 128) {
            EXPECT_TRUE(same_bits(own.state_of(0), memory.state_of(1)));
            EXPECT_TRUE(same_bits(own.conv_of(0), memory.conv_of(1)));
        }
        run(machine_, cut, own, first, {{.position = first, .count = 230 - first}}, Kind::kPrompt);
        EXPECT_TRUE(same_bits(whole.outputs(), cut.outputs())) << first;
        EXPECT_TRUE(
            same_bits(whole.values(whole.conv_out, 0, 230), cut.values(cut.conv_out, 0, 230)))
            << first;
        EXPECT_TRUE(same_bits(own.state_of(0), memory.state_of(0))) << first;
    }
}

// Guards against masks that multiply: 0 times the NaN of a later token, or of another head.
TEST_P(Recurrent, ANanReachesNeitherEarlierTokensNorOtherHeads) {
    for (const int64_t at : {1, 9, 40, 63, 70}) {
        const Inputs clean({.key_heads = 2, .heads = 4}, 100, 32);
        const Inputs dirty({.key_heads = 2, .heads = 4}, 100, 32);
        const Memory first(clean.d, 1, 1), second(clean.d, 1, 1);
        dirty.v.row<float>(at)[3] = kNan;                  // head 0
        dirty.k.row<float>(at)[dirty.k.stride[1]] = kNan;  // key head 1: heads 1 and 3
        dirty.log_decay.row<float>(at)[1] = kNan;
        run(machine_, clean, first, 0, {{.count = 100}}, Kind::kPrompt);
        run(machine_, dirty, second, 0, {{.count = 100}}, Kind::kPrompt);
        EXPECT_TRUE(same_bits(clean.values(clean.out, 0, at), dirty.values(dirty.out, 0, at)))
            << at;
        const auto head = [](const Inputs& in) {
            std::vector<float> all;
            for (int64_t t = 0; t < in.rows; ++t) {
                const float* row = in.out.row<float>(t) + 2 * in.out.stride[1];
                all.insert(all.end(), row, row + in.d.size);
            }
            return all;
        };
        EXPECT_TRUE(same_bits(head(clean), head(dirty))) << at;
        EXPECT_TRUE(std::isnan(dirty.out.row<float>(99)[3]));
    }
}

// Guards against results that depend on the number of threads.
TEST(RecurrentThreads, DoNotShow) {
    for (const std::string& set : cpu::sets())
        for (const Kind kind : {Kind::kPrompt, Kind::kGenerated}) {
            const Inputs one({.key_heads = 1, .heads = 3, .size = 70}, 90, 33);
            const Memory first(one.d, 1, 1);
            Machine single(set, 1);
            run(single, one, first, 0, {{.count = 90}}, kind);
            for (const int32_t threads : {2, 3, 5}) {
                const Inputs many(one.d, 90, 33);
                const Memory memory(one.d, 1, 1);
                Machine team(set, threads);
                run(team, many, memory, 0, {{.count = 90}}, kind);
                EXPECT_TRUE(same_bits(one.outputs(), many.outputs())) << set << threads;
                EXPECT_TRUE(same_bits(first.state_of(0), memory.state_of(0))) << set << threads;
            }
        }
}

INSTANTIATE_TEST_SUITE_P(Backends, Recurrent, testing::ValuesIn(backends()), [](const auto& about) {
    return about.param;
});

}  // namespace
}  // namespace tessera::recurrent
