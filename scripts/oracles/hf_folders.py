"""Compares `tessera convert` with llama.cpp's converter, tensor by tensor and key by key.

Usage: hf_folders.py TESSERA LLAMA_CPP_SOURCES WORK (TESSERA is the built program, WORK a scratch folder)

Makes small folders: llama, llama with scaled rotation, qwen2 and qwen3 from random weights, and copies of
the models in tests/data/models, as they are and with matrices in NVFP4 as ModelOpt and as compressed-tensors
store them.
Prints one line a folder; anything that differs is an error, but for the name and size label of the model and
for numbers that pass through exp or cos, which may differ in the last bits.

Needs torch 2.7.1, transformers 5.2.0, safetensors 0.8.0, numpy 2.4.6, sentencepiece 0.2.1.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

from llamacpp_converter import convert

MODELS = Path(__file__).resolve().parents[2] / "tests" / "data" / "models"
E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
QUANTIZED = re.compile(r"(proj|proj_qkv|proj_z|proj_a|proj_b|fc)\.weight$")
COMMON = dict(vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              intermediate_size=96, max_position_embeddings=1024, bos_token_id=None, eos_token_id=99)
ROUNDED = ("ssm_a", "rope_freqs.weight")


def nvfp4(weight):
    """Codes, block scales and the factor of a matrix."""
    weight = weight.float()
    factor = weight.abs().max() / (6 * 448)
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scales = (blocks.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    scaled = blocks / (scales.float() * factor).clamp(min=1e-30)[..., None]
    codes = (scaled[..., None] - E2M1).abs().argmin(-1).reshape(weight.shape).to(torch.uint8)
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous(), scales, factor.reshape(())


def split_experts(tensors):
    """One matrix an expert, twice as wide inside, so that rows are whole blocks."""
    split = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            split[name] = tensor
            continue
        base = name.rsplit(".", 1)[0]
        for expert, matrix in enumerate(tensor):
            if name.endswith("down_proj"):
                parts = {"down_proj": matrix}
            else:
                half = matrix.shape[0] // 2
                parts = {"gate_proj": matrix[:half], "up_proj": matrix[half:]}
            for part, value in parts.items():
                split[f"{base}.{expert}.{part}.weight"] = value.contiguous()
    for name in [n for n in split if re.search(r"\.experts\.\d+\.", n)]:
        value = split[name]
        split[name] = torch.cat([value, value.flip(0) * 0.5], 1 if "down" in name else 0).contiguous()
    return split


def quantized_copy(source, target, modelopt):
    shutil.copytree(MODELS / source, target)
    out = {}
    for name, tensor in split_experts(load_file(target / "model.safetensors")).items():
        if tensor.ndim != 2 or not QUANTIZED.search(name) or tensor.shape[1] % 64 or "visual" in name:
            out[name] = tensor
            continue
        codes, scales, factor = nvfp4(tensor)
        base, used = name.removesuffix(".weight"), torch.rand(()) * 0.01 + 0.001
        out[base + ".weight_scale"] = scales
        if modelopt:
            out |= {name: codes, base + ".weight_scale_2": factor, base + ".input_scale": used}
        else:
            out |= {base + ".weight_packed": codes, base + ".weight_global_scale": (1 / factor).reshape(1),
                    base + ".input_global_scale": (1 / used).reshape(1)}
    save_file(out, target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    text = config.get("text_config", config)
    if "moe_intermediate_size" in text:
        text["moe_intermediate_size"] *= 2
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"} if modelopt else {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float"}}}}
    (target / "config.json").write_text(json.dumps(config))


def random_model(target, kind, config):
    model = kind(config).to(torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            centre = 1 if weight.ndim == 1 else 0
            weight.copy_(torch.randn_like(weight.float()) * 0.2 + centre)
    model.save_pretrained(target, max_shard_size="60KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "qwen35" / name, target / name)


def make_folders(work):
    torch.manual_seed(1)
    for name in ("qwen35", "qwen35moe", "qwen3moe"):
        shutil.copytree(MODELS / name, work / name)
    quantized_copy("qwen35", work / "qwen35-modelopt", True)
    quantized_copy("qwen35", work / "qwen35-compressed", False)
    quantized_copy("qwen35moe", work / "qwen35moe-modelopt", True)
    quantized_copy("qwen3moe", work / "qwen3moe-compressed", False)
    random_model(work / "llama", LlamaForCausalLM,
                 LlamaConfig(**COMMON, tie_word_embeddings=True, attention_bias=True))
    random_model(work / "llama3", LlamaForCausalLM, LlamaConfig(**COMMON, head_dim=32, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=512)))
    random_model(work / "qwen2", Qwen2ForCausalLM, Qwen2Config(**COMMON))
    random_model(work / "qwen3", Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=32, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=256)))


def differences(ours, theirs):
    """Everything in which two GGUFReaders differ."""
    mine, other = ({t.name: t for t in reader.tensors} for reader in (ours, theirs))
    yield from (f"tensor {name} is only in one" for name in mine.keys() ^ other.keys())
    for name in mine.keys() & other.keys():
        a, b = mine[name], other[name]
        if a.tensor_type != b.tensor_type or list(a.shape) != list(b.shape):
            yield f"tensor {name}: {a.tensor_type.name} {list(a.shape)}, {b.tensor_type.name} {list(b.shape)}"
        elif name.endswith(ROUNDED):
            if not np.allclose(a.data, b.data, rtol=1e-6, atol=0):
                yield f"tensor {name}: other numbers"
        elif np.ascontiguousarray(a.data).tobytes() != np.ascontiguousarray(b.data).tobytes():
            yield f"tensor {name}: other bytes"
    for key, field in theirs.fields.items():
        if key.startswith("GGUF.") or key in ("general.name", "general.size_label"):
            continue
        if key not in ours.fields:
            yield f"key {key} is missing"
        elif ours.fields[key].contents() != field.contents() or ours.fields[key].types != field.types:
            yield f"key {key}: {str(ours.fields[key].contents())[:40]}, {str(field.contents())[:40]}"
    yield from (f"key {key} is only ours" for key in ours.fields.keys() - theirs.fields.keys())


def main():
    program, sources, work = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    make_folders(work)
    sys.path.insert(0, str(sources / "gguf-py"))
    from gguf import GGUFReader
    wrong = 0
    for folder in sorted(path for path in work.iterdir() if path.is_dir()):
        ours, theirs = work / f"{folder.name}.gguf", work / f"{folder.name}.expected.gguf"
        subprocess.run([program, "convert", "--outtype", "bf16", folder, ours], check=True, capture_output=True)
        convert(sources, folder, theirs)
        found = list(differences(GGUFReader(ours), GGUFReader(theirs)))
        print(f"{folder.name}: {len(found)} differences")
        print("".join(f"  {line}\n" for line in found[:10]), end="")
        wrong += len(found)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
