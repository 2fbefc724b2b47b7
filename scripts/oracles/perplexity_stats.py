#!/usr/bin/env python3
"""Expected values for tests/tools/perplexity_test.cpp, by numpy in double precision.

Two random models' logits over a small vocabulary; the second is stored in the 16-bit form of
llama-perplexity's log-probability files, and the first is compared with it.

  pip install numpy==2.4.6
  scripts/oracles/perplexity_stats.py > tests/data/perplexity/stats.json
"""

import json
import struct
import sys

import numpy as np

ROWS, VOCAB = 60, 19


def log_softmax(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def stored_words(logits):
    """Row layout: float scale, float minimum, then a code a token, padded to an even number."""
    log_p = log_softmax(logits.astype(np.float64))
    lowest = np.maximum(log_p.min(axis=1), log_p.max(axis=1) - 16.0)
    scale = (log_p.max(axis=1) - lowest) / 65535.0
    codes = np.rint((log_p - lowest[:, None]) / scale[:, None]).clip(0, 65535).astype(np.uint16)
    rows = []
    for row in range(len(logits)):
        head = struct.pack("<ff", scale[row], lowest[row])
        tail = np.append(codes[row], [0] * (VOCAB % 2)).astype("<u2").tobytes()
        rows.append(np.frombuffer(head + tail, "<u2").tolist())
    decoded = scale.astype(np.float32)[:, None] * codes + lowest.astype(np.float32)[:, None]
    return rows, decoded.astype(np.float64)


def error(values):
    return float(np.std(values) / np.sqrt(len(values) - 1))


def main():
    random = np.random.default_rng(7)
    base = (np.rint(random.normal(size=(ROWS, VOCAB)) * 256) / 64).astype(np.float32)
    base[:, 3] -= 30  # lies more than 16 below the maximum
    model = (base + np.rint(random.normal(size=base.shape) * 32) / 64).astype(np.float32)
    tokens = random.integers(0, VOCAB, ROWS)
    words, log_base = stored_words(base)
    log_model = log_softmax(model.astype(np.float64))
    index = np.arange(ROWS)
    nll, nll_base = -log_model[index, tokens], -log_base[index, tokens]
    seen = log_base > -16
    kl = np.where(seen, np.exp(log_base) * (log_base - log_model), 0).sum(axis=1)
    p_diff = np.exp(-nll) - np.exp(-nll_base)
    same = model.argmax(axis=1) == log_base.argmax(axis=1)
    covariance = np.cov(nll, nll_base, ddof=0)[0, 1] / (ROWS - 1)
    rms = np.sqrt((p_diff**2).mean())
    result = {
        "vocab": VOCAB,
        "tokens": tokens.tolist(),
        "base_logits": [[float(x) for x in row] for row in base],
        "logits": [[float(x) for x in row] for row in model],
        "base_words": words,
        "nll": nll.tolist(),
        "divergence": kl.tolist(),
        "p_diff": p_diff.tolist(),
        "perplexity": [float(np.exp(nll.mean())), float(np.exp(nll.mean()) * error(nll))],
        "log_ratio": [float(nll.mean() - nll_base.mean()),
                      float(np.sqrt(error(nll) ** 2 + error(nll_base) ** 2 - 2 * covariance))],
        "mean_divergence": [float(kl.mean()), error(kl)],
        "rms_p_diff": [float(rms), 0.5 / float(rms) * error(p_diff**2)],
        "same_top": [float(same.mean()),
                     float(np.sqrt(same.mean() * (1 - same.mean()) / (ROWS - 1)))],
        "percentiles": {str(q): float(np.quantile(kl, q))
                        for q in (0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1)},
    }
    text = json.dumps(result, separators=(",", ":"))
    sys.stdout.write(text.replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
