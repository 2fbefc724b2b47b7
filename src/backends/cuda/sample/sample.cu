// Draws: the host sorts rows by what they need (largest logit, a sorted prefix, a sorted
// vocabulary) and hands their parameters over; penalties are functions of counts by token and
// applied wherever a logit is read, so that no row is copied. All memory follows from the shape:
// histories come in pieces of one size, and every row could be of every kind.
#include <algorithm>
#include <vector>

#include "backends/cuda/sample/logit_rows.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;
/// Tokens of histories that are counted by one launch: a row and an id each.
constexpr int64_t kPieceTokens = 4096;

__global__ void count_tokens(const int32_t* row_ids,
                             int32_t tokens,
                             int64_t vocabulary,
                             int32_t* counts) {
    const int32_t i = static_cast<int32_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= tokens) return;
    atomicAdd(counts + row_ids[2 * i] * vocabulary + row_ids[2 * i + 1], 1);
}

bool penalizes(const SampleParams& params) {
    return params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f ||
           params.presence_penalty != 0.0f;
}

RowParams row_params(const SampleParams& params,
                     std::span<const int32_t> history,
                     float uniform,
                     int64_t vocabulary) {
    const int64_t wanted =
        params.top_k > 0 ? std::min<int64_t>(params.top_k, vocabulary) : vocabulary;
    Choice choice = wanted <= kMaxPrefix ? Choice::kPrefix : Choice::kWhole;
    if (!(params.temperature > 0.0f)) choice = Choice::kGreedy;
    return {.choice = choice,
            .wanted = static_cast<int32_t>(wanted),
            .penalized = penalizes(params) && !history.empty(),
            .temperature = params.temperature,
            .top_p = params.top_p,
            .min_p = params.min_p,
            .repeat_penalty = params.repeat_penalty,
            .frequency_penalty = params.frequency_penalty,
            .presence_penalty = params.presence_penalty,
            .uniform = uniform};
}

/// Counts the tokens of the penalized rows.
void count_histories(CudaOps& ops,
                     Device& device,
                     Exec& ex,
                     std::span<const RowParams> params,
                     std::span<const std::span<const int32_t>> history,
                     const Tensor& counts) {
    if (std::ranges::none_of(params, [](const RowParams& row) { return row.penalized != 0; }))
        return;
    check_cuda(
        cudaMemsetAsync(counts.data, 0, static_cast<size_t>(counts.elements()) * sizeof(int32_t),
                        device.stream()),
        "zeroing of counts");
    std::vector<int32_t> piece;
    piece.reserve(2 * kPieceTokens);
    const auto count_piece = [&] {
        if (piece.empty()) return;
        const Scope scope(ex.arena);
        const auto words = static_cast<int64_t>(piece.size());
        const Tensor staged = ops.stage(ex, make_tensor(piece.data(), DType::kI32, {words}));
        const auto tokens = static_cast<int32_t>(words / 2);
        device.launch("count_tokens", count_tokens,
                      dim3(static_cast<unsigned>(ceil_div(tokens, kThreads))), dim3(kThreads), 0,
                      staged.as<int32_t>(), tokens, counts.cols(), counts.as<int32_t>());
        piece.clear();
    };
    for (size_t row = 0; row < params.size(); ++row) {
        if (params[row].penalized == 0) continue;
        for (const int32_t id : history[row]) {
            if (id < 0 || id >= counts.cols()) continue;
            piece.push_back(static_cast<int32_t>(row));
            piece.push_back(id);
            if (piece.size() == 2 * kPieceTokens) count_piece();
        }
    }
    count_piece();
}

Candidates allocate_list(Exec& ex, int64_t entries) {
    const auto count = static_cast<size_t>(entries);
    std::byte* keys = ex.arena.allocate_bytes(count * sizeof(uint64_t));
    std::byte* ids = ex.arena.allocate_bytes(count * sizeof(int32_t));
    return {.keys = reinterpret_cast<uint64_t*>(keys), .ids = reinterpret_cast<int32_t*>(ids)};
}

/// One call: rows of logits, the host's copy of their parameters, the results.
struct Draws {
    Device& device;
    Exec& ex;
    LogitRows rows;
    std::span<const RowParams> params;
    int32_t* nan_rows;
    int32_t* ids;

    int64_t row_count() const { return static_cast<int64_t>(params.size()); }
    bool has(Choice choice) const {
        return std::ranges::any_of(params,
                                   [choice](const RowParams& row) { return row.choice == choice; });
    }
};

