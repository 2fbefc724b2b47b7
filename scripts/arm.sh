#!/usr/bin/env bash
# Cross-compiles the CPU backend for ARM (NEON, dot product) and runs op cases under user-mode emulation: the only
# proof that we have of those kernels. scripts/arm.sh [REGEX of cases]; scripts/bootstrap.sh --dev installs the tools.
set -euo pipefail
cd "$(dirname "$0")/.."
pattern=${1:-}
dir=build-arm
mkdir -p "$dir/include"
ln -sfn /usr/include/fmt "$dir/include/fmt"
ln -sfn /usr/include/nlohmann "$dir/include/nlohmann"
# No library of the CUDA backend is built for ARM: any hash will do.
echo '#define TESSERA_INTERFACE_HASH "none"' >"$dir/include/interface_hash.h"

mapfile -t sources < <(ls src/core/*.cpp src/ops/*.cpp src/backends/*/*.cpp src/backends/cpu/isa/*.cpp \
    src/engine/backends.cpp src/engine/machine.cpp tests/op_cases/*.cpp tools/test_ops.cpp tests/arm/*.cpp |
    grep -v -E '_(avx2|avx512|avx512bf16|amx)\.cpp$')
# A changed header rebuilds everything.
newest_header=$(find src tests tools -name '*.h' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
objects=()
jobs=()
for source in "${sources[@]}"; do
    object=$dir/$(echo "$source" | tr / _).o
    objects+=("$object")
    [[ $object -nt $source && $object -nt $newest_header ]] || jobs+=("$source" "$object")
done
if [[ ${#jobs[@]} -gt 0 ]]; then
    printf '%s\n' "${jobs[@]}" | xargs -n 2 -P "$(nproc)" sh -c \
        'aarch64-linux-gnu-g++ -std=c++20 -O2 -march=armv8.2-a+dotprod -ffp-contract=off -DFMT_HEADER_ONLY \
            -Isrc -Itests -I. -isystem '"$dir"'/include -c "$0" -o "$1"'
fi
aarch64-linux-gnu-g++ "${objects[@]}" -o "$dir/test-ops" -lpthread
qemu-aarch64 -L /usr/aarch64-linux-gnu "$dir/test-ops" "$pattern"
