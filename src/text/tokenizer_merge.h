#pragma once
// The merging loop that byte-level BPE and SentencePiece-style BPE share: of all neighbours that
// may merge, the pair of the lowest rank does (the leftmost of equals), until none is left.
// (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016.)
// Short inputs, which are nearly all, scan an array; long ones use a heap of (rank, position), so
// that a megabyte without a word boundary costs n log n. Both give the same result.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera {

/// The rank of a pair that does not merge.
inline constexpr uint32_t kNoMerge = UINT32_MAX;

/// What a pair merges into: lower ranks first.
struct Merge {
    uint32_t rank = kNoMerge;
    int32_t id = -1;
};

/// A stretch of the input: `length` bytes from `begin`, token `id` (-1: not a token).
struct MergeSymbol {
    uint32_t begin = 0;
    uint32_t length = 0;
    int32_t id = -1;
    Merge with_next;  ///< kept by the merging loop
};

/// Memory of the merging loop, kept between calls.
struct MergeScratch {
    std::vector<uint64_t> heap;
    std::vector<int32_t> previous;
    std::vector<int32_t> next;
};

/// Symbols from which the heap is used; measured to be about even at 64.
inline constexpr size_t kHeapSymbols = 64;

template <class PairMerge>
void merge_by_scan(std::vector<MergeSymbol>& symbols, const PairMerge& pair_merge) {
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
        symbols[i].with_next = pair_merge(symbols[i], symbols[i + 1]);
    size_t count = symbols.size();
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; ++i) {
            if (symbols[i].with_next.rank < symbols[best].with_next.rank) best = i;
        }
        MergeSymbol& left = symbols[best];
        if (left.with_next.rank == kNoMerge) break;
        left.id = left.with_next.id;
        left.length += symbols[best + 1].length;
        std::move(symbols.begin() + static_cast<ptrdiff_t>(best) + 2,
                  symbols.begin() + static_cast<ptrdiff_t>(count),
                  symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
        --count;
        if (best > 0) symbols[best - 1].with_next = pair_merge(symbols[best - 1], left);
        left.with_next = best + 1 < count ? pair_merge(left, symbols[best + 1]) : Merge{};
    }
    symbols.resize(count);
}

template <class PairMerge>
void merge_by_heap(std::vector<MergeSymbol>& symbols,
                   const PairMerge& pair_merge,
                   MergeScratch& scratch) {
    const size_t count = symbols.size();
    std::vector<uint64_t>& heap = scratch.heap;
    std::vector<int32_t>& previous = scratch.previous;
    std::vector<int32_t>& next = scratch.next;
    heap.clear();
    previous.resize(count);
    next.resize(count);
    const auto add = [&heap](uint32_t rank, size_t at) {
        heap.push_back(uint64_t{rank} << 32 | at);
    };
    const auto refresh = [&](int32_t at, int32_t after) {
        MergeSymbol& symbol = symbols[static_cast<size_t>(at)];
        symbol.with_next =
            after < 0 ? Merge{} : pair_merge(symbol, symbols[static_cast<size_t>(after)]);
        if (symbol.with_next.rank != kNoMerge) add(symbol.with_next.rank, static_cast<size_t>(at));
        return symbol.with_next.rank != kNoMerge;
    };
    for (size_t i = 0; i < count; ++i) {
        previous[i] = static_cast<int32_t>(i) - 1;
        next[i] = i + 1 < count ? static_cast<int32_t>(i + 1) : -1;
        refresh(static_cast<int32_t>(i), next[i]);
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    while (!heap.empty()) {
        const auto rank = static_cast<uint32_t>(heap.front() >> 32);
        const auto at = static_cast<int32_t>(heap.front() & UINT32_MAX);
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.pop_back();
        MergeSymbol& left = symbols[static_cast<size_t>(at)];
        // A pair that changed since it was queued has another rank, or was queued again.
        if (left.length == 0 || left.with_next.rank != rank) continue;
        const int32_t right = next[static_cast<size_t>(at)];
        left.id = left.with_next.id;
        left.length += symbols[static_cast<size_t>(right)].length;
        symbols[static_cast<size_t>(right)].length = 0;
        const int32_t after = next[static_cast<size_t>(right)];
        next[static_cast<size_t>(at)] = after;
        if (after >= 0) previous[static_cast<size_t>(after)] = at;
        const int32_t before = previous[static_cast<size_t>(at)];
        if (before >= 0 && refresh(before, at))
            std::push_heap(heap.begin(), heap.end(), std::greater<>());
        if (refresh(at, after)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    std::erase_if(symbols, [](const MergeSymbol& symbol) { return symbol.length == 0; });
}

/// Merges `symbols` in place. `pair_merge(left, right)` says what two neighbours merge into.
template <class PairMerge>
void merge_symbols(std::vector<MergeSymbol>& symbols,
                   const PairMerge& pair_merge,
                   MergeScratch& scratch) {
    if (symbols.size() < kHeapSymbols)
        merge_by_scan(symbols, pair_merge);
    else
        merge_by_heap(symbols, pair_merge, scratch);
}

}  // namespace tessera
