#!/usr/bin/env python3
"""Looks for cliffs: prompt speed over the number of tokens, 1 to 200 each and every 64 up to 4096.

usage: bench/sweep.py [flags] MODEL [-- FLAGS of tessera bench...]     MODEL: a file, or ARCH:SHAPE:TYPE for random weights
One pass a prompt (-ub is the most tokens). Between neighbours tokens per second must not fall by more than --fall percent
from fewer tokens to more; pairs that do are measured again, longer, before they count. Ends with a verdict; exit code 1
when there is a cliff. Standard library only.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time


def points(most):
    return sorted({*range(1, min(most, 200) + 1), *range(64, most + 1, 64)})


def measure(arguments, tokens, repetitions):
    """{tokens: median tokens per second}, one process; what the time limit leaves out is missing."""
    source = ["-m", arguments.model]
    if ":" in arguments.model and "/" not in arguments.model:
        source = ["--synth", arguments.model]
    most = str(max(points(arguments.most)))
    command = [arguments.tessera, "bench", *source, "-p", ",".join(map(str, tokens)), "-n", "0", "-b", most, "-ub", most,
               "-r", str(repetitions), "-o", "jsonl", *arguments.flags]
    rates = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout:
            test = json.loads(line)
            rates[test["n_prompt"]] = statistics.median(test["samples_ts"])
            if time.monotonic() > arguments.end:
                bench.kill()
                return rates
    if bench.returncode != 0:
        sys.exit(f"sweep: tessera bench ended with exit code {bench.returncode}")
    return rates


def falls(rates, most_percent):
    """[(fewer, more, percent)] of neighbours between which the rate falls by more."""
    found = []
    measured = sorted(rates)
    for fewer, more in zip(measured, measured[1:]):
        percent = 100 * (1 - rates[more] / rates[fewer])
        if percent > most_percent:
            found.append((fewer, more, percent))
    return found


def chart(rates):
    """A line for every few points: tokens, tokens per second, a bar."""
    best = max(rates.values())
    shown = [t for t in sorted(rates) if t in (1, 2, 4, 8) or (t <= 200 and t % 16 == 0) or t % 256 == 0]
    for tokens in shown:
        print(f"{tokens:6} {rates[tokens]:12.1f} t/s  {'#' * round(60 * rates[tokens] / best)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tessera", default="build/tessera")
    parser.add_argument("--most", type=int, default=4096, help="most tokens")
    parser.add_argument("--fall", type=float, default=10, help="percent that is allowed")
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="stop measuring then")
    parser.add_argument("--csv", help="also write tokens,t/s here")
    own, flags = sys.argv[1:], []
    if "--" in own:  # argparse would look for more flags of its own behind it
        own, flags = own[:own.index("--")], own[own.index("--") + 1:]
    arguments = parser.parse_args(own)
    arguments.flags = flags
    start = time.monotonic()
    arguments.end = start + arguments.seconds

    wanted = points(arguments.most)
    rates = measure(arguments, wanted, arguments.repetitions)
    if not rates:
        sys.exit("sweep: nothing was measured within the time")
    suspects = falls(rates, arguments.fall)
    again = sorted({tokens for fewer, more, _ in suspects for tokens in (fewer, more)})
    if again and time.monotonic() < arguments.end:
        rates.update(measure(arguments, again, 5 * arguments.repetitions))
    cliffs = falls(rates, arguments.fall)

    chart(rates)
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8") as file:
            file.write("tokens,t/s\n" + "".join(f"{tokens},{rates[tokens]:.3f}\n" for tokens in sorted(rates)))
    for fewer, more, percent in cliffs:
        print(f"cliff: {fewer} tokens {rates[fewer]:.1f} t/s, {more} tokens {rates[more]:.1f} t/s: -{percent:.1f}%")
    worst = max(falls(rates, -1e9), key=lambda fall: fall[2], default=None)
    part = "" if len(rates) == len(wanted) else f" (the time was up after {max(rates)} tokens)"
    print(f"{len(rates)} of {len(wanted)} points in {time.monotonic() - start:.0f} s{part}, measured again: {len(again)}")
    if worst:
        print(f"largest fall: {max(worst[2], 0):.1f}% from {worst[0]} to {worst[1]} tokens, allowed {arguments.fall:g}%")
    print(f"verdict: {len(cliffs)} cliffs" if cliffs else "verdict: no cliff")
    sys.exit(1 if cliffs else 0)


main()
