// Matrix products of the CPU backend against f64 sums over what the host codec says a weight is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "core/codec.h"
#include "core/numeric.h"
#include "engine/engine.h"

namespace tessera::cpu {
namespace {

constexpr DType kFormats[] = {DType::kF32,  DType::kF16,  DType::kBF16,  DType::kF64,  DType::kQ4_0,
                              DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,  DType::kQ8_0, DType::kQ4_K,
                              DType::kQ5_K, DType::kQ6_K, DType::kMXFP4, DType::kNVFP4};
constexpr ActFormat kActs[] = {ActFormat::kF32, ActFormat::kBF16, ActFormat::kInt8,
                               ActFormat::kNvfp4};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char* name : {"scalar", "avx2", "avx512", "amx", "neon"}) {
        try {
            if (isa_name(pick_isa(name)) == name) names.emplace_back(name);
        } catch (const std::exception&) {
            continue;
        }
    }
    return names;
}

std::vector<float> random_values(size_t count, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(generator);
    return values;
}

/// A weight in file format with the values that the codec reads from it.
struct FileWeight {
    DType format;
    int64_t rows, cols;
    float scale = 0.37f;
    std::vector<std::byte> data;
    std::vector<float> values;

    FileWeight(DType type, int64_t n, int64_t k, uint32_t seed) : format(type), rows(n), cols(k) {
        const size_t row_bytes = static_cast<size_t>(dtype_bytes(type, k));
        data.resize(static_cast<size_t>(n) * row_bytes);
        values.resize(static_cast<size_t>(n * k));
        std::vector<float> source = random_values(values.size(), seed);
        // A block of zeros and one of tiny numbers: zero and subnormal block scales.
        std::fill_n(source.begin(), 32, 0.0f);
        for (size_t i = 32; i < 64 && i < source.size(); ++i) source[i] *= 2e-3f;
        for (int64_t row = 0; row < n; ++row) {
            std::byte* target = data.data() + static_cast<size_t>(row) * row_bytes;
            if (type == DType::kF64) {
                for (int64_t i = 0; i < k; ++i) {
                    const double value =
                        static_cast<double>(source[static_cast<size_t>(row * k + i)]);
                    std::memcpy(target + i * 8, &value, 8);
                }
            } else {
                quantize_row(type, source.data() + row * k, k, target, Nvfp4Policy::kAmax6);
            }
            dequantize_row(type, target, k, values.data() + row * k);
        }
    }
    HostWeight host() const {
        return {.name = "w",
                .format = format,
                .rows = rows,
                .cols = cols,
                .experts = 1,
                .data = data.data(),
                .scales = std::span(&scale, 1)};
    }
};

std::unique_ptr<CpuOps> make_ops(const std::string& isa, int32_t threads, ActFormat act) {
    CpuOptions options;
    options.isa = isa;
    options.threads = threads;
    options.act_auto = false;
    options.act_prompt = act;
    options.act_generated = act;
    return std::make_unique<CpuOps>(options);
}

/// Runs `body` once to plan and once for real, as an engine does.
template <class Body>
void with_arena(int32_t prompt_rows, Body body) {
    Arena plan(nullptr, 0);
    Exec planning{.arena = plan, .prompt_rows = prompt_rows};
    body(planning);
    std::vector<std::byte> memory(plan.peak_bytes() + 64, std::byte{0xff});
    const size_t skip = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
    Arena arena(memory.data() + skip, plan.peak_bytes());
    Exec ex{.arena = arena, .prompt_rows = prompt_rows};
    body(ex);
    EXPECT_EQ(arena.peak_bytes(), plan.peak_bytes());
}

/// What the product reads of an activation row, as f64, and the row scale.
std::vector<double> rounded_row(const GemmInput& input, int64_t row, int32_t prompt_rows) {
    const bool prompt = row < prompt_rows;
    const ActView& view = prompt ? input.prompt[0] : input.generated[0];
    const int64_t t = prompt ? row : row - prompt_rows;
    std::vector<double> out(static_cast<size_t>(input.cols));
    for (int64_t k = 0; k < input.cols; ++k) {
        double value = 0;
        if (view.format == ActFormat::kF32) {
            value = static_cast<double>(view.values.row<float>(t)[k]);
        } else if (view.format == ActFormat::kInt8) {
            value = static_cast<double>(view.values.row<int8_t>(t)[k]) *
                    static_cast<double>(view.block_scales.row<float>(t)[k / 32]);
        } else {
            value = static_cast<double>(f32_from_bf16(view.values.row<uint16_t>(t)[k]));
            if (!view.row_scales.absent())
                value *= static_cast<double>(view.row_scales.as<float>()[t]);
        }
        out[static_cast<size_t>(k)] = value;
    }
    return out;
}

