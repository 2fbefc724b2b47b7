// Attention and key/value pages of the CPU backend, against the formula in f64 and against
// themselves: chunks of a prompt, neighbours in a batch and threads must not show in a byte.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/codec.h"
#include "core/numeric.h"
#include "ops/cpu_fixture.h"

namespace tessera::cpu {
namespace {

struct Shape {
    int32_t heads, kv_heads, head_size;
};

/// One sequence: queries, keys and values of all its positions, and its place in the pages.
struct Sequence {
    Tensor q, k, v;
    std::vector<int32_t> pages;
};

/// Rows [begin, end) of a sequence in one pass.
struct Part {
    const Sequence* sequence;
    int32_t begin, end;
};

class AttentionBench {
  public:
    AttentionBench(const std::string& set, int32_t threads, Shape shape, DType dtype)
        : bench(set, threads), shape_(shape) {
        const auto make_pages = [&] {
            return bench.make(dtype, {kPages, shape.kv_heads, kPageTokens, shape.head_size});
        };
        cache = {make_pages(), make_pages()};
    }

    Sequence sequence(int32_t tokens) {
        Sequence out;
        out.q = bench.floats({tokens, shape_.heads, shape_.head_size});
        out.k = bench.floats({tokens, shape_.kv_heads, shape_.head_size});
        out.v = bench.floats({tokens, shape_.kv_heads, shape_.head_size});
        // Pages from the back, so that physical and logical order differ.
        for (int32_t i = 0; i * kPageTokens < tokens; ++i) out.pages.push_back(next_page_--);
        return out;
    }

    Batch batch(const std::vector<Part>& parts, bool prompt) {
        std::vector<int32_t> positions, starts = {0}, table;
        size_t width = 1;
        Batch out;
        for (const Part& part : parts) width = std::max(width, part.sequence->pages.size());
        for (const Part& part : parts) {
            for (int32_t p = part.begin; p < part.end; ++p) positions.push_back(p);
            starts.push_back(static_cast<int32_t>(positions.size()));
            std::vector<int32_t> pages = part.sequence->pages;
            pages.resize(width, -1);
            table.insert(table.end(), pages.begin(), pages.end());
            out.max_visible = std::max(out.max_visible, part.end);
        }
        out.tokens = bench.ints(std::vector<int32_t>(positions.size(), 0));
        out.positions = bench.ints(positions);
        out.seq_start = bench.ints(starts);
        out.page_table = bench.ints(table).reshape(
            {static_cast<int64_t>(parts.size()), static_cast<int64_t>(width)});
        out.prompt_rows = prompt ? static_cast<int32_t>(positions.size()) : 0;
        return out;
    }

    void store(const std::vector<Part>& parts) {
        const Batch rows = batch(parts, true);
        Exec ex = bench.exec(rows.prompt_rows);
        bench.ops().kv_store(ex, gather(parts, &Sequence::k), gather(parts, &Sequence::v), rows,
                             cache);
    }

    /// Attention of all parts in one pass, stored keys and values first.
    std::vector<float> run(const std::vector<Part>& parts, bool prompt, AttentionParams params) {
        store(parts);
        const Batch rows = batch(parts, prompt);
        Exec ex = bench.exec(rows.prompt_rows);
        const Tensor out =
            bench.make(DType::kF32, {rows.row_count(), int64_t{shape_.heads} * shape_.head_size});
        bench.ops().attention(ex, gather(parts, &Sequence::q), rows, cache, params, out);
        return values_of(out);
    }

    Bench bench;
    KvView cache;

  private:
    static constexpr int32_t kPages = 96;

