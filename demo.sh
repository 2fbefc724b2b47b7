#!/usr/bin/env bash
# One command from a fresh machine to a 4-bit model that answers: installs what is missing, builds, fetches
# SmolLM2-135M-Instruct, quantizes it to NVFP4 and runs it. A repeated run does only what is left to do.
#   ./demo.sh ["your question"]
set -euo pipefail
cd "$(dirname "$0")"
question=${1:-"What is the capital of France? Answer in one sentence."}

scripts/bootstrap.sh
scripts/build.sh build -DTESSERA_TESTS=OFF
source_model=$(scripts/fetch_model.sh)
model=models/SmolLM2-135M-Instruct-NVFP4.gguf
if [[ ! -f $model || $source_model -nt $model ]]; then
    build/tessera quantize --allow-requantize "$source_model" "$model" NVFP4
fi
build/tessera run -m "$model" -p "$question" -n 128 --temp 0
