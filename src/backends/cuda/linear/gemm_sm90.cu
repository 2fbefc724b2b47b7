// Launches of gemm_sm90.cuh: maps for the copy engine, and the choice of tiles.
#include <cuda.h>

#include <array>

#include "backends/cuda/linear/gemm_sm90.cuh"
#include "backends/cuda/linear/product.cuh"

namespace tessera::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking to the driver.
EncodeTiled encode_tiled() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found),
               "looking for cuTensorMapEncodeTiled");
    check(function != nullptr, "the driver lacks cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(function);
}

struct Matrix {
    const void* data;
    int64_t rows, cols, row_bytes;
};

CUtensorMap map_of(const Matrix& matrix,
                   CUtensorMapDataType type,
                   CUtensorMapSwizzle swizzle,
                   std::array<cuuint32_t, 2> box) {
    static const EncodeTiled encode = encode_tiled();
    CUtensorMap map;
    const cuuint64_t extents[] = {static_cast<cuuint64_t>(matrix.cols),
                                  static_cast<cuuint64_t>(matrix.rows)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.row_bytes)};
    const cuuint32_t steps[] = {1, 1};
    const CUresult status =
        encode(&map, type, 2, const_cast<void*>(matrix.data), extents, strides, box.data(), steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    check(status == CUDA_SUCCESS, "a map for the copy engine");
    return map;
}

/// Tiles of 2 * kFeatures rows of the weight by `tile` rows of x. What is left after the last full
/// round of all clusters is cut into `pieces`.
struct Tiling {
    int max;  ///< tokens that the kernel has room for
    int tile;
    int pieces;
};

/// Time of a stage of so many tokens, that of 256 being 1 (measured: decoding the weight takes half
/// of it whatever the tokens).
double stage_cost(int tokens) {
    return tokens == 256 ? 1.0 : tokens == 128 ? 0.62 : 0.5;
}

double cost_of(const Tiling& tiling, const Product& p, int64_t clusters) {
    const int64_t tiles = ceil_div(p.rows, tiling.tile) * ceil_div(p.n, 2 * sm90::kFeatures);
    const int64_t whole = tiling.pieces == 1 ? tiles : tiles / clusters * clusters;
    const int64_t cut = (tiles - whole) * tiling.pieces;
    return static_cast<double>(ceil_div(whole, clusters)) * stage_cost(tiling.tile) +
           static_cast<double>(ceil_div(cut, clusters)) * stage_cost(tiling.tile / tiling.pieces);
}

Tiling choose(const Product& p, int64_t clusters) {
    constexpr Tiling kTilings[] = {{256, 256, 1}, {256, 256, 2}, {256, 256, 4},
                                   {128, 128, 1}, {128, 128, 2}, {128, 64, 1}};
    Tiling best = kTilings[0];
    for (const Tiling& tiling : kTilings)
        if (cost_of(tiling, p, clusters) < cost_of(best, p, clusters)) best = tiling;
    return best;
}

template <int Max>
void launch(Device& device,
            const CUtensorMap& x,
            const CUtensorMap& weight,
            const sm90::Operands& operands,
            int64_t clusters) {
    const int64_t used = std::min<int64_t>(operands.items, clusters);
    device.launch("gemm_sm90", sm90::kernel<Max, 2>, dim3(static_cast<unsigned>(2 * used)),
                  dim3(sm90::kThreads), sizeof(sm90::Shared<Max>), x, weight, operands);
}

}  // namespace

void run_gemm_sm90(Device& device, const Product& p) {
    const int64_t clusters = device.multiprocessors() / 2;
    const Tiling tiling = choose(p, clusters);
    const int64_t token_tiles = ceil_div(p.rows, tiling.tile);
    const int64_t tiles = token_tiles * ceil_div(p.n, 2 * sm90::kFeatures);
    const int64_t whole = tiling.pieces == 1 ? tiles : tiles / clusters * clusters;
    const int64_t items = whole + (tiles - whole) * tiling.pieces;
    check(items <= INT32_MAX, "more tiles than 32 bits count");
    const sm90::Operands operands{
        .scales = p.scales,
        .outer = p.outer,
        .bias = p.bias,
        .out = p.out,
        .out_stride = p.out_stride,
        .n = p.n,
        .rows = p.rows,
        .units = p.units,
        .add = p.add,
        .scales_aligned =
            p.units % 4 == 0 && reinterpret_cast<uintptr_t>(p.scales) % sizeof(uint2) == 0,
        .steps = static_cast<int32_t>(ceil_div(p.units, sm90::kStageUnits)),
        .tile = tiling.tile,
        .token_tiles = static_cast<int32_t>(token_tiles),
        .whole = static_cast<int32_t>(whole),
        .pieces = tiling.pieces,
        .items = static_cast<int32_t>(items)};
    const CUtensorMap x =
        map_of({p.x, p.rows, p.k, p.x_stride * 2}, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               CU_TENSOR_MAP_SWIZZLE_128B, {sm90::kHalfColumns, sm90::kBoxRows});
    const int64_t row_bytes = p.units * kPieceBytes;
    const CUtensorMap weight =
        map_of({p.codes, p.n, row_bytes, row_bytes}, CU_TENSOR_MAP_DATA_TYPE_UINT8,
               CU_TENSOR_MAP_SWIZZLE_64B, {sm90::kWeightRowBytes, sm90::kFeatures});
    if (tiling.max == 256)
        launch<256>(device, x, weight, operands, clusters);
    else
        launch<128>(device, x, weight, operands, clusters);
}

}  // namespace tessera::cuda
