#include "tools/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/nearest.h"

namespace tessera {
namespace {

constexpr std::string_view kProgramFlags[] = {"--help", "--version", "--completion"};

struct Match {
    const Option* option = nullptr;
    bool negated = false;
};

Match match_flag(const Command& command, std::string_view flag) {
    for (const OptionSection& section : command.sections) {
        for (const Option& option : section.options) {
            for (const std::string& name : option.flags)
                if (name == flag) return {&option, false};
            for (const std::string& name : option.negations)
                if (name == flag) return {&option, true};
        }
    }
    return {};
}

std::vector<std::string> flags_of(const Command& command) {
    std::vector<std::string> names{"--help"};
    for (const OptionSection& section : command.sections) {
        for (const Option& option : section.options) {
            names.insert(names.end(), option.flags.begin(), option.flags.end());
            names.insert(names.end(), option.negations.begin(), option.negations.end());
        }
    }
    return names;
}

[[noreturn]] void fail_unknown_flag(const Command& command,
                                    std::span<const Command> all,
                                    const std::string& flag) {
    const std::string where = fmt::format("{}: unknown flag {}", command.name, flag);
    auto hint = foreign_flag_hint(flag);
    const bool is_word = flag.size() > 2;
    if (!hint && is_word && !flag.starts_with("--")) hint = foreign_flag_hint("-" + flag);
    if (hint)
        throw UserError(ExitCode::kUsage,
                        fmt::format("{}: tessera does not have this flag of llama.cpp: {}",
                                    command.name + ": " + flag, *hint));
    for (const Command& other : all) {
        if (match_flag(other, flag).option != nullptr)
            throw UserError(ExitCode::kUsage,
                            fmt::format("{} (it is a flag of 'tessera {}')", where, other.name));
    }
    const std::vector<std::string> names = flags_of(command);
    const std::vector<std::string_view> known(names.begin(), names.end());
    // A beginning of a name is a better guess than the nearest name; a letter is near to any
    // letter.
    const auto longer = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
        return flag.size() > 3 && name.starts_with(flag);
    });
    const std::string near = longer != names.end() ? *longer
                             : is_word             ? nearest_name(flag, known)
                                                   : std::string();
    throw UserError(ExitCode::kUsage,
                    near.empty() ? fmt::format("{}; see 'tessera help {}'", where, command.name)
                                 : fmt::format("{}; did you mean {}?", where, near));
}

void read_environment(const Command& command, const EnvLookup& env) {
    for (const OptionSection& section : command.sections) {
        for (const Option& option : section.options) {
            if (option.env.empty()) continue;
            const std::string name = variable_of(option);
            const char* text = env(name);
            if (text != nullptr) option.set({command.name + ": " + name, text, true, true});
        }
    }
}

/// Walks the arguments of one command line.
class ArgumentReader {
  public:
    ArgumentReader(const Command& command,
                   std::span<const Command> all,
                   std::span<const std::string> arguments)
        : command_(command), all_(all), arguments_(arguments) {}

    /// False: --help.
    bool read() {
        bool only_positionals = false;
        while (next_ < arguments_.size()) {
            const std::string& argument = arguments_[next_++];
            if (only_positionals || argument.size() < 2 || argument[0] != '-') {
                take_positional(argument);
            } else if (argument == "--") {
                only_positionals = true;
            } else if (argument == "-h" || argument == "--help" || argument == "--usage") {
                return false;
            } else {
                take_flag(argument);
            }
        }
        for (size_t i = positional_; i < command_.positionals.size(); ++i) {
            if (command_.positionals[i].required)
                throw UserError(
                    ExitCode::kUsage,
                    fmt::format("{}: {} is missing; see 'tessera help {}'", command_.name,
                                command_.positionals[i].name, command_.name));
        }
        return true;
    }

  private:
    void take_positional(const std::string& argument) {
        if (positional_ == command_.positionals.size())
            throw UserError(ExitCode::kUsage,
                            fmt::format("{}: unexpected argument '{}'", command_.name, argument));
        const Positional& positional = command_.positionals[positional_++];
        positional.set({command_.name + ": " + positional.name, argument, true, false});
    }

    void take_flag(const std::string& argument) {
        const bool is_long = argument.starts_with("--");
        const size_t equals = is_long ? argument.find('=') : std::string::npos;
        const std::string flag = argument.substr(0, equals);
        const Match match = match_flag(command_, flag);
        if (match.option == nullptr) fail_unknown_flag(command_, all_, flag);
        const Option& option = *match.option;
        std::string text = option.value.empty() ? "on" : "";
        if (equals != std::string::npos) {
            text = argument.substr(equals + 1);
        } else if (!option.value.empty()) {
            text = take_value(flag);
        }
        Occurrence given{command_.name + ": " + flag, text, seen_.insert(&option).second, false};
        if (!match.negated) return option.set(given);
        given.text = parse_switch(given) ? "off" : "on";
        option.set(given);
    }

