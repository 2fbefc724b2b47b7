#pragma once
// The product of gemm_nvfp4_sm120.cuh on the card, with the instruction or with what stands for it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/codec.h"
#include "fp4_operands.h"

namespace tessera {

enum class Fp4Instruction : uint8_t {
    kEmulated,
    kDelayed,  ///< emulated, and every warp waits for times that differ before it goes on
    kNative    ///< cards with FP4 tensor cores only
};

/// Of the tiles that the kernel has (sm120::kTiles).
inline constexpr int kFp4Tiles = 3;

/// The matrices of experts that rows of x meet: the rows of a weight are so many matrices. Pair p
/// is of row p / pairs_per_row of x and has row p of the result; those of expert e are
/// pairs[starts[e]] to pairs[starts[e + 1] - 1], ascending. Those from end_pair on are not
/// prompts'.
struct Fp4Groups {
    std::vector<int32_t> pairs, starts;
    std::vector<float> outers;  ///< of experts
    int32_t pairs_per_row = 1;
    int32_t end_pair = 0;
};

struct Fp4Problem {
    const Fp4Matrix& weight;
    const Fp4Matrix& x;
    const std::vector<float>& row_scales;
    float outer = 1.0f;
    std::vector<float> bias;  ///< or empty
    std::vector<float> out;   ///< [x.rows][out_stride], what is there before
    int64_t out_stride = 0;
    bool add = false;
};

/// `out` after the product, in tiles of one size or of that which the kernel chooses. `seed`: of
/// the delays of kDelayed.
std::vector<float> multiply_fp4(const Fp4Problem& problem,
                                Fp4Instruction instruction,
                                std::optional<int> tile,
                                uint32_t seed = 0);

/// The same of pairs, without bias and sum, in tiles of 64 or 128 tokens; `problem.outer` does not
/// matter.
std::vector<float> multiply_fp4_groups(const Fp4Problem& problem,
                                       const Fp4Groups& groups,
                                       Fp4Instruction instruction,
                                       int tokens);

/// Rows of x in the form that the product takes.
struct Fp4Quantized {
    std::vector<uint8_t> codes;   ///< [rows][cols / 2]
    std::vector<uint8_t> scales;  ///< [rows][cols / 16]
    std::vector<float> row_scales;
};
/// By the kernel of rows/scaled_rows.cuh.
Fp4Quantized quantize_fp4(const std::vector<float>& x,
                          int64_t rows,
                          int64_t cols,
                          Nvfp4Policy policy);

/// What the probes of the instructions find (linear/fp4_self_test.h), of what stands for them, or
/// of a product that takes its scales from other lanes and a conversion that rounds ties up.
enum class Fp4Probed : uint8_t { kEmulated, kNative, kWrong };
std::vector<std::string> probe_fp4(Fp4Probed probed);

/// Whether the card multiplies FP4.
bool card_multiplies_fp4();

}  // namespace tessera
