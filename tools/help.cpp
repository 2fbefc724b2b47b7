#include "tools/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr int kFlagColumn = 34;

/// Appends `text` wrapped to [indent, width); the first line starts at column `at`. Line breaks in
/// the text stay.
void append_wrapped(std::string& out, std::string_view text, int at, int indent, int width) {
    const std::string pad(static_cast<size_t>(indent), ' ');
    int column = at;
    for (const std::string& line : split_list(text, '\n')) {
        if (column > 0 && column != at) {
            out += '\n';
            column = 0;
        }
        const size_t lead = std::min(line.find_first_not_of(' '), line.size());
        out += std::string(lead, ' ');
        column += static_cast<int>(lead);
        for (const std::string& word : split_list(std::string_view(line).substr(lead), ' ')) {
            const int size = static_cast<int>(word.size());
            bool starts = column <= indent + static_cast<int>(lead);
            if (!starts && column + 1 + size > width) {
                out += '\n';
                column = 0;
                starts = true;
            }
            if (column < indent) {
                out += pad.substr(static_cast<size_t>(column));
                column = indent;
            } else if (!starts) {
                out += ' ';
                ++column;
            }
            out += word;
            column += size;
        }
    }
    out += '\n';
}

std::string flags_text(const Option& option) {
    std::vector<std::string> names = option.flags;
    names.insert(names.end(), option.negations.begin(), option.negations.end());
    std::string text = fmt::format("{}", fmt::join(names, ", "));
    if (!option.value.empty()) text += " " + option.value;
    return text;
}

std::string positional_text(const Positional& positional) {
    return positional.required ? positional.name : "[" + positional.name + "]";
}

}  // namespace

std::string option_details(const Option& option) {
    std::string text = option.help;
    if (!option.choices.empty()) text += fmt::format(" ({})", fmt::join(option.choices, ", "));
    if (!option.shown_default.empty()) text += fmt::format(" [{}]", option.shown_default);
    return text;
}

std::string usage_line(const Command& command) {
    std::string text = "tessera " + command.name;
    if (!command.usage.empty()) return text + " " + command.usage + " [flags]";
    for (const Positional& positional : command.positionals)
        text += " " + positional_text(positional);
    return text + " [flags]";
}

std::string overview_text(std::span<const Command> commands) {
    std::string out = "tessera runs 4-bit-float (NVFP4) language models.\n\nCommands:\n";
    for (const Command& command : commands)
        out += fmt::format("  {:12} {}\n", command.name, command.summary);
    out +=
        "  help         this text; 'tessera help COMMAND' or 'tessera COMMAND --help' for flags\n"
        "\n"
        "  --version, --completion bash|zsh|fish, help --man, help --markdown\n"
        "\n"
        "Flags whose help shows {TESSERA_ARG_*} are also read from that environment variable; the\n"
        "command line wins. Answers go to stdout, everything else to stderr.\n"
        "\n"
        "Exit codes: 0 done, 1 failure, 2 wrong use, 3 model or data file, 4 memory, 5 device,\n"
        "130 interrupted.\n";
    return out;
}

std::string command_text(const Command& command, int width) {
    width = std::clamp(width, 60, 110);
    std::string out;
    append_wrapped(out, "usage: " + usage_line(command), 0, 0, width);
    out += '\n';
    append_wrapped(out, command.description, 0, 0, width);
    if (!command.positionals.empty()) out += '\n';
    for (const Positional& positional : command.positionals) {
        const std::string head = "  " + positional.name;
        out += fmt::format("{:{}}", head, kFlagColumn);
        append_wrapped(out, positional.help, kFlagColumn, kFlagColumn, width);
    }
    for (const OptionSection& section : command.sections) {
        out += "\n" + section.title + "\n";
        for (const Option& option : section.options) {
            const std::string head = "  " + flags_text(option);
            const bool fits = static_cast<int>(head.size()) < kFlagColumn;
            out += fits ? fmt::format("{:{}}", head, kFlagColumn) : head + "\n";
            std::string text = option_details(option);
            if (!option.env.empty()) text += fmt::format(" {{{}}}", variable_of(option));
            append_wrapped(out, text, fits ? kFlagColumn : 0, kFlagColumn, width);
        }
    }
    if (!command.examples.empty()) out += "\nExamples\n";
    for (const std::string& example : command.examples) out += "  " + example + "\n";
    return out;
}

std::string markdown_table(std::span<const Command> commands) {
    const auto cell = [](std::string text) {
        std::string out;
        for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
        return out;
    };
    std::string out;
    for (const Command& command : commands) {
        out += fmt::format("### `tessera {}`: {}\n\n", command.name, command.summary);
        out += fmt::format("`{}`\n\n", usage_line(command));
        out += "| flags | meaning [default] | environment |\n|---|---|---|\n";
        for (const OptionSection& section : command.sections) {
            for (const Option& option : section.options) {
                out += fmt::format("| `{}` | {} | {} |\n", cell(flags_text(option)),
                                   cell(option_details(option)),
                                   option.env.empty() ? "" : "`" + variable_of(option) + "`");
            }
        }
        out += '\n';
    }
    return out;
}

}  // namespace tessera
