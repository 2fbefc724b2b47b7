"""Golden cases for the ops, computed by implementations that are not ours.

Usage: ops.py LLAMA_LIB_DIR > tests/data/ops/golden.json

- ONNX's reference evaluator (onnx 1.23.2, numpy in f64): Attention, RotaryEmbedding,
  RMSNormalization, Softmax, Swish, Gelu.
- llama.cpp's own libraries in LLAMA_LIB_DIR (libggml-base.so, libggml-cpu.so, libllama.so of the
  sources in llama-cpp-python 0.3.36): ggml_rope_ext with YaRN and frequency factors, and the
  samplers. Their f32 results carry a looser "bound".
Needs numpy 2.4.6 besides.
"""

import ctypes
import json
import math
import sys

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

RANDOM = np.random.default_rng(2026)


def numbers(*shape, scale=1.0):
    """Uniform in [-scale, scale] with three decimals, as f32 holds them."""
    return np.round(RANDOM.uniform(-scale, scale, shape), 3).astype(np.float32)


def flat(array, digits=9):
    return [float(f"{float(value):.{digits}g}") for value in np.asarray(array).reshape(-1)]


def given(array):
    """Numbers that have three decimals, as such."""
    return flat(array, 6)


def onnx_op(op, inputs, opset=24, **attributes):
    """One operator on f64 inputs."""
    names = [f"i{index}" if value is not None else "" for index, value in enumerate(inputs)]
    kinds = {np.dtype(np.float64): onnx.TensorProto.DOUBLE, np.dtype(bool): onnx.TensorProto.BOOL}
    values = {}
    infos = []
    for name, value in zip(names, inputs):
        if value is None:
            continue
        value = value if value.dtype == bool else value.astype(np.float64)
        values[name] = value
        infos.append(helper.make_tensor_value_info(name, kinds[value.dtype], value.shape))
    out = helper.make_tensor_value_info("o", onnx.TensorProto.DOUBLE, None)
    graph = helper.make_graph([helper.make_node(op, names, ["o"], **attributes)], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, values)[0]


def rows():
    x = numbers(3, 40, scale=10.0)
    gain = numbers(40, scale=2.0)
    yield {"op": "rms_norm", "x": given(x), "gain": given(gain), "eps": 1e-3, "shape": [3, 40],
           "out": flat(onnx_op("RMSNormalization", [x, gain], epsilon=1e-3)), "bound": 1e-13}
    x = numbers(4, 33, scale=20.0)
    yield {"op": "softmax", "x": given(x), "scale": 0.25, "shape": [4, 33],
           "out": flat(onnx_op("Softmax", [x * 0.25], axis=-1)), "bound": 1e-13}
    gate, up = numbers(4, 33, scale=12.0), numbers(4, 33)
    wide = up.astype(np.float64)
    for kind, act in (("swiglu", onnx_op("Swish", [gate])),
                      ("geglu", onnx_op("Gelu", [gate], approximate="tanh")),
                      ("reglu", onnx_op("Relu", [gate]))):
        yield {"op": "glu", "kind": kind, "gate": given(gate), "up": given(up), "shape": [4, 33],
               "out": flat(act * wide), "bound": 1e-13}