    const std::string& take_value(const std::string& flag) {
        if (next_ == arguments_.size())
            throw UserError(ExitCode::kUsage,
                            fmt::format("{}: {} needs a value", command_.name, flag));
        const std::string& text = arguments_[next_];
        if (match_flag(command_, text).option != nullptr)
            throw UserError(
                ExitCode::kUsage,
                fmt::format(
                    "{0}: {1} needs a value, found the flag {2}; {3}={2} takes it literally",
                    command_.name, flag, text, match_flag(command_, flag).option->flags.back()));
        ++next_;
        return text;
    }

    const Command& command_;
    std::span<const Command> all_;
    std::span<const std::string> arguments_;
    size_t next_ = 0;
    size_t positional_ = 0;
    std::set<const Option*> seen_;
};

std::vector<std::string> split_flags(std::string_view text) {
    std::vector<std::string> names;
    for (const std::string& part : split_list(text, ',')) {
        const size_t start = part.find_first_not_of(' ');
        names.push_back(part.substr(start));
    }
    return names;
}

}  // namespace

bool parse_command(const Command& command,
                   std::span<const Command> all,
                   std::span<const std::string> arguments,
                   const EnvLookup& env) {
    read_environment(command, env);
    if (!ArgumentReader(command, all, arguments).read()) return false;
    if (command.check) command.check();
    return true;
}

const Command& find_command(std::span<const Command> commands, std::string_view name) {
    std::vector<std::string_view> known;
    for (const Command& command : commands) {
        if (command.name == name) return command;
        known.push_back(command.name);
    }
    if (name.starts_with('-') && nearest_name(name, kProgramFlags).empty())
        throw UserError(
            ExitCode::kUsage,
            fmt::format("{} stands where a command belongs, as in 'tessera run {}'", name, name));
    if (name.starts_with('-')) known.assign(std::begin(kProgramFlags), std::end(kProgramFlags));
    if (const auto hint = foreign_command_hint(name))
        throw UserError(ExitCode::kUsage, fmt::format("unknown command '{}'; {}", name, *hint));
    const std::string near = nearest_name(name, known);
    throw UserError(ExitCode::kUsage,
                    near.empty()
                        ? fmt::format("unknown command '{}'; see 'tessera help'", name)
                        : fmt::format("unknown command '{}'; did you mean '{}'?", name, near));
}

Option make_row(const Row& row, std::string shown_default) {
    Option option;
    for (std::string& name : split_flags(row.flags)) {
        const bool negation = !option.flags.empty() && row.value.empty() &&
                              (name.starts_with("--no-") || name.starts_with("-no-"));
        (negation ? option.negations : option.flags).push_back(std::move(name));
    }
    option.value = row.value;
    option.env = row.env;
    option.help = row.help;
    option.shown_default = std::move(shown_default);
    return option;
}

Option switch_row(const Row& row, bool& target) {
    Option option = make_row(row, "");
    const bool turns_off = option.negations.empty() && option.flags.back().starts_with("--no-");
    if (!option.negations.empty()) option.shown_default = target ? "on" : "off";
    option.set = [&target, turns_off](const Occurrence& given) {
        target = parse_switch(given) != turns_off;
    };
    return option;
}

Option text_row(const Row& row, std::string& target) {
    Option option = make_row(row, target);
    option.set = [&target](const Occurrence& given) { target = given.text; };
    return option;
}

Option file_row(const Row& row, std::string& target) {
    Option option = text_row(row, target);
    option.is_file = true;
    option.set = [&target](const Occurrence& given) {
        if (given.text.empty())
            throw UserError(ExitCode::kUsage, given.where + ": the file name is empty");
        target = given.text;
    };
    return option;
}

Option texts_row(const Row& row, std::vector<std::string>& target) {
    Option option = make_row(row, "");
    option.set = [&target](const Occurrence& given) {
        if (given.first) target.clear();
        target.emplace_back(given.text);
    };
    return option;
}

Option integer_row(const Row& row, int32_t& target, int64_t least, int64_t most) {
    Option option = make_row(row, std::to_string(target));
    option.set = [&target, least, most](const Occurrence& given) {
        target = static_cast<int32_t>(parse_integer(given, least, most));
    };
    return option;
}

Option real_row(const Row& row, float& target, double least, double most) {
    Option option = make_row(row, fmt::format("{:.2f}", target));
    option.set = [&target, least, most](const Occurrence& given) {
        target = static_cast<float>(parse_real(given, least, most));
    };
    return option;
}

Option integers_row(const Row& row, std::vector<int32_t>& target, int64_t least, int64_t most) {
    std::string shown;
    for (const int32_t value : target) shown += (shown.empty() ? "" : ",") + std::to_string(value);
    Option option = make_row(row, shown);
    option.set = [&target, least, most](const Occurrence& given) {
        if (given.first) target.clear();
        for (const int64_t value : parse_integer_list(given, least, most))
            target.push_back(static_cast<int32_t>(value));
    };
    return option;
}

std::string variable_of(const Option& option) {
    return option.env.starts_with("TESSERA_") ? option.env : "TESSERA_ARG_" + option.env;
}

}  // namespace tessera