    Tensor gather(const std::vector<Part>& parts, Tensor Sequence::*which) {
        int64_t rows = 0;
        for (const Part& part : parts) rows += part.end - part.begin;
        const Tensor& model = parts[0].sequence->*which;
        const Tensor out = bench.make(DType::kF32, {rows, model.shape[1], model.shape[2]});
        float* target = out.as<float>();
        for (const Part& part : parts) {
            const Tensor& source = part.sequence->*which;
            const int64_t count = (part.end - part.begin) * source.stride[0];
            std::copy_n(source.row<float>(part.begin), count, target);
            target += count;
        }
        return out;
    }

    Shape shape_;
    int32_t next_page_ = kPages - 1;
};

/// What the cache gives back for one row.
std::vector<float> through_cache(const Tensor& rows, int64_t token, int64_t head, DType dtype) {
    const auto size = static_cast<size_t>(rows.shape[2]);
    std::vector<std::byte> stored(4 * size);
    std::vector<float> out(size);
    quantize_row(dtype, rows.row<float>(token) + head * rows.stride[1], rows.shape[2],
                 stored.data(), Nvfp4Policy::kAmax6);
    dequantize_row(dtype, stored.data(), rows.shape[2], out.data());
    return out;
}

/// The formula for one row and head.
std::vector<double> attend_slowly(
    const Sequence& s, int32_t position, int32_t head, DType dtype, const AttentionParams& params) {
    const int64_t kv_head = head / (s.q.shape[1] / s.k.shape[1]);
    const int32_t first = params.window > 0 ? std::max(0, position - params.window + 1) : 0;
    const auto size = static_cast<size_t>(s.q.shape[2]);
    const float* q = s.q.row<float>(position) + head * s.q.stride[1];
    std::vector<double> scores, out(size, 0.0);
    double largest = -1e300, total = 0;
    for (int32_t p = first; p <= position; ++p) {
        const std::vector<float> key = through_cache(s.k, p, kv_head, dtype);
        double score = 0;
        for (size_t i = 0; i < size; ++i) score += static_cast<double>(q[i]) * key[i];
        score *= params.scale;
        if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
        scores.push_back(score);
        largest = std::max(largest, score);
    }
    if (!params.sinks.absent()) {
        const double sink = params.sinks.as<float>()[head];
        largest = std::max(largest, sink);
        total = std::exp(sink - largest);
    }
    for (int32_t p = first; p <= position; ++p) {
        const std::vector<float> value = through_cache(s.v, p, kv_head, dtype);
        const double weight = std::exp(scores[static_cast<size_t>(p - first)] - largest);
        total += weight;
        for (size_t i = 0; i < size; ++i) out[i] += weight * value[i];
    }
    for (double& value : out) value /= total;
    return out;
}

/// bf16 tiles round queries, keys, values and probabilities to 8 bits; f32 paths do not.
double tolerance(const std::string& set, bool prompt, Shape shape) {
    return set == "amx" && prompt && shape.head_size % 32 == 0 ? 2e-2 : 3e-6;
}

void expect_formula(const std::string& set, Shape shape, DType dtype, AttentionParams params) {
    AttentionBench a(set, 2, shape, dtype);
    const Sequence s = a.sequence(150);
    a.store({{&s, 0, 150}});
    for (const bool prompt : {true, false}) {
        const int32_t begin = prompt ? 0 : 141;
        const std::vector<float> got = a.run({{&s, begin, 150}}, prompt, params);
        for (const int32_t position : {0, 63, 64, 127, 128, 141, 149}) {
            if (position < begin) continue;
            for (int32_t head = 0; head < shape.heads; ++head) {
                const std::vector<double> want = attend_slowly(s, position, head, dtype, params);
                const auto size = static_cast<size_t>(shape.head_size);
                const size_t row =
                    static_cast<size_t>(position - begin) * static_cast<size_t>(shape.heads) +
                    static_cast<size_t>(head);
                for (size_t i = 0; i < size; ++i)
                    ASSERT_NEAR(got[row * size + i], want[i], tolerance(set, prompt, shape))
                        << set << (prompt ? " prompt " : " generated ") << position << " " << i;
            }
        }
    }
}

// Guards against wrong masks at page borders, wrong head groups and wrong decoding of each format.
TEST(CpuAttention, MatchesTheFormulaInEveryFormat) {
    for (const std::string& set : sets())
        for (const DType dtype :
             {DType::kF32, DType::kF16, DType::kBF16, DType::kF8_E4M3, DType::kQ8_0})
            expect_formula(set, {9, 3, 64}, dtype, {.scale = 0.125f});
}

// Guards against kernels that only fit one head size or group.
TEST(CpuAttention, MatchesTheFormulaForEveryHead) {
    for (const std::string& set : sets())
        for (const Shape shape : {Shape{2, 2, 8},
                                  {4, 1, 32},
                                  {5, 1, 80},
                                  {3, 3, 72},
                                  {6, 1, 128},
                                  {2, 1, 256},
                                  {2, 1, 18}})
            expect_formula(set, shape, DType::kF16,
                           {.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size))});
}

