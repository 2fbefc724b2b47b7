#!/usr/bin/env python3
"""Writes the stored vectors of the number-format tests (tests/data/formats, tests/data/gguf/types.gguf).

Nothing here was written by this project's codecs: blocks come from ggml's own quantizer (through
ctypes), decoded values from the `gguf` package, scalar roundings from `ml_dtypes` and numpy.

    python -m venv venv
    venv/bin/pip install gguf==0.19.0 ml-dtypes==0.6.0 numpy==2.4.6 safetensors==0.8.0
    venv/bin/python scripts/oracles/formats.py <folder with libggml-base.so of a llama.cpp build>
"""

import argparse
import ctypes
import pathlib

import gguf
import ml_dtypes
import numpy as np
import safetensors.numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK_FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4"]
SWEEP_STEP = 4099  # a prime: every exponent and many mantissas of the 2^32 floats


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def input_values(count: int) -> np.ndarray:
    """Values like weights, and the awkward blocks: zeros, constants, ties, one outlier, tiny, large."""
    rng = np.random.default_rng(20)
    values = rng.standard_normal(count).astype(np.float32) * np.float32(0.7)
    values[:32] = 0
    values[32:64] = 0.25
    values[64:96] = -3
    values[96:128] = np.tile(np.array([1, -1, 0.75, -0.25], np.float32), 8)
    values[130] = 40
    values[256:320] *= np.float32(1e-3)
    values[320:352] *= np.float32(300)
    values[352:384] = np.abs(values[352:384])
    values[384:416] = -np.abs(values[384:416])
    return values


