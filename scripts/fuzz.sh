#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each for SECONDS (default 60): scripts/fuzz.sh [SECONDS] [target...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
cmake -S . -B build-fuzz -G Ninja -DTESSERA_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++-16 \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
cmake --build build-fuzz --target fuzzers >&2
# A fake stack costs ten times the run of a small parser and finds nothing more here.
export ASAN_OPTIONS=detect_stack_use_after_return=0
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
    mapfile -t targets < <(find build-fuzz/tests/fuzz -maxdepth 1 -name 'fuzz_*' -type f -executable | sort)
fi
for target in "${targets[@]}"; do
    name=$(basename "$target")
    corpus=build-fuzz/corpus/$name
    mkdir -p "$corpus"
    echo "fuzz: $name for $seconds s" >&2
    "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=60 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/$name-" "$corpus" 2>"build-fuzz/$name.log" || {
        tail -40 "build-fuzz/$name.log" >&2
        exit 1
    }
    grep -E 'number_of_executed_units' "build-fuzz/$name.log" | sed "s/^/$name /"
done
