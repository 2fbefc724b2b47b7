#pragma once
// The tokens of one forward pass and the key/value memory that they read and extend.

#include <cstdint>

#include "core/tensor.h"

namespace tessera {

/// Tokens in a page of key/value memory.
inline constexpr int32_t kPageTokens = 64;
/// Tokens in a chunk of the gated delta rule. Chunks lie at absolute multiples of it, so that no
/// result depends on how a prompt is cut into passes that end at such multiples.
inline constexpr int32_t kChunkTokens = 64;

/// Ragged tokens of several sequences, concatenated; all prompt rows come before all generated
/// rows, so a sequence is wholly one or the other. Device tensors plus host bounds, so that a
/// captured graph reads no length on the host.
struct Batch {
    Tensor tokens;      ///< I32 [T] ids
    Tensor positions;   ///< I32 [T] absolute position of each token in its sequence
    Tensor seq_start;   ///< I32 [S+1] first row of each sequence; seq_start[S] = T
    Tensor page_table;  ///< I32 [S, max_pages] physical page of tokens [64 i, 64 i + 64) of each
                        ///< sequence
    Tensor outputs;     ///< I32 [M] rows whose final hidden state is wanted, ascending; M may be 0
    int32_t prompt_rows = 0;
    int32_t prompt_outputs = 0;  ///< entries of `outputs` that are prompt rows
    int32_t max_visible = 0;     ///< upper bound on position + 1 over the batch

    // Recurrent memory; absent for models without.
    Tensor slots{};           ///< I32 [S] slot of each sequence in every RecurrentView
    Tensor save_slots{};      ///< I32 [S] slot that receives a copy at save_positions[s], -1: none
    Tensor save_positions{};  ///< I32 [S] a multiple of kChunkTokens inside (first, last + 1] of
                              ///< the sequence's positions in this batch, prompt rows only
    bool tentative = false;   ///< generated rows only: recurrent memory is read, not changed; what
                              ///< `accept_recurrent` needs is logged
    int32_t row_count() const { return static_cast<int32_t>(tokens.shape[0]); }
    int32_t sequence_count() const { return static_cast<int32_t>(seq_start.shape[0]) - 1; }
};

/// One layer's key/value pages, [pages, kv_heads, kPageTokens, head_size], in F32, F16, BF16,
/// F8_E4M3 or Q8_0 (blocks along head_size). F8_E4M3 has no scales: the values are rounded as they
/// are, and what is over 448 saturates; 8-bit pages that adapt to their values are Q8_0. Token p of
/// a sequence lives in page page_table[s, p / 64] at offset p % 64.
struct KvView {
    Tensor keys;
    Tensor values;
};

/// One layer's recurrent memory, F32: a slot per open sequence (and per checkpoint). A sequence
/// whose first row in a batch has position 0 starts from zeros, whatever its slot holds (a
/// tentative batch zeroes the slot then, so that accepting goes on from zeros). The logs hold the
/// inputs of the last tentative batch of each slot, for `accept_recurrent`; at most R rows a
/// sequence. Slots of sequences come first; slots behind them hold checkpoints and have no log.
struct RecurrentView {
    Tensor conv;       ///< [slots, channels, taps - 1] last inputs of the convolution, oldest first
    Tensor state;      ///< [slots, value heads, value size, key size]
    Tensor conv_log;   ///< [sequences, R, channels]
    Tensor delta_log;  ///< [sequences, R, key heads * key size + value heads * (value size + 2)]:
                       ///< k, v, log decay, beta
};

}  // namespace tessera
