#include "tools/quantize.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "hf/open_model.h"
#include "tools/interrupt.h"
#include "tools/terminal.h"

namespace tessera {
namespace {

std::string shape_text(const GgufTensor& tensor) {
    std::string text;
    for (int32_t i = 0; i < tensor.rank; ++i)
        text += (i == 0 ? "" : " x ") + std::to_string(tensor.shape[static_cast<size_t>(i)]);
    return text;
}

void print_plan(const std::vector<TensorChoice>& plan) {
    for (const TensorChoice& choice : plan) {
        const GgufTensor& tensor = *choice.tensor;
        const bool changes = choice.target != tensor.dtype;
        std::printf("%-40s %-16s %-6s %s%s\n", tensor.name.c_str(), shape_text(tensor).c_str(),
                    std::string(dtype_info(tensor.dtype).name).c_str(),
                    changes ? fmt::format("-> {}", dtype_info(choice.target).name).c_str() : "",
                    choice.fell_back ? " (width does not divide by the block)" : "");
    }
}

void print_summary(const GgufFile& file, const std::vector<TensorChoice>& plan) {
    int64_t before = 0;
    int64_t after = 0;
    int64_t elements = 0;
    int32_t fallbacks = 0;
    for (const GgufTensor& tensor : file.tensors()) before += tensor.bytes;
    for (const TensorChoice& choice : plan) {
        after += choice.bytes_after;
        elements += choice.tensor->elements();
        fallbacks += choice.fell_back ? 1 : 0;
    }
    const auto bits = [&](int64_t bytes) {
        return elements > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(elements) : 0;
    };
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    std::fprintf(stderr, "model size  = %10.2f MiB (%.2f bits per weight)\n", mib(before),
                 bits(before));
    std::fprintf(stderr, "quant size  = %10.2f MiB (%.2f bits per weight)\n", mib(after),
                 bits(after));
    if (fallbacks > 0)
        std::fprintf(stderr,
                     "%d tensors fell back to another format: their width does not divide by the "
                     "block (--dry-run lists them)\n",
                     fallbacks);
}

}  // namespace

int run_quantize(const QuantizeOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    const GgufFile file = open_model(options.input);
    const std::vector<TensorChoice> plan = plan_quantize(file, options);
    if (options.dry_run) {
        print_plan(plan);
        print_summary(file, plan);
        return 0;
    }
    {
        // An exception removes the unfinished file.
        const InterruptScope interrupt(InterruptScope::Signals::kInterruptAndTerminate);
        ProgressBar bar(ProgressUnit::kBytes);
        quantize_file(file, options, plan, [&](int64_t done, int64_t total) {
            interrupt.stop_writing(options.output);
            bar.update("quantizing", done, total);
        });
    }
    print_summary(file, plan);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "quantize time = %.2f s\n", took.count());
    return 0;
}

}  // namespace tessera
