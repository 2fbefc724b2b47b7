#!/usr/bin/env python3
"""Runs tessera and llama.cpp on the same model, side by side.

Three comparisons, each of which may be chosen with --only:
  perplexity  both estimates over the same chunks, their ratio, and the KL divergence of tessera
              from llama.cpp's own logits (through the shared file format)
  greedy      128 tokens at temperature 0 from several prompts; at the first difference, the two
              rival tokens and by how much each program, and tessera with unrounded (f32)
              activations, prefers its own
  bench       pp512 and tg128, the two programs taking turns so that the machine's mood hits both;
              median of the rounds

Example:
  scripts/compare_llamacpp.py --tessera build/tessera --llama DIR_WITH_LLAMA_PROGRAMS \\
      --model model.gguf --text wiki.test.raw --chunks 8 --threads 2
"""

import argparse
import json
import re
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small robot who",
    "def fibonacci(n):\n",
    "The three most important inventions of the 19th century were",
]


def run(command, check=True):
    done = subprocess.run([str(part) for part in command], capture_output=True)
    if check and done.returncode != 0:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        sys.exit(f"{command[0]} failed with {done.returncode}: " + " / ".join(tail))
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def final_estimate(text):
    found = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", text)
    if not found:
        sys.exit("no final estimate in: " + text[-300:])
    return float(found.group(1)), float(found.group(2))


def compare_perplexity(options):
    common = ["-m", options.model, "-f", options.text, "-c", options.context,
              "--chunks", options.chunks, "-t", options.threads]
    own = final_estimate("".join(run([options.tessera, "perplexity", *common, *options.own])))
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base.kld"
        save = ["--kl-divergence-base", base]
        theirs = final_estimate("".join(run([options.llama / "llama-perplexity", *common, *save])))
        report, _ = run([options.tessera, "perplexity", "-m", options.model, *save,
                         "--kl-divergence", "-t", options.threads, *options.own])
    print(f"perplexity over {options.chunks} chunks of {options.context}")
    print(f"  llama.cpp {theirs[0]:.4f} +/- {theirs[1]:.4f}")
    print(f"  tessera   {own[0]:.4f} +/- {own[1]:.4f}   ratio {own[0] / theirs[0]:.6f}")
    for line in report.splitlines():
        if re.match(r"(Mean    KLD|Maximum KLD|99\.9%   KLD|Same top p|RMS Δp)", line):
            print("  " + line)
    return abs(own[0] / theirs[0] - 1) <= 0.005


def greedy_text(options, prompt, flags):
    out, _ = run([options.tessera, "run", "-m", options.model, "-p", prompt, "-n", 128,
                  "--temp", 0, "-no-cnv", "--no-escape", "-c", 1024, "-t", options.threads, *flags])
    return out.rstrip()


def token_ids(options, text):
    return json.loads(run([options.tessera, "tokenize", "-m", options.model, "--ids", "-p", text])[0])


