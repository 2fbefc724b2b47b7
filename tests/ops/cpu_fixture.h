#pragma once
// What the tests of the CPU backend share: a backend with memory, random operands, comparisons.

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "core/error.h"

namespace tessera::cpu {

/// A backend with memory for operands and scratch.
class Bench {
  public:
    explicit Bench(const std::string& isa, int32_t threads = 1)
        : ops_(options_of(isa, threads)), arena_(ops_.allocate(kBytes), kBytes), random_(7) {}

    CpuOps& ops() { return ops_; }
    Arena& arena() { return arena_; }
    Exec exec(int32_t prompt_rows) { return {arena_, prompt_rows}; }
    Tensor floats(std::initializer_list<int64_t> shape, float scale = 1.0f) {
        const Tensor out = arena_.allocate(DType::kF32, shape);
        std::normal_distribution<float> normal(0.0f, scale);
        for (int64_t i = 0; i < out.elements(); ++i) out.as<float>()[i] = normal(random_);
        return out;
    }
    Tensor ints(const std::vector<int32_t>& values) {
        const Tensor out = arena_.allocate(DType::kI32, {static_cast<int64_t>(values.size())});
        std::copy(values.begin(), values.end(), out.as<int32_t>());
        return out;
    }
    Tensor make(DType dtype, std::initializer_list<int64_t> shape) {
        const Tensor out = arena_.allocate(dtype, shape);
        std::memset(out.data, 0, static_cast<size_t>(dtype_bytes(dtype, out.elements())));
        return out;
    }

  private:
    static CpuOptions options_of(const std::string& isa, int32_t threads) {
        CpuOptions out;
        out.threads = threads;
        out.isa = isa;
        return out;
    }
    static constexpr size_t kBytes = size_t{96} << 20;
    CpuOps ops_;
    Arena arena_;
    std::mt19937 random_;
};

/// Every instruction set that this machine has.
inline const std::vector<std::string>& sets() {
    static const std::vector<std::string> kSets = [] {
        std::vector<std::string> out;
        for (const char* name : {"scalar", "neon", "avx2", "avx512", "amx"}) {
            try {
                if (isa_name(pick_isa(name)) == name) out.emplace_back(name);
            } catch (const UserError&) {
                continue;  // another architecture's set
            }
        }
        return out;
    }();
    return kSets;
}

inline std::vector<float> values_of(const Tensor& x) {
    return {x.as<float>(), x.as<float>() + x.elements()};
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
    return std::memcmp(a.data, b.data, static_cast<size_t>(dtype_bytes(a.dtype, a.elements()))) ==
           0;
}

}  // namespace tessera::cpu
