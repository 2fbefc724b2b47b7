// Shell completions. Each shell gets one flat script: commands, the flags of each, the allowed
// values of a flag, file names elsewhere.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/help.h"

namespace tessera {
namespace {

std::string quoted(std::string_view text) {
    std::string out;
    for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return "'" + out + "'";
}

std::vector<std::string> all_flags(const Option& option) {
    std::vector<std::string> names = option.flags;
    names.insert(names.end(), option.negations.begin(), option.negations.end());
    return names;
}

std::string command_names(std::span<const Command> commands) {
    std::string names;
    for (const Command& command : commands) names += command.name + " ";
    return names + "help";
}

template <class Action>
void for_each_option(const Command& command, Action action) {
    for (const OptionSection& section : command.sections)
        for (const Option& option : section.options) action(option);
}

std::vector<std::string> positional_choices(const Command& command) {
    std::vector<std::string> words;
    for (const Positional& positional : command.positionals)
        words.insert(words.end(), positional.choices.begin(), positional.choices.end());
    return words;
}

void append_bash_command(std::string& out, const Command& command) {
    std::vector<std::string> flags{"--help"};
    out += fmt::format("    {})\n        case \"$prev\" in\n", command.name);
    for_each_option(command, [&](const Option& option) {
        const std::vector<std::string> names = all_flags(option);
        flags.insert(flags.end(), names.begin(), names.end());
        if (option.value.empty()) return;
        const std::string pattern = fmt::format("{}", fmt::join(option.flags, "|"));
        if (!option.choices.empty()) {
            out +=
                fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n",
                            pattern, fmt::join(option.choices, " "));
        } else if (!option.is_file) {
            out += fmt::format("        {}) return ;;\n", pattern);
        }
    });
    out += "        esac\n";
    out += fmt::format("        flags='{}'\n        words='{}' ;;\n", fmt::join(flags, " "),
                       fmt::join(positional_choices(command), " "));
}

std::string bash_script(std::span<const Command> commands) {
    std::string out =
        "# bash completion of tessera; source it or install it as "
        "/usr/share/bash-completion/completions/tessera\n"
        "_tessera() {\n"
        "    local word=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
        "    local flags='' words=''\n"
        "    if [ \"$word\" = = ]; then\n"
        "        word=''\n"
        "    elif [ \"$prev\" = = ]; then\n"
        "        prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
        "    fi\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n";
    out += fmt::format(
        "        COMPREPLY=($(compgen -W '{} --version --completion' -- \"$word\"))\n"
        "        return\n    fi\n    case \"${{COMP_WORDS[1]}}\" in\n",
        command_names(commands));
    for (const Command& command : commands) append_bash_command(out, command);
    out += fmt::format(
        "    help) words='{}' flags='--man --markdown' ;;\n"
        "    --completion) words='bash zsh fish' ;;\n",
        command_names(commands));
    out +=
        "    esac\n"
        "    case \"$word\" in\n"
        "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"
        "    *) COMPREPLY=($(compgen -W \"$words\" -- \"$word\") $(compgen -f -- \"$word\")) ;;\n"
        "    esac\n"
        "}\n"
        "complete -o filenames -F _tessera tessera\n";
    return out;
}

/// Text inside the brackets of a zsh argument specification.
std::string zsh_text(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
        out += c;
    }
    return out;
}

void append_zsh_command(std::string& out, const Command& command) {
    out += fmt::format("    {})\n        _arguments -S '--help[show the flags]'", command.name);
    for_each_option(command, [&](const Option& option) {
        for (const std::string& name : all_flags(option)) {
            const bool joins = !option.value.empty() && name.starts_with("--");
            std::string spec =
                fmt::format("*{}{}[{}]", name, joins ? "=" : "", zsh_text(option.help));
            if (!option.value.empty()) {
                spec += ":" + zsh_text(option.value) + ":";
                if (!option.choices.empty())
                    spec += fmt::format("({})", fmt::join(option.choices, " "));
                if (option.is_file) spec += "_files";
            }
            out += " \\\n            " + quoted(spec);
        }
    });
    for (const Positional& positional : command.positionals) {
        const std::string action = positional.choices.empty()
                                       ? "_files"
                                       : fmt::format("({})", fmt::join(positional.choices, " "));
        out += " \\\n            " + quoted((positional.required ? ":" : "::") +
                                            zsh_text(positional.name) + ":" + action);
    }
    out += " ;;\n";
}

