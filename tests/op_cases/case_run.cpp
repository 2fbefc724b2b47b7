#include "op_cases/case_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "core/codec.h"
#include "core/numeric.h"

namespace tessera::op_cases {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kGuardBytes = 256;
constexpr uint8_t kGuardByte = 0x5c;
/// Elements from which a weight is encoded by many threads: those of large models take seconds.
constexpr int64_t kParallelElements = 1 << 22;

/// The memory of an arena with a guard behind it.
class ArenaMemory {
  public:
    explicit ArenaMemory(size_t bytes)
        : bytes_(bytes), memory_(std::make_unique<std::byte[]>(bytes + kGuardBytes + kAlignment)) {
        const size_t address = reinterpret_cast<uintptr_t>(memory_.get());
        base_ = memory_.get() + (kAlignment - address % kAlignment) % kAlignment;
        std::memset(base_ + bytes_, kGuardByte, kGuardBytes);
    }
    std::byte* base() const { return base_; }
    void fill(uint8_t byte) { std::memset(base_, byte, bytes_); }
    bool intact() const {
        return std::all_of(base_ + bytes_, base_ + bytes_ + kGuardBytes,
                           [](std::byte byte) { return byte == std::byte{kGuardByte}; });
    }

  private:
    size_t bytes_;
    std::unique_ptr<std::byte[]> memory_;
    std::byte* base_ = nullptr;
};

void read_view_row(const ActView& view, int64_t t, int64_t cols, std::vector<float>& values) {
    for (int64_t k = 0; k < cols; ++k) {
        float value = 0.0f;
        switch (view.format) {
            case ActFormat::kF32:
                value = view.values.row<float>(t)[k];
                break;
            case ActFormat::kInt8:
                value = static_cast<float>(view.values.row<int8_t>(t)[k]) *
                        view.block_scales.row<float>(t)[k / 32];
                break;
            case ActFormat::kFp4: {
                const uint32_t two = view.values.row<uint8_t>(t)[k / 2];
                const uint32_t code = two >> (k % 2 * 4) & 15u;
                value =
                    kE2M1Values[code] * f32_from_ue4m3(view.block_scales.row<uint8_t>(t)[k / 16]);
                value *= view.row_scales.as<float>()[t];
                break;
            }
            case ActFormat::kFp8:
                value = f32_from_e4m3(view.values.row<uint8_t>(
                            t)[view.transposed_quads ? transposed_quad_place(k) : k]) *
                        view.row_scales.as<float>()[t];
                break;
            default:
                value = f32_from_bf16(view.values.row<uint16_t>(
                    t)[view.transposed_pairs ? transposed_pair_place(k) : k]);
                if (!view.row_scales.absent()) value *= view.row_scales.as<float>()[t];
                break;
        }
        values.push_back(value);
    }
}

}  // namespace

const std::vector<std::byte>& WeightBank::encoded(DType format,
                                                  int64_t n,
                                                  int64_t k,
                                                  uint32_t which) {
    std::vector<std::byte>& bytes = weights_[{format, n, k, which}];
    if (!bytes.empty()) return bytes;
    const int64_t row_bytes = dtype_bytes(format, k);
    bytes.resize(static_cast<size_t>(n * row_bytes));
    const auto size = static_cast<uint64_t>(n * 1000003 + k * 101 + static_cast<int>(format));
    const auto fill = [&](int64_t begin, int64_t end) {
        Random random(size + (uint64_t{which} << 40));
        random.skip(static_cast<uint64_t>(begin * k));
        std::vector<float> values(static_cast<size_t>(k));
        for (int64_t row = begin; row < end; ++row) {
            for (float& value : values) value = random.uniform(-1.0f, 1.0f);
            for (int64_t i = 0; which >= kSpread && i < k; ++i)
                values[static_cast<size_t>(i)] *=
                    std::ldexp(1.0f, -static_cast<int>(row * 5 % 12 + i / 32 * 3 % 7));
            quantize_row(format, values.data(), k, bytes.data() + row * row_bytes,
                         Nvfp4Policy::kAmax6);
        }
    };
    if (n * k < kParallelElements) {
        fill(0, n);
        return bytes;
    }
    const int64_t parts = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::jthread> team;
    for (int64_t i = 0; i < parts; ++i) team.emplace_back(fill, n * i / parts, n * (i + 1) / parts);
    team.clear();
    return bytes;
}

