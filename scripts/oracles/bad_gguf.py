#!/usr/bin/env python3
"""Writes the hostile model files of tests/data/gguf/bad and the message that each must give.

The bytes are packed here by hand from the format description (ggml:docs/gguf.md,
huggingface/safetensors:README.md), and the messages are written here by hand: nothing is taken from
the reader under test. Names in the comments are those of the fault list: L1 counts, L2 sizes that
wrap, L4 shapes, L5 empty and repeated, L6 alignment, L9 and L10 offsets, M10 type ids, split files.

    python scripts/oracles/bad_gguf.py
"""

import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "gguf" / "bad"
SPLIT = ROOT / "tests" / "data" / "gguf" / "split"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B",
        U64: "<Q", I64: "<q", F64: "<d"}
TYPE_F32, TYPE_NVFP4 = 0, 40
cases = {}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, value):
    body = text(value) if kind == STRING else struct.pack(PACK[kind], value)
    return text(name) + struct.pack("<I", kind) + body


def array(name, kind, count, body=b""):
    return text(name) + struct.pack("<IIQ", ARRAY, kind, count) + body


def tensor(name="t", shape=(8,), kind=TYPE_F32, offset=0, rank=None):
    rank = len(shape) if rank is None else rank
    packed = text(name) + struct.pack("<I", rank & 0xFFFFFFFF)
    for extent in shape:
        packed += struct.pack("<Q", extent % 2**64)
    return packed + struct.pack("<IQ", kind, offset % 2**64)


def gguf(keys=(), tensors=(), data=b"", version=3, counts=None, alignment=32, magic=b"GGUF"):
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    header = magic + struct.pack("<IQQ", version, n_tensors % 2**64, n_keys % 2**64)
    header += b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % alignment) + data


def bad(name, content, message):
    assert name not in cases
    cases[name] = (content, message)


DATA = bytes(32)
ARCH = key("general.architecture", STRING, "llama")


def beginnings():
    bad("magic.gguf", b"PK\3\4" + bytes(60), r"not a GGUF file (it begins with 'PK\x03\x04')")
    bad("tiny.gguf", b"GG", "not a GGUF file (it begins with 'GG')")
    bad("only_magic.gguf", b"GGUF",
        "4 bytes needed at byte 4, the file ends at byte 4 (incomplete download?)")
    bad("no_counts.gguf", gguf()[:20],
        "8 bytes needed at byte 16, the file ends at byte 20 (incomplete download?)")
    bad("version0.gguf", gguf(version=0), "GGUF version 0 is unknown (2 and 3 are read)")
    bad("version1.gguf", gguf(version=1),
        "GGUF version 1 is no longer read; convert the model again")
    bad("version4.gguf", gguf(version=4), "GGUF version 4 is unknown (2 and 3 are read)")
    bad("big_endian.gguf", gguf(version=3 << 24),
        "a big-endian GGUF file; only little-endian ones are read")


