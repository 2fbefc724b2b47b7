#pragma once
// The product of NVFP4 and MXFP4 weights with NVFP4 rows, for cards with FP4 tensor cores.

#include "backends/cuda/linear/product.cuh"

namespace tessera::cuda {

/// Rows of x in NVFP4: value = e2m1 * ue4m3 of its 16 columns * the row's f32.
struct Fp4Rows {
    const uint8_t* codes;     ///< [rows][k / 2]: column 2j in the lower half of byte j
    const uint8_t* scales;    ///< [rows][k / 16], codes 0 to 0x7e; aligned to 4 bytes
    const float* row_scales;  ///< [rows]; a row that holds a NaN has NaN here
};

/// The product of `product`, of kNVFP4 or kMXFP4, with `x` for its rows; `product.x` and `x_scales`
/// do not matter. Plain, or grouped: of pairs [0, end_pair), without bias, not to what is there.
/// Columns are a multiple of 64, codes are aligned to 16 bytes and rows of them multiples of 32
/// bytes, scales of the weight aligned to 4 bytes. A scale 0x7f of NVFP4 counts as 0. MXFP4 takes
/// `row_factors` (Weight::row_factors): blocks whose scale is below 2^-17 of their row's largest
/// count as 0. Sums in f32 over instructions of 64 columns, in the order of the columns, whatever
/// the tiles. Tiles of 256 x 128, 128 x 128, 128 x 64 features by tokens; grouped ones of the last
/// two. `Mma`: the instruction, of cards with FP4 tensor cores, or what stands for it on Hopper
/// (ptx/fp4_mma.cuh).
template <class Mma>
void run_gemm_nvfp4_sm120(Device& device, const Product& product, DType format, const Fp4Rows& x);
/// act(gate) * up of two such weights, as run_glu_sm90; both with `row_factors` where MXFP4. Tiles
/// of 128 features of both by 128 tokens. The sums are those of two products. Grouped as above,
/// into bf16 rows [all pairs, n]; by 128 or 64 tokens.
template <class Mma>
void run_glu_nvfp4_sm120(
    Device& device, const Product& gate, const GluProduct& with, DType format, const Fp4Rows& x);

struct NativeFp4Mma;
struct EmulatedFp4Mma;

}  // namespace tessera::cuda
