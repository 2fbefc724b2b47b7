"""Clocks that the warps of a multiprocessor take for a step of a general kernel, instruction by instruction.

Each quarter issues one instruction a clock, of the warp that could go on first. A warp issues in order,
each instruction after the stall that the compiler wrote into the one before (bits 105..108) and after the
scoreboards that it waits for (bits 116..121), which loads set (bits 110..112; 113..115 until their operands
are read). Warps share what stands in Rates, and meet at barriers. Not here: caches of instructions, banks of
registers, conflicts of banks of shared memory (these kernels have none).
"""
import dataclasses

from sass import Instruction

QUARTERS = 4
WARM, TURNS = 2, 3  # steps before those that count, and these


@dataclasses.dataclass(frozen=True)
class Rates:
    """Clocks, from bench/model/rates.cu on an H200 (docs/blackwell.md). In `image` are the kernels."""

    image: str
    product: float  # of an HMMA 16 x 8 x 16 on a quarter's tensor core
    second_level: float  # latency of a copy or load
    memory: float  # of a load from memory
    l2_bytes: float  # a clock and multiprocessor
    shared: float = 24.0  # latency of a load from shared memory behind its last 128 bytes
    matrices: float = 28.0  # of a load of four matrices behind theirs
    shuffle: float = 24.0
    exponential: float = 17.0  # latency; a quarter begins one in EXPONENTIAL_RATE
    constant: float = 30.0
    barrier: float = 29.0


EXPONENTIAL_RATE = 8.0
ROW_BYTES = {"LDGSTS": 512, "LDG": 128, "STG": 128}  # that a warp moves: 16 bytes a lane, four of memory's sectors
RATES = {
    "hopper": Rates("sm_90", 6.5, 290.0, 715.0, 27.5),
    # Products by the data sheets (cards.py), the second-level cache and memory assumed to be a quarter further
    # away than on Hopper, all else as there.
    "geforce": Rates("sm_120", 32.0, 360.0, 890.0, 16.0),
    "workstation": Rates("sm_120", 16.0, 360.0, 890.0, 16.0),
}


@dataclasses.dataclass
class Code:
    """An instruction as the simulation needs it."""

    kind: str
    stall: int
    waits: list[int]  # scoreboards
    written: int  # the scoreboard that its result sets; 7: none
    read: int  # ... that its operands set
    passes: int  # clocks of shared memory


def decode(instruction: Instruction) -> Code:
    opcode = instruction.opcode()
    kind = opcode.split(".")[0]
    if instruction.text.startswith(("@!PT", "@!UPT")):
        kind = "NOP"
    passes = 4 if kind in ("LDSM", "LDGSTS", "LDG", "STG") or ".128" in opcode else 2 if ".64" in opcode or kind == "SHFL" else 1
    waits = [i for i in range(6) if instruction.bits(116, 6) >> i & 1]
    return Code(kind, max(1, instruction.bits(105, 4)), waits, instruction.bits(110, 3), instruction.bits(113, 3), passes)


class Multiprocessor:
    """`blocks` blocks of `warps` warps that run `body` again and again."""

    def __init__(self, body: list[Instruction], warps: int, blocks: int, rates: Rates) -> None:
        self.code = [decode(i) for i in body]
        self.rates = rates
        self.block_warps = warps
        count = warps * blocks
        self.place = [0] * count  # of a warp's next instruction, counted on from step to step
        self.ready = [0.0] * count
        self.last = [0.0] * count  # when it issued last
        self.boards = [[0.0] * 8 for _ in range(count)]
        self.copied, self.group = [0.0] * count, [0.0] * count  # all copies, those of closed groups
        self.waiting: list[list[int]] = [[] for _ in range(blocks)]  # at the barrier
        self.issue, self.tensor, self.special = ([0.0] * QUARTERS for _ in range(3))
        self.shared = self.cache = 0.0  # free again

    def next_code(self, warp: int) -> Code:
        return self.code[self.place[warp] % len(self.code)]

    def earliest(self, warp: int) -> float:
        code, quarter = self.next_code(warp), warp % QUARTERS
        at = max([self.ready[warp], self.issue[quarter]] + [self.boards[warp][i] for i in code.waits])
        if code.kind == "DEPBAR":
            at = max(at, self.group[warp])
        elif code.kind == "HMMA":
            at = max(at, self.tensor[quarter])
        elif code.kind == "MUFU":
            at = max(at, self.special[quarter])
        return at

    def through_shared(self, code: Code, warp: int, at: float) -> float:
        """When an instruction has had its clocks of shared memory."""
        self.shared = max(at, self.shared) + code.passes
        self.boards[warp][code.read] = self.shared
        return self.shared

    def result_of(self, code: Code, warp: int, at: float) -> float:
        """When the result of an instruction issued at `at` is there."""
        rates, quarter = self.rates, warp % QUARTERS
        if code.kind == "HMMA":
            self.tensor[quarter] = at + rates.product
        elif code.kind == "MUFU":
            self.special[quarter] = at + EXPONENTIAL_RATE
            return at + rates.exponential
        elif code.kind in ("LDC", "S2R", "S2UR"):
            return at + rates.constant
        elif code.kind in ("LDSM", "LDS", "STS", "SHFL"):
            latency = {"LDSM": rates.matrices, "SHFL": rates.shuffle}.get(code.kind, rates.shared)
            return self.through_shared(code, warp, at) + latency
        elif code.kind in ROW_BYTES:
            self.through_shared(code, warp, at)
            self.cache = max(at, self.cache) + ROW_BYTES[code.kind] / rates.l2_bytes
            if code.kind == "LDGSTS":
                self.copied[warp] = self.cache + rates.second_level
            return self.cache + rates.memory
        elif code.kind == "LDGDEPBAR":
            self.group[warp] = self.copied[warp]
        return at

    def meet(self, warp: int, at: float) -> None:
        """The barrier of a warp's block: `ready` of all that wait there, once all do."""
        block = warp // self.block_warps
        self.waiting[block].append(warp)
        self.ready[warp] = float("inf")
        if len(self.waiting[block]) == self.block_warps:
            for other in self.waiting[block]:
                self.ready[other] = at + self.rates.barrier
            self.waiting[block] = []

    def issue_next(self) -> tuple[int, float]:
        """Runs the next instruction of all; its warp, and when."""
        at, _, warp = min((self.earliest(w), self.last[w], w) for w in range(len(self.place)))
        code = self.next_code(warp)
        self.issue[warp % QUARTERS] = at + 1
        self.last[warp] = at
        self.ready[warp] = at + code.stall
        self.boards[warp][code.written] = self.result_of(code, warp, at)
        self.place[warp] += 1
        if code.kind == "BAR":
            self.meet(warp, at)
        return warp, at


def step_clocks(body: list[Instruction], warps: int, blocks: int, rates: Rates) -> float:
    """Clocks of a step of all blocks of a multiprocessor together."""
    machine = Multiprocessor(body, warps, blocks, rates)
    count, length = warps * blocks, len(body)
    first, last = [0.0] * count, [0.0] * count  # when a warp has made WARM steps, and those that count
    while min(last) == 0.0:
        warp, at = machine.issue_next()
        if machine.place[warp] == WARM * length:
            first[warp] = at
        elif machine.place[warp] == (WARM + TURNS) * length:
            last[warp] = at
    return (sum(last) - sum(first)) / count / TURNS
