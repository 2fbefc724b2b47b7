#!/usr/bin/env python3
"""Predicts times on cards from the machine code of kernels (docs/blackwell.md).

usage: predict.py                          tables: predicted beside measured, then other cards
       predict.py --library LIB ...        compares the main loops of built code with the stored ones
       predict.py --library LIB ... --write    stores them
LIB: libtessera_cuda.so, or a .cubin. Stored: counts.json (loops), measured.json (times).
"""
import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
import typing

import models
import products
import sass
import steps
from cards import CARDS, Card

Row = dict[str, typing.Any]  # of measured.json
HERE = pathlib.Path(__file__).resolve().parent
COUNTS = HERE / "counts.json"
IMAGES = ("products_sm90.", "products_fp8_sm90.", "products_nvfp4_sm120.")
BLACKWELL = ("rtx5090", "pro6000", "gb10")
ALLOWED = 0.2  # how far a prediction may be off what was measured
# What others publish for the 27B on an RTX 5090: tokens of the prompt, tokens a second, by what.
PUBLISHED = [(16384, 6122, "llama.cpp"), (16384, 8860, "its proof of concept"), (7680, 12819, "NInfer")]


def hopper(act: str) -> models.Kernels:
    found = products.hopper_kernels(sass.load(COUNTS))
    gated = [found[act + " gate and up"]]
    return models.Kernels([found[act]], gated, [found[act]], gated, found[act].column_bytes)


def general() -> models.General:
    loops = {name.split()[0]: loop for name, loop in sass.load(COUNTS).items()}
    attend = {size: loops[f"attend_tile<{size},1>"] for size in (256, 128)}
    return models.General(attend, loops["half_rows<0>"])


def blackwell() -> models.Kernels:
    found = [products.blackwell_kernels(sass.load(COUNTS), form) for form in products.FORMS]
    return models.Kernels(*found, found[0][0].column_bytes, general())


def predicted_us(row: Row) -> float:
    """The model's time for a row of measured.json."""
    card = CARDS[row["card"]]
    if row["kind"] == "product":
        kernel = products.hopper_kernels(sass.load(COUNTS))[row["kernel"]]
        time = products.predict(kernel, card, row["features"], row["columns"], row["tokens"])
        return time.us + products.LAUNCH_US
    if row["kind"] == "general attention":
        size = row["size"]
        return models.general_attention_us(card, general().attend[size], row["tokens"], row["behind"],
                                           row["heads"], row["kv_heads"], size)
    if row["kind"] == "general delta rule":
        return models.general_delta_rule_us(card, general().scan, row["tokens"], row["key_heads"],
                                            row["value_heads"])
    if row["kind"] == "attention":
        return models.attention_us(card, row["tokens"], row["behind"], row["heads"], row["size"])
    if row["kind"] == "delta rule":
        return models.delta_rule_us(card, row["tokens"], row["key_heads"], row["value_heads"])
    model, kernels = models.MODELS[row["model"]], hopper(row["act"])
    return sum(models.prompt_us(model, card, kernels, row["tokens"], row["at_once"]).values())


def measured() -> list[Row]:
    rows: list[Row] = json.loads((HERE / "measured.json").read_text())
    return rows


def near(row: Row) -> bool:
    return bool(abs(predicted_us(row) / row["us"] - 1) <= ALLOWED)


def print_measured() -> None:
    print("## Hopper, predicted beside measured\n\n| what | card | predicted us | measured us | ratio |")
    print("|---|---|---|---|---|")
    for row in measured():
        leave = ("kind", "card", "us", "source")
        what = row["kind"] + " " + ", ".join(f"{k} {v}" for k, v in row.items() if k not in leave)
        us = predicted_us(row)
        print(f"| {what} | {CARDS[row['card']].name} | {us:.0f} | {row['us']} | {us / row['us']:.2f} |")


def print_product(card: Card, features: int, columns: int, tokens: int, gated: bool = False) -> None:
    kernels = blackwell().gated if gated else blackwell().store
    time = products.fastest(kernels, card, features, columns, tokens)
    whole, parts = sum(time.parts.values()), list(time.parts.items())[1:]
    lost = ", ".join(f"{name} {clocks / whole:.1%}" for name, clocks in parts)
    busy = f"{time.utilisation:.0%}"
    print(f"| {card.name} | {features}x{columns} | {tokens} | {time.us:.0f} | {busy} | {lost} |")