std::string zsh_script(std::span<const Command> commands) {
    std::string out =
        "#compdef tessera\n"
        "_tessera() {\n"
        "    local -a commands\n"
        "    commands=(\n";
    for (const Command& command : commands)
        out += "        " + quoted(command.name + ":" + zsh_text(command.summary)) + "\n";
    out +=
        "        'help:explain commands and flags'\n"
        "    )\n"
        "    if (( CURRENT == 2 )); then\n"
        "        if [[ $words[2] == -* ]]; then\n"
        "            compadd -- --help --version --completion\n"
        "        else\n"
        "            _describe command commands\n"
        "        fi\n"
        "        return\n"
        "    fi\n"
        "    local command=\"$words[2]\"\n"
        "    shift words\n"
        "    (( CURRENT-- ))\n"
        "    case \"$command\" in\n";
    for (const Command& command : commands) append_zsh_command(out, command);
    out += fmt::format("    help)\n        _arguments --man --markdown '::command:({})' ;;\n",
                       command_names(commands));
    // In a file _tessera on fpath the first use runs this script: it must answer at once.
    out +=
        "    --completion)\n        compadd bash zsh fish ;;\n"
        "    esac\n"
        "}\n"
        "if [ \"$funcstack[1]\" = _tessera ]; then\n"
        "    _tessera \"$@\"\n"
        "else\n"
        "    compdef _tessera tessera\n"
        "fi\n";
    return out;
}

void append_fish_option(std::string& out, const std::string& when, const Option& option) {
    out += when;
    // Names with one dash are "old" options to fish, letters too: -ctk is never -c with a value.
    for (const std::string& name : all_flags(option)) {
        const bool is_long = name.starts_with("--");
        out += fmt::format(" {} {}", is_long ? "-l" : "-o", name.substr(is_long ? 2 : 1));
    }
    if (!option.value.empty()) out += option.is_file ? " -r -F" : " -r -f";
    if (!option.choices.empty()) out += fmt::format(" -a '{}'", fmt::join(option.choices, " "));
    out += fmt::format(" -d {}\n", quoted(option.help));
}

std::string fish_script(std::span<const Command> commands) {
    std::string out =
        "# fish completion of tessera\n"
        "function __tessera_command\n"
        "    set -l words (commandline -opc)\n"
        "    test (count $words) -gt 1; and test \"$words[2]\" = \"$argv[1]\"\n"
        "end\n";
    const auto line = [](std::string_view command) {
        return fmt::format("complete -c tessera -n '__tessera_command {}'", command);
    };
    const std::string first = "complete -c tessera -n 'test (count (commandline -opc)) -eq 1'";
    for (const Command& command : commands)
        out += fmt::format("{} -f -a {} -d {}\n", first, command.name, quoted(command.summary));
    out += first + " -f -a help -d 'explain commands'\n";
    out += first + " -l version -d 'show the version'\n";
    out += first + " -l completion -d 'print a completion script'\n";
    out += line("--completion") + " -f -a 'bash zsh fish'\n";
    out += fmt::format("{} -f -a '{}'\n", line("help"), command_names(commands));
    out += line("help") + " -l man -d 'print the man page'\n";
    out += line("help") + " -l markdown -d 'print tables of all flags'\n";
    for (const Command& command : commands) {
        const std::string when = line(command.name);
        out += when + " -l help -d 'show the flags'\n";
        for_each_option(command,
                        [&](const Option& option) { append_fish_option(out, when, option); });
        const std::vector<std::string> words = positional_choices(command);
        if (!words.empty()) out += fmt::format("{} -a '{}'\n", when, fmt::join(words, " "));
    }
    return out;
}

}  // namespace

std::string completion_script(std::span<const Command> commands, const std::string& shell) {
    if (shell == "zsh") return zsh_script(commands);
    if (shell == "fish") return fish_script(commands);
    return bash_script(commands);
}

}  // namespace tessera