// Guards against windows that are off by one, and against a soft cap after the mask.
TEST(CpuAttention, WindowAndSoftcapMatchTheFormula) {
    for (const std::string& set : sets()) {
        for (const int32_t window : {1, 63, 64, 65, 100})
            expect_formula(set, {4, 2, 32}, DType::kF32, {.scale = 0.2f, .window = window});
        expect_formula(set, {4, 2, 32}, DType::kF32, {.scale = 2.0f, .softcap = 5.0f});
    }
}

// Guards against a sink that is taken of another head, scaled like a product, capped, counted once
// a split, or that overflows beside small scores.
TEST(CpuAttention, SinksMatchTheFormula) {
    std::vector<float> sinks = {-2.0f, 0.0f, 1.5f, 3.0f, -INFINITY, 100.0f, -100.0f, 0.5f};
    const Tensor heads = make_tensor(sinks.data(), DType::kF32, {8});
    for (const std::string& set : sets())
        for (const int32_t head_size : {32, 18})
            for (const float softcap : {0.0f, 1.0f})
                for (const int32_t window : {0, 70})
                    expect_formula(
                        set, {8, 2, head_size}, DType::kF16,
                        {.scale = 0.3f, .softcap = softcap, .window = window, .sinks = heads});
}

// Guards the promise that -ub does not show: a prompt in one piece and in several.
TEST(CpuAttention, PromptChunksDoNotShow) {
    for (const std::string& set : sets())
        for (const int32_t window : {0, 50}) {
            std::vector<float> sinks = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f, 3.0f};
            const AttentionParams params{
                .scale = 0.3f,
                .window = window,
                .sinks = window > 0 ? make_tensor(sinks.data(), DType::kF32, {6}) : Tensor{}};
            AttentionBench whole(set, 1, {6, 2, 32}, DType::kF16);
            const Sequence s = whole.sequence(190);
            const std::vector<float> want = whole.run({{&s, 0, 190}}, true, params);
            for (const int32_t threads : {1, 2, 3}) {
                AttentionBench cut(set, threads, {6, 2, 32}, DType::kF16);
                const Sequence other = cut.sequence(190);
                std::vector<float> got;
                int32_t begin = 0;
                for (const int32_t end : {1, 8, 72, 73, 160, 190}) {
                    const std::vector<float> rows = cut.run({{&other, begin, end}}, true, params);
                    got.insert(got.end(), rows.begin(), rows.end());
                    begin = end;
                }
                EXPECT_EQ(got, want) << set << " " << threads << " threads";
            }
        }
}

