#!/usr/bin/env python3
"""Ops of the CUDA backend beside what PyTorch calls for the same work, in turn, in one session on one card.

usage: bench/beside_torch.py [--tessera build/tessera] [--rounds 5] [PATTERN]
Needs PyTorch with CUDA. Runs `tessera test-ops perf -b cuda` on the card's own cases and after each of them the peer:
NVFP4 products: cuBLAS with bf16 weights (torch.matmul); attention: cuDNN or, where it refuses, the fastest kernel of
scaled_dot_product_attention; the gated delta rule has no peer there. Prints a line per case: medians over the rounds, the
least and the most, the ratio peer / ours (above 1: ours is faster).
"""
import argparse
import json
import re
import statistics
import subprocess

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"


def microseconds(work, copies):
    """Median of single runs by events; `work(i)` uses input set i, of which there are `copies`."""
    for i in range(copies):
        work(i)
    times = []
    for i in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(i % copies)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def product_peer(n, k, t):
    copies = 3  # of the weight, so that it does not stay in the second-level cache
    weights = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(copies)]
    x = torch.randn(t, k, device=DEVICE, dtype=torch.bfloat16)
    return lambda: microseconds(lambda i: torch.matmul(x, weights[i].T), copies)


def attention_peer(heads, kv_heads, size, first, count):
    if first > 0:
        return None  # its causal mask is that of whole prompts
    q = torch.randn(1, heads, count, size, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn(1, kv_heads, count, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))

    def run(_):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return lambda: microseconds(run, 1)


def peer_of(case):
    def number(name):
        return int(re.search(rf"\b{name}=(\d+)", case).group(1))

    if case.startswith("MUL_MAT("):
        return product_peer(number("m"), number("k"), number("n"))
    if case.startswith("FLASH_ATTN("):
        first, count = map(int, re.search(r"runs=\[(\d+)\+(\d+)", case).groups())
        return attention_peer(number("nh"), number("nkv"), number("hs"), first, count)
    return None


def ours(tessera, case):
    pattern = "^" + re.escape(case).replace("\\-", "-") + "$"
    out = subprocess.run(
        [tessera, "test-ops", "perf", "-b", "cuda", "-p", pattern, "--output", "jsonl"],
        capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])["us_per_run"]


def spread(times):
    return f"{statistics.median(times):9.1f} ({min(times):.1f}..{max(times):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default=r"m=(17408|5120)|nh=(24|32),|runs=\[0\+(2048|16384)\]")
    parser.add_argument("--tessera", default="build/tessera")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    listed = subprocess.run(
        [arguments.tessera, "test-ops", "perf", "-b", "cuda", "-p", arguments.pattern, "--output", "jsonl"],
        capture_output=True, text=True, check=True).stdout
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; microseconds, {arguments.rounds} rounds")
    for case in (json.loads(line)["case"] for line in listed.splitlines() if line.startswith("{")):
        peer = peer_of(case)
        mine, theirs = [], []
        for _ in range(arguments.rounds):
            mine.append(ours(arguments.tessera, case))
            if peer is not None:
                theirs.append(peer())
        line = f"{case}: ours {spread(mine)}"
        if theirs:
            ratio = statistics.median(theirs) / statistics.median(mine)
            line += f", peer {spread(theirs)}, peer / ours {ratio:.3f}"
        print(line, flush=True)
        del peer
        torch.cuda.empty_cache()


main()
