"""Compares `tessera convert` with llama.cpp's own converter: every key and every tensor, byte for byte.

Usage: llamacpp_convert.py LLAMA_CPP_SOURCES TESSERA FOLDER...

LLAMA_CPP_SOURCES holds convert_hf_to_gguf.py, conversion/ and gguf-py/ (the source distribution of the Python
package llama-cpp-python 0.3.36 has them under vendor/llama.cpp). The tiny test vocabularies are not in its list of
pre-tokenizers, so that one answer is given for it. Needs numpy, torch, transformers. Exit code 1: something differs
beside the model's name and size label.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

sources, tessera, *folders = sys.argv[1:]
sys.path[:0] = [str(pathlib.Path(sources) / "gguf-py"), sources]

import conversion.base  # noqa: E402  (its folder is an argument)
import numpy as np  # noqa: E402
from gguf import GGUFReader  # noqa: E402

NAMES = {"general.name", "general.size_label", "general.basename", "general.finetune"}


def convert(folder, target):
    for kind in vars(conversion.base).values():
        if isinstance(kind, type) and hasattr(kind, "get_vocab_base_pre"):
            kind.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
    script = pathlib.Path(sources) / "convert_hf_to_gguf.py"
    spec = importlib.util.spec_from_file_location("convert_hf_to_gguf", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.argv = [str(script), str(folder), "--outfile", str(target), "--outtype", "f32"]
    module.main()


def differences(ours, theirs):
    left, right = ({t.name: t for t in reader.tensors} for reader in (ours, theirs))
    for name in sorted(left.keys() ^ right.keys()):
        yield f"tensor {name} is in one file only"
    for name in sorted(left.keys() & right.keys()):
        a, b = left[name], right[name]
        same = a.tensor_type == b.tensor_type and list(a.shape) == list(b.shape)
        if not same or not np.array_equal(a.data, b.data):
            yield f"tensor {name} differs"
    left, right = ({key: field.contents() for key, field in reader.fields.items()}
                   for reader in (ours, theirs))
    for key in sorted(left.keys() | right.keys()):
        if key.startswith("GGUF.") or key in NAMES:
            continue
        if left.get(key) != right.get(key):
            yield f"key {key}: {str(left.get(key))[:60]} against {str(right.get(key))[:60]}"


failed = False
for folder in folders:
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = (pathlib.Path(scratch) / name for name in ("ours.gguf", "theirs.gguf"))
        subprocess.run([tessera, "convert", folder, ours, "--outtype", "f32"], check=True)
        convert(folder, theirs)
        found = list(differences(GGUFReader(ours), GGUFReader(theirs)))
    print(f"{folder}: {len(found)} differences", *found, sep="\n  ")
    failed = failed or bool(found)
sys.exit(1 if failed else 0)
