"""Runs llama.cpp's own converter on the small folders of the tests; used by other scripts here."""

import subprocess
import sys
from pathlib import Path

CONVERT = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import TextModel
# The converter knows tokenizers by a checksum of what they make of a text; ours is too small.
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
import convert_hf_to_gguf
sys.argv = ["convert", sys.argv[2], "--outfile", sys.argv[3], "--outtype", "bf16"]
convert_hf_to_gguf.main()
"""


def convert(sources, folder, path):
    """`sources` holds convert_hf_to_gguf.py, conversion/ and gguf-py/ (vendor/llama.cpp in the source
    distribution of the Python package llama-cpp-python 0.3.36)."""
    done = subprocess.run([sys.executable, "-c", CONVERT, str(Path(sources).resolve()), str(folder),
                           str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-3000:])