// Guards the promise that neighbours in a batch do not show, prompts and generated rows.
TEST(CpuAttention, NeighboursDoNotShow) {
    for (const std::string& set : sets())
        for (const bool prompt : {true, false})
            for (const int32_t threads : {1, 3}) {
                const AttentionParams params{.scale = 0.3f};
                AttentionBench a(set, threads, {4, 2, 64}, DType::kBF16);
                const Sequence first = a.sequence(300), second = a.sequence(77);
                a.store({{&first, 0, 300}, {&second, 0, 77}});
                const Part one{&first, 290, 300}, two{&second, 70, 77};
                std::vector<float> alone = a.run({one}, prompt, params);
                const std::vector<float> rest = a.run({two}, prompt, params);
                alone.insert(alone.end(), rest.begin(), rest.end());
                EXPECT_EQ(a.run({one, two}, prompt, params), alone) << set << threads;
            }
}

// Guards against generated rows that depend on how many are verified at once or on the threads.
TEST(CpuAttention, GeneratedRowsStandAlone) {
    for (const std::string& set : sets()) {
        std::vector<float> want;
        for (const int32_t threads : {1, 2, 3}) {
            AttentionBench a(set, threads, {6, 2, 64}, DType::kF16);
            const Sequence s = a.sequence(700);
            a.store({{&s, 0, 700}});
            std::vector<float> got;
            for (int32_t p = 690; p < 700; ++p) {
                const std::vector<float> row = a.run({{&s, p, p + 1}}, false, {.scale = 0.3f});
                got.insert(got.end(), row.begin(), row.end());
            }
            if (threads == 1) want = got;
            EXPECT_EQ(got, want) << set << threads;
            EXPECT_EQ(a.run({{&s, 690, 700}}, false, {.scale = 0.3f}), want) << set << threads;
        }
    }
}

// Guards the state that long prompts carry from one segment of the keys to the next.
TEST(CpuAttention, SegmentsOfALongContextJoin) {
    for (const std::string& set : sets()) {
        const Shape shape{2, 1, 32};
        const AttentionParams params{.scale = 0.3f};
        AttentionBench a(set, 2, shape, DType::kF16);
        const Sequence s = a.sequence(4500);
        a.store({{&s, 0, 4500}});
        for (const bool prompt : {true, false}) {
            const std::vector<float> got = a.run({{&s, 4090, 4500}}, prompt, params);
            for (const int32_t position : {4095, 4096, 4499}) {
                const std::vector<double> want = attend_slowly(s, position, 1, DType::kF16, params);
                for (size_t i = 0; i < 32; ++i)
                    ASSERT_NEAR(got[static_cast<size_t>(position - 4090) * 64 + 32 + i], want[i],
                                tolerance(set, prompt, shape))
                        << set << position;
            }
        }
    }
}

// Guards against what an older sequence left in the unused end of a page.
TEST(CpuAttention, StaleInfinitiesAreNotSeen) {
    for (const std::string& set : sets())
        for (const bool prompt : {true, false}) {
            AttentionBench a(set, 1, {2, 1, 32}, DType::kF32);
            const Sequence s = a.sequence(70);
            const std::vector<float> want = a.run({{&s, 0, 70}}, prompt, {.scale = 0.3f});
            const int64_t page = s.pages[1];
            for (const Tensor& rows : {a.cache.keys, a.cache.values})
                std::fill_n(rows.row<float>(page) + 6 * 32, 58 * 32,
                            std::numeric_limits<float>::infinity());
            EXPECT_EQ(a.run({{&s, 0, 70}}, prompt, {.scale = 0.3f}), want) << set;
        }
}

