"""Counts of the main loops of kernels, from the machine code of a built library.

A main loop is an innermost backward branch around tensor-core instructions. `chain` is what one warp
takes for a step when nothing but its own instructions holds it up: they issue in order, each after
the stall that the compiler wrote into its encoding (bits 105..108) and after the scoreboards that it
waits for (bits 116..121), which loads from shared memory set (bits 110..112) and release LATENCY
clocks later. What products take is added in products.py.
"""
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MMA = re.compile(r"\b(HGMMA|QGMMA|OMMA|QMMA|HMMA)\.(\S+)")
# Clocks until a scoreboard is released; published for Hopper (loads from shared memory 29 to 33).
LATENCY = {"LDS": 33, "LDSM": 33, "SYNCS": 33, "LDC": 30, "S2R": 30}
# Clocks that a product of a single warp keeps its tensor core: one after the other, others wait.
PIPE = {"OMMA": 16}

@dataclasses.dataclass
class Loop:
    """One step of a main loop, of one warp."""

    mma: str  # the instruction, as nvdisasm names it
    mmas: int
    instructions: int  # all of them, products too
    chain: int  # clocks beside products, see above
    loader: int  # instructions of a warp that brings operands, a step
    shared: dict[str, int]  # loads from shared memory by kind
    # Of general kernels, by simulate.RATES: a step of all blocks of a multiprocessor, and one of half tiles if there are.
    clocks: dict[str, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Instruction:
    text: str
    high: int = 0

    def opcode(self) -> str:
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0]

    def bits(self, first: int, count: int) -> int:
        return (self.high >> (first - 64)) & ((1 << count) - 1)


def tool(name: str) -> str:
    places = (ROOT / ".cuda/nvidia/cu13/bin" / name, shutil.which(name), "/usr/local/cuda/bin/" + name)
    for place in places:
        if place and pathlib.Path(place).exists():
            return str(place)
    raise SystemExit(f"{name} not found: run scripts/bootstrap.sh --cuda")


def kernels(image: pathlib.Path) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    """Name, instructions and places of the labels of every kernel of an image."""
    command = [tool("nvdisasm"), "-c", "-hex", str(image)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in re.split(r"^\.text\.", text, flags=re.M)[1:]:
        code: list[Instruction] = []
        labels: dict[str, int] = {}
        for line in part.splitlines()[1:]:
            if match := re.match(r"\s*(\.L_\w+):", line):
                labels[match.group(1)] = len(code)
            elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
                code.append(Instruction(match.group(1)))
            elif code and (match := re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)):
                code[-1].high = int(match.group(1), 16)
        yield re.match(r"\w+", part).group(0), code, labels  # type: ignore[union-attr]


def chain_of(body: list[Instruction]) -> int:
    """Clocks of a second pass over the loop by one warp alone, beside its products in PIPE."""
    now, started, pipe, ready, products = 0, 0, 0, [0] * 6, 0
    for turn in range(2):
        started, products = now, 0
        for instruction in body:
            kind = instruction.opcode().split(".")[0]
            waits = instruction.bits(116, 6)
            now = max([now] + [ready[i] for i in range(6) if waits >> i & 1])
            if kind in PIPE:
                now = max(now, pipe)
                pipe = now + PIPE[kind]
                products += PIPE[kind]
            if (board := instruction.bits(110, 3)) < 6 and kind in LATENCY:
                ready[board] = now + LATENCY[kind]
            now += max(1, instruction.bits(105, 4))
        now = max(now, started + products)
    return now - started - products


def loader_of(code: list[Instruction], spans: list[tuple[int, int]]) -> int:
    """The smallest loop that starts copies and stores scales, but does not multiply."""
    found = []
    for first, last in spans:
        text = " ".join(i.text for i in code[first : last + 1])
        if not MMA.search(text) and re.search(r"UTMALDG|UBLKCP|LDGSTS", text) and "STS" in text:
            found.append(last + 1 - first)
    return min(found, default=0)


def target_of(instruction: Instruction, labels: dict[str, int]) -> int:
    """Where a jump leads; -1: none."""
    match = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", instruction.text)
    return labels.get(match.group(1), -1) if match else -1


def loops_of(code: list[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """First and last instruction of every loop."""
    targets = [target_of(instruction, labels) for instruction in code]
    return [(target, end) for end, target in enumerate(targets) if 0 <= target <= end]


def main_loops(code: list[Instruction], labels: dict[str, int]) -> Iterator[Loop]:
    spans = loops_of(code, labels)
    holding = [s for s in spans if any(MMA.search(i.text) for i in code[s[0] : s[1] + 1])]
    loader = loader_of(code, spans)
    for first, last in holding:
        if any(first <= f and l <= last and (f, l) != (first, last) for f, l in holding):
            continue
        body = code[first : last + 1]
        found = [match.group(0) for i in body if (match := MMA.search(i.text))]
        shared: dict[str, int] = {}
        for instruction in body:
            if instruction.opcode().startswith(("LDS", "LDSM")):
                shared[instruction.opcode()] = shared.get(instruction.opcode(), 0) + 1
        if len(set(found)) == 1:
            yield Loop(found[0].rstrip(","), len(found), len(body), chain_of(body), loader, shared)


def short_name(mangled: str) -> str:
    """gemm_sm90<0> of _ZN7tessera4cuda4sm906kernelILb0EEEv...: space and template arguments."""
    space = re.search(r"4cuda\d+(sm\d+(?:_[a-z]+\d*)?|[a-z]\w*?)(?:6kernel|I|E)", mangled)
    arguments = mangled.split("kernel", 1)[-1].split("EEv")[0]
    values = re.findall(r"(?:Lb|Li|DTypeE|FormatE|OperandsE|FormE)(\d+)", arguments + "E")
    return (space.group(1) if space else mangled) + "<" + ",".join(values) + ">"


def images_of(library: pathlib.Path, folder: str) -> list[pathlib.Path]:
    """Machine code of a library, taken apart in `folder`, or of an image by itself."""
    if library.suffix == ".cubin":
        return [library]
    command = [tool("cuobjdump"), "-xelf", "all", str(library.resolve())]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return sorted(pathlib.Path(folder).glob("*.cubin"))


def counts(library: pathlib.Path, names: tuple[str, ...]) -> dict[str, Loop]:
    """Main loops of the images of a library whose names contain one of `names`."""
    loops: dict[str, Loop] = {}
    with tempfile.TemporaryDirectory() as folder:
        for image in images_of(library, folder):
            if not any(name in image.name for name in names):
                continue
            for name, code, labels in kernels(image):
                for loop in main_loops(code, labels):
                    key = f"{short_name(name)} {loop.mma}"
                    # Jumps back from waits make longer loops of parts of the same one.
                    if key not in loops or loop.instructions < loops[key].instructions:
                        loops[key] = loop
    return loops


def load(path: pathlib.Path) -> dict[str, Loop]:
    return {name: Loop(**values) for name, values in json.loads(path.read_text()).items()}


def dump(loops: dict[str, Loop]) -> str:
    lines = [f"  {json.dumps(name)}: {json.dumps(dataclasses.asdict(loop))}"
             for name, loop in sorted(loops.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"
