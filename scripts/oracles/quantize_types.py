"""Writes tests/data/tools/quantize_types.txt: the formats that llama-quantize chooses.

Needs gguf 0.19.0 and numpy; argument: llama-quantize. The model has the names and shapes of
write_model() in tests/tools/quantize_test.cpp. Lines: tied|untied, type, tensor, chosen format.
"""

import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy

LAYERS, WIDTH, NARROW, VOCAB = 8, 256, 192, 96
TYPES = ["Q4_K_M", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q6_K", "Q4_0", "Q8_0", "MXFP4_MOE"]


def write_model(path, tied):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(NARROW)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    random = numpy.random.default_rng(7)

    def add(name, *shape):
        writer.add_tensor(name, random.normal(0, 0.02, shape[::-1]).astype(numpy.float32))

    add("token_embd.weight", WIDTH, VOCAB)
    for i in range(LAYERS):
        add(f"blk.{i}.attn_norm.weight", WIDTH)
        add(f"blk.{i}.attn_q.weight", WIDTH, WIDTH)
        add(f"blk.{i}.attn_k.weight", WIDTH, 64)
        add(f"blk.{i}.attn_v.weight", WIDTH, 64)
        add(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        add(f"blk.{i}.ffn_gate_inp.weight", WIDTH, 4)
        add(f"blk.{i}.ffn_up.weight", WIDTH, NARROW)
        add(f"blk.{i}.ffn_down.weight", NARROW, WIDTH)
    if not tied:
        add("output.weight", WIDTH, VOCAB)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    target = pathlib.Path(__file__).parents[2] / "tests/data/tools/quantize_types.txt"
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        source, made = f"{folder}/in.gguf", f"{folder}/out.gguf"
        for kind in ("tied", "untied"):
            write_model(source, kind == "tied")
            for name in TYPES:
                subprocess.run([sys.argv[1], source, made, name], check=True, capture_output=True)
                for tensor in gguf.GGUFReader(made).tensors:
                    lines.append(f"{kind} {name} {tensor.name} {tensor.tensor_type.name}")
    target.write_text("\n".join(lines) + "\n")


main()