const Weight& Subject::weight(
    DType format, int64_t n, int64_t k, float outer_scale, uint32_t which) {
    Weight& weight = uploaded_[{format, n, k, outer_scale, which}];
    if (!weight.absent()) return weight;
    // A copy that is poisoned after upload: the backend may not keep a pointer into the source.
    std::vector<std::byte> source = bank_.encoded(format, n, k, which);
    weight = ops.upload({.name = "weight",
                         .format = format,
                         .rows = n,
                         .cols = k,
                         .experts = 1,
                         .data = source.data(),
                         .scales = {&outer_scale, 1}});
    std::ranges::fill(source, std::byte{0xff});
    return weight;
}

const Weight& Subject::experts(DType format,
                               int64_t n,
                               int64_t k,
                               int32_t count,
                               const std::vector<float>& scales,
                               uint32_t which) {
    Weight& weight = stacks_[{format, n, k, count, scales.empty(), which}];
    if (!weight.absent()) return weight;
    const std::vector<std::byte>& rows = bank_.encoded(format, n + count, k, which);
    const auto row_bytes = static_cast<size_t>(dtype_bytes(format, k));
    const size_t expert_bytes = static_cast<size_t>(n) * row_bytes;
    std::vector<std::byte> source(static_cast<size_t>(count) * expert_bytes);
    for (size_t e = 0; e < static_cast<size_t>(count); ++e)
        std::memcpy(source.data() + e * expert_bytes, rows.data() + e * row_bytes, expert_bytes);
    weight = ops.upload({.name = "experts",
                         .format = format,
                         .rows = n,
                         .cols = k,
                         .experts = count,
                         .data = source.data(),
                         .scales = scales});
    std::ranges::fill(source, std::byte{0xff});
    return weight;
}

void drive(const Request& request, const Rows& rows, const Call& call, Outputs& outputs) {
    struct Cut {
        int32_t begin, count, prompt;
        size_t peak;
    };
    std::vector<Cut> cuts;
    size_t most = 0;
    int32_t begin = 0;
    do {
        const int32_t left = rows.count - begin;
        const int32_t count = request.cut > 0 ? std::min(request.cut, left) : left;
        const int32_t prompt = std::clamp(rows.prompt - begin, 0, count);
        Arena plan(nullptr, 0);
        Exec ex{plan, prompt};
        call(ex, begin, count);
        cuts.push_back({begin, count, prompt, plan.peak_bytes()});
        most = std::max(most, plan.peak_bytes());
        begin += count;
    } while (begin < rows.count);

    ArenaMemory memory(most);
    const auto run = [&] {
        for (const Cut& cut : cuts) {
            if (request.repeats == 0) memory.fill(request.poison);
            Arena arena(memory.base(), most);
            Exec ex{arena, cut.prompt};
            call(ex, cut.begin, cut.count);
            if (arena.peak_bytes() != cut.peak)
                outputs.faults.push_back("the plan took " + std::to_string(cut.peak) +
                                         " bytes, the run " + std::to_string(arena.peak_bytes()));
        }
    };
    const auto start = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < std::max(request.repeats, 1); ++i) run();
    outputs.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!memory.intact()) outputs.faults.push_back("memory behind the arena overwritten");
}

void read_input(const GemmInput& input, std::vector<float>& values) {
    for (const ActViews* part : {&input.prompt, &input.generated}) {
        int64_t rows = 0;
        for (const ActView& view : *part)
            if (!view.values.absent()) rows = view.values.rows();
        for (int64_t t = 0; t < rows; ++t)
            for (const ActView& view : *part)
                if (!view.values.absent()) read_view_row(view, t, input.cols, values);
    }
}

}  // namespace tessera::op_cases