struct Case {
    int64_t rows;  ///< of activations
    int32_t prompt_rows;
    bool bias_and_add;
};

/// Tile kernels round scaled codes to bf16, but for FP4, whose products fit.
double tolerance_of(const std::string& isa, DType format, ActFormat act) {
    const bool exact = format == DType::kNVFP4 || format == DType::kMXFP4 ||
                       format == DType::kBF16 || format == DType::kF32 || format == DType::kF64;
    const bool tiles = isa == "amx" && (act == ActFormat::kBF16 || act == ActFormat::kNvfp4);
    return tiles && !exact ? 1.0 / 512 : 2e-6;
}

void check_product(CpuOps& ops,
                   const std::string& isa,
                   ActFormat act,
                   const FileWeight& file,
                   const Weight& weight,
                   const Case& shape) {
    const std::vector<float> source = random_values(static_cast<size_t>(shape.rows * file.cols), 7);
    const std::vector<float> bias_values = random_values(static_cast<size_t>(file.rows), 8);
    const std::vector<float> before = random_values(static_cast<size_t>(shape.rows * file.rows), 9);
    std::vector<float> result = before;
    std::vector<std::vector<double>> x;
    with_arena(shape.prompt_rows, [&](Exec& ex) {
        float* data = ex.planning() ? nullptr : const_cast<float*>(source.data());
        const Tensor input = make_tensor(data, DType::kF32, {shape.rows, file.cols});
        const Tensor out = make_tensor(ex.planning() ? nullptr : result.data(), DType::kF32,
                                       {shape.rows, file.rows});
        const Tensor bias = shape.bias_and_add ? make_tensor(const_cast<float*>(bias_values.data()),
                                                             DType::kF32, {file.rows})
                                               : Tensor{};
        const GemmInput prepared = ops.prepare(ex, input, weight.wants);
        ops.linear(ex, prepared, weight, bias, out,
                   shape.bias_and_add ? Accumulate::kAdd : Accumulate::kNo);
        if (ex.planning()) return;
        for (int64_t t = 0; t < shape.rows; ++t)
            x.push_back(rounded_row(prepared, t, shape.prompt_rows));
    });
    const double tolerance = tolerance_of(isa, file.format, act);
    for (int64_t t = 0; t < shape.rows; ++t) {
        for (int64_t n = 0; n < file.rows; ++n) {
            double sum = 0, magnitude = 1e-3;
            for (int64_t k = 0; k < file.cols; ++k) {
                const double term =
                    x[static_cast<size_t>(t)][static_cast<size_t>(k)] *
                    static_cast<double>(file.values[static_cast<size_t>(n * file.cols + k)]);
                sum += term;
                magnitude += std::fabs(term);
            }
            const auto at = static_cast<size_t>(t * file.rows + n);
            double want = sum * static_cast<double>(file.scale);
            if (shape.bias_and_add)
                want += static_cast<double>(bias_values[static_cast<size_t>(n)]) +
                        static_cast<double>(before[at]);
            ASSERT_NEAR(static_cast<double>(result[at]), want, tolerance * magnitude + 1e-6)
                << isa << ' ' << dtype_info(file.format).name << " act " << static_cast<int>(act)
                << " T " << shape.rows << " row " << t << " column " << n;
        }
    }
}

// Guards against wrong lanes, scales, offsets, minima and tails of every kernel.
TEST(CpuLinear, EveryFormatOnEverySetMatchesTheCodec) {
    for (const DType format : kFormats) {
        const FileWeight file(format, 37, 512, 1);
        for (const std::string& isa : instruction_sets()) {
            for (const ActFormat act : kActs) {
                const auto ops = make_ops(isa, 2, act);
                const Weight weight = ops->upload(file.host());
                check_product(*ops, isa, act, file, weight, {1, 0, false});
                check_product(*ops, isa, act, file, weight, {15, 0, true});
                check_product(*ops, isa, act, file, weight, {39, 35, true});
            }
        }
    }
}

// Guards against errors where sums are carried between passes of the tile kernel and where K is no
// multiple of 32 (plain formats only).
TEST(CpuLinear, LongAndOddColumnsMatch) {
    for (const std::string& isa : instruction_sets()) {
        const auto ops = make_ops(isa, 2, ActFormat::kBF16);
        const FileWeight wide(DType::kNVFP4, 33, 4480, 2);
        check_product(*ops, isa, ActFormat::kBF16, wide, ops->upload(wide.host()), {50, 47, true});
        for (const DType format : {DType::kF32, DType::kF16, DType::kBF16}) {
            const FileWeight odd(format, 5, 77, 3);
            check_product(*ops, isa, ActFormat::kBF16, odd, ops->upload(odd.host()), {7, 4, true});
        }
    }
}

