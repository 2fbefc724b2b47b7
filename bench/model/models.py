"""What a prompt takes a whole model: products, attention, delta rule, the passes between."""
import dataclasses
import heapq
import itertools
import math
import statistics

from cards import Card
from products import LAUNCH_US, Kernel, fastest, norm
from sass import Loop

# Clocks that the kernels for Hopper were measured to take. Ends of tiles and what is made of chunks
# before the scan are taken to cost others the same; steps of general kernels are simulated (General).
ATTENTION_TILE = 11000  # loading queries, first scores, last sums of 128 columns
SCAN_CHUNK = 1676  # of the delta rule, beside the products
PREPARE_CHUNK = 4100
HALF_TILE = 0.6  # of a tile, as attention/prompt.cu takes it
PASS_SHARE = 0.65  # of memory's rate that passes over rows reach; 55 to 80% were measured


@dataclasses.dataclass(frozen=True)
class Model:
    """A hybrid: of four layers one has attention with heads of 256, three a delta net of 128."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    key_heads: int
    value_heads: int
    ffn: int  # also of an expert and of the shared one
    experts: int = 0
    used: int = 0

    def mixers(self) -> tuple[int, int]:
        """Layers with attention, with the delta net."""
        return self.layers // 4, self.layers - self.layers // 4

    def columns(self) -> tuple[int, int, int, int]:
        """Of queries, keys; of keys, values of the delta net."""
        return self.heads * 256, self.kv_heads * 256, self.key_heads * 128, self.value_heads * 128


MODELS = {
    "27B": Model("27B", 64, 5120, 24, 4, 16, 48, 17408),
    "35B-A3B": Model("35B-A3B", 40, 2048, 16, 2, 16, 32, 512, experts=256, used=8),
}


@dataclasses.dataclass(frozen=True)
class General:
    """Steps of the general kernels (steps.py)."""

    attend: dict[int, Loop]  # by size of heads
    scan: Loop


@dataclasses.dataclass(frozen=True)
class Kernels:
    store: list[Kernel]
    gated: list[Kernel]  # of gate and up
    experts_store: list[Kernel]  # of experts
    experts_gated: list[Kernel]
    x_bytes: float  # of a column of a rounded row
    general: General | None = None  # attention and delta rule; none: those of Hopper


def ends_us(card: Card, columns: int, size: int) -> float:
    """The first queries and the last outputs of all multiprocessors at once, beside no product."""
    rows = 2 * min(columns, 128 * card.multiprocessors)
    return LAUNCH_US + rows * size * 4 / (card.dram_gbs * card.copy_share * 1e3)


def attention_us(card: Card, tokens: int, behind: int, heads: int, size: int) -> float:
    """Blocks of 128 (token, head) columns against steps of 64 keys, as two groups of warps."""
    tensor = 4 * 128 * 64 * size / card.flops["bf16"]
    softmax = 64 * 64 * (1 / 16 + 8 / 128)  # of one group: exponentials, eight other operations
    step = norm([tensor, tensor / 2 + softmax])
    tiles = heads * tokens / 128
    steps = (behind + tokens / 2) / 64 + 0.5
    clocks = tiles * (steps * step + ATTENTION_TILE) / card.multiprocessors
    return clocks / card.ghz("bf16") / 1e3 + ends_us(card, heads * tokens, size)


def rounds_of(whole: int, halves: int, places: int) -> float:
    """As attention/prompt.cu: the time of so many tiles and then halves, in tiles."""
    rounds, later = divmod(whole, places)
    times = []
    for start in (rounds, rounds + 1):
        for more in itertools.count():
            time = max(rounds + (later > 0), start + more * HALF_TILE)
            fits = [int(max(0.0, time - begin) / HALF_TILE + 1e-6) for begin in (rounds, rounds + 1)]
            if (places - later) * fits[0] + later * fits[1] >= halves:
                times.append(time)
                break
    return min(times)


def general_attention_us(card: Card, loop: Loop, tokens: int, behind: int, heads: int, kv_heads: int, size: int) -> float:
    """Blocks of 128 columns and eight warps, as many as 100 KiB hold, against steps of 32 keys. Those
    with most keys start first, each where one has ended; the last may be halves (attention/prompt.cu)."""
    clocks, blocks = loop.clocks[card.general], 1 if size > 128 else 2
    places, tiles, halved = blocks * card.multiprocessors, math.ceil(heads // kv_heads * tokens / 128), 0
    if len(clocks) > 1:
        halved = min(range(min(tiles, places) + 1),
                     key=lambda n: round(rounds_of((tiles - n) * kv_heads, 2 * n * kv_heads, places), 6))
    ends = [0.0] * places
    for tile in range(tiles, 0, -1):
        steps = (behind + tile / tiles * tokens) / 32 + 0.5
        parts = 2 if tile <= halved else 1
        for _ in range(parts * kv_heads):
            heapq.heapreplace(ends, ends[0] + steps * clocks[parts - 1] + blocks * ATTENTION_TILE / 2)
    return max(ends) / card.ghz("bf16") / 1e3 + ends_us(card, heads * tokens, size)


def general_delta_rule_us(card: Card, loop: Loop, tokens: int, key_heads: int, value_heads: int) -> float:
    """As delta_rule_us, the scan in blocks of four warps, of which a multiprocessor has one."""
    chunks = tokens / 64
    scan = math.ceil(2 * value_heads / card.multiprocessors) * loop.clocks[card.general][0]
    open_flops = 2 * 2 * 64 * 64 * 128 * (key_heads + value_heads) / value_heads
    prepare = PREPARE_CHUNK + open_flops / (card.flops["bf16"] * card.mma_share)
    clocks = chunks * (scan + value_heads * prepare / card.multiprocessors)
    return clocks / card.ghz("bf16") / 1e3


def delta_rule_us(card: Card, tokens: int, key_heads: int, value_heads: int) -> float:
    """Chunks of 64 tokens: all at once up to the inverse, then a chain of them a half head."""
    chunks = tokens / 64
    scan = SCAN_CHUNK + 1024 * 4096 / card.flops["bf16"]
    waves = math.ceil(2 * value_heads / card.multiprocessors)
    open_flops = 2 * 2 * 64 * 64 * 128 * (key_heads + value_heads) / value_heads
    prepare = PREPARE_CHUNK + open_flops / card.flops["bf16"]
    clocks = chunks * (waves * scan + value_heads * prepare / card.multiprocessors)
    return clocks / card.ghz("bf16") / 1e3


def row_bytes(model: Model, x_bytes: float) -> float:
    """A token's bytes in all passes between products, from f32 rows to rounded ones."""
    attention, delta = model.mixers()
    query, kv, key, value = model.columns()
    norms = 2 * model.layers * model.width * (4 + x_bytes)
    mixers = delta * (8 * (2 * key + value) + value * (8 + x_bytes) + 2 * model.width)
    attending = attention * (8 * query + 12 * kv + query * (8 + x_bytes))
    # Results of experts are read again to be added; their rows are gathered by the products.
    routed = model.layers * model.used * 8 * model.width
    # Gate and up are one product that leaves as bf16, which a pass rounds further where rows have
    # scales.
    joined = 0.0 if x_bytes == 2.0 else 2 + x_bytes
    units = model.layers * model.ffn * joined * (1 + model.used)
    return norms + mixers + attending + routed + units


