#include "tools/synth.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "tools/terminal.h"

namespace tessera {

int run_synth(const SynthOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    {
        ProgressBar bar(ProgressUnit::kBytes);
        write_synth(options.spec, options.output, [&](int64_t done, int64_t total) {
            bar.update("making weights", done, total);
        });
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const auto bytes = static_cast<double>(std::filesystem::file_size(options.output));
    std::fprintf(stderr, "%s: %s in %.2f s\n", options.output.c_str(), bytes_text(bytes).c_str(),
                 took.count());
    return 0;
}

}  // namespace tessera
