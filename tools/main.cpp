// The `tessera` program: finds the subcommand, fills its options, runs it, and turns failures into
// one line and an exit code.

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "core/nearest.h"
#include "tools/help.h"
#include "tools/options_table.h"
#include "tools/terminal.h"
#include "tools/version.h"

namespace tessera {
namespace {

void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string completion_shell(std::span<const std::string> arguments) {
    if (arguments.size() != 1)
        throw UserError(ExitCode::kUsage, "--completion needs one of bash, zsh, fish");
    const std::vector<std::string> shells{"bash", "zsh", "fish"};
    return shells[parse_choice({"--completion", arguments.front(), true, false}, shells)];
}

/// `tessera help [COMMAND] [--man | --markdown]`.
int show_help(std::span<const Command> commands, std::span<const std::string> arguments) {
    std::string text;
    for (const std::string& argument : arguments) {
        if (argument == "--man") {
            text = man_page(commands, std::string(version()));
        } else if (argument == "--markdown") {
            text = markdown_table(commands);
        } else if (argument == "--help" || argument == "-h" || argument == "help") {
            text = overview_text(commands);
        } else if (argument.starts_with('-')) {
            static constexpr std::string_view kFlags[] = {"--man", "--markdown", "--help"};
            const std::string near = nearest_name(argument, kFlags);
            throw UserError(ExitCode::kUsage,
                            fmt::format("help: unknown flag {}; {}", argument,
                                        near.empty() ? "known are --man, --markdown"
                                                     : "did you mean " + near + "?"));
        } else {
            text = command_text(find_command(commands, argument), Terminal::of(1).width);
        }
    }
    print(text.empty() ? overview_text(commands) : text);
    return 0;
}

int dispatch(std::span<const std::string> arguments) {
    AllOptions all;
    const std::vector<Command> commands = describe_commands(all);
    if (arguments.empty()) {
        std::fputs(overview_text(commands).c_str(), stderr);
        return static_cast<int>(ExitCode::kUsage);
    }
    const std::string& name = arguments.front();
    const std::span<const std::string> rest = arguments.subspan(1);
    if (name == "help" || name == "--help" || name == "-h") return show_help(commands, rest);
    if (name == "--version" || name == "version") {
        print(fmt::format("tessera {}\n", version()));
        return 0;
    }
    if (name == "--completion") {
        print(completion_script(commands, completion_shell(rest)));
        return 0;
    }
    const Command& command = find_command(commands, name);
    const EnvLookup env = [](const std::string& variable) { return std::getenv(variable.c_str()); };
    if (!parse_command(command, commands, rest, env)) {
        print(command_text(command, Terminal::of(1).width));
        return 0;
    }
    for (const std::string& note : all.notes) std::fprintf(stderr, "tessera: %s\n", note.c_str());
    return command.run();
}

int fail(const std::string& message, ExitCode code) {
    const Terminal terminal = Terminal::of(2);
    std::fprintf(stderr, "%s %s\n", colored(terminal, "1;31", "tessera:").c_str(), message.c_str());
    return static_cast<int>(code);
}

/// Output that could not be written (a full disk, a closed pipe) must not look like success.
int flush_output(int code) {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    if (errno == EPIPE) return code;
    return fail(fmt::format("cannot write to stdout: {}", std::strerror(errno)),
                ExitCode::kFailure);
}

int guarded_main(std::span<const std::string> arguments) {
    try {
        return flush_output(dispatch(arguments));
    } catch (const UserError& error) {
        std::fflush(stdout);
        return fail(error.what(), error.code());
    } catch (const std::bad_alloc&) {
        return fail("out of memory; a smaller context (-c) or batch (-ub) needs less",
                    ExitCode::kMemory);
    } catch (const std::exception& error) {
        return fail(error.what(), ExitCode::kFailure);
    }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    return tessera::guarded_main(arguments);
}
