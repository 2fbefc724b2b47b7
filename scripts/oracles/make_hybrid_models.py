"""Tiny random checkpoints of qwen3.5 (dense and mixture-of-experts) and qwen3-moe, with the logits
that independent implementations compute from them.

Usage: make_hybrid_models.py OUT [LLAMA_CPP_SOURCES] (OUT is tests/data/models)

Per model: OUT/NAME/ is a Hugging Face folder (config.json, model.safetensors, tokenizer.json,
tokenizer_config.json) and OUT/NAME.expected.safetensors holds
  tokens      I32 [332]         one fixed sequence; logits are causal, so those of a prompt of any
                                length and of every decode step behind it are rows of the next
  logits      F32 [332, vocab]  by transformers, all tokens in one forward pass
  mtp_logits  F32 [332, vocab]  of the multi-token prediction block: row p is fed token p and the
                                hidden state of p - 1 (zeros for p = 0). transformers has no such
                                block, so its input is joined here and its layer is transformers' own
  mtp_chain   F32 [3, 3, vocab] guessing on: the first row of a chain that starts at position p of
                CHAINS is row p of mtp_logits; the next rows are fed tokens p + 1 and p + 2 and, for
                a hidden state, the block's own normed output of the row before
With the sources of llama.cpp (those in llama-cpp-python 0.3.36), OUT/qwen35moe.gguf is what its
converter makes of the folder.

Weights are random numbers that bfloat16 holds, so that they are the same numbers in BF16 (qwen35,
qwen35moe) and in F32 (qwen3moe). Gates, decays, attention and routing are spread widely; a routing
so close that rounding could turn it stops the script.

Needs torch 2.7.1, transformers 5.2.0 (the first with qwen3_5), safetensors 0.8.0, numpy 2.4.6, and
for the converter sentencepiece 0.2.3.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.masking_utils import create_causal_mask
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as sparse

from llamacpp_converter import convert

TOKENS = 332
CHAINS = [5, 64, 200]
VOCAB = 128
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": 99,
}
# Two key heads for four value heads: the order in which llama.cpp keeps value heads is another one.
HYBRID = {
    **COMMON,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "norm_topk_prob": True}


def layer_types(count):
    return ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(count)]


def normal(random, shape, mean=0.0, deviation=1.0):
    values = torch.from_numpy(random.normal(mean, deviation, shape).astype(np.float32))
    return values.to(torch.bfloat16).to(torch.float32)


def uniform(random, shape, low, high):
    values = torch.from_numpy(random.uniform(low, high, shape).astype(np.float32))
    return values.to(torch.bfloat16).to(torch.float32)


def random_value(random, name, shape):
    """Spread so that every gate has tokens on both sides and states forget at all speeds."""
    if name.endswith("A_log"):
        return uniform(random, shape, -4.0, 2.5)
    if name.endswith("dt_bias"):
        return uniform(random, shape, -4.0, 1.0)
    if name.endswith("linear_attn.norm.weight"):
        return normal(random, shape, 1.0, 0.2)
    if "norm" in name:
        zero_centred = not name.startswith("qwen3moe/")
        return normal(random, shape, 0.0 if zero_centred else 1.0, 0.2)
    if "embed_tokens" in name:
        tied = name.startswith("qwen3moe/")  # and a logit is a product with it
        return normal(random, shape, 0.0, 0.25 if tied else 1.0)
    if "conv1d" in name:
        return normal(random, shape, 0.0, 0.6)
    # Small steps along the residual stream, or rounding errors would grow from layer to layer.
    gain = 0.5 if "out_proj" in name or "o_proj" in name or "down_proj" in name else 1.0
    if "in_proj_a" in name or "in_proj_b" in name or name.endswith("mlp.gate.weight"):
        gain = 2.0
    return normal(random, shape, 0.0, gain / shape[-1] ** 0.5)


def fill(module, family, prefix, seed):
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(random_value(random, f"{family}/{prefix}{name}", tuple(value.shape)))


def token_ids(seed):
    """Random tokens with a stretch that repeats, which gives the delta rule equal keys."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 100, TOKENS)
    ids[70:100] = ids[40:70]
    ids[130:146] = 17
    return torch.from_numpy(ids.astype(np.int64))