std::vector<float> product_of(
    CpuOps& ops, const Weight& weight, const float* x, int64_t rows, int32_t prompt_rows) {
    std::vector<float> result(static_cast<size_t>(rows * weight.rows));
    with_arena(prompt_rows, [&](Exec& ex) {
        const Tensor input = make_tensor(ex.planning() ? nullptr : const_cast<float*>(x),
                                         DType::kF32, {rows, weight.cols});
        const Tensor out = make_tensor(result.data(), DType::kF32, {rows, weight.rows});
        ops.linear(ex, ops.prepare(ex, input, weight.wants), weight, Tensor{}, out,
                   Accumulate::kNo);
    });
    return result;
}

// Guards the promise that a row's result depends neither on its neighbours nor on the threads.
TEST(CpuLinear, RowsAreTheSameAloneInBatchesAndOnAnyThreads) {
    constexpr int64_t kRows = 300, kCols = 2560;  // crosses token ranges and column passes
    const std::vector<float> x = random_values(kRows * kCols, 4);
    for (const DType format : {DType::kNVFP4, DType::kQ4_K, DType::kQ8_0}) {
        const FileWeight file(format, 72, kCols, 5);
        for (const std::string& isa : instruction_sets()) {
            if (isa == "scalar" && format != DType::kNVFP4) continue;
            for (const ActFormat act : {ActFormat::kBF16, ActFormat::kInt8}) {
                for (const bool prompt : {true, false}) {
                    const auto one = make_ops(isa, 1, act);
                    const Weight weight = one->upload(file.host());
                    const int64_t rows = prompt && isa == "amx" ? kRows : 21;
                    const std::vector<float> all = product_of(
                        *one, weight, x.data(), rows, prompt ? static_cast<int32_t>(rows) : 0);
                    for (const int32_t threads : {2, 3}) {
                        const auto many = make_ops(isa, threads, act);
                        EXPECT_EQ(all, product_of(*many, many->upload(file.host()), x.data(), rows,
                                                  prompt ? static_cast<int32_t>(rows) : 0));
                    }
                    for (const int64_t row : {int64_t{0}, int64_t{13}, rows - 1}) {
                        const std::vector<float> alone =
                            product_of(*one, weight, x.data() + row * kCols, 1, prompt ? 1 : 0);
                        const auto* begin = all.data() + row * file.rows;
                        EXPECT_EQ(alone, std::vector<float>(begin, begin + file.rows))
                            << isa << ' ' << dtype_info(format).name << " row " << row;
                    }
                }
            }
        }
    }
}

// Guards against a fused gate that rounds, scales or orders anything differently.
TEST(CpuLinear, FusedGateEqualsComposedGate) {
    constexpr int64_t kRows = 45, kCols = 576, kOut = 152;
    const FileWeight gate(DType::kNVFP4, kOut, kCols, 10), up(DType::kNVFP4, kOut, kCols, 11);
    const std::vector<float> x = random_values(kRows * kCols, 12);
    for (const std::string& isa : instruction_sets()) {
        for (const ActFormat act : kActs) {
            const auto ops = make_ops(isa, 2, act);
            const Weight first = ops->upload(gate.host()), second = ops->upload(up.host());
            for (const Glu kind : {Glu::kSwiGlu, Glu::kGeGlu, Glu::kReGlu}) {
                std::vector<double> rows[2];
                for (const bool fused : {false, true}) {
                    with_arena(40, [&](Exec& ex) {
                        const Tensor input =
                            make_tensor(const_cast<float*>(x.data()), DType::kF32, {kRows, kCols});
                        const GemmInput in = ops->prepare(ex, input, first.wants);
                        const GemmInput out =
                            fused ? ops->linear_glu(ex, in, first, second, kind, first.wants)
                                  : ops->Ops::linear_glu(ex, in, first, second, kind, first.wants);
                        if (ex.planning()) return;
                        for (int64_t t = 0; t < kRows; ++t)
                            for (const double value : rounded_row(out, t, 40))
                                rows[fused ? 1 : 0].push_back(value);
                    });
                }
                EXPECT_EQ(rows[0], rows[1]) << isa << " act " << static_cast<int>(act);
            }
        }
    }
}

