// Producers of inputs whose rows have a scale: launches of scaled_rows.cuh.

#include "backends/cuda/rows/input.h"
#include "backends/cuda/rows/row_map.h"
#include "backends/cuda/rows/scaled_rows.cuh"

namespace tessera::cuda {
namespace {

/// Whether rows of `heads` side by side lie a stride apart.
bool evenly(const rows::RowMap<const float>& map, uint32_t heads) {
    const uint32_t inner = map.extent[0].divisor;
    return (inner == 1 && map.extent[1].divisor == 1) || inner == heads;
}
bool evenly(const rows::ScaledNorm&) {
    return true;
}
bool evenly(const rows::ScaledGatedNorm& work) {
    return evenly(work.x, work.heads) && evenly(work.z, work.heads);
}
bool evenly(const rows::ScaledGlu& work) {
    return evenly(work.gate, work.heads) && evenly(work.up, work.heads);
}

/// Threads of a block whose registers a row fills exactly in whole_rows_kernel; 0: it does not.
template <class Work>
int64_t whole_threads(const Work& work) {
    constexpr int64_t kColumns = 4 * 32 * Work::kHeld;
    const int64_t threads = work.sink.cols / kColumns * 32;
    const bool fits = work.sink.cols % kColumns == 0 && threads <= Work::kWholeThreads;
    return fits && work.vector && evenly(work) ? threads : 0;
}
template <class Work>
void launch_whole(Device& device, std::string_view name, const Work& work, int64_t rows) {
    device.launch(name, rows::whole_rows_kernel<Work>, dim3(static_cast<uint32_t>(rows)),
                  dim3(static_cast<uint32_t>(whole_threads(work))), 0, work);
}

/// Rows of any length, `held` fours a thread where a block has so many.
template <class Work>
void launch_any(
    Device& device, std::string_view name, const Work& work, int64_t rows, int64_t held) {
    const int64_t threads = ceil_div(ceil_div(work.sink.cols, 4), 32 * held) * 32;
    device.launch(name, rows::scaled_rows_kernel<Work>, dim3(static_cast<uint32_t>(rows)),
                  dim3(static_cast<uint32_t>(std::min<int64_t>(threads, rows::kScaledMaxThreads))),
                  0, work);
}

template <class Work>
void launch_scaled(Device& device, std::string_view name, const Work& work, int64_t rows) {
    if (!work.sink.transposed_quads) return launch_any(device, name, work, rows, rows::kScaledHeld);
    if (whole_threads(work) > 0) return launch_whole(device, name, work, rows);
    // The columns of a thread as there, so that both kernels give the same bits.
    const bool as_whole = work.sink.cols <= 4 * Work::kHeld * Work::kWholeThreads;
    launch_any(device, name, work, rows, as_whole ? Work::kHeld : rows::kScaledHeld);
}

const float* values_of(const Tensor& gain) {
    return gain.absent() ? nullptr : gain.as<float>();
}

rows::ScaledGatedNorm gated_norm(const ScaledNormOperands& of,
                                 const GemmInput& input,
                                 int64_t prompt_rows) {
    rows::ScaledGatedNorm work;
    work.x = rows::row_map<const float>(of.x);
    work.z = rows::row_map<const float>(of.z);
    work.gain = values_of(of.gain);
    work.eps = of.eps;
    work.heads = static_cast<uint32_t>(of.x.shape[1]);
    work.sink = rows::sink_of(input, prompt_rows);
    work.vector = rows::aligned(of.x) && rows::aligned(of.gain) && rows::aligned(of.z);
    return work;
}

}  // namespace

void store_scaled(Device& device, const Tensor& x, const GemmInput& input, ScaledStore how) {
    rows::ScaledCopy<float> work;
    work.x = rows::row_map<const float>(x);
    work.sink = rows::sink_of(input, how.prompt_rows);
    // What stands there already.
    if (how.f32_is_x) work.sink.f32[0] = work.sink.f32[1] = nullptr;
    work.vector = rows::aligned(x);
    launch_any(device, "prepare_scaled", work, x.rows(), rows::kScaledHeld);
}

void store_rounded(Device& device, const Tensor& x, const GemmInput& input) {
    check(x.contiguous(), "rows of bf16 for rows with scales");
    const ActView& view = input.prompt[0];
    if (view.format != ActFormat::kFp8) {
        rows::ScaledCopy<__nv_bfloat16> work;
        work.x = rows::row_map<const __nv_bfloat16>(x);
        work.sink = rows::sink_of(input, x.rows());
        work.vector = x.cols() % 4 == 0;
        return launch_any(device, "rounded_rows_scaled", work, x.rows(), rows::kScaledHeld);
    }
    check(view.transposed_quads, "rows of bf16 for a product of e4m3");
    const auto eights = static_cast<int32_t>(x.cols() / 8);
    const auto threads =
        std::min<int64_t>(ceil_div(eights, 32 * rows::kRoundedHeld) * 32, rows::kRoundedThreads);
    device.launch("rounded_rows", rows::rounded_rows_kernel, dim3(static_cast<uint32_t>(x.rows())),
                  dim3(static_cast<uint32_t>(threads)), 0, x.as<const uint4>(), eights,
                  view.values.as<uint8_t>(), view.row_scales.as<float>());
}

void store_scaled_glu(Device& device,
                      const Tensor& gate,
                      const Tensor& up,
                      Glu kind,
                      const GemmInput& input,
                      int64_t prompt_rows) {
    rows::ScaledGlu work;
    work.gate = rows::row_map<const float>(gate);
    work.up = rows::row_map<const float>(up);
    work.kind = kind;
    work.cols = gate.cols();
    work.heads = static_cast<uint32_t>(input.cols / gate.cols());
    work.sink = rows::sink_of(input, prompt_rows);
    work.vector = rows::aligned(gate) && rows::aligned(up);
    launch_scaled(device, "glu_input_scaled", work, input.rows);
}

void store_scaled_norm(Device& device,
                       const ScaledNormOperands& of,
                       const GemmInput& input,
                       int64_t prompt_rows) {
    if (of.z.absent()) {
        rows::ScaledNorm work;
        work.x = rows::row_map<const float>(of.x);
        work.gain = values_of(of.gain);
        work.eps = of.eps;
        work.sink = rows::sink_of(input, prompt_rows);
        work.vector = rows::aligned(of.x) && rows::aligned(of.gain);
        launch_scaled(device, "rms_norm_input_scaled", work, input.rows);
        return;
    }
    launch_scaled(device, "gated_norm_input_scaled", gated_norm(of, input, prompt_rows),
                  input.rows);
}

bool store_gated_norm(Device& device,
                      const ScaledNormOperands& of,
                      const GemmInput& input,
                      int64_t prompt_rows) {
    // Fewer rows spread better over more blocks; the results are the same.
    if (!scaled_gated_norm_fits(of.x) || input.rows < device.multiprocessors()) return false;
    const rows::ScaledGatedNorm work = gated_norm(of, input, prompt_rows);
    if (whole_threads(work) == 0) return false;
    launch_whole(device, "gated_rms_norm_input", work, input.rows);
    return true;
}

bool scaled_gated_norm_fits(const Tensor& x) {
    return x.cols() == rows::kScaledHead;
}

}  // namespace tessera::cuda
