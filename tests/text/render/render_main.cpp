// Renders templates for scripts/oracles/templates.py. Reads JSON lines {"template", "variables"}
// from standard input and answers each with "ok LENGTH" or "error LENGTH", a line end and that many
// bytes.

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "text/chat_template.h"
#include "text/json_limits.h"

int main() {
    std::ios::sync_with_stdio(false);
    for (std::string line; std::getline(std::cin, line);) {
        std::string status = "ok", answer;
        try {
            const nlohmann::ordered_json request = tessera::parse_json(line, "request");
            const tessera::ChatTemplate source(request.at("template").get<std::string>(),
                                               "template");
            answer = source.render(request.at("variables"));
        } catch (const tessera::UserError& error) {
            status = "error";
            answer = error.what();
        }
        std::cout << status << ' ' << answer.size() << '\n' << answer << std::flush;
    }
    return 0;
}
