#include "tools/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "core/error.h"
#include "engine/vocab_from_gguf.h"
#include "hf/open_model.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

std::string read_text(const TokenizeOptions& options) {
    if (options.from_stdin)
        return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    if (options.file.empty()) return *options.prompt;
    std::ifstream file(options.file, std::ios::binary);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf() || file.peek() == EOF))
        throw UserError(ExitCode::kModel, options.file + ": cannot be read");
    return text.str();
}

void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
    const std::string text = read_text(options);
    const GgufFile file = open_model(options.model);
    const Tokenizer tokenizer(vocab_from_gguf(file), options.model);
    const std::vector<int32_t> ids = tokenizer.encode(text, options.add_bos, options.parse_special);
    if (options.ids_only) {
        print(fmt::format("[{}]\n", fmt::join(ids, ", ")));
    } else {
        for (const int32_t id : ids)
            print(fmt::format("{:6} -> '{}'\n", id, tokenizer.piece(id, /*render_special=*/true)));
    }
    if (options.show_count) print(fmt::format("Total number of tokens: {}\n", ids.size()));
    return 0;
}

}  // namespace tessera
