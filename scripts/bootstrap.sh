#!/usr/bin/env bash
# Installs what building and testing need on Debian 12 or Ubuntu: only packages that are missing, so that a second run
# does nothing. Needs root or sudo.
#   scripts/bootstrap.sh          everything that the two commands need
#   scripts/bootstrap.sh --dev    also clang (fuzz targets; version 16, because 14 lacks std::source_location), clang-format, the ARM cross compiler and its emulator
set -euo pipefail

packages=(
    ca-certificates g++ cmake ninja-build pkg-config python3 python3-pip unzip
    libfmt-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libgtest-dev
)
if [[ ${1:-} == --dev ]]; then
    packages+=(git clang-16 clang-format-14 libclang-rt-16-dev g++-aarch64-linux-gnu qemu-user)
fi

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || {
        echo "bootstrap: needs root or sudo to install: ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
echo "bootstrap: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
if ! "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >&2; then
    "${as_root[@]}" apt-get update -q >&2
    "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
fi
