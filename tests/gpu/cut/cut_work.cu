#include "backends/cuda/linear/gemm_sm90_operands.cuh"
#include "gpu/cut/cut_work.h"

namespace tessera {

CutWork cut_work(const CutProduct& product, int64_t rows, int64_t clusters) {
    namespace sm90 = cuda::sm90;
    const int own = product.gated ? sm90::kOwnFeatures<true> : sm90::kOwnFeatures<false>;
    const int64_t tiles = cuda::ceil_div(product.features, int64_t{own} * sm90::kBlocks);
    sm90::Operands p{};
    p.rows = rows;
    p.cut = sm90::cut_tiles(rows, tiles, product.columns, clusters, !product.gated);
    const sm90::Chunks& chunks = p.cut.chunks;
    CutWork all{.feature_tiles = static_cast<int32_t>(tiles),
                .stages = chunks.stages,
                .chunks = chunks.count,
                .first = chunks.first,
                .place_bytes = sm90::kBlocks * sm90::sum_bytes(p.cut.tile),
                .sums_bytes = sm90::sums_bytes(p.cut, clusters, !product.gated),
                .most_sums_bytes = sm90::kSumsBytes,
                .work = {}};
    for (int index = 0; index < p.cut.items; ++index) {
        const sm90::Item item = sm90::item_of(p, index);
        if (item.token >= rows) continue;
        for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
            const int32_t first = chunk * chunks.each;
            all.work.push_back({.feature = item.feature,
                                .token = item.token,
                                .end = item.end,
                                .count = item.count,
                                .first_stage = first,
                                .end_stage = first + sm90::stages_of(p, item, chunk),
                                .place = item.place,
                                .last = chunk + 1 == item.end_chunk});
        }
    }
    return all;
}

}  // namespace tessera
