#!/usr/bin/env python3
"""Checks the machine code of the CUDA library without a card.

For every architecture it was built for: the instructions that its kernels are built on are there, no
kernel spills registers to local memory, and a known fault of the compiler is absent (see KNOWN_FAULT).
usage: cuda_gates.py libtessera_cuda.so [ARCH ...]   ARCH: sm_80 sm_90a sm_120, as cuobjdump names them (default: all three)
"""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What stands for tensor cores, asynchronous copies, fragments from shared memory.
EVERYWHERE = ("HMMA.16816.F32.BF16", "LDGSTS", "LDSM")
# Products of warpgroups, copies of boxes, barriers that copies arrive on.
HOPPER = ("HGMMA.64x256x16.F32.BF16", "UTMALDG", "SYNCS")
EXPECTED = {"sm_80": EVERYWHERE, "sm_90a": EVERYWHERE + HOPPER, "sm_120": EVERYWHERE}
# ptxas 13.0 makes a numeric conversion of the store of one byte of a half-precision result.
KNOWN_FAULT = "F2I.U8.F16"


def tool(name):
    for place in (ROOT / ".cuda/nvidia/cu13/bin" / name, shutil.which(name), pathlib.Path("/usr/local/cuda/bin") / name):
        if place and pathlib.Path(place).exists():
            return str(place)
    sys.exit(f"cuda_gates: {name} not found: run scripts/bootstrap.sh --cuda")


def images(library, folder):
    """Paths of the machine code images of each architecture."""
    subprocess.run([tool("cuobjdump"), "-xelf", "all", str(library)], cwd=folder, check=True, capture_output=True)
    found = collections.defaultdict(list)
    for path in sorted(pathlib.Path(folder).glob("*.cubin")):
        found[re.search(r"(sm_\d+[af]?)\.cubin$", path.name).group(1)].append(path)
    return found


def spills(image):
    """(kernel, bytes) of every kernel that keeps something in local memory."""
    text = subprocess.run([tool("cuobjdump"), "-res-usage", str(image)], capture_output=True, text=True, check=True).stdout
    for name, usage in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", text):
        local = int(re.search(r"LOCAL:(\d+)", usage).group(1)) + int(re.search(r"STACK:(\d+)", usage).group(1))
        if local > 0:
            yield name, local


def main():
    library = pathlib.Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:] or list(EXPECTED)
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        found = images(library, folder)
        for arch in wanted:
            if arch not in found:
                faults.append(f"{arch}: no machine code in {library.name}")
                continue
            counts = collections.Counter()
            for image in found[arch]:
                faults += [f"{arch}: {name} keeps {size} bytes in local memory" for name, size in spills(image)]
                code = subprocess.run([tool("nvdisasm"), "-c", str(image)], capture_output=True, text=True, check=True).stdout
                for instruction in (*EXPECTED[arch], KNOWN_FAULT):
                    counts[instruction] += code.count(instruction)
            faults += [f"{arch}: no {name}" for name in EXPECTED[arch] if counts[name] == 0]
            if counts[KNOWN_FAULT]:
                faults.append(f"{arch}: {counts[KNOWN_FAULT]} times {KNOWN_FAULT}: see f16_of_f32 in rows/codec.cuh")
            print(f"{arch}: " + ", ".join(f"{counts[name]} {name}" for name in EXPECTED[arch]))
    for fault in faults:
        print(f"cuda_gates: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