// Guards the fused norm, rope and store against the composition that it replaces.
TEST(CpuAttention, FusedStoreEqualsTheComposition) {
    for (const std::string& set : sets())
        for (const DType dtype :
             {DType::kF32, DType::kF16, DType::kBF16, DType::kF8_E4M3, DType::kQ8_0})
            for (const bool gains : {false, true}) {
                Tensor q[2], k[2];
                AttentionBench a(set, 2, {6, 2, 64}, dtype), b(set, 2, {6, 2, 64}, dtype);
                AttentionBench* benches[] = {&a, &b};
                for (size_t i = 0; i < 2; ++i) {
                    AttentionBench& c = *benches[i];
                    const Sequence s = c.sequence(90);
                    const Tensor gain = c.bench.floats({64});
                    const Ops::QkvRope how{.q_gain = gains ? gain : Tensor{},
                                           .k_gain = gains ? gain : Tensor{},
                                           .eps = 1e-6f,
                                           .rope = {.pairs = RopePairs::kHalves, .rotary = 48},
                                           .freq_factors = {}};
                    const Batch rows = c.batch({{&s, 0, 90}}, true);
                    Exec ex = c.bench.exec(90);
                    if (i == 0)
                        c.bench.ops().qk_norm_rope_store(ex, s.q, s.k, s.v, how, rows, c.cache);
                    else
                        c.bench.ops().Ops::qk_norm_rope_store(ex, s.q, s.k, s.v, how, rows,
                                                              c.cache);
                    q[i] = s.q;
                    k[i] = s.k;
                }
                EXPECT_TRUE(same_bytes(q[0], q[1]) && same_bytes(k[0], k[1])) << set;
                EXPECT_TRUE(same_bytes(a.cache.keys, b.cache.keys)) << set;
                EXPECT_TRUE(same_bytes(a.cache.values, b.cache.values)) << set;
            }
}

// Guards the memory plan: a run takes what planning said, in whatever context.
TEST(CpuAttention, RunsTakeThePlannedMemory) {
    for (const std::string& set : sets())
        for (const bool prompt : {true, false})
            for (const int32_t tokens : {10, 4500}) {
                AttentionBench a(set, 2, {6, 2, 32}, DType::kF16);
                const Sequence s = a.sequence(tokens);
                a.store({{&s, 0, tokens}});
                const Batch rows = a.batch({{&s, tokens - 7, tokens}}, prompt);
                const Tensor out = a.bench.make(DType::kF32, {7, 192});
                const Tensor q = s.q.slice_rows(tokens - 7, 7);
                Arena plan(nullptr, 0);
                Exec planning{plan, rows.prompt_rows};
                a.bench.ops().attention(planning, q, rows, a.cache, {.scale = 0.3f}, out);
                std::vector<std::byte> memory(plan.peak_bytes() + 64);
                std::byte* base = memory.data();
                while (reinterpret_cast<uintptr_t>(base) % 64 != 0) ++base;
                Arena exact(base, plan.peak_bytes());
                Exec running{exact, rows.prompt_rows};
                a.bench.ops().attention(running, q, rows, a.cache, {.scale = 0.3f}, out);
                EXPECT_EQ(exact.peak_bytes(), plan.peak_bytes());
            }
}

// Guards against generated rows that need more memory for a shorter context than the plan, made for
// the longest, has: the run would abort.
TEST(CpuAttention, ShorterContextsFitThePlan) {
    Bench bench("scalar", 1);
    const auto planned = [&](int32_t visible) {
        const int64_t pages = (visible + kPageTokens - 1) / kPageTokens;
        const Tensor cached = make_tensor(nullptr, DType::kF16, {pages, 1, kPageTokens, 64});
        Batch batch;
        batch.positions = make_tensor(nullptr, DType::kI32, {3});
        batch.seq_start = make_tensor(nullptr, DType::kI32, {4});
        batch.page_table = make_tensor(nullptr, DType::kI32, {3, pages});
        batch.max_visible = visible;
        Arena arena(nullptr, 0);
        Exec ex{.arena = arena};
        bench.ops().attention(ex, make_tensor(nullptr, DType::kF32, {3, 8, 64}), batch,
                              {cached, cached}, {.scale = 0.125f},
                              make_tensor(nullptr, DType::kF32, {3, 512}));
        return arena.peak_bytes();
    };
    size_t before = 0;
    for (int32_t visible = 20000; visible <= 400000; visible += 1000) {
        const size_t bytes = planned(visible);
        EXPECT_GE(bytes, before) << visible;
        before = bytes;
    }
}

}  // namespace
}  // namespace tessera::cpu
