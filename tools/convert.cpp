#include "tools/convert.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "engine/quantize.h"
#include "hf/open_model.h"
#include "tools/interrupt.h"
#include "tools/terminal.h"

namespace tessera {

int run_convert(const ConvertOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    const GgufFile file = open_model(options.input);
    QuantizeOptions how;
    how.input = options.input;
    how.output = options.output;
    how.target = find_quantize_target(options.type == "auto" ? "COPY" : options.type);
    how.threads = options.threads;
    how.keep_quantized = true;
    const std::vector<TensorChoice> plan = plan_quantize(file, how);
    int64_t bytes = 0;
    for (const TensorChoice& choice : plan) bytes += choice.bytes_after;
    {
        // An exception removes the unfinished file.
        const InterruptScope interrupt(InterruptScope::Signals::kInterruptAndTerminate);
        ProgressBar bar(ProgressUnit::kBytes);
        quantize_file(file, how, plan, [&](int64_t done, int64_t total) {
            interrupt.stop_writing(how.output);
            bar.update("converting", done, total);
        });
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%s: %zu tensors, %s, %.2f s\n", options.output.c_str(), plan.size(),
                 bytes_text(static_cast<double>(bytes)).c_str(), took.count());
    return 0;
}

}  // namespace tessera
