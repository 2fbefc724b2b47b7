// Memory, timing and recording of the CUDA backend, and the door by which the program enters this
// library.
#include <interface_hash.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#    include <nvtx3/nvToolsExt.h>
#    define TESSERA_RANGES 1
#else
#    define TESSERA_RANGES 0
#endif

#include <algorithm>
#include <array>

#include "backends/cuda/device.cuh"
#include "backends/cuda/entry.h"
#include "backends/cuda/linear/fp4_self_test.h"
#include "backends/cuda/rows/input.h"

namespace tessera::cuda {

/// Pairs of events around calls, read when somebody asks for the counts; what events themselves
/// take is not counted.
struct CudaOps::Timing {
    struct Span {
        size_t index;  ///< of the counter, known at the end of the call
        cudaEvent_t begin, end;
    };
    bool on = false;
    float empty = -1.0f;  ///< milliseconds from one event to the next where nothing lies between
    std::vector<Span> spans;
    std::vector<cudaEvent_t> idle;

    ~Timing() {
        forget();
        for (cudaEvent_t event : idle) cudaEventDestroy(event);
    }
    cudaEvent_t event() {
        if (idle.empty()) {
            cudaEvent_t fresh = nullptr;
            check_cuda(cudaEventCreate(&fresh), "making an event");
            return fresh;
        }
        cudaEvent_t taken = idle.back();
        idle.pop_back();
        return taken;
    }
    static float milliseconds(cudaEvent_t begin, cudaEvent_t end) {
        float between = 0.0f;
        check_cuda(cudaEventSynchronize(end), "waiting for an event");
        check_cuda(cudaEventElapsedTime(&between, begin, end), "timing");
        return between;
    }
    /// The median of some.
    void measure_empty(cudaStream_t stream) {
        std::array<cudaEvent_t, 34> events;
        for (cudaEvent_t& one : events) {
            one = event();
            check_cuda(cudaEventRecord(one, stream), "recording an event");
        }
        std::array<float, events.size() - 1> between;
        for (size_t i = 0; i < between.size(); ++i)
            between[i] = milliseconds(events[i], events[i + 1]);
        std::nth_element(between.begin(), between.begin() + between.size() / 2, between.end());
        empty = between[between.size() / 2];
        idle.insert(idle.end(), events.begin(), events.end());
    }
    void add_to(std::vector<OpCount>& counts) const {
        for (const Span& span : spans) {
            const float taken = milliseconds(span.begin, span.end) - empty;
            counts[span.index].seconds += static_cast<double>(std::max(taken, 0.0f)) * 1e-3;
        }
    }
    void forget() {
        for (const Span& span : spans) {
            idle.push_back(span.begin);
            idle.push_back(span.end);
        }
        spans.clear();
    }
};

CudaOps::CudaOps(const CudaOptions& options)
    : options_(options),
      name_(text("CUDA", options.device)),
      device_(std::make_unique<Device>(options)),
      timing_(std::make_unique<Timing>()),
      clamped_(reinterpret_cast<unsigned long long*>(device_->allocate(sizeof(*clamped_)))) {
    check_cuda(cudaMemsetAsync(clamped_, 0, sizeof(*clamped_), device_->stream()),
               "clearing a counter");
    const cudaDeviceProp& card = device_->properties();
    check(options.general || options.fp4_products != Fp4Products::kEmulated,
          "FP4 products are emulated beside general kernels");
    if (options.act_prompt == ActFormat::kFp8 && !device_->hopper_kernels())
        throw UserError(ExitCode::kUsage,
                        text("--act fp8 needs a Hopper card (H100, H200) and a build for sm_90a; ",
                             card.name, " takes auto, bf16 or f32 here"));
    if (options.fp4_products == Fp4Products::kEmulated && (!TESSERA_SM90A || card.major != 9))
        throw UserError(ExitCode::kUsage,
                        text("--emulate fp4 needs a Hopper card (H100, H200) and a build for "
                             "sm_90a; ",
                             card.name, " runs --act nvfp4 without it"));
    if (options.fp4_products != Fp4Products::kNative) return;
    if (!TESSERA_SM120F || card.major != 12) {
        options_.fp4_products = Fp4Products::kOff;
        return;
    }
    if (options.act_auto) options_.act_prompt = ActFormat::kNvfp4;
    // The kernel was written without such a card: it is asked before it is trusted.
    const bool asked = wants_fp4(wants(DType::kNVFP4, 1));
    if (asked && self_test().faults.empty()) return;
    options_.fp4_products = Fp4Products::kOff;
    // Nor is what rounds rows to NVFP4 trusted then.
    options_.act_prompt = asked ? ActFormat::kBF16 : options.act_prompt;
}

CudaOps::~CudaOps() = default;

std::string CudaOps::description() const {
    const cudaDeviceProp& card = device_->properties();
    return text(card.name, " (sm_", card.major, card.minor, ", ", card.multiProcessorCount,
                " multiprocessors, ", (card.totalGlobalMem + (size_t{1} << 29)) >> 30, " GiB)");
}

std::vector<std::string_view> CudaOps::overrides() const {
    return {"linear_many", "linear_glu",           "linear_experts_glu", "rms_norm_input",
            "glu_input",   "gated_rms_norm_input", "qk_norm_rope_store", "delta_net_input"};
}

SelfTest CudaOps::self_test() {
    if (options_.fp4_products == Fp4Products::kOff || !self_test_.checked.empty())
        return self_test_;
    const bool native = options_.fp4_products == Fp4Products::kNative;
    self_test_.checked = native ? "FP4 tensor cores" : "the FP4 product, its instruction emulated";
    try {
        if (native) self_test_.faults = check_fp4_instruction(*device_);
        if (self_test_.faults.empty()) {
            // Ops of their own give their memory back.
            CudaOptions options = options_;
            if (native) options.fp4_products = Fp4Products::kUnasked;
            CudaOps apart(options);
            self_test_.faults = check_fp4_product(apart, device_->multiprocessors());
        }
    } catch (const UserError& error) {
        // That another program has the card's memory says nothing about its products.
        if (error.code() == ExitCode::kMemory) {
            self_test_.checked.clear();
            throw;
        }
        // The card may not go on behind it: what comes next then says so, too.
        self_test_.faults.push_back(text(error.what(), "; --act bf16 does not ask the card"));
    }
    return self_test_;
}

void CudaOps::set_op_timing(bool on) {
    timing_->on = on;
    if (!on || timing_->empty >= 0.0f) return;
    device_->enter();
    timing_->measure_empty(device_->stream());
}

std::vector<OpCount> CudaOps::op_counts() const {
    std::vector<OpCount> counts = counts_;
    timing_->add_to(counts);
    unsigned long long clamped = 0;
    check_cuda(cudaMemcpyAsync(&clamped, clamped_, sizeof(clamped), cudaMemcpyDeviceToHost,
                               device_->stream()),
               "reading a counter");
    device_->synchronize();
    if (clamped > 0)
        counts.push_back(
            {.name = std::string(kDeltaSaturated), .calls = static_cast<int64_t>(clamped)});
    return counts;
}

void CudaOps::reset_op_counts() {
    timing_->forget();
    counts_.clear();
    check_cuda(cudaMemsetAsync(clamped_, 0, sizeof(*clamped_), device_->stream()),
               "clearing a counter");
}

void CudaOps::note_composed(const Exec& ex, std::string_view op, std::string_view fallback) {
    if (!ex.planning()) ++count_of(counts_, op, Operands::kF32, fallback).calls;
}

CudaOps::Timed::Timed(CudaOps& ops, std::string_view op, double flops, double bytes)
    : ops_(ops), name_(op), flops_(flops), bytes_(bytes), span_(SIZE_MAX) {
#if TESSERA_RANGES
    nvtxRangePushA(name_.c_str());
#endif
    ops.device_->take_notes();
    Timing& timing = *ops.timing_;
    if (!timing.on || ops.device_->capturing()) return;
    ops.device_->enter();
    const Timing::Span span{SIZE_MAX, timing.event(), timing.event()};
    check_cuda(cudaEventRecord(span.begin, ops.device_->stream()), "recording an event");
    timing.spans.push_back(span);
    span_ = timing.spans.size() - 1;
}

CudaOps::Timed::~Timed() {
#if TESSERA_RANGES
    nvtxRangePop();
#endif
    std::vector<Timing::Span>& spans = ops_.timing_->spans;
    const bool timed = span_ < spans.size();
    if (timed) cudaEventRecord(spans[span_].end, ops_.device_->stream());
    const LaunchNotes notes = ops_.device_->take_notes();
    OpCount& count = count_of(ops_.counts_, name_, notes.operands, notes.fallback);
    ++count.calls;
    count.flops += flops_;
    count.bytes += bytes_;
    if (timed) spans[span_].index = static_cast<size_t>(&count - ops_.counts_.data());
}

std::byte* CudaOps::allocate(size_t bytes) {
    return device_->allocate(bytes);
}

int64_t CudaOps::available_bytes() const {
    return static_cast<int64_t>(device_->free_bytes());
}

void CudaOps::copy_to_device(void* to, const void* from, size_t bytes) {
    device_->send(to, from, bytes);
}

void CudaOps::copy_to_host(void* to, const void* from, size_t bytes) {
    device_->enter();
    if (bytes > 0)
        check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device_->stream()),
                   "copying from the device");
    device_->synchronize();
    device_->throw_faults();
}

