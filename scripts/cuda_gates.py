#!/usr/bin/env python3
"""Checks the machine code of the CUDA library without a card.

For every architecture it was built for: the instructions that its kernels are built on are there, no
kernel spills registers to local memory, and a known fault of the compiler is absent (see KNOWN_FAULT).
usage: cuda_gates.py libtessera_cuda.so [ARCH ...]   ARCH: sm_80 sm_90a sm_120, as cuobjdump names them (default: all three)
       cuda_gates.py --fp4 [TARGET ...]              compiles the FP4 product and the rounding of its rows for targets that no library
                                                     is built for, and checks them alike (default: sm_120a sm_121a)
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
# Products of FP4 and the copies for them: only in builds for sm_120f, which is named sm_120 as well.
BLACKWELL = ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X", "UTMALDG", "SYNCS")
# Conversions to FP4 numbers and from them, in the rounding of rows.
FP4_ROUNDING = ("F2FP.SATFINITE.E2M1.F32", "F2FP.F16.E2M1")
FP4_SOURCES = {"linear/products_nvfp4_sm120.cu": BLACKWELL, "rows/scaled_rows.cu": FP4_ROUNDING}
EXPECTED = {"sm_80": EVERYWHERE, "sm_90a": EVERYWHERE + HOPPER, "sm_120": EVERYWHERE + BLACKWELL + FP4_ROUNDING}
# Tiles of linear/gemm_nvfp4_sm120.cuh: products of a warp and stage, and how many percent of their issue slots (16 of them
# a product) the other instructions of the loop may take. What has no room beside them is issued late.
FP4_KERNEL = re.compile(r"5sm1206kernelINS0_12NativeFp4MmaENS1_4TileILi(\d+)ELi(\d+)EEELNS1_4FormE(\d)E")
FP4_TILES = {(256, 128): (64, 20), (256, 64): (32, 32), (128, 128): (32, 25), (128, 64): (16, 40)}
FP4_FORMS = ("", " of gate and up", " of experts", " of gate and up of experts")
# Tiles and forms that have a kernel.
FP4_KERNELS = {(256, 128, 0), (128, 128, 0), (128, 64, 0), (256, 128, 1), (128, 128, 2), (128, 64, 2), (256, 128, 3), (256, 64, 3)}
FP4_SLOTS = 16
FP4_REGISTERS = 168
# Kernels whose instruction is a function that they call (ptx/fp4_mma.cuh): nobody asks for their speed, and a call may keep
# registers on the stack.
EMULATED = "EmulatedFp4Mma"
# Kernels that keep so many bytes in local memory on cards before 12.x, which they are made for: the state and the sums of a
# chunk fill 192 registers of 255, which is four too few on sm_80 (docs/cuda-kernels.md).
BEFORE_BLACKWELL = {"half_rows": 16}
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


def disassembled(image):
    return subprocess.run([tool("nvdisasm"), "-c", str(image)], capture_output=True, text=True, check=True).stdout


def spills(image):
    """(kernel, bytes) of every kernel that keeps something in local memory."""
    text = subprocess.run([tool("cuobjdump"), "-res-usage", str(image)], capture_output=True, text=True, check=True).stdout
    for name, usage in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", text):
        if EMULATED in name:
            continue
        local = int(re.search(r"LOCAL:(\d+)", usage).group(1)) + int(re.search(r"STACK:(\d+)", usage).group(1))
        kept = 0 if "sm_12" in image.name else sum(most for kernel, most in BEFORE_BLACKWELL.items() if kernel in name)
        if local > kept:
            yield name, local


def fp4_loop(code):
    """(products, others, others that are NOP) in the loop of a kernel's disassembly that holds all its products of FP4."""
    lines = re.findall(r"^(?:(\.L_x_\d+):|\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?(\S+)(.*))$", code, re.MULTILINE)
    labels = {label: place for place, (label, _, _) in enumerate(lines) if label}
    products = [place for place, (_, name, _) in enumerate(lines) if name.startswith("OMMA")]
    loops = []
    for place, (_, name, rest) in enumerate(lines):
        target = re.search(r"`\((\.L_x_\d+)\)", rest) if name.startswith("BRA") else None
        if products and target and place > products[-1] and labels[target.group(1)] < products[0]:
            loops.append(lines[labels[target.group(1)] : place + 1])
    if not loops:
        return 0, 0, 0
    names = [name for _, name, _ in min(loops, key=len) if name]
    return len(products), sum(not name.startswith("OMMA") for name in names), names.count("NOP")


def fp4_missing(seen):
    return (f"FP4 tile {width} x {tokens}{FP4_FORMS[form]}: not there" for width, tokens, form in sorted(FP4_KERNELS - seen))