// Guards the inverse of the packing.
TEST(CpuLinear, EmbeddingReturnsTheStoredRows) {
    for (const DType format : kFormats) {
        const FileWeight file(format, 35, 512, 6);
        const auto ops = make_ops("scalar", 1, ActFormat::kF32);
        const Weight table = ops->upload(file.host());
        std::vector<int32_t> ids = {0, 34, 16, 15, 34};
        std::vector<float> out(ids.size() * 512);
        with_arena(0, [&](Exec& ex) {
            ops->embed(ex, make_tensor(ids.data(), DType::kI32, {5}), table,
                       make_tensor(out.data(), DType::kF32, {5, 512}));
        });
        for (size_t t = 0; t < ids.size(); ++t)
            for (size_t k = 0; k < 512; ++k)
                ASSERT_EQ(out[t * 512 + k],
                          file.values[static_cast<size_t>(ids[t]) * 512 + k] * file.scale)
                    << dtype_info(format).name;
    }
}

// Guards the memory plan: what upload takes is what upload_bytes said.
TEST(CpuLinear, PackedWeightsTakeNoMoreThanTheirFileByFewPercent) {
    const auto ops = make_ops("scalar", 1, ActFormat::kF32);
    for (const DType format : kFormats) {
        const HostWeight weight{.name = "w",
                                .format = format,
                                .rows = 4096,
                                .cols = 4096,
                                .experts = 1,
                                .data = nullptr,
                                .scales = {}};
        const auto file = static_cast<double>(4096 * dtype_bytes(format, 4096));
        EXPECT_LE(static_cast<double>(ops->upload_bytes(weight)), 1.03 * file + 64);
    }
}

/// Guards against scales of rows that leave no room for the larger scale of a block, against a
/// policy that is lost on the way to the rows, and against its being another's: by hand.
TEST(CpuLinear, PoliciesOfNvfp4RoundAsTheContractSays) {
    // 6 and 15 fives. Steps of 1 have no 5, and the tie goes to 4: an error of 15. Steps of 1.5
    // have 6 and 4.5: 3.75. The codes beside 1 are 0.875, 0.9375, 1.125 and 1.25: 5.25 for
    // all, 1.5; 5.625 for all, 6; 6.75 and 4.5, 4.3; 5 for all, 1.
    const FileWeight file(DType::kNVFP4, 16, 64, 1);
    std::vector<float> x(64, 0.0f);
    std::fill_n(x.begin(), 16, 5.0f);
    x[0] = 6.0f;
    x[16] = -6.0f;  // of another block, which is exact
    struct Expected {
        Nvfp4Policy policy;
        float six, five, span;
    };
    for (const Expected& expected : {Expected{Nvfp4Policy::kAmax6, 6.0f, 4.0f, 6.0f * 448.0f},
                                     Expected{Nvfp4Policy::kFourSix, 6.0f, 4.5f, 6.0f * 256.0f},
                                     Expected{Nvfp4Policy::kSearch, 5.0f, 5.0f, 6.0f * 256.0f}}) {
        for (const std::string_view name : {"cpu", "reference"}) {
            BackendOptions options{.name = std::string(name), .threads = 1, .isa = {}};
            options.act = ActPolicy::kNvfp4;
            options.act_nvfp4 = expected.policy;
            const std::unique_ptr<Ops> ops = tessera::make_ops(options);
            const Weight weight = ops->upload(file.host());
            with_arena(1, [&](Exec& ex) {
                const Tensor input =
                    make_tensor(ex.planning() ? nullptr : x.data(), DType::kF32, {1, 64});
                const GemmInput prepared = ops->prepare(ex, input, weight.wants | ActWants{});
                if (ex.planning()) return;
                EXPECT_EQ(prepared.prompt[0].row_scales.as<float>()[0], 6.0f / expected.span);
                const std::vector<double> rounded = rounded_row(prepared, 0, 1);
                EXPECT_NEAR(rounded[0], static_cast<double>(expected.six), 1e-5) << name;
                EXPECT_NEAR(rounded[16], -6.0, 1e-5) << name;
                EXPECT_NEAR(rounded[1], static_cast<double>(expected.five), 1e-5) << name;
            });
        }
    }
}

/// Guards against activations that nobody asked for where the asked ones have no kernel.
TEST(CpuLinear, RefusesFp8Activations) {
    for (const std::string_view name : {"cpu", "auto"}) {
        BackendOptions options{.name = std::string(name), .threads = 1, .isa = {}};
        options.act = ActPolicy::kFp8;
        options.gpu_layers = 0;
        try {
            make_ops(options);
            ADD_FAILURE() << name << " takes fp8";
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kUsage);
            EXPECT_NE(std::string_view(error.what()).find("Hopper"), std::string_view::npos);
        }
    }
}

}  // namespace
}  // namespace tessera::cpu
