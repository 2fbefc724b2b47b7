#!/bin/sh
# Renews what is generated from the table of options: man page, completions, table of flags.
# Argument: the built program. A test compares these files with the program.
set -eu
program=$1
docs=$(cd "$(dirname "$0")/.." && pwd)/docs
mkdir -p "$docs/man" "$docs/completions"
"$program" help --man > "$docs/man/tessera.1"
"$program" help --markdown > "$docs/flags.md"
for shell in bash zsh fish; do
    "$program" --completion $shell > "$docs/completions/tessera.$shell"
done