Tensor CudaOps::stage(Exec& ex, const Tensor& host) {
    if (host.absent()) return host;
    Tensor staged = host;
    const auto bytes = static_cast<size_t>(dtype_bytes(host.dtype, host.elements()));
    staged.data = ex.arena.allocate_bytes(bytes);
    if (!ex.planning()) copy_to_device(staged.data, host.data, bytes);
    return staged;
}

namespace {

class Graph final : public Recording {
  public:
    Graph(Device& device, cudaGraph_t graph) : device_(device) {
        cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
        cudaGraphDestroy(graph);
        check_cuda(status, "instantiating a graph");
        // Or a card without room for it would say so at the first replay.
        status = cudaGraphUpload(executable_, device.stream());
        if (status != cudaSuccess) cudaGraphExecDestroy(executable_);
        check_cuda(status, "uploading a graph");
    }
    ~Graph() override { cudaGraphExecDestroy(executable_); }
    void replay() override {
        device_.enter();
        check_cuda(cudaGraphLaunch(executable_, device_.stream()), "launching a graph");
    }

  private:
    Device& device_;
    cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<Recording> CudaOps::record(const std::function<void()>& work) {
    device_->enter();
    check_cuda(cudaStreamBeginCapture(device_->stream(), cudaStreamCaptureModeThreadLocal),
               "beginning a capture");
    cudaGraph_t graph = nullptr;
    try {
        work();
    } catch (...) {
        cudaStreamEndCapture(device_->stream(), &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        cudaGetLastError();  // or the next launch would be blamed for it
        throw;
    }
    check_cuda(cudaStreamEndCapture(device_->stream(), &graph), "ending a capture");
    return std::make_unique<Graph>(*device_, graph);
}

}  // namespace tessera::cuda

const char* tessera_cuda_interface() {
    return TESSERA_INTERFACE_HASH;
}

tessera::Ops* tessera_cuda_create(const tessera::cuda::CudaOptions& options) {
    return new tessera::cuda::CudaOps(options);
}
