"""Cards as tables of published rates. Nothing here was measured on a Blackwell card."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Card:
    """Rates of a clock and multiprocessor, and clocks.

    `flops` is what tensor cores do a clock and multiprocessor by kind of operands. `clocks_ghz` by
    kind, since dense products make a card clock down: on Hopper from the peaks that
    `tessera bench --ops` measured, on others what the data sheet's peaks are made of.
    """

    name: str
    multiprocessors: int
    flops: dict[str, int]
    clocks_ghz: dict[str, float]
    l2_bytes: float  # a clock and multiprocessor, reads and writes
    dram_gbs: float
    general: str  # of simulate.RATES: how fast general kernels run
    copy_share: float = 0.9  # of dram_gbs that streams reach
    mma_share: float = 1.0  # of `flops` that mma.sync reaches

    def ghz(self, kind: str) -> float:
        return self.clocks_ghz[kind]

    def peak_tflops(self, kind: str) -> float:
        return self.multiprocessors * self.flops[kind] * self.ghz(kind) / 1e3


def hopper(name: str, bf16_tflops: float, fp8_tflops: float, dram_gbs: float) -> Card:
    """An H200 whose clocks follow from measured peaks. 5.5 TB/s from the second-level cache of an
    H100 of 114 multiprocessors at 1.755 GHz are 27.5 bytes a clock; others measured 63% of the peak
    by mma.sync."""
    flops = {"bf16": 4096, "fp8": 8192}
    clocks = {"bf16": bf16_tflops * 1e3 / (132 * 4096), "fp8": fp8_tflops * 1e3 / (132 * 8192)}
    return Card(name, 132, flops, clocks, 27.5, dram_gbs, "hopper", mma_share=0.63)


def blackwell(name: str, multiprocessors: int, ghz: float, dram_gbs: float, f32_sums: int = 2) -> Card:
    """A card of compute capability 12.x: an FP4 m16n8k64 takes 16 clocks of a quarter of a
    multiprocessor, 16-bit operands four times as long and, with f32 sums, `f32_sums` times that: 2 on
    GeForce cards, 1 on an RTX PRO 6000 (data sheet: 504 TFLOP/s) and on GB10 (others measured 188
    TFLOP/s of FP8, more than half the rate gives). Nobody published what the second-level cache
    gives; 16 bytes a clock is what an RTX 4090 (5.2 TB/s) comes to."""
    kinds = {"fp4": 4096, "fp8": 2048 // f32_sums, "bf16": 1024 // f32_sums}
    general = "geforce" if f32_sums == 2 else "workstation"
    return Card(name, multiprocessors, kinds, dict.fromkeys(kinds, ghz), 16.0, dram_gbs, general)


CARDS = {
    "h200": hopper("H200, short runs", 959, 1936, 4437),
    "h200-hot": hopper("H200, hot", 806, 1689, 4169),
    "rtx5090": blackwell("RTX 5090", 170, 2.407, 1792),
    "pro6000": blackwell("RTX PRO 6000", 188, 2.6, 1792, f32_sums=1),
    "gb10": blackwell("GB10", 48, 2.5, 273, f32_sums=1),
}
