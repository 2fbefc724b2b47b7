"""What a product takes on a card: a step of the main loop, a tile, the waves of tiles.

A step is bound by what is busiest (`bounds`); bounds close to each other hinder each other, which a
norm of high order stands for. A tile adds what it takes to start its pipeline and to store its
results. Tiles are cut as linear/gemm_sm90_cut.cu does it, with the times of this model.
"""
import dataclasses
import math
import re

from cards import Card
from sass import Loop

STEP_COLUMNS = 128
NORM = 8  # of bounds of a step: the only number fitted, to steps of 64 to 256 tokens of bf16
RESTART = 2500  # clocks from the last product of a tile to the first of the next; measured on Hopper
LAUNCH_US = 3.0  # a lone launch between events, its first copies from memory
LOADER_RUN = 0.5  # of the code of loader warps: the other half is for scales at odd places
SHARED_BYTES = 128  # a clock and multiprocessor
TAIL_BLOCKS, TAIL_CHUNKS = 66, 4  # linear/gemm_sm90_cut.h


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel for prompts, of two warps that multiply and one that loads a quarter."""

    kind: str  # of the operands of tensor cores
    loops: dict[int, Loop]  # by tokens of a tile
    features: int  # of a block
    column_bytes: float  # of a token and column in memory
    multicast: int  # blocks that share their tokens
    warpgroups: bool  # whether four warps share an instruction, which reads x from shared memory
    ahead: bool  # operands are made while the own products run
    out_bytes: float = 4.0  # of a feature and token
    chunk_steps: int = 1 << 30  # steps after which a sum may go to another block
    tails: bool = False  # few rows of tiles beyond a multiple of TAIL_BLOCKS have TAIL_CHUNKS
    lookup: float = 2.0  # wavefronts of a load of eight bytes


def mma_flops(loop: Loop) -> int:
    """A product, of all warps of the block."""
    name = loop.mma.split(".")
    if "GMMA" in name[0]:
        m, n, k = (int(x) for x in name[1].split("x"))
        return 2 * m * n * k * 2
    return 2 * 16 * 8 * 64 * 8  # m16n8k64 of eight warps


def bounds(kernel: Kernel, card: Card, tokens: int) -> dict[str, float]:
    """Clocks of a step by what might bound it."""
    loop = kernel.loops[tokens]
    products = loop.mmas * mma_flops(loop) / card.flops[kernel.kind]
    others = loop.instructions + loop.loader * LOADER_RUN
    weights = kernel.features * STEP_COLUMNS * 9 / 16
    x = tokens * STEP_COLUMNS * kernel.column_bytes
    wavefronts = {"LDS": 1.0, "LDS.64": kernel.lookup, "LDS.128": 4.0}
    loads = 8 * sum(n * wavefronts.get(kind, 4.0) for kind, n in loop.shared.items())
    # Each of two warpgroups reads all of x.
    operands = 2 * x / SHARED_BYTES if kernel.warpgroups else 0.0
    return {
        "tensor cores": products,
        # Own products before the next operands, or not; other warps of the quarter issue in between.
        "one warp's instructions": (0.0 if kernel.ahead else products / 2) + loop.chain + others,
        "issue slots": 2.0 * loop.instructions + loop.loader * LOADER_RUN,
        "shared memory": (weights + x) / SHARED_BYTES + loads + operands,
        "second-level cache": (weights + x / kernel.multicast) / card.l2_bytes,
    }


def norm(values: list[float]) -> float:
    return float(sum(v**NORM for v in values) ** (1 / NORM))


def tile_clocks(kernel: Kernel, card: Card, tokens: int, steps: int, shared: bool) -> float:
    """A tile, or a chunk of its columns whose sums several blocks share."""
    step = norm(list(bounds(kernel, card, tokens).values()))
    store = tokens * kernel.features * kernel.out_bytes / card.l2_bytes
    join = 6000 + 2 * tokens * kernel.features * 4 / card.l2_bytes if shared else 0.0
    return steps * step + RESTART + store + join


@dataclasses.dataclass(frozen=True)
class Time:
    us: float
    tile: int
    waves: float
    utilisation: float  # of the tensor cores
    parts: dict[str, float]  # clocks of a multiprocessor by cause


def cut(kernel: Kernel, card: Card, features: int, steps: int, tokens: int) -> tuple[float, int, float]:
    """Clocks, tokens of a tile and waves of the fastest cut."""
    blocks = card.multiprocessors // kernel.multicast
    rows = math.ceil(features / (kernel.features * kernel.multicast))
    chunks = math.ceil(steps / kernel.chunk_steps)
    best = (math.inf, 0, 0.0)
    tail = rows % TAIL_BLOCKS
    has_tail = (kernel.tails and chunks == 1 and rows > TAIL_BLOCKS and steps >= 4 * TAIL_CHUNKS
                and 0 < tail * TAIL_CHUNKS <= TAIL_BLOCKS)
    for tile in kernel.loops:
        tiles = rows * math.ceil(tokens / tile)
        if has_tail:
            before, behind = (math.ceil(tokens / tile) * n for n in (rows - tail, tail * TAIL_CHUNKS))
            whole_clocks = tile_clocks(kernel, card, tile, steps, shared=False)
            part_clocks = tile_clocks(kernel, card, tile, math.ceil(steps / TAIL_CHUNKS), shared=True)
            clocks = math.ceil(before / blocks) * whole_clocks + math.ceil(behind / blocks) * part_clocks
            best = min(best, (clocks, tile, tiles / blocks))
            continue
        whole = tiles // blocks * blocks
        full = tile_clocks(kernel, card, tile, steps, shared=False)
        options = [(math.ceil(tiles / blocks) * full, tile, tiles / blocks)]
        for piece in kernel.loops:
            for parts in {1, chunks}:
                items = (tiles - whole) * math.ceil(tile / piece) * parts
                rest = tile_clocks(kernel, card, piece, math.ceil(steps / parts), shared=parts > 1)
                clocks = whole / blocks * full + math.ceil(items / blocks) * rest
                options.append((clocks, tile, tiles / blocks))
        best = min([best, *options])
    return best


def predict(kernel: Kernel, card: Card, features: int, columns: int, tokens: int, repeat: int = 1) -> Time:
    """`repeat` products of the same sizes in one launch: experts."""
    steps = math.ceil(columns / STEP_COLUMNS)
    clocks, tile, waves = cut(kernel, card, features * repeat, steps, tokens)
    hertz = card.ghz(kernel.kind) * 1e3  # clocks a microsecond
    weights = features * repeat * columns * 9 / 16
    moved = weights + repeat * tokens * (columns * kernel.column_bytes + features * kernel.out_bytes)
    memory = moved / (card.dram_gbs * 1e3 * card.copy_share) * hertz
    total = norm([clocks, memory])
    ideal = 2.0 * features * repeat * columns * tokens / (card.flops[kernel.kind] * card.multiprocessors)
    limits = bounds(kernel, card, tile)
    step = norm(list(limits.values()))
    share = ideal / limits["tensor cores"] * (step - limits["tensor cores"])
    store = features * repeat * tokens * kernel.out_bytes / card.l2_bytes / card.multiprocessors
    starts = waves * RESTART
    parts = {
        "tensor cores": ideal,
        "other bounds of a step": share,
        "storing results": store,
        "starting tiles": starts,
        "tiles that are not full, last waves": clocks - ideal - share - store - starts,
        "memory": total - clocks,
    }
    return Time(total / hertz, tile, waves, ideal / total, parts)


def fastest(kernels: list[Kernel], card: Card, features: int, columns: int, tokens: int,
            repeat: int = 1) -> Time:
    times = [predict(kernel, card, features, columns, tokens, repeat) for kernel in kernels]
    return min(times, key=lambda time: time.us)


def hopper_kernels(loops: dict[str, Loop]) -> dict[str, Kernel]:
    """The kernels of linear/gemm_sm90.cuh and linear/gemm_sm90_fp8.cuh, NVFP4 weights."""

    def by_tokens(name: str, sizes: tuple[int, ...], mma: str) -> dict[int, Loop]:
        return {n: loops[f"{name} {mma.format(n)}"] for n in sizes}

    sizes = (64, 96, 128, 160, 192, 224, 256)
    plain = by_tokens("sm90<0>", sizes, "HGMMA.64x{}x16.F32.BF16")
    gated = by_tokens("sm90<1>", sizes, "HGMMA.64x{}x16.F32.BF16")
    quick = "QGMMA.64x{}x32.F32.E4M3.E4M3"
    fp8 = by_tokens("sm90_fp8<256,0>", (64, 128, 256), quick)
    fp8_gated = by_tokens("sm90_fp8<256,1>", (64, 128, 256), quick)
    bf16 = Kernel("bf16", plain, 128, 2.0, 2, warpgroups=True, ahead=False, chunk_steps=46, tails=True)
    # Four lanes read one entry of the table: four out of sixteen pairs of banks, twice.
    whole = Kernel("fp8", fp8, 128, 1.0, 2, warpgroups=True, ahead=True, lookup=2.7)
    return {
        "bf16": bf16,
        # As it was first: sums of all columns in one block, three sizes of tiles.
        "bf16, first form": dataclasses.replace(
            bf16, loops={n: plain[n] for n in (64, 128, 256)}, chunk_steps=1 << 30, tails=False),
        # Features of gate and up, of which one result of two bytes is left.
        "bf16 gate and up": dataclasses.replace(bf16, loops=gated, out_bytes=1.0, tails=False),
        "fp8": whole,
        "fp8 gate and up": dataclasses.replace(whole, loops=fp8_gated, out_bytes=1.0),
    }


FORMS = ("plain", "gated", "grouped", "gated groups")


def blackwell_kernels(loops: dict[str, Loop], form: str) -> list[Kernel]:
    """The tiles of linear/gemm_nvfp4_sm120.cuh, of which a launch has one size, of one of FORMS."""
    kernels = []
    for name, loop in loops.items():
        match = re.match(r"sm120<(\d+),(\d+),(\d+)> OMMA", name)
        if match and FORMS[int(match.group(3))] == form:
            features, tokens = int(match.group(1)), int(match.group(2))
            kernels.append(Kernel("fp4", {tokens: loop}, features, 9 / 16, 1, warpgroups=False, ahead=False,
                                  out_bytes=1.0 if "gated" in form else 4.0))
    return kernels