def counts():  # L1
    one = gguf([ARCH], [tensor()], DATA)
    left = len(one) - 24
    for name, count in [("half", 2**63), ("minus", -1), ("wrap_info", 2**64 // 144 - 1),
                        ("wrap_least", 2**64 // 33 + 1), ("billion", 10**9)]:
        shown = count % 2**64
        bad(f"tensors_{name}.gguf", gguf([ARCH], [tensor()], DATA, counts=(count, 1)),
            f"the header names {shown} tensors, but only {left} bytes follow (incomplete download?)")
        bad(f"keys_{name}.gguf", gguf([ARCH], [tensor()], DATA, counts=(1, count)),
            f"the header names {shown} keys, but only {left} bytes follow (incomplete download?)")
    # The counts fit the size, but zeros stand where the second entry should.
    bad("keys_one_more.gguf", gguf([ARCH], [], bytes(64), counts=(0, 2)),
        "key number 1: the name is empty")
    bad("tensors_one_more.gguf", gguf([ARCH], [tensor()], bytes(64), counts=(2, 1)),
        "tensor number 1: the name is empty")


def keys():  # L5
    bad("key_empty.gguf", gguf([ARCH, key("", U32, 1)]), "key number 1: the name is empty")
    bad("key_twice.gguf", gguf([ARCH, key("a", U32, 1), key("a", F32, 1)]), "key 'a': appears twice")
    bad("key_long.gguf", gguf([key("k" * 65536, U8, 1)]),
        "key '" + "k" * 80 + "...': the name has 65536 bytes, 65535 are allowed")
    for name, length in [("huge", 2**64 - 1), ("half", 2**63), ("wrap", 2**64 - 20)]:
        broken = struct.pack("<Q", length) + b"abc" + bytes(40)
        whole = gguf([broken])
        bad(f"key_length_{name}.gguf", whole, f"key number 0: {length} bytes needed at byte 32, the "
            f"file ends at byte {len(whole)} (incomplete download?)")
        whole = gguf([text("s") + struct.pack("<IQ", STRING, length) + bytes(40)])
        bad(f"string_length_{name}.gguf", whole, f"key 's': {length} bytes needed at byte 45, the "
            f"file ends at byte {len(whole)} (incomplete download?)")
        whole = gguf([array("a", I32, length, bytes(40))])
        bad(f"array_count_{name}.gguf", whole, f"key 'a': {length} items of 4 bytes needed at byte "
            f"49, the file ends at byte {len(whole)} (incomplete download?)")
        whole = gguf([array("a", STRING, length, bytes(40))])
        bad(f"array_strings_{name}.gguf", whole, f"key 'a': {length} items of 8 bytes needed at byte "
            f"49, the file ends at byte {len(whole)} (incomplete download?)")
    whole = gguf([array("a", I64, 2**61, bytes(40))])  # 8 * 2^61 wraps to 0
    bad("array_bytes_wrap.gguf", whole, f"key 'a': {2**61} items of 8 bytes needed at byte 49, the "
        f"file ends at byte {len(whole)} (incomplete download?)")
    bad("key_type13.gguf", gguf([text("a") + struct.pack("<IQ", 13, 0)]),
        "key 'a': value type 13 is unknown")
    bad("key_type_minus.gguf", gguf([text("a") + struct.pack("<IQ", 2**32 - 1, 0)]),
        "key 'a': value type 4294967295 is unknown")
    bad("array_type13.gguf", gguf([array("a", 13, 1, bytes(8))]), "key 'a': value type 13 is unknown")
    bad("array_nested.gguf", gguf([array("a", ARRAY, 1, struct.pack("<IQ", U8, 0))]),
        "key 'a': an array of arrays is not supported")
    bad("bool_two.gguf", gguf([key("a", BOOL, 2)]), "key 'a': a bool is stored as 2, not 0 or 1")
    bad("bool_array_two.gguf", gguf([array("a", BOOL, 2, b"\1\xff")]),
        "key 'a': a bool is stored as 255, not 0 or 1")
    bad("key_control.gguf", gguf([text(b"a\n\x1b[31m\xe9") + struct.pack("<IQ", 13, 0)]),
        r"key 'a\x0a\x1b[31m\xe9': value type 13 is unknown")


def alignments():  # L6
    for name, kind, value, message in [
            ("zero", U32, 0, "0 is not a power of two"),
            ("three", U32, 3, "3 is not a power of two"),
            ("all", U32, 2**32 - 1, "4294967295 is not a power of two"),
            ("signed", I32, 32, "has type i32, not u32"),
            ("wide", U64, 32, "has type u64, not u32"),
            ("text", STRING, "32", "has type string, not u32")]:
        bad(f"alignment_{name}.gguf",
            gguf([ARCH, key("general.alignment", kind, value)], [tensor()], DATA),
            f"key 'general.alignment': {message}")
    # A power of two, but the data would begin two gigabytes into the file.
    bad("alignment_2gib.gguf", gguf([key("general.alignment", U32, 2**31)], [tensor()], DATA),
        "tensor 't': 32 bytes at offset 0 of the data pass the end of the file: it has 0 bytes of "
        "data (incomplete download?)")


def shapes():  # L2, L4, L5
    most = 2**63 - 1
    for rank in [0, 5, 2**32 - 1]:
        extents = (8,) * min(rank, 5)
        bad(f"axes_{rank}.gguf", gguf([ARCH], [tensor(shape=extents, rank=rank)], DATA),
            f"tensor 't': has {rank} axes, 1 to 4 are allowed")
    for name, shape, axis, shown in [("zero", (0,), 0, 0), ("zero_inner", (8, 0, 2), 1, 0),
                                     ("minus", (8, -1), 1, -1), ("lowest", (-2**63,), 0, -2**63)]:
        bad(f"extent_{name}.gguf", gguf([ARCH], [tensor(shape=shape)], DATA),
            f"tensor 't': axis {axis} has the impossible length {shown}")
    for name, shape in [("two", (most, 2)), ("bytes", (2**62,)), ("four", (2**16,) * 4),
                        ("to_zero", (2**32, 2**32)), ("to_eight", (2**61 + 1, 8))]:
        bad(f"product_{name}.gguf", gguf([ARCH], [tensor(shape=shape)], DATA),
            f"tensor 't': the shape [{', '.join(map(str, shape))}] has too many elements")
    wide = (8, 2**42 + 1)
    bad("extent_2_42.gguf", gguf([ARCH], [tensor(shape=wide)], DATA),
        f"tensor 't': {32 * wide[1]} bytes at offset 0 of the data pass the end of the file: it has "
        "32 bytes of data (incomplete download?)")
    half = (2**60,)  # 2^62 bytes each: four of them sum to 2^64, which wraps to 0
    bad("sum_wraps.gguf",
        gguf([ARCH], [tensor(f"t{i}", half, offset=i * 2**62) for i in range(4)], DATA),
        f"tensor 't0': {2**62} bytes at offset 0 of the data pass the end of the file: it has 32 "
        "bytes of data (incomplete download?)")
    bad("rows_of_blocks.gguf", gguf([ARCH], [tensor(shape=(32, 2), kind=TYPE_NVFP4)], bytes(36)),
        "tensor 't': rows of 32 values do not fill whole NVFP4 blocks of 64")


def tensor_names():  # L5
    bad("tensor_empty.gguf", gguf([ARCH], [tensor("")], DATA), "tensor number 0: the name is empty")
    bad("tensor_twice.gguf", gguf([ARCH], [tensor("a"), tensor("a", offset=32)], DATA * 2),
        "tensor 'a': appears twice")
    bad("tensor_long.gguf", gguf([ARCH], [tensor("n" * 64)], DATA),
        "tensor '" + "n" * 64 + "': the name has 64 bytes, 63 are allowed")


def types():  # M10
    retired = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
               36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}
    known = {9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 20: "IQ4_NL",
             23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 41: "Q1_0", 42: "Q2_0"}
    for number, name in retired.items():
        bad(f"type_{number}.gguf", gguf([ARCH], [tensor(kind=number)], DATA),
            f"tensor 't': type {name} (id {number}) was retired; convert the model again")
    for number, name in known.items():
        bad(f"type_{number}.gguf", gguf([ARCH], [tensor(kind=number)], DATA),
            f"tensor 't': type {name} (id {number}) is not supported")
    for number in [43, 99, 2**31, 2**32 - 1]:
        bad(f"type_{number}.gguf", gguf([ARCH], [tensor(kind=number)], DATA),
            f"tensor 't': type id {number} is unknown")


def offsets():  # L9, L10
    for name, offset in [("wrap", 2**64 - 32), ("half", 2**63), ("terabyte", 2**40), ("next", 64)]:
        bad(f"offset_{name}.gguf", gguf([ARCH], [tensor(offset=offset)], DATA),
            f"tensor 't': 32 bytes at offset {offset} of the data pass the end of the file: it has "
            "32 bytes of data (incomplete download?)")
    bad("offset_misaligned.gguf", gguf([ARCH], [tensor(offset=4)], DATA * 2),
        "tensor 't': offset 4 is not a multiple of the alignment 32")
    bad("offset_minus_one.gguf", gguf([ARCH], [tensor(offset=-1)], DATA * 2),
        f"tensor 't': offset {2**64 - 1} is not a multiple of the alignment 32")
    bad("overlap_same.gguf", gguf([ARCH], [tensor("a"), tensor("b")], DATA * 2),
        "tensor 'b': its data overlap those of tensor 'a'")
    bad("overlap_part.gguf", gguf([ARCH], [tensor("b", offset=32), tensor("a", (16,))], DATA * 2),
        "tensor 'b': its data overlap those of tensor 'a'")
    bad("second_cut.gguf", gguf([ARCH], [tensor("a"), tensor("b", offset=32)], DATA + bytes(31)),
        "tensor 'b': 32 bytes at offset 32 of the data pass the end of the file: it has 63 bytes of "
        "data (incomplete download?)")


def shard(index, count, tensors, total=2, data=b""):
    numbers = [key("split.no", U16, index), key("split.count", U16, count),
               key("split.tensors.count", I32, total)]
    first = [ARCH] if index == 0 else []
    return gguf(first + numbers, tensors, data)


def splits():
    """Groups of shards; the message is that of opening the first file of the group."""
    one, two = tensor("one"), tensor("two")
    groups = {
        "good": ([(1, 0, 3, [], 2), (2, 1, 3, [one], 2), (3, 2, 3, [two], 2)], 3, None),
        "missing": ([(1, 0, 3, [], 2), (3, 2, 3, [two], 2)], 3,
                    "missing-00002-of-00003.gguf: cannot open: No such file or directory"),
        "swapped": ([(1, 0, 2, [one], 2), (2, 0, 2, [two], 2)], 2,
                    "swapped-00002-of-00002.gguf: key 'split.no' is 0, expected 1"),
        "counted": ([(1, 0, 2, [one], 2), (2, 1, 3, [two], 2)], 2,
                    "counted-00002-of-00002.gguf: key 'split.count' is 3, expected 2"),
        "twice": ([(1, 0, 2, [one], 2), (2, 1, 2, [one], 2)], 2,
                  "twice-00001-of-00002.gguf: tensor 'one' is in two shards"),
        "fewer": ([(1, 0, 2, [one], 3), (2, 1, 2, [two], 3)], 2,
                  "fewer-00001-of-00002.gguf: key 'split.tensors.count' is 3, the shards hold 2 "
                  "tensors"),
    }
    lines = []
    for name, (shards, count, message) in groups.items():
        for number, index, its_count, tensors, total in shards:
            content = shard(index, its_count, tensors, total, DATA if tensors else b"")
            (SPLIT / f"{name}-{number:05}-of-{count:05}.gguf").write_bytes(content)
        if message:
            lines.append(f"{name}-00001-of-{count:05}.gguf\t{message}\n")
    (SPLIT / "renamed.gguf").write_bytes(shard(0, 2, [one], 2, DATA))
    lines.append("renamed.gguf\trenamed.gguf: is one of 2 shards, but its name does not end in "
                 "-NNNNN-of-00002.gguf, so the others cannot be found\n")
    (SPLIT / "many-00001-of-70000.gguf").write_bytes(
        gguf([key("split.count", U32, 70000), key("split.no", U16, 0)]))
    lines.append("many-00001-of-70000.gguf\tmany-00001-of-70000.gguf: key 'split.count' is 70000, at "
                 "most 65535 shards are allowed\n")
    (SPLIT / "messages.tsv").write_text("".join(lines))


def safe(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(begin=0, end=8, shape=(2,), kind="F32"):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}


def safetensors_headers():
    bad("tiny.safetensors", b"\1\2\3", "not a safetensors file (it has 3 bytes)")
    bad("length_huge.safetensors", safe({}, length=2**64 - 1), "not a safetensors file (a header of "
        f"{2**64 - 1} bytes, 100000000 are allowed)")
    bad("length_over.safetensors", safe({}, length=100000001), "not a safetensors file (a header of "
        "100000001 bytes, 100000000 are allowed)")
    bad("length_cut.safetensors", safe({}, length=3),
        "the header has 3 bytes, but only 2 follow its length (incomplete download?)")
    bad("empty_header.safetensors", safe(b""),
        "not a safetensors file (the header does not begin with '{')")
    bad("list.safetensors", safe(b"[]"),
        "not a safetensors file (the header does not begin with '{')")
    bad("json_cut.safetensors", safe(b'{"a":'), "the header is not valid JSON at its byte 6")
    bad("json_tail.safetensors", safe(b"{} x"), "the header is not valid JSON at its byte 4")
    bad("json_utf8.safetensors", safe(b'{"\xff":1}'), "the header is not valid JSON at its byte 3")
    bad("number_tensor.safetensors", safe({"a": 1}),
        "the header has 1 where an object was expected")
    bad("metadata_number.safetensors", safe({"__metadata__": {"a": 1}}),
        "the header has 1 where a string was expected")
    deep = b'{"a":{"dtype":"F32","data_offsets":[0,8],"shape":' + b"[" * 10000 + b"]" * 10000 + b"}}"
    bad("deep.safetensors", safe(deep), "tensor 'a': field 'shape' cannot hold an array")
    bad("deep_object.safetensors", safe(b'{"a":' * 1000 + b"1" + b"}" * 1000),
        "tensor 'a': field 'a' is unknown")
    bad("twice.safetensors", safe(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        "tensor 'a': appears twice")
    bad("field_twice.safetensors", safe(b'{"a":{"shape":[1],"shape":[2]}}'),
        "tensor 'a': field 'shape' appears twice")
    bad("field_missing.safetensors", safe({"a": {"dtype": "F32", "shape": [2]}}),
        "tensor 'a': needs the fields 'dtype', 'shape' and 'data_offsets'")
    bad("type.safetensors", safe({"a": entry(kind="F7")}), "tensor 'a': type 'F7' is not supported")
    bad("type_number.safetensors", safe({"a": {"dtype": 4}}),
        "tensor 'a': field 'dtype' cannot hold 4")
    bad("axes.safetensors", safe({"a": entry(shape=(1,) * 9)}), "tensor 'a': has more than 8 axes")
    bad("axis_minus.safetensors", safe({"a": entry(shape=(-2,))}),
        "tensor 'a': field 'shape' cannot hold -2")
    bad("axis_float.safetensors", safe({"a": entry(shape=(1.5,))}),
        "tensor 'a': field 'shape' cannot hold 1.5")
    bad("axis_large.safetensors", safe({"a": entry(shape=(2**63,))}),
        f"tensor 'a': an axis has the impossible length {2**63}")
    bad("offsets_three.safetensors", safe(b'{"a":{"data_offsets":[0,1,2]}}'),
        "tensor 'a': 'data_offsets' has more than two numbers")
    bad("offsets_one.safetensors", safe(b'{"a":{"data_offsets":[0]}}'),
        "tensor 'a': 'data_offsets' needs two numbers")


def safetensors_data():
    bad("end_past.safetensors", safe({"a": entry()}, bytes(7)), "tensor 'a': its data end at byte 8, "
        "the file has 7 bytes of data (incomplete download?)")
    bad("end_huge.safetensors", safe({"a": entry(0, 2**64 - 1)}, bytes(8)), "tensor 'a': its data end "
        f"at byte {2**64 - 1}, the file has 8 bytes of data (incomplete download?)")
    bad("backwards.safetensors", safe({"a": entry(8, 0)}, bytes(8)),
        "tensor 'a': its data begin at 8 and end at 0")
    bad("shape_bytes.safetensors", safe({"a": entry(shape=(3,))}, bytes(8)),
        "tensor 'a': shape [3] of F32 does not fit into 8 bytes of data")
    bad("shape_wraps.safetensors", safe({"a": entry(shape=(2**62 + 1, 2, 2))}, bytes(8)),
        f"tensor 'a': shape [{2**62 + 1}, 2, 2] of F32 does not fit into 8 bytes of data")
    bad("overlap.safetensors", safe({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        "tensor 'b': its data begin at 4, the tensor before ends at 8")
    bad("same.safetensors", safe({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)),
        "tensor 'b': its data begin at 0, the tensor before ends at 8")
    bad("hole.safetensors", safe({"a": entry(0, 8), "b": entry(9, 17)}, bytes(17)),
        "tensor 'b': its data begin at 9, the tensor before ends at 8")
    bad("hole_first.safetensors", safe({"a": entry(8, 16)}, bytes(16)),
        "tensor 'a': its data begin at 8, the tensor before ends at 0")
    bad("tail.safetensors", safe({"a": entry()}, bytes(9)),
        "1 bytes after the last tensor belong to no tensor")


def main():
    for group in [beginnings, counts, keys, alignments, shapes, tensor_names, types, offsets,
                  safetensors_headers, safetensors_data]:
        group()
    for folder in [FOLDER, SPLIT]:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    for name, (content, _) in cases.items():
        (FOLDER / name).write_bytes(content)
    lines = [f"{name}\t{name}: {message}\n" for name, (_, message) in cases.items()]
    (FOLDER / "messages.tsv").write_text("".join(lines))
    splits()


if __name__ == "__main__":
    main()
