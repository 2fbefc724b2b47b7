#!/usr/bin/env bash
# Builds everything and runs the whole suite that needs no GPU. Extra arguments go to ctest (-R gguf, -V, ...).
set -euo pipefail
cd "$(dirname "$0")"
scripts/bootstrap.sh
scripts/fetch_model.sh >/dev/null
scripts/build.sh build -DTESSERA_TESTS=ON
ctest --test-dir build --output-on-failure "$@"
