// The man page, written in the macros of man(7).

#include <fmt/format.h>

#include "tools/help.h"

namespace tessera {
namespace {

/// Text as roff takes it: hyphens that are typed, no accidental requests at line starts.
std::string roff(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\') {
            out += "\\e";
        } else if (c == '-') {
            out += "\\-";
        } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
            out += "\\&";
            out += c;
        } else {
            out += c;
        }
    }
    return out;
}

std::string flags_heading(const Option& option) {
    std::string text;
    for (const auto* names : {&option.flags, &option.negations}) {
        for (const std::string& name : *names)
            text += (text.empty() ? "" : ", ") + fmt::format("\\fB{}\\fR", roff(name));
    }
    if (!option.value.empty()) text += fmt::format(" \\fI{}\\fR", roff(option.value));
    return text;
}

void append_command(std::string& out, const Command& command) {
    out += fmt::format(".SS {}\n.B {}\n.PP\n", roff(command.name), roff(usage_line(command)));
    out += roff(command.summary) + ".\n.PP\n";
    bool listing = false;
    for (const std::string& line : split_list(command.description, '\n')) {
        const bool indented = line.starts_with("  ");
        if (indented != listing) out += indented ? ".PP\n.nf\n" : ".fi\n.PP\n";
        listing = indented;
        if (!line.empty()) out += roff(line) + "\n";
    }
    if (listing) out += ".fi\n";
    for (const Positional& positional : command.positionals)
        out += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(positional.name), roff(positional.help));
    for (const OptionSection& section : command.sections) {
        out += fmt::format(".PP\n\\fI{}\\fR\n", roff(section.title));
        for (const Option& option : section.options) {
            out +=
                fmt::format(".TP\n{}\n{}\n", flags_heading(option), roff(option_details(option)));
            if (!option.env.empty())
                out += fmt::format(".br\nEnvironment: {}.\n", variable_of(option));
        }
    }
}

constexpr std::string_view kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\ndone\n"
    ".TP\n1\nanything that fits no other row\n"
    ".TP\n2\nunknown or contradictory flags\n"
    ".TP\n3\na model or data file that is missing, damaged or not supported\n"
    ".TP\n4\nthe plan does not fit into memory\n"
    ".TP\n5\na device or driver that is missing or too old\n"
    ".TP\n130\ninterrupted\n";

constexpr std::string_view kEnvironment =
    ".SH ENVIRONMENT\n"
    "Flags that name a variable TESSERA_ARG_* take its value unless they stand on the command "
    "line. Switches accept 1, on, enabled, true and 0, off, disabled, false. NO_COLOR turns "
    "colours off.\n";

}  // namespace

std::string man_page(std::span<const Command> commands, const std::string& version) {
    std::string out = fmt::format(".TH TESSERA 1 \"\" \"tessera {}\" \"User Commands\"\n", version);
    out += ".SH NAME\ntessera \\- run 4\\-bit\\-float (NVFP4) language models\n.SH SYNOPSIS\n";
    for (const Command& command : commands)
        out += fmt::format(".B {}\n.br\n", roff(usage_line(command)));
    out +=
        ".SH DESCRIPTION\nLoads, quantizes, runs and measures language models in GGUF format. "
        "Answers go to stdout, everything else to stderr.\n.SH COMMANDS\n";
    for (const Command& command : commands) append_command(out, command);
    out += kExitStatus;
    out += kEnvironment;
    out += ".SH EXAMPLES\n.nf\n";
    for (const Command& command : commands)
        for (const std::string& example : command.examples) out += roff(example) + "\n";
    out += ".fi\n";
    return out;
}

}  // namespace tessera
