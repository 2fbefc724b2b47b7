#pragma once
// Everything that is printed about the options: all of it made from the Command rows.

#include <span>
#include <string>

#include "tools/options.h"

namespace tessera {

/// The overview: commands with their summaries, exit codes.
std::string overview_text(std::span<const Command> commands);
/// --help of one command, wrapped to `width` columns.
std::string command_text(const Command& command, int width);
/// The help of an option with its allowed values and its default.
std::string option_details(const Option& option);
/// "tessera run [MODEL] [PROMPT] [flags]"
std::string usage_line(const Command& command);
/// The man page, section 1, in roff.
std::string man_page(std::span<const Command> commands, const std::string& version);
/// The tables of flags in docs/flags.md.
std::string markdown_table(std::span<const Command> commands);
/// A sourceable script for "bash", "zsh" or "fish" (the caller checks the name).
std::string completion_script(std::span<const Command> commands, const std::string& shell);

}  // namespace tessera
