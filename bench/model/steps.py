"""Steps of general kernels, which are more than an innermost loop, and the clocks that they take."""
import dataclasses
import pathlib
import re
import tempfile

import simulate
from sass import MMA, Instruction, Loop, images_of, kernels, loops_of, short_name, target_of


@dataclasses.dataclass(frozen=True)
class Step:
    """What to make of a kernel's code, and how many run it."""

    products: int  # times that a loop inside of it with products runs
    warps: int  # of a block
    blocks: int  # of a multiprocessor


# 32 keys of 128 columns of a head of 256 or 128 (f16 pages); a chunk of 64 value rows (f16 operands).
STEPS = {"attend_tile<256,1>": Step(4, 8, 1), "attend_tile<128,1>": Step(1, 8, 2), "half_rows<0>": Step(1, 4, 1)}
IMAGES = ("prompt.", "half.")


def conditional(jump: Instruction) -> bool:
    return bool(re.match(r"@|BRA\S*\s+!?U?P", jump.text))


def leaves(code: list[Instruction], place: int, target: int, end: int, labels: dict[str, int],
           jump: Instruction) -> bool:
    """Whether a forward jump from before `place` is taken, see always()."""
    if not conditional(jump):
        return True

    def loops(first: int, behind: int) -> bool:
        return any(first <= start and end < behind for start, end in loops_of(code, labels))

    def has(pattern: str, first: int, behind: int) -> bool:
        return any(re.match(pattern, i.opcode()) for i in code[first:behind])

    join = -1 if conditional(code[target - 1]) else target_of(code[target - 1], labels)
    if target < join <= end:  # two ways
        here, there = ((not has("HMMA", *way), loops(*way), way[1] - way[0])
                       for way in ((place, target), (target, join)))
        return there < here
    return not has(r"HMMA|LDSM|LDGSTS|LDG\b", place, target)


def always(code: list[Instruction], first: int, last: int, labels: dict[str, int],
           repeated: dict[tuple[int, int], int]) -> list[Instruction]:
    """What a warp runs of code[first..last], loops inside of it as often as `repeated` says. A
    conditional jump is taken where it leaves out no product, load of an operand or copy; of two ways
    the one without a loop, or the shorter one. What is left out is for masks, softcaps, values that
    are no numbers, saturation, saved states, keys and tokens that are not there."""
    ran: list[Instruction] = []
    place = first
    while place <= last:
        loop = next((span for span in repeated if span[0] == place and span != (first, last)), None)
        if loop:
            ran += repeated[loop] * always(code, *loop, labels, {})
            place = loop[1] + 1
            continue
        ran.append(code[place])
        target = target_of(code[place], labels)
        place += 1
        if place < target <= last + 1 and leaves(code, place, target, last + 1, labels, ran[-1]):
            place = target
    return ran


def steps_of(code: list[Instruction], labels: dict[str, int], products: int) -> list[list[Instruction]]:
    """Steps of a general kernel: the shortest loops with the most products, see Step. Of two, of whole tiles and of
    half ones, that of whole ones first, whose warps have fewer copies each."""
    back = loops_of(code, labels)
    # Rare code stands behind a kernel's end and jumps back into loops.
    spans = [s for s in back if not any(o[0] < s[0] <= o[1] < s[1] for o in back)]

    def having(span: tuple[int, int], kind: str) -> int:
        return sum(i.opcode().startswith(kind) for i in code[span[0] : span[1] + 1])

    most = max(having(span, "HMMA") for span in spans)
    full = [span for span in spans if having(span, "HMMA") == most]
    bodies = []
    for outer in full:
        if any(outer[0] <= s[0] and s[1] <= outer[1] for s in full if s != outer):
            continue
        inside = [s for s in spans if s != outer and outer[0] <= s[0] and s[1] <= outer[1]]
        repeated = {s: products for s in inside if having(s, "HMMA")}
        # Copies in loops are of pages that are seen in part.
        repeated |= {s: 0 for s in inside if having(s, "LDGSTS") and not having(s, "HMMA")}
        bodies.append(always(code, *outer, labels, repeated))
    return sorted(bodies, key=lambda body: sum(i.opcode().startswith("LDGSTS") for i in body))


def step_counts(body: list[Instruction]) -> Loop:
    found = [match.group(0) for i in body if (match := MMA.search(i.text))]
    shared: dict[str, int] = {}
    for i in body:
        if i.opcode().startswith("LDS"):
            shared[i.opcode()] = shared.get(i.opcode(), 0) + 1
    return Loop(found[0].rstrip(","), len(found), len(body), 0, 0, shared)


def counts(library: pathlib.Path) -> dict[str, Loop]:
    """Steps of a library's general kernels: counts as for compute capability 12.x, clocks by card."""
    loops: dict[str, Loop] = {}
    with tempfile.TemporaryDirectory() as folder:
        for image in images_of(library, folder):
            cards = {card: rates for card, rates in simulate.RATES.items() if rates.image in image.name}
            if not cards or not image.name.startswith(IMAGES):
                continue
            for mangled, code, labels in kernels(image):
                name = short_name(mangled)
                if step := STEPS.get(name):
                    bodies = steps_of(code, labels, step.products)
                    loop = step_counts(bodies[0])
                    key = f"{name} {loop.mma}"
                    stored = loops.get(key, loop)
                    clocks = {card: [round(simulate.step_clocks(body, step.warps // (i + 1), step.blocks, rates))
                                     for i, body in enumerate(bodies)]
                              for card, rates in cards.items()}
                    counted = loop if "sm_120" in image.name else stored
                    loops[key] = dataclasses.replace(counted, clocks=stored.clocks | clocks)
    return loops
