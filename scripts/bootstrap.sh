#!/usr/bin/env bash
# Installs what building and testing need on Debian 12 or Ubuntu: only packages that are missing, so that a second run
# does nothing. Needs root or sudo.
#   scripts/bootstrap.sh          everything that the two commands need
#   scripts/bootstrap.sh --cuda   also the CUDA compiler and disassemblers, from PyPI into .cuda, where the machine lacks
#                                 them; a machine with an NVIDIA card gets the compiler without asking
#   scripts/bootstrap.sh --dev    also clang (fuzz targets; version 16, because 14 lacks std::source_location), clang-format, the ARM cross compiler and its emulator
set -euo pipefail

packages=(
    ca-certificates g++ cmake ninja-build pkg-config python3 python3-pip unzip
    libfmt-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libgtest-dev
)
cuda=0
if [[ " $* " == *" --cuda "* ]]; then
    cuda=1
fi
if [[ " $* " == *" --dev "* ]]; then
    packages+=(git clang-16 clang-format-14 libclang-rt-16-dev g++-aarch64-linux-gnu qemu-user)
fi

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
# The compiler and the headers that it needs; the versions belong together.
install_cuda() {
    local place wheels=(
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nvtx==13.0.85 nvidia-cuda-cuobjdump==13.2.86
        nvidia-cuda-nvdisasm==13.2.86
    )
    place=$(cd "$(dirname "$0")/.." && pwd)/.cuda
    [[ -f $place/complete && $(<"$place/complete") == "${wheels[*]}" ]] && return
    echo "bootstrap: installing the CUDA compiler into .cuda" >&2
    rm -rf "$place"
    python3 -m pip install -q --no-compile --no-deps --target "$place" "${wheels[@]}" >&2 || return
    echo "${wheels[*]}" >"$place/complete"
}

if [[ ${#missing[@]} -gt 0 ]]; then
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
fi
# Where there is a card that the kernels run on, its compiler; for the checks of the machine code also disassemblers.
has() {
    command -v "$1" >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/$1 ]]
}
if [[ $cuda -eq 1 ]] && ! { has nvcc && has cuobjdump && has nvdisasm; }; then
    install_cuda
elif nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -qE '^([89]|1[0-9])\.[0-9]' && ! has nvcc; then
    install_cuda || echo "bootstrap: no CUDA compiler from PyPI: building for the CPU alone" >&2
fi