class Ggml:
    def __init__(self, folder: pathlib.Path):
        self.library = ctypes.CDLL(str(folder / "libggml-base.so"))
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.library.ggml_quantize_chunk.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
            ctypes.c_int64, ctypes.c_void_p]

    def quantize(self, name: str, values: np.ndarray) -> np.ndarray:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.zeros(values.size // block * size, np.uint8)
        written = self.library.ggml_quantize_chunk(
            int(kind), pointer(values), pointer(out), 0, 1, values.size, None)
        assert written == out.size
        return out


def random_blocks(name: str, count: int) -> np.ndarray:
    """Random block bytes; half-precision scales get moderate exponents, so that all is finite."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(sum(name.encode()))
    blocks = rng.integers(0, 256, (count // block, size)).astype(np.uint8)
    half_at = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
               "MXFP4": [], "NVFP4": []}.get(name, [0])
    for at in half_at:
        high = blocks[:, at + 1]
        blocks[:, at + 1] = (high & 0x83) | (rng.integers(8, 20, high.size) << 2).astype(np.uint8)
    if name == "NVFP4":
        # The top bit and the NaN code are outside the format; llama.cpp's own readers disagree there.
        blocks[:, :4] &= 0x7F
        blocks[:, :4][blocks[:, :4] == 0x7F] = 0x3C
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 251, blocks.shape[0])
        blocks[0, 0], blocks[1, 0] = 0, 1
    return blocks.ravel()


def nvfp4_blocks(values: np.ndarray, policy: str) -> np.ndarray:
    """The three policies in 64-bit arithmetic, roundings by ml_dtypes."""
    e4m3, e2m1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
    out = []
    for block in values.reshape(-1, 4, 16).astype(np.float64):
        scales, nibbles = [], []
        for x in block:
            amax = np.abs(x).max()

            def code_of(value):
                return int(np.float32(min(value, 448)).astype(e4m3).view(np.uint8))

            six = code_of(np.float32(amax) / np.float32(6))
            candidates = [six]
            if policy == "search":
                candidates += [six - 1, six + 1, six - 2, six + 2]
            if policy != "amax6":
                candidates.append(code_of(amax / 4))
            best = None
            for code in candidates:
                if not 0 <= code <= 0x7E:
                    continue
                scale = float(np.uint8(code).view(e4m3))
                if scale == 0:
                    codes = np.zeros(16, np.uint8)
                else:
                    codes = np.clip(x / scale, -6, 6).astype(e2m1).view(np.uint8) & 15
                error = ((codes.view(e2m1).astype(np.float64) * scale - x) ** 2).sum()
                if best is None or error < best[0] * (1 - 1e-9):
                    best = (error, code, codes)
            scales.append(best[1] if amax > 0 else 0)
            codes = best[2] if amax > 0 else np.zeros(16, np.uint8)
            nibbles.append(codes[:8] | (codes[8:] << 4))
        out.append(np.concatenate([np.array(scales, np.uint8), *nibbles]))
    return np.concatenate(out).astype(np.uint8)


def sweep() -> np.ndarray:
    values = np.arange(0, 2**32, SWEEP_STEP, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return values[~np.isnan(values)]


def neighbours(values: np.ndarray) -> np.ndarray:
    """Each value of the ascending list, each midpoint, and the floats beside each midpoint."""
    values = values.astype(np.float32)
    middle = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
    infinity = np.float32(np.inf)
    parts = [values, middle, np.nextafter(middle, infinity), np.nextafter(middle, -infinity)]
    return np.concatenate(parts)


def e4m3_codes(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8) & 0x7F


def signed_e4m3_codes(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def e2m1_codes(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15


def write_dtypes(folder: pathlib.Path):
    names = ["F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", *BLOCK_FORMATS]
    rows = []
    for name in names:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows.append(f"{name}\t{int(kind)}\t{block}\t{size}\n")
    (folder / "dtypes.tsv").write_text("".join(rows))


def write_scalars(folder: pathlib.Path):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)].astype(np.float32)
    with np.errstate(all="ignore"):
        dense = sweep()
        finite = np.sort(np.unique(np.abs(halves[np.isfinite(halves)])))
        ties = neighbours(finite)
        rows = [
            ("f16_decode", halves.tobytes()),
            ("f16_encode_sweep", dense.astype(np.float16).tobytes()),
            ("f16_encode_ties", ties.astype(np.float16).tobytes()),
            ("bf16_encode_sweep", dense.astype(ml_dtypes.bfloat16).tobytes()),
            ("e4m3_encode_sweep", e4m3_codes(dense).tobytes()),
            ("f8_e4m3_encode_sweep", signed_e4m3_codes(dense).tobytes()),
            ("e2m1_encode_sweep", e2m1_codes(dense).tobytes()),
        ]
    lines = [f"{name}\t{len(data)}\t{fnv1a(data):016x}\n" for name, data in rows]
    (folder / "scalars.tsv").write_text("".join(lines))
    e4m3 = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    e4m3_inputs = neighbours(e4m3)
    e2m1 = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    e2m1_inputs = neighbours(e2m1)
    e2m1_inputs = np.concatenate([e2m1_inputs, -e2m1_inputs])
    for name, inputs, codes in [("e4m3", e4m3_inputs, e4m3_codes(e4m3_inputs)),
                                ("e2m1", e2m1_inputs, e2m1_codes(e2m1_inputs))]:
        (folder / f"{name}_ties.values.bin").write_bytes(inputs.astype("<f4").tobytes())
        (folder / f"{name}_ties.codes.bin").write_bytes(codes.tobytes())
    (folder / "e4m3_decode.bin").write_bytes(e4m3.astype("<f4").tobytes())


def write_types_file(path: pathlib.Path):
    """One key of every value type, tensors of several formats and ranks, by the gguf package."""
    writer = gguf.GGUFWriter(str(path), "test")
    writer.add_uint8("scalar.u8", 200)
    writer.add_int8("scalar.i8", -100)
    writer.add_uint16("scalar.u16", 60000)
    writer.add_int16("scalar.i16", -30000)
    writer.add_uint32("scalar.u32", 4000000000)
    writer.add_int32("scalar.i32", -2000000000)
    writer.add_float32("scalar.f32", 0.1)
    writer.add_bool("scalar.bool", True)
    writer.add_string("scalar.string", "caf\u00e9 \u4f60\u597d")
    writer.add_uint64("scalar.u64", 2**64 - 1)
    writer.add_int64("scalar.i64", -2**63)
    writer.add_float64("scalar.f64", 0.1)
    kinds = gguf.GGUFValueType
    for name, kind, values in [
            ("u8", kinds.UINT8, [0, 255]), ("i8", kinds.INT8, [-128, 127]),
            ("u16", kinds.UINT16, [0, 65535]), ("i16", kinds.INT16, [-32768, 32767]),
            ("u32", kinds.UINT32, [0, 2**32 - 1]), ("i32", kinds.INT32, [-2**31, 2**31 - 1]),
            ("f32", kinds.FLOAT32, [0.5, -1.25]), ("bool", kinds.BOOL, [True, False, True]),
            ("string", kinds.STRING, ["", "a", "\u00e9\u00e9"]),
            ("u64", kinds.UINT64, [0, 2**63]), ("i64", kinds.INT64, [-2**63, 2**63 - 1]),
            ("f64", kinds.FLOAT64, [1e300, -1e-300])]:
        writer.add_key_value(f"array.{name}", values, kinds.ARRAY, sub_type=kind)
    rng = np.random.default_rng(7)
    writer.add_tensor("vector.f32", np.arange(3, dtype=np.float32))
    writer.add_tensor("cube.f16", rng.standard_normal((2, 3, 5)).astype(np.float16))
    writer.add_tensor("four.i32", np.arange(2 * 2 * 2 * 3, dtype=np.int32).reshape(2, 2, 2, 3))
    for name in ["Q8_0", "Q4_K", "NVFP4"]:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = random_blocks(name, 2 * 256).reshape(2, 256 // block * size)
        writer.add_tensor(f"matrix.{name.lower()}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors_file(path: pathlib.Path):
    tensors = {
        "model.norm.weight": np.arange(5, dtype=np.float32) / 4,
        "model.codes": np.arange(12, dtype=np.uint8).reshape(2, 6),
        "model.half": np.arange(6, dtype=np.float16).reshape(1, 2, 3),
        "model.bf16": np.arange(3).astype(ml_dtypes.bfloat16),
        "model.scale": np.array([[0.5, 448]], dtype=ml_dtypes.float8_e4m3fn),
        "model.scalar": np.array(2.5, dtype=np.float32),
        "model.empty": np.zeros((0, 4), dtype=np.float32),
    }
    safetensors.numpy.save_file(tensors, str(path), metadata={"format": "np"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ggml", type=pathlib.Path, help="folder with libggml-base.so")
    ggml = Ggml(parser.parse_args().ggml)
    folder = ROOT / "tests" / "data" / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    values = input_values(2048)
    (folder / "input.values.bin").write_bytes(values.astype("<f4").tobytes())
    for name in BLOCK_FORMATS:
        stem = name.lower()
        (folder / f"{stem}.ggml.bin").write_bytes(ggml.quantize(name, values).tobytes())
        blocks = random_blocks(name, 512)
        decoded = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).ravel()
        assert np.isfinite(decoded).all() and decoded.size == 512, name
        (folder / f"{stem}.random.bin").write_bytes(blocks.tobytes())
        (folder / f"{stem}.decoded.bin").write_bytes(decoded.astype("<f4").tobytes())
    for policy in ["amax6", "four_six", "search"]:
        (folder / f"nvfp4.{policy}.bin").write_bytes(nvfp4_blocks(values, policy).tobytes())
    write_dtypes(folder)
    write_scalars(folder)
    write_types_file(ROOT / "tests" / "data" / "gguf" / "types.gguf")
    write_safetensors_file(ROOT / "tests" / "data" / "gguf" / "types.safetensors")


if __name__ == "__main__":
    main()