def fp4_faults(image, code, seen):
    """What is wrong with the products of FP4 in an image; prints what their loops hold, and adds to `seen` which they are."""
    usages = subprocess.run([tool("cuobjdump"), "-res-usage", str(image)], capture_output=True, text=True, check=True).stdout
    registers = dict(re.findall(r"Function (\S+):\s*\n\s*REG:(\d+)", usages))
    for name, body in re.findall(r"^\.text\.(\S+):$(.*?)(?=^\s*\.section|\Z)", code, re.MULTILINE | re.DOTALL):
        kernel = FP4_KERNEL.search(name)
        if not kernel:
            continue
        *tile, form = map(int, kernel.groups())
        tile = tuple(tile)
        seen.add((*tile, form))
        wanted, most = FP4_TILES[tile]
        products, others, empty = fp4_loop(body)
        percent = 100 * others / (FP4_SLOTS * max(products, 1))
        label = f"FP4 tile {tile[0]} x {tile[1]}" + FP4_FORMS[form]
        print(f"{label}: {products} products, {others} other instructions a stage ({empty} of them NOP): {percent:.1f}% of the slots")
        if products != wanted:
            yield f"{label}: {products} products in its loop, not {wanted}"
        if percent > most:
            yield f"{label}: other instructions take {percent:.1f}% of the slots, more than {most}%"
        if int(registers.get(name, 0)) > FP4_REGISTERS:
            yield f"{label}: {registers[name]} registers"
        yield from (f"{label}: {access}" for access in ("LDL", "STL", "CALL") if re.search(rf"\s{access}[.\s]", body))


def compiled(source, target, folder):
    """Machine code of a source for a target."""
    image = pathlib.Path(folder) / f"{pathlib.Path(source).stem}.{target}.cubin"
    number = target.removeprefix("sm_")
    subprocess.run([tool("nvcc"), "-std=c++20", "--expt-relaxed-constexpr", "-O3", f"-I{ROOT / 'src'}", "-DTESSERA_SM90A=0",
                    "-DTESSERA_SM120F=1", f"-gencode=arch=compute_{number},code={target}", "-cubin",
                    str(ROOT / "src/backends/cuda" / source), "-o", str(image)], check=True)
    return image


def target_faults(target, folder):
    """What is wrong with the sources of FP4 for a target; prints what their code holds."""
    seen = set()
    for source, expected in FP4_SOURCES.items():
        image = compiled(source, target, folder)
        code = disassembled(image)
        counts = {instruction: code.count(instruction) for instruction in expected}
        print(f"{target}, {source}: " + ", ".join(f"{count} {instruction}" for instruction, count in counts.items()))
        yield from (f"{target}: no {instruction} in {source}" for instruction, count in counts.items() if count == 0)
        yield from (f"{target}: {name} keeps {size} bytes in local memory" for name, size in spills(image))
        yield from (f"{target}: {fault}" for fault in fp4_faults(image, code, seen))
        if KNOWN_FAULT in code:
            yield f"{target}: {KNOWN_FAULT}: see f16_of_f32 in rows/codec.cuh"
    yield from (f"{target}: {fault}" for fault in fp4_missing(seen))


def library_faults(library, wanted):
    """What is wrong with a built library."""
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        found = images(library, folder)
        for arch in wanted:
            if arch not in found:
                faults.append(f"{arch}: no machine code in {library.name}")
                continue
            counts, seen = collections.Counter(), set()
            for image in found[arch]:
                faults += [f"{arch}: {name} keeps {size} bytes in local memory" for name, size in spills(image)]
                code = disassembled(image)
                for instruction in (*EXPECTED[arch], KNOWN_FAULT):
                    counts[instruction] += code.count(instruction)
                faults += [f"{arch}: {fault}" for fault in fp4_faults(image, code, seen)]
            if arch == "sm_120":
                faults += [f"{arch}: {fault}" for fault in fp4_missing(seen)]
            faults += [f"{arch}: no {name}" for name in EXPECTED[arch] if counts[name] == 0]
            if counts[KNOWN_FAULT]:
                faults.append(f"{arch}: {counts[KNOWN_FAULT]} times {KNOWN_FAULT}: see f16_of_f32 in rows/codec.cuh")
            print(f"{arch}: " + ", ".join(f"{counts[name]} {name}" for name in EXPECTED[arch]))
    return faults


def main():
    if sys.argv[1] == "--fp4":
        with tempfile.TemporaryDirectory() as folder:
            faults = [fault for target in sys.argv[2:] or ("sm_120a", "sm_121a") for fault in target_faults(target, folder)]
    else:
        faults = library_faults(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(EXPECTED))
    for fault in faults:
        print(f"cuda_gates: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
