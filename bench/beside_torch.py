#!/usr/bin/env python3
"""Ops of the CUDA backend beside what PyTorch calls for the same work, in turn, in one session on one card.

usage: bench/beside_torch.py [--tessera build/tessera] [--rounds 3] [--act bf16|fp8] [PATTERN]
Needs PyTorch with CUDA. A round runs `tessera test-ops perf -b cuda` on the cases that match PATTERN and then their peers:
NVFP4 products: cuBLAS with bf16 weights (torch.matmul) and, where activations are fp8 (--act fp8, or act=fp8 in the name
of a case), cuBLASLt in fp8 (torch._scaled_mm) as well; attention over whole prompts: cuDNN or, where it refuses,
FlashAttention (scaled_dot_product_attention); the gated delta rule has no peer there. Both sides report the best of their
runs, products without what brings their input into their format. A line per case: the median over the rounds, the least and the most in microseconds, the ratios peer / ours (above
1: ours is faster). Most of the time goes into making operands on the host, a second or two a case.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"
# Sets of operands, so that a weight does not stay in the second-level cache.
COPIES = 3


def microseconds(work):
    """The best of single runs by events; `work(i)` uses set i of the operands."""
    for i in range(COPIES):
        work(i)
    times = []
    for i in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(i % COPIES)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return min(times)


def bf16_product(n, k, t):
    weights = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(COPIES)]
    x = torch.randn(t, k, device=DEVICE, dtype=torch.bfloat16)
    return microseconds(lambda i: torch.matmul(x, weights[i].T))


def fp8_product(n, k, t):
    def numbers(rows):
        return torch.randn(rows, k, device=DEVICE).clamp(-448, 448).to(torch.float8_e4m3fn)

    weights = [numbers(n) for _ in range(COPIES)]
    x = numbers(t)
    one = torch.ones((), device=DEVICE)
    return microseconds(lambda i: torch._scaled_mm(
        x, weights[i].T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True))


def attention(heads, kv_heads, size, count):
    q = torch.randn(1, heads, count, size, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn(1, kv_heads, count, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))

    def run(backend):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    try:
        return microseconds(lambda _: run(SDPBackend.CUDNN_ATTENTION))
    except RuntimeError:
        return microseconds(lambda _: run(SDPBackend.FLASH_ATTENTION))


def peers_of(case, act):
    """{name: function that gives its time} of the work that a case names."""
    def number(name):
        found = re.search(rf"[(,]{name}=(\d+)", case)
        return int(found.group(1)) if found else None

    if case.startswith("MUL_MAT("):
        shape = number("m"), number("k"), number("n")
        if None in shape:
            return {}
        peers = {"cuBLAS bf16": lambda: bf16_product(*shape)}
        named = re.search(r"[(,]act=(\w+)", case)
        if (named.group(1) if named else act) == "fp8":
            peers["cuBLASLt fp8"] = lambda: fp8_product(*shape)
        return peers
    runs = re.search(r"runs=\[0\+(\d+)\]", case)  # the peers' causal mask is that of whole prompts
    if case.startswith("FLASH_ATTN(") and runs and "prompts=0" not in case:
        heads = number("nh"), number("nkv"), number("hs")
        if None in heads:
            return {}
        return {"attention": lambda: attention(*heads, int(runs.group(1)))}
    return {}


def ours(arguments):
    """{case: microseconds} of one run of the program."""
    command = [arguments.tessera, "test-ops", "perf", "-b", "cuda", "-p", arguments.pattern, "--output", "jsonl"]
    if arguments.act:
        command += ["--act", arguments.act]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"beside_torch: {' '.join(command)}: {done.stderr.strip()}")
    tests = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # Peers get their operands in the format of the product: so do we.
    return {test["case"]: test["us_per_run"] - test["input_us"] for test in tests}


def spread(times):
    return f"{statistics.median(times):.1f} ({min(times):.1f}..{max(times):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default=r"m=(17408|5120),|nh=(24|32),|runs=\[0\+(2048|16384)\]")
    parser.add_argument("--tessera", default="build/tessera")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--act", help="format of activations, as of tessera")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; microseconds, {arguments.rounds} rounds")
    mine, theirs, refused = {}, {}, {}
    start = time.monotonic()
    for number in range(1, arguments.rounds + 1):
        for case, took in ours(arguments).items():
            mine.setdefault(case, []).append(took)
        print(f"round {number}: ours after {time.monotonic() - start:.0f} s", file=sys.stderr)
        for case in mine:
            for name, peer in peers_of(case, arguments.act).items():
                try:
                    theirs.setdefault((case, name), []).append(peer())
                except (RuntimeError, ValueError) as error:
                    refused[case, name] = str(error).splitlines()[0][:120]
                torch.cuda.empty_cache()
        print(f"round {number}: peers after {time.monotonic() - start:.0f} s", file=sys.stderr)
    for case, times in mine.items():
        line = f"{case}: ours {spread(times)}"
        for name in peers_of(case, arguments.act):
            if theirs.get((case, name)):
                peer = theirs[case, name]
                ratio = statistics.median(peer) / statistics.median(times)
                line += f"; {name} {spread(peer)}, / ours {ratio:.3f}"
            else:
                line += f"; {name} refused: {refused.get((case, name))}"
        print(line)


main()