void draw_greedy(const Draws& draws) {
    const Scope scope(draws.ex.arena);
    const int64_t segments = best_segments(draws.rows.vocabulary);
    std::byte* bests = draws.ex.arena.allocate_bytes(
        static_cast<size_t>(draws.row_count() * segments) * sizeof(Best));
    if (draws.ex.planning() || !draws.has(Choice::kGreedy)) return;
    choose_greedy(draws.device, draws.rows, draws.row_count(), reinterpret_cast<Best*>(bests),
                  draws.ids);
}

void draw_prefix(const Draws& draws) {
    const Scope scope(draws.ex.arena);
    PrefixWork work{.lists = {}, .nan_rows = draws.nan_rows};
    for (int32_t which = 0; which < 2; ++which)
        work.lists[which] = allocate_list(
            draws.ex, prefix_entries(draws.row_count(), draws.rows.vocabulary, which));
    if (draws.ex.planning() || !draws.has(Choice::kPrefix)) return;
    int32_t longest = 0;
    for (const RowParams& row : draws.params)
        if (row.choice == Choice::kPrefix) longest = std::max(longest, row.wanted);
    choose_from_prefix(draws.device, draws.rows, draws.row_count(), longest, work, draws.ids);
}

void draw_whole(const Draws& draws) {
    const int64_t vocabulary = draws.rows.vocabulary;
    if (vocabulary <= kMaxPrefix) return;
    const Scope scope(draws.ex.arena);
    WholeWork work{
        .lists = {allocate_list(draws.ex, vocabulary), allocate_list(draws.ex, vocabulary)},
        .sort_memory = nullptr,
        .sort_bytes = whole_sort_bytes(vocabulary),
        .kept = draws.ex.arena.allocate(DType::kI32, {1}).as<int32_t>(),
        .nan_rows = draws.nan_rows};
    work.sort_memory = draws.ex.arena.allocate_bytes(work.sort_bytes);
    if (draws.ex.planning()) return;
    for (int64_t row = 0; row < draws.row_count(); ++row) {
        const RowParams& params = draws.params[static_cast<size_t>(row)];
        if (params.choice == Choice::kWhole)
            choose_from_whole(draws.device, draws.rows, row, params, work, draws.ids);
    }
}

}  // namespace

void CudaOps::sample(Exec& ex,
                     const Tensor& logits,
                     std::span<const SampleParams> params,
                     std::span<const std::span<const int32_t>> history,
                     std::span<const float> uniforms,
                     const Tensor& ids) {
    check(logits.rank == 2 && ids.rows() == logits.rows(), "sample: shapes");
    const int64_t vocabulary = logits.cols();
    const auto row_count = static_cast<size_t>(logits.rows());
    if (logits.elements() == 0) return;
    std::vector<RowParams> host(row_count);
    if (!ex.planning()) {
        check(params.size() == row_count && history.size() == row_count &&
                  uniforms.size() == row_count,
              "sample: one set of parameters a row");
        for (size_t row = 0; row < row_count; ++row)
            host[row] = row_params(params[row], history[row], uniforms[row], vocabulary);
    }
    const Scope scope(ex.arena);
    const Tensor device_params =
        stage(ex, make_tensor(host.data(), DType::kI32, {logits.rows(), kRowParamWords}));
    const Tensor counts = ex.arena.allocate(DType::kI32, {logits.rows(), vocabulary});
    const Tensor nan_rows = ex.arena.allocate(DType::kI32, {logits.rows()});
    {
        // What a piece of a history takes; the plan knows of none.
        const Scope piece(ex.arena);
        ex.arena.allocate(DType::kI32, {2 * kPieceTokens});
    }
    const Draws draws{.device = *device_,
                      .ex = ex,
                      .rows = {.logits = logits.as<float>(),
                               .stride = logits.stride[0],
                               .vocabulary = vocabulary,
                               .params = device_params.as<RowParams>(),
                               .counts = counts.as<int32_t>()},
                      .params = host,
                      .nan_rows = nan_rows.as<int32_t>(),
                      .ids = ids.as<int32_t>()};
    if (ex.planning()) {
        draw_greedy(draws);
        draw_prefix(draws);
        draw_whole(draws);
        return;
    }
    const auto elements = static_cast<double>(logits.elements());
    const Timed timed(*this, "sample", 10 * elements, 4 * elements);
    check_cuda(cudaMemsetAsync(nan_rows.data, 0, row_count * sizeof(int32_t), device_->stream()),
               "zeroing of flags");
    count_histories(*this, *device_, ex, host, history, counts);
    draw_greedy(draws);
    draw_prefix(draws);
    draw_whole(draws);
}

}  // namespace tessera::cuda
