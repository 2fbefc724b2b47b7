"""By how much llama.cpp's logits differ from the stored ones of a tiny model.

Usage: llamacpp_logits.py BINDINGS LIBRARIES MODEL.gguf EXPECTED.safetensors

BINDINGS is the folder of the Python package llama-cpp-python 0.3.36 (its source distribution),
LIBRARIES one with libllama.so and libggml*.so of its sources. Attention memory is F32, all tokens
go through one batch of 512 and again through one of 64. Prints the largest |difference| of a row
over that row's largest |logit|. Needs numpy, safetensors, diskcache, jinja2 besides.
"""

import ctypes
import os
import sys

import numpy as np
from safetensors.numpy import load_file

BINDINGS, LIBRARIES, MODEL, EXPECTED = sys.argv[1:5]
os.environ["LLAMA_CPP_LIB_PATH"] = LIBRARIES
sys.path.insert(0, BINDINGS)

from llama_cpp import llama_cpp as llama  # noqa: E402  (its folder is an argument)

GGML_TYPE_F32 = 0


def all_logits(model, tokens, batch_tokens):
    params = llama.llama_context_default_params()
    params.n_ctx = 512
    params.n_batch = params.n_ubatch = batch_tokens
    params.type_k = params.type_v = GGML_TYPE_F32
    params.flash_attn_type = 0
    params.n_threads = params.n_threads_batch = 1
    context = llama.llama_init_from_model(model, params)
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    rows = []
    for first in range(0, len(tokens), batch_tokens):
        part = tokens[first:first + batch_tokens]
        batch = llama.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i] = int(token)
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        if llama.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        values = ctypes.cast(llama.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        rows.append(np.ctypeslib.as_array(values, (len(part), vocab)).copy())
        llama.llama_batch_free(batch)
    llama.llama_free(context)
    return np.concatenate(rows)


def main():
    expected = load_file(EXPECTED)
    llama.llama_backend_init()
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(MODEL.encode(), params)
    if not model:
        sys.exit("llama.cpp does not load " + MODEL)
    wanted = expected["logits"]
    for batch_tokens in (512, 64):
        found = all_logits(model, expected["tokens"], batch_tokens)
        relative = np.abs(found - wanted).max(1) / np.abs(wanted).max(1)
        print(f"{MODEL}: batches of {batch_tokens}: largest relative difference "
              f"{relative.max():.2e}, median {np.median(relative):.2e}")


main()