class MtpBlock(torch.nn.Module):
    """The tensors `mtp.*` of a checkpoint. The layer is one of full attention."""

    def __init__(self, kind, config):
        super().__init__()
        names = {dense: "Qwen3_5", sparse: "Qwen3_5Moe"}
        norm = getattr(kind, names[kind] + "RMSNorm")
        layer = getattr(kind, names[kind] + "DecoderLayer")
        width = config.hidden_size
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = norm(width, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(width, eps=config.rms_norm_eps)
        self.norm = norm(width, eps=config.rms_norm_eps)
        self.layers = torch.nn.ModuleList([layer(config, config.layer_types.index("full_attention"))])

    def forward(self, model, ids, before):
        """before [T, width]: for each token the hidden state of the one before it. Returns the
        states behind the block's norm."""
        embedded = model.model.embed_tokens(ids)
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded),
                               self.pre_fc_norm_hidden(before)], dim=-1))[None]
        positions = torch.arange(len(ids))
        mask = create_causal_mask(config=model.config, inputs_embeds=x, attention_mask=None,
                                  cache_position=positions, past_key_values=None,
                                  position_ids=positions[None])
        rope = model.model.rotary_emb(x, positions.view(1, 1, -1).expand(3, 1, -1))
        x = self.layers[0](x, position_embeddings=rope, attention_mask=mask,
                           position_ids=positions[None], past_key_values=None)
        return self.norm(x)[0]


def draft(model, mtp, ids, hidden):
    """hidden [T, width]: the model's, behind its last norm."""
    before = torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]])
    chains = []
    with torch.no_grad():
        logits = model.lm_head(mtp(model, ids, before))
        for start in CHAINS:
            given = before.clone()
            rows = []
            for row in range(start, start + 3):
                states = mtp(model, ids[:row + 1], given[:row + 1])
                rows.append(model.lm_head(states[row]))
                given[row + 1] = states[row]
            chains.append(torch.stack(rows))
    return {"mtp_logits": logits, "mtp_chain": torch.stack(chains)}


def check_routing(model, router_inputs, top):
    """The last expert chosen and the first one left out must be clearly apart."""
    closest = 1.0
    for name, inputs in router_inputs.items():
        weight = dict(model.named_modules())[name].weight
        probabilities = torch.softmax(torch.cat(inputs) @ weight.T, -1)
        values = torch.sort(probabilities, descending=True).values
        closest = min(closest, (values[:, top - 1] - values[:, top]).min().item())
    print(f"  closest routing: {closest:.1e}")
    if closest < 1e-5:
        sys.exit("a routing is too close: choose another seed")


def record_router_inputs(model):
    seen = {}
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(
                lambda _, inputs, __, name=name: seen.setdefault(name, []).append(
                    inputs[0].detach().reshape(-1, inputs[0].shape[-1])))
    return seen


def run(model, ids):
    with torch.no_grad():
        hidden = model.model(ids[None]).last_hidden_state[0]
        return hidden, model.lm_head(hidden)


def write_tokenizer(folder):
    """Printable ASCII, a space, a newline, one merge; the pattern is that of Qwen3.5."""
    tokens = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ", "th"]
    vocab = {token: i for i, token in enumerate(tokens)}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = [{"id": len(tokens) + i, "content": text, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True}
             for i, text in enumerate(special)]
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
               r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                  "merges": [["t", "h"]]}}
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None,
              "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": 1024,
              "added_tokens_decoder": {
                  str(entry["id"]): {key: entry[key] for key in entry if key != "id"}
                  for entry in added}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def save(path, tensors):
    save_file({name: value.contiguous() for name, value in tensors.items()}, path,
              metadata={"format": "pt"})
    path.chmod(0o644)


def write_folder(out, name, config, tensors, ids, expected):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save(folder / "model.safetensors", tensors)
    write_tokenizer(folder)
    save(out / f"{name}.expected.safetensors", {"tokens": ids.to(torch.int32), **expected})
    deviation = expected["logits"].std().item()
    print(f"{name}: logits deviate by {deviation:.2f}, "
          f"{(folder / 'model.safetensors').stat().st_size} bytes")


def in_bf16(tensors):
    return {name: value.to(torch.bfloat16) for name, value in tensors.items()}