def print_steps() -> None:
    print("\nA step of 128 columns, clocks by what might bound it:\n")
    for kernel in blackwell().store:
        tokens, loop = next(iter(kernel.loops.items()))
        limits = products.bounds(kernel, CARDS["rtx5090"], tokens)
        text = ", ".join(f"{name} {clocks:.0f}" for name, clocks in limits.items())
        others = (loop.instructions - loop.mmas) / (16 * loop.mmas)
        print(f"- {kernel.features} x {tokens}: {text}; other instructions take {others:.1%} "
              "of the issue slots of products")


def print_doubts() -> None:
    """What the least known rate does, and where four-bit rows begin to pay."""
    for rate in (8.0, 12.0, 16.0, 24.0, 32.0):
        card = dataclasses.replace(CARDS["rtx5090"], l2_bytes=rate)
        time = products.fastest(blackwell().store, card, 17408, 5120, 2048)
        print(f"- second-level cache {rate:.0f} bytes a clock: 17408x5120, 2048 tokens {time.us:.0f} us, "
              f"FP4 tensor cores busy {time.utilisation:.0%}")
    for name in BLACKWELL:
        card = CARDS[name]
        tokens = 9 / 32 * card.peak_tflops("bf16") * 1e3 / (card.dram_gbs * card.copy_share)
        print(f"- {card.name}: up to {tokens:.0f} tokens 16-bit rows take no longer than reading the weights")


def print_blackwell() -> None:
    print("\n## Blackwell, *predicted, not measured*")
    print_steps()
    print("\n| card | product | tokens | us | FP4 tensor cores busy | where the rest goes |\n|" + "---|" * 6)
    for name in BLACKWELL:
        print_product(CARDS[name], 17408, 5120, 2048)
        print_product(CARDS[name], 34816, 5120, 2048, gated=True)
        print_product(CARDS[name], 5120, 17408, 2048)
    for tokens in (128, 512, 4096):
        print_product(CARDS["rtx5090"], 17408, 5120, tokens)
    print()
    print_doubts()
    print("\n| card | model | prompt | t/s | products ms | attention | delta rule | rows between |\n|" + "---|" * 8)
    for name, model, tokens in itertools.product(BLACKWELL, models.MODELS.values(), (7680, 16384)):
        at_once = 1536 if tokens == 7680 else 2048
        parts = models.prompt_us(model, CARDS[name], blackwell(), tokens, at_once)
        times = " | ".join(f"{us / 1e3:.0f}" for us in parts.values())
        rate = tokens / sum(parts.values()) * 1e6
        print(f"| {CARDS[name].name} | {model.name} | {tokens} | {rate:.0f} | {times} |")
    others = ", ".join(f"{rate} t/s at {tokens} tokens ({who})" for tokens, rate, who in PUBLISHED)
    print(f"\nPublished for the 27B on an RTX 5090, measured by others: {others}.")


def vanished(found: dict[str, sass.Loop], stored: dict[str, sass.Loop]) -> list[str]:
    """Stored loops that are not among those found, of kernels of which others were found."""
    kernels = {name.split("<")[0] for name in found}
    return [name for name in stored if name not in found and name.split("<")[0] in kernels]


def compare(found: dict[str, sass.Loop], stored: dict[str, sass.Loop]) -> list[str]:
    """What differs enough to change a prediction, of the kernels that were found."""
    faults = [f"{name}: stored, but not in the library" for name in vanished(found, stored)]
    for name, loop in found.items():
        before = stored.get(name)
        if before is None:
            faults.append(f"{name}: not stored")
            continue
        pairs = [(loop.instructions, before.instructions), (loop.chain, before.chain)]
        pairs += [(a, b) for card, clocks in loop.clocks.items()
                  for a, b in itertools.zip_longest(clocks, before.clocks.get(card, []), fillvalue=0)]
        near = all(abs(a - b) <= 0.1 * b + 8 for a, b in pairs)
        if loop.mmas != before.mmas or not near:
            faults.append(f"{name}: {loop}, stored {before}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1])
    parser.add_argument("--library", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, sass.Loop] = {}
    for library in arguments.library:
        found |= sass.counts(library, IMAGES) | steps.counts(library)
    if not arguments.library:
        print_measured()
        print_blackwell()
    elif arguments.write:
        stored = sass.load(COUNTS) if COUNTS.exists() else {}
        gone = vanished(found, stored)
        COUNTS.write_text(sass.dump({name: loop for name, loop in (stored | found).items() if name not in gone}))
    else:
        faults = compare(found, sass.load(COUNTS)) or ([] if found else ["no main loop found"])
        print(f"{len(found)} main loops, {len(faults)} not as stored (--write stores them)")
        sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
