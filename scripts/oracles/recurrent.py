"""Golden cases for the gated delta net, computed by transformers' torch code in f64.

Usage: recurrent.py > tests/data/ops/recurrent.json

transformers 5.2.0 (models/qwen3_5) and torch 2.7.1: torch_recurrent_gated_delta_rule,
torch_chunk_gated_delta_rule (both must agree), l2norm, the interleaved rotation of Qwen3.5, and
torch's conv1d, silu, softplus and sigmoid. The functions cast to torch.float32 inside; that name
is pointed at float64 while they run. Value head h reads key head h % key_heads here, as GGUF files
have it; transformers gets the key heads repeated in that order.
"""

import json
from unittest import mock

import numpy as np
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

RANDOM = np.random.default_rng(2026)


def numbers(*shape, scale=1.0):
    """Uniform in [-scale, scale] with three decimals."""
    return np.round(RANDOM.uniform(-scale, scale, shape), 3)


def flat(array, digits=9):
    values = np.asarray(array, dtype=np.float64).reshape(-1)
    return [float(f"{float(value):.{digits}g}") for value in values]


def given(array):
    """Numbers that have three decimals, as such."""
    return flat(array, 7)


def as_f32(array):
    return torch.tensor(np.asarray(array, dtype=np.float32).astype(np.float64))


def directions(*shape):
    x = RANDOM.normal(size=shape)
    return np.round(x / np.linalg.norm(x, axis=-1, keepdims=True), 3)


def log_decays(kind, *shape):
    wide = np.log(RANDOM.uniform(0.01, 1.0, shape))
    if kind == "wide":
        return np.round(wide, 3)
    if kind == "weak":
        return np.round(-RANDOM.uniform(0.0, 0.05, shape), 3)
    picks = RANDOM.integers(0, 8, shape)
    mixed = np.where(picks == 0, -30.0, np.where(picks == 1, -120.0, np.where(picks < 5, 0.0, wide)))
    return np.round(mixed, 3)


def delta(tokens, first, key_heads, heads, key_size, size, kind, keys="random"):
    q = directions(tokens, key_heads, key_size)
    k = directions(tokens, key_heads, key_size)
    if keys == "same":
        k = np.broadcast_to(k[:1], k.shape)
    v = numbers(tokens, heads, size)
    decay = log_decays(kind, tokens, heads)
    beta = np.round(RANDOM.uniform(0.0, 1.0, (tokens, heads)), 3)
    state = numbers(heads, size, key_size) if first > 0 else np.zeros((heads, size, key_size))
    order = [h % key_heads for h in range(heads)]
    inputs = [as_f32(x)[None] for x in (q[:, order], k[:, order], v)]
    gates = [as_f32(x)[None] for x in (decay, beta)]
    start = as_f32(state).transpose(-1, -2)[None]
    with mock.patch.object(torch, "float32", torch.float64):
        results = [
            rule(*inputs, g=gates[0], beta=gates[1], initial_state=start, output_final_state=True)
            for rule in (qwen.torch_recurrent_gated_delta_rule, qwen.torch_chunk_gated_delta_rule)
        ]
    for mine, other in zip(*results):
        assert mine.dtype == torch.float64
        # The chunk form keeps its table of decays in f32.
        assert torch.allclose(mine, other, rtol=1e-6, atol=1e-7), (mine - other).abs().max()
    out, last = results[0]
    return {
        "op": "gated_delta_rule",
        "first": first,
        "dims": [tokens, key_heads, heads, key_size, size],
        "q": given(q),
        "k": given(k),
        "v": given(v),
        "log_decay": given(decay),
        "beta": given(beta),
        "state": given(state) if first > 0 else [],
        "out": flat(out[0]),
        "last": flat(last[0].transpose(-1, -2)),
    }


def convolution(tokens, channels, taps):
    u = numbers(tokens, channels, scale=2.0)
    weight = numbers(channels, taps)
    y = torch.nn.functional.conv1d(
        as_f32(u).T[None], as_f32(weight)[:, None], padding=taps - 1, groups=channels
    )
    out = torch.nn.functional.silu(y[0, :, :tokens].T)
    return {
        "op": "causal_conv",
        "dims": [tokens, channels, taps],
        "u": given(u),
        "taps": given(weight),
        "out": flat(out),
    }


def gates(tokens, heads):
    a, b = numbers(tokens, heads, scale=25.0), numbers(tokens, heads, scale=25.0)
    bias, a_log = numbers(heads, scale=3.0), numbers(heads, scale=3.0)
    rate = np.float32(-np.exp(a_log))
    log_decay = as_f32(rate) * torch.nn.functional.softplus(as_f32(a) + as_f32(bias))
    return {
        "op": "delta_gates",
        "dims": [tokens, heads],
        "a": given(a),
        "b": given(b),
        "bias": given(bias),
        "rate": flat(rate),
        "log_decay": flat(log_decay),
        "beta": flat(torch.sigmoid(as_f32(b))),
    }


def norm(rows, cols, scale):
    x = numbers(rows, cols, scale=scale)
    return {
        "op": "l2_norm",
        "dims": [rows, cols],
        "x": given(x),
        "out": flat(qwen.l2norm(as_f32(x), eps=1e-6)),
    }


def sigmoid_gate(rows, cols):
    gate, up = numbers(rows, cols, scale=20.0), numbers(rows, cols, scale=3.0)
    return {
        "op": "glu",
        "dims": [rows, cols],
        "gate": given(gate),
        "up": given(up),
        "out": flat(torch.sigmoid(as_f32(gate)) * as_f32(up)),
    }


def rotation(sections, base, tokens, heads, head_size, rotary):
    config = Qwen3_5TextConfig(
        head_dim=head_size,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": base,
            "partial_rotary_factor": rotary / head_size,
            "mrope_section": sections,
        },
    )
    turn = qwen.Qwen3_5TextRotaryEmbedding(config)
    positions = RANDOM.integers(0, 300, (3, tokens))
    x = numbers(tokens, heads, head_size)
    cos, sin = turn(torch.zeros(1), torch.tensor(positions)[:, None])
    assert cos.shape[-1] == rotary, cos.shape
    out, _ = qwen.apply_rotary_pos_emb(as_f32(x)[None], as_f32(x)[None], cos, sin, unsqueeze_dim=2)
    return {
        "op": "rope",
        "dims": [tokens, heads, head_size],
        "rotary": rotary,
        "base": base,
        "sections": sections,
        "positions": [int(p) for p in positions.T.reshape(-1)],
        "x": given(x),
        "out": flat(out),
    }


def main():
    cases = [
        delta(70, 0, 1, 2, 8, 6, "wide"),
        delta(70, 37, 2, 4, 4, 4, "mixed"),
        delta(64, 64, 1, 1, 16, 8, "weak", keys="same"),
        delta(3, 130, 2, 6, 8, 4, "wide"),
        delta(1, 0, 1, 1, 8, 8, "weak"),
        convolution(9, 6, 4),
        convolution(2, 5, 4),
        convolution(5, 3, 3),
        gates(5, 6),
        norm(4, 20, 1.0),
        norm(2, 33, 0.002),
        sigmoid_gate(3, 25),
        rotation([11, 11, 10], 1e7, 3, 1, 96, 64),
        rotation([4, 2, 2], 1e4, 3, 1, 20, 20),
    ]
    print("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]")


main()
