#!/usr/bin/env bash
# Configures (once) and builds: scripts/build.sh [DIR] [cmake options...]. DIR is `build` unless named.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-build}
shift || true
if [[ ! -f $dir/build.ninja || $# -gt 0 ]]; then
    cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >"$dir.log" 2>&1 || {
        cat "$dir.log" >&2
        exit 1
    }
    rm -f "$dir.log"
fi
cmake --build "$dir" >&2