def log_probs(command, position, context, folder):
    """Log-probabilities behind token `position` of the text, from the file that both write."""
    base = Path(folder) / "base.kld"
    run([*command, "--kl-divergence-base", base])
    data = base.read_bytes()
    magic, n_ctx, vocab, _ = struct.unpack_from("<8sIii", data)
    assert magic == b"_logits_" and n_ctx == context, (magic, n_ctx)
    tokens = struct.unpack_from(f"<{context}i", data, 20)
    n_chunk = struct.unpack_from("<i", data, 16)[0]
    row_bytes = 2 * (2 * ((vocab + 1) // 2) + 4)
    at = 20 + 4 * context * n_chunk + row_bytes * (position - context // 2)
    scale, low = struct.unpack_from("<ff", data, at)
    row = struct.unpack_from(f"<{vocab}H", data, at + 8)
    return tokens[:position + 1], [low + scale * q for q in row]


def explain_difference(options, prompt, left, right):
    """Prints the preference of each program between the tokens where the texts part; returns the
    preference of llama.cpp for its own token, in nats."""
    ours, theirs = token_ids(options, prompt + left), token_ids(options, prompt + right)
    same = next(i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b)
    context = min(same + 8, 2 * (same - 1))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_text((prompt + left + "\n") * (2 + 3 * context // len(ours)))
        flags = ["-m", options.model, "-f", text, "-c", context, "--chunks", 1,
                 "-t", options.threads]
        rivals = [
            ("llama.cpp", [options.llama / "llama-perplexity", *flags]),
            ("tessera", [options.tessera, "perplexity", *flags, *options.own]),
            ("tessera --act int8", [options.tessera, "perplexity", *flags, "--act", "int8"]),
            ("tessera --act f32", [options.tessera, "perplexity", *flags, "--act", "f32"]),
        ]
        margins = []
        for name, command in rivals:
            prefix, row = log_probs(command, same - 1, context, folder)
            assert list(prefix) == ours[:same], "the prefix was read as other tokens"
            a, b = theirs[same], ours[same]
            rank = sorted(range(len(row)), key=lambda i: -row[i])[:2]
            margins.append(row[a] - row[b])
            print(f"  {name:20} log p(its {a}) {row[a]:8.4f}  log p(our {b}) {row[b]:8.4f}  "
                  f"margin {row[a] - row[b]:+.4f}  best two {rank}")
    return margins


def compare_greedy(options):
    same = 0
    for prompt in PROMPTS:
        left = greedy_text(options, prompt, options.own)
        theirs, _ = run([options.llama / "llama-completion", "-m", options.model, "-p", prompt,
                         "-n", 128, "--temp", 0, "-no-cnv", "--no-escape", "-c", 1024,
                         "-t", options.threads, "--no-display-prompt", "--simple-io"])
        right = theirs.replace(" [end of text]", "").rstrip()
        if left == right:
            same += 1
            print(f"greedy {prompt!r}: equal, {len(left)} bytes")
            continue
        at = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b),
                  min(len(left), len(right)))
        window = slice(max(0, at - 30), at + 30)
        print(f"greedy {prompt!r}: differ at character {at} of {len(right)}")
        print(f"  llama.cpp ...{right[window]!r}")
        print(f"  tessera   ...{left[window]!r}")
        explain_difference(options, prompt, left, right)
    print(f"greedy: {same} of {len(PROMPTS)} equal")
    return same == len(PROMPTS)


def bench_once(command):
    return {f"{'pp' if row['n_prompt'] else 'tg'}{row['n_prompt'] or row['n_gen']}": row["avg_ts"]
            for row in json.loads(run(command)[0])}


def compare_bench(options):
    flags = ["-p", 512, "-n", 128, "-r", 1, "-t", options.threads, "-o", "json"]
    commands = {
        "llama.cpp": [options.llama / "llama-bench", "-m", options.llama_model, *flags],
        "tessera": [options.tessera, "bench", "-m", options.model, *flags, *options.own],
    }
    rates = {name: {} for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            for test, rate in bench_once(command).items():
                rates[name].setdefault(test, []).append(rate)
    print(f"bench, median of {options.rounds} interleaved rounds, {options.threads} threads")
    for test in rates["tessera"]:
        theirs = statistics.median(rates["llama.cpp"][test])
        own = statistics.median(rates["tessera"][test])
        print(f"  {test:6} llama.cpp {theirs:9.2f} t/s   tessera {own:9.2f} t/s   "
              f"{own / theirs:.2f}x")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", type=Path, required=True, help="the tessera program")
    parser.add_argument("--llama", type=Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--llama-model", type=Path, help="another file for llama.cpp's bench")
    parser.add_argument("--text", type=Path, help="text for perplexity")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["perplexity", "greedy", "bench"], action="append")
    parser.add_argument("own", nargs="*", help="further flags for tessera, after --")
    options = parser.parse_args()
    options.llama_model = options.llama_model or options.model
    chosen = options.only or ["perplexity", "greedy", "bench"]
    if "perplexity" in chosen and options.text is None:
        parser.error("perplexity needs --text")
    steps = {"perplexity": compare_perplexity, "greedy": compare_greedy, "bench": compare_bench}
    good = [steps[name](options) for name in chosen]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
