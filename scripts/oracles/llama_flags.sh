#!/bin/sh
# Writes tests/data/tools/llama_flags.txt: every flag that llama.cpp's programs print in --help, one
# "command flag" a line, by the name of our command. Argument: the folder of llama.cpp's programs.
set -eu
programs=$1
flags_of() {
    "$programs/$2" --help 2>&1 | grep -E '^ *-|\[--' | sed -E 's/  +[A-Za-z(].*$//' |
        grep -oE '(^|[[ ,])--?[a-zA-Z][a-zA-Z0-9-]*' | tr -d '[ ,' | sort -u | sed "s/^/$1 /"
}
out=$(dirname "$0")/../../tests/data/tools/llama_flags.txt
{
    flags_of run llama-completion
    flags_of bench llama-bench
    flags_of perplexity llama-perplexity
    flags_of quantize llama-quantize
} > "$out"