def expert_rows(tokens: float, tile: int) -> float:
    """Rows of an expert that gets `tokens` on average, filled up to whole tiles."""
    spread = statistics.NormalDist(tokens, math.sqrt(tokens))
    return tile * sum(1 - spread.cdf(i * tile) for i in range(64))


def products_us(model: Model, card: Card, kernels: Kernels, tokens: int) -> float:
    attention, delta = model.mixers()
    query, kv, key, value = model.columns()
    width, store, gated = model.width, kernels.store, kernels.gated
    add = [dataclasses.replace(k, out_bytes=2 * k.out_bytes) for k in store]  # to what is there

    def us(which: list[Kernel], features: int, columns: int, rows: float = tokens, repeat: int = 1) -> float:
        return fastest(which, card, features, columns, math.ceil(rows), repeat).us

    nets = us(store, 2 * key + value, width) + us(store, value, width) + us(add, width, value)
    attending = us(store, 2 * query, width) + 2 * us(store, kv, width) + us(add, width, query)
    feeding = us(gated, 2 * model.ffn, width) + us(add, width, model.ffn)
    if model.experts:
        mean = tokens * model.used / model.experts
        tile = 64 if mean <= 96 else 128  # as the FP4 product has them
        rows = expert_rows(mean, tile)
        of_gate, of_down = ([k for k in which if tile in k.loops]
                            for which in (kernels.experts_gated, kernels.experts_store))
        feeding += us(of_gate, 2 * model.ffn, width, rows, model.experts)
        feeding += us(of_down, width, model.ffn, rows, model.experts)
    return delta * nets + attention * attending + model.layers * feeding


def prompt_us(model: Model, card: Card, kernels: Kernels, tokens: int, at_once: int) -> dict[str, float]:
    """A prompt of `tokens`, `at_once` of them a pass, by part."""
    attention, delta = model.mixers()
    passes = math.ceil(tokens / at_once)
    general = kernels.general
    if general:
        seen = sum(general_attention_us(card, general.attend[256], at_once, i * at_once, model.heads,
                                        model.kv_heads, 256)
                   for i in range(passes))
        nets = general_delta_rule_us(card, general.scan, tokens, model.key_heads, model.value_heads)
    else:
        seen = sum(attention_us(card, at_once, i * at_once, model.heads, 256) for i in range(passes))
        nets = delta_rule_us(card, tokens, model.key_heads, model.value_heads)
    rows = tokens * row_bytes(model, kernels.x_bytes) / (card.dram_gbs * 1e3 * PASS_SHARE)
    return {
        "products": passes * products_us(model, card, kernels, at_once),
        "attention": attention * seen,
        "delta rule": delta * nets,
        "rows between": rows,
    }