def rope_onnx():
    positions = np.array([0, 1, 77, 131071])
    for pairs, rotary in (("adjacent", 16), ("halves", 16), ("halves", 8), ("adjacent", 8)):
        x = numbers(4, 2, 16)  # [T, H, d]
        theta = positions[:, None] * 10000.0 ** (-2.0 * np.arange(rotary // 2) / rotary)
        rotated = onnx_op("RotaryEmbedding",
                          [x.transpose(1, 0, 2)[None], np.cos(theta)[None], np.sin(theta)[None]],
                          interleaved=int(pairs == "adjacent"), rotary_embedding_dim=rotary)
        yield {"op": "rope", "source": "onnx", "pairs": pairs, "rotary": rotary, "base": 10000.0,
               "positions": positions.tolist(), "x": given(x), "shape": [4, 2, 16],
               "out": flat(rotated[0].transpose(1, 0, 2)), "bound": 1e-13}


class InitParams(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """Just enough of ggml's C interface to run ggml_rope_ext."""

    def __init__(self, folder):
        self.base = ctypes.CDLL(f"{folder}/libggml-base.so", mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(f"{folder}/libggml-cpu.so", mode=ctypes.RTLD_GLOBAL)
        for name in ("ggml_init", "ggml_new_tensor_3d", "ggml_new_tensor_1d", "ggml_rope_ext",
                     "ggml_new_graph", "ggml_get_data"):
            getattr(self.base, name).restype = ctypes.c_void_p
        self.base.ggml_init.argtypes = [InitParams]
        self.context = ctypes.c_void_p(self.base.ggml_init(InitParams(16 << 20, None, False)))

    def tensor(self, array, kind):
        new = self.base.ggml_new_tensor_3d if array.ndim == 3 else self.base.ggml_new_tensor_1d
        extents = [ctypes.c_int64(extent) for extent in reversed(array.shape)]
        tensor = ctypes.c_void_p(new(self.context, kind, *extents))
        data = self.base.ggml_get_data(tensor)
        ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return tensor

    def rope(self, x, positions, factors, rotary, mode, original, base, freq_scale, yarn, attn,
             beta_fast, beta_slow):
        a = self.tensor(x.astype(np.float32), 0)
        b = self.tensor(np.array(positions, np.int32), 26)
        c = self.tensor(factors.astype(np.float32), 0) if factors is not None else None
        number = ctypes.c_float
        out = ctypes.c_void_p(self.base.ggml_rope_ext(
            self.context, a, b, c, rotary, mode, original, number(base), number(freq_scale),
            number(yarn), number(attn), number(beta_fast), number(beta_slow)))
        graph = ctypes.c_void_p(self.base.ggml_new_graph(self.context))
        self.base.ggml_build_forward_expand(graph, out)
        self.cpu.ggml_graph_compute_with_ctx(self.context, graph, 1)
        data = ctypes.cast(self.base.ggml_get_data(out), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(data, x.shape).copy()


def rope_ggml(folder):
    ggml = Ggml(folder)
    positions = [0, 1, 100, 1000]
    for mode, scale, yarn, with_factors in ((0, 1.0, 0.0, True), (2, 0.25, 0.0, False),
                                            (2, 1 / 32, 1.0, False), (0, 1 / 4, 1.0, True)):
        x = numbers(4, 2, 64)
        factors = np.round(RANDOM.uniform(1.0, 8.0, 32), 3) if with_factors else None
        attn = 1.1
        out = ggml.rope(x, positions, factors, 64, mode, 4096, 150000.0, scale, yarn, attn, 32.0,
                        1.0)
        magnitude = attn * (1.0 + 0.1 * math.log(1.0 / scale)) if yarn else attn
        yield {"op": "rope", "source": "ggml", "pairs": "halves" if mode == 2 else "adjacent",
               "rotary": 64, "base": 150000.0, "freq_scale": scale, "yarn": yarn > 0,
               "magnitude": magnitude, "beta_fast": 32.0, "beta_slow": 1.0,
               "original_context": 4096, "positions": positions,
               "factors": given(factors) if with_factors else [], "x": given(x),
               "shape": [4, 2, 64], "out": flat(out), "bound": 1e-8}


def attention():
    for first, count, heads, kv_heads, window, softcap in (
            (0, 5, 4, 4, 0, 0.0), (62, 5, 4, 2, 0, 0.0), (62, 4, 6, 2, 9, 0.0),
            (69, 1, 4, 1, 0, 2.0)):
        d = 8
        total = first + count
        q = numbers(count, heads, d, scale=4.0)
        k, v = numbers(total, kv_heads, d), numbers(total, kv_heads, d)
        own = first + np.arange(count)[:, None]
        keys = np.arange(total)[None, :]
        mask = (keys <= own) & (keys > own - (window or total))
        # ONNX caps the scores after masking them, so the capped case is one that needs no mask.
        assert softcap == 0.0 or mask.all()
        out = onnx_op("Attention",
                      [q.transpose(1, 0, 2)[None], k.transpose(1, 0, 2)[None],
                       v.transpose(1, 0, 2)[None], None if mask.all() else mask],
                      scale=0.37, softcap=softcap)
        yield {"op": "attention", "first": first, "count": count, "heads": heads,
               "kv_heads": kv_heads, "head_size": d, "scale": 0.37, "window": window,
               "softcap": softcap, "q": given(q), "k": given(k), "v": given(v),
               "out": flat(out[0].transpose(1, 0, 2)), "bound": 1e-12}


def attention_sinks():
    """A sink as one more key: the mask adds it to a score of 0, and its value is 0."""
    for first, count, heads, kv_heads, window in ((0, 5, 4, 4, 0), (62, 5, 4, 2, 0),
                                                  (62, 4, 6, 2, 9), (69, 1, 4, 1, 0)):
        d = 8
        total = first + count
        q = numbers(count, heads, d, scale=4.0)
        k, v = numbers(total, kv_heads, d), numbers(total, kv_heads, d)
        sinks = numbers(heads, scale=3.0)
        own = first + np.arange(count)[:, None]
        keys = np.arange(total)[None, :]
        seen = (keys <= own) & (keys > own - (window or total))
        mask = np.zeros((1, heads, count, total + 1), np.float32)
        mask[..., :total] = np.where(seen, 0, -np.inf)
        mask[..., total] = sinks[None, :, None]
        more = np.zeros((1, kv_heads, d), np.float32)
        out = onnx_op("Attention",
                      [q.transpose(1, 0, 2)[None],
                       np.concatenate([k, more]).transpose(1, 0, 2)[None],
                       np.concatenate([v, more]).transpose(1, 0, 2)[None], mask],
                      scale=0.37, softcap=0.0)
        yield {"op": "attention", "first": first, "count": count, "heads": heads,
               "kv_heads": kv_heads, "head_size": d, "scale": 0.37, "window": window,
               "softcap": 0.0, "q": given(q), "k": given(k), "v": given(v), "sinks": given(sinks),
               "out": flat(out[0].transpose(1, 0, 2)), "bound": 1e-12}


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenDataArray(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(TokenData)), ("size", ctypes.c_size_t),
                ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool)]


def kept_tokens(llama, logits, params, history):
    """(id, logit) that llama.cpp's chain leaves, most probable first."""
    data = (TokenData * len(logits))(*[(i, float(x), 0.0) for i, x in enumerate(logits)])
    array = TokenDataArray(data, len(logits), -1, False)
    number = ctypes.c_float
    penalties = ctypes.c_void_p(llama.llama_sampler_init_penalties(
        len(logits), max(len(history), 1), number(params["repeat_penalty"]),
        number(params["frequency_penalty"]), number(params["presence_penalty"])))
    for token in history:
        llama.llama_sampler_accept(penalties, token)
    chain = [penalties]
    if params["temperature"] > 0:
        chain += [ctypes.c_void_p(llama.llama_sampler_init_top_k(params["top_k"])),
                  ctypes.c_void_p(llama.llama_sampler_init_top_p(number(params["top_p"]),
                                                                 ctypes.c_size_t(0))),
                  ctypes.c_void_p(llama.llama_sampler_init_min_p(number(params["min_p"]),
                                                                 ctypes.c_size_t(0))),
                  ctypes.c_void_p(llama.llama_sampler_init_temp(number(params["temperature"])))]
    for sampler in chain:
        llama.llama_sampler_apply(sampler, ctypes.byref(array))
    kept = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    return sorted(kept, key=lambda pair: (-pair[1], pair[0]))


def sample(folder):
    ctypes.CDLL(f"{folder}/libggml.so", mode=ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(f"{folder}/libllama.so")
    for name in ("penalties", "top_k", "top_p", "min_p", "temp"):
        getattr(llama, f"llama_sampler_init_{name}").restype = ctypes.c_void_p
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0,
           "frequency_penalty": 0.0, "presence_penalty": 0.0}
    changes = ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"temperature": 0.5},
               {"temperature": 0.0, "repeat_penalty": 1.5},
               {"repeat_penalty": 1.5}, {"frequency_penalty": 0.7}, {"presence_penalty": 1.5},
               {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05,
                "repeat_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.3})
    for change in changes:
        params = off | change
        logits = numbers(32, scale=4.0)
        history = [int(np.argmax(logits))] * 2 + RANDOM.integers(0, 32, 6).tolist()
        kept = kept_tokens(llama, logits, params, history)
        weights = np.exp(np.array([logit for _, logit in kept], np.float64) - kept[0][1])
        cumulative = np.cumsum(weights / weights.sum())
        draws = []
        for uniform in [0.0] + np.round(RANDOM.uniform(0.0, 1.0, 6), 3).tolist() + [0.999]:
            if params["temperature"] <= 0:
                draws.append([uniform, kept[0][0]])
                continue
            index = int(np.searchsorted(cumulative, uniform, side="right"))
            draws.append([uniform, kept[min(index, len(kept) - 1)][0]])
        yield {"op": "sample", "params": params, "logits": given(logits), "history": history,
               "draws": draws}


def main():
    folder = sys.argv[1]
    cases = [*rows(), *rope_onnx(), *rope_ggml(folder), *attention(), *sample(folder),
             *attention_sinks()]
    print("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]")


main()