def make_qwen35(out):
    layers = 8
    text = {**HYBRID, "num_hidden_layers": layers, "intermediate_size": 96,
            "layer_types": layer_types(layers), "tie_word_embeddings": False}
    config = dense.Qwen3_5TextConfig(**text)
    config._attn_implementation = "eager"
    model = dense.Qwen3_5ForCausalLM(config).eval()
    fill(model, "qwen35", "", 35)
    mtp = MtpBlock(dense, config).eval()
    fill(mtp, "qwen35", "mtp.", 36)
    ids = token_ids(1)
    hidden, logits = run(model, ids)
    drafted = draft(model, mtp, ids, hidden)
    tensors = {**model.state_dict(), **{f"mtp.{k}": v for k, v in mtp.state_dict().items()}}
    write_folder(out, "qwen35",
                 {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
                  "dtype": "bfloat16", **text},
                 in_bf16(tensors), ids, {"logits": logits, **drafted})


def make_qwen35moe(out):
    """Wrapped like the published checkpoints, which also see: one tensor of the eye is there."""
    layers = 4
    text = {**HYBRID, **EXPERTS, "num_hidden_layers": layers,
            "shared_expert_intermediate_size": 32, "layer_types": layer_types(layers),
            "tie_word_embeddings": False}
    config = sparse.Qwen3_5MoeTextConfig(**text)
    config._attn_implementation = "eager"
    model = sparse.Qwen3_5MoeForCausalLM(config).eval()
    fill(model, "qwen35moe", "", 37)
    mtp = MtpBlock(sparse, config).eval()
    fill(mtp, "qwen35moe", "mtp.", 38)
    ids = token_ids(2)
    routed = record_router_inputs(model)
    hidden, logits = run(model, ids)
    check_routing(model, routed, EXPERTS["num_experts_per_tok"])
    routed = record_router_inputs(mtp)
    drafted = draft(model, mtp, ids, hidden)
    check_routing(mtp, routed, EXPERTS["num_experts_per_tok"])
    tensors = {}
    for name, value in model.state_dict().items():
        tensors[name.replace("model.", "model.language_model.", 1)] = value
    tensors["model.visual.merger.norm.bias"] = torch.zeros(8)
    tensors.update({f"mtp.{name}": value for name, value in mtp.state_dict().items()})
    write_folder(out, "qwen35moe",
                 {"architectures": ["Qwen3_5MoeForConditionalGeneration"],
                  "model_type": "qwen3_5_moe", "dtype": "bfloat16", "tie_word_embeddings": False,
                  "text_config": {"model_type": "qwen3_5_moe_text", "dtype": "bfloat16", **text},
                  "vision_config": {"model_type": "qwen3_5_moe", "depth": 1, "hidden_size": 8}},
                 in_bf16(tensors), ids, {"logits": logits, **drafted})


def make_qwen3moe(out):
    """One tensor per expert and matrix, as published; F32, and the head is the embedding."""
    text = {**COMMON, **EXPERTS, "num_hidden_layers": 3, "intermediate_size": 96,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": True,
            "rope_theta": 10000.0}
    config = transformers.Qwen3MoeConfig(**text)
    config._attn_implementation = "eager"
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    fill(model, "qwen3moe", "", 39)
    model.tie_weights()
    ids = token_ids(3)
    routed = record_router_inputs(model)
    _, logits = run(model, ids)
    check_routing(model, routed, EXPERTS["num_experts_per_tok"])
    tensors = {}
    for name, value in model.state_dict().items():
        base = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for expert, matrix in enumerate(value):
                gate, up = matrix.chunk(2)
                tensors[f"{base}.{expert}.gate_proj.weight"] = gate
                tensors[f"{base}.{expert}.up_proj.weight"] = up
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(value):
                tensors[f"{base}.{expert}.down_proj.weight"] = matrix
        elif name != "lm_head.weight":
            tensors[name] = value
    tensors = {name: value.clone() for name, value in tensors.items()}
    write_folder(out, "qwen3moe",
                 {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                  "dtype": "float32", **text},
                 tensors, ids, {"logits": logits})


def main():
    out = Path(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make_qwen35(out)
    make_qwen35moe(out)
    make_qwen3moe(out)
    if len(sys.argv) > 2:
        convert(sys.argv[2], out / "qwen35moe", out / "qwen35moe.gguf")
        print(f"qwen35moe.gguf: {(out / 'qwen35moe.gguf').stat().st_size} bytes")


main()
