#pragma once
// The one description of all subcommands and flags. Parsing, --help, the man page, the shell
// completions and docs/flags.md all come from the rows that describe_commands() returns.
//
// A row binds its flags to a field of an options struct, so that the default that help shows is the
// field's own. CLI11 was tried on paper and rejected: it refuses flags such as -ngl, and help, man
// page, completions, environment names, lists with ranges and "did you mean" would all have been
// ours anyway; what it would have saved is the loop of parse_command().

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera {

/// One use of a flag: what to name in messages, its value, and whether it is the first use in this
/// source (command line or environment), which is when a list drops its default.
struct Occurrence {
    std::string where;
    std::string_view text;
    bool first = true;
    bool from_environment = false;
};

/// A flag of a subcommand.
struct Option {
    std::vector<std::string> flags;      ///< "-c", "--ctx-size"; the last is the full name
    std::vector<std::string> negations;  ///< of a switch: "--no-escape"
    std::string value;                   ///< name of its value in help; "": a switch
    /// "CTX_SIZE": the environment variable TESSERA_ARG_CTX_SIZE; "TESSERA_POISON": just that.
    std::string env;
    std::string help;
    std::string shown_default;
    std::vector<std::string> choices;  ///< the values that are allowed, where that is a short list
    bool is_file = false;              ///< completions offer file names
    /// Takes the value ("on" or "off" for a switch). UserError(kUsage) starting with `where`.
    std::function<void(const Occurrence&)> set;
};

/// The environment variable of a flag that has one.
std::string variable_of(const Option& option);

/// Arguments without a dash, in order.
struct Positional {
    std::string name;  ///< "IN.gguf"
    std::string help;
    bool required = true;
    std::vector<std::string> choices;
    std::function<void(const Occurrence&)> set;
};

struct OptionSection {
    std::string title;
    std::vector<Option> options;
};

struct Command {
    std::string name;
    std::string summary;  ///< one line, lower case, no full stop
    std::string description;
    std::string usage;  ///< the arguments, where the positionals' own names do not say it
    std::vector<Positional> positionals;
    std::vector<OptionSection> sections;
    std::vector<std::string> examples;
    /// Checks what no single flag can: contradictions, missing parts. May be empty.
    std::function<void()> check;
    std::function<int()> run;
};

/// Reads an environment variable: nullptr when it is not set.
using EnvLookup = std::function<const char*(const std::string& name)>;

/// Fills the options of `command` from the environment, then from the arguments, then runs its
/// check. Returns false when --help was asked for (nothing is checked then). UserError(kUsage) with
/// one line that names the nearest known flag or value.
bool parse_command(const Command& command,
                   std::span<const Command> all,
                   std::span<const std::string> arguments,
                   const EnvLookup& env);

/// The command with this name. UserError(kUsage) naming the nearest one.
const Command& find_command(std::span<const Command> commands, std::string_view name);

/// Why tessera has no such flag although llama.cpp has: what to do instead, or nothing.
std::optional<std::string_view> foreign_flag_hint(std::string_view flag);

/// What a command of llama.cpp or of a server is called here, or nothing.
std::optional<std::string_view> foreign_command_hint(std::string_view name);

// ---- values ----

/// A whole number in [least, most]; "1k" style suffixes are not numbers.
int64_t parse_integer(const Occurrence& given, int64_t least, int64_t most);
double parse_real(const Occurrence& given, double least, double most);
/// ASCII letters in lower case.
std::string lower_case(std::string_view text);
/// 1 on enabled true yes / 0 off disabled false no.
bool parse_switch(const Occurrence& given);
/// "512", "512,1024", "128-512", "0-4096+1024", "128-2048*2", mixed with commas.
std::vector<int64_t> parse_integer_list(const Occurrence& given, int64_t least, int64_t most);
std::vector<std::string> split_list(std::string_view text, char separator);
/// Index of the value among `known`; UserError names the nearest and lists them.
size_t parse_choice(const Occurrence& given, std::span<const std::string> known);
/// \n \r \t \' \" \\ \xHH; any other sequence stays as it is.
std::string unescape(std::string_view text);

// ---- rows ----

/// What every row has. `flags` is "-c, --ctx-size"; names starting with "--no-" or "-no-" after a
/// switch's own names are its negations.
struct Row {
    std::string_view flags;
    std::string_view value;
    std::string_view env;
    std::string_view help;
};

Option make_row(const Row& row, std::string shown_default);
Option switch_row(const Row& row, bool& target);
Option text_row(const Row& row, std::string& target);
Option file_row(const Row& row, std::string& target);
/// Every use adds one text.
Option texts_row(const Row& row, std::vector<std::string>& target);
Option integer_row(const Row& row, int32_t& target, int64_t least, int64_t most);
Option real_row(const Row& row, float& target, double least, double most);
/// Comma-separated lists and ranges; every use adds.
Option integers_row(const Row& row, std::vector<int32_t>& target, int64_t least, int64_t most);

template <class Value>
using NamedValues = std::vector<std::pair<std::string, Value>>;

template <class Value>
std::vector<std::string> names_of(const NamedValues<Value>& known) {
    std::vector<std::string> names;
    for (const auto& [name, value] : known) names.push_back(name);
    return names;
}

template <class Value>
std::string name_of(const NamedValues<Value>& known, const Value& value) {
    for (const auto& [name, candidate] : known)
        if (candidate == value) return name;
    return "";
}

/// One of a list of names, each standing for a value of the target's type.
template <class Value>
Option choice_row(const Row& row, Value& target, const NamedValues<Value>& known) {
    Option option = make_row(row, name_of(known, target));
    option.choices = names_of(known);
    option.set = [&target, known](const Occurrence& given) {
        target = known[parse_choice(given, names_of(known))].second;
    };
    return option;
}

/// A comma-separated list of such names; every use adds.
template <class Value>
Option choices_row(const Row& row, std::vector<Value>& target, const NamedValues<Value>& known) {
    Option option = make_row(row, target.empty() ? "" : name_of(known, target.front()));
    option.choices = names_of(known);
    option.set = [&target, known](const Occurrence& given) {
        if (given.first) target.clear();
        for (const std::string& part : split_list(given.text, ',')) {
            const Occurrence one{given.where, part, false, false};
            target.push_back(known[parse_choice(one, names_of(known))].second);
        }
    };
    return option;
}

}  // namespace tessera
