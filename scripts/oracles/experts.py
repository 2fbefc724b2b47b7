"""Golden cases for the expert ops, in numpy float64 and with nothing of ours.

Usage: experts.py > tests/data/ops/experts.json

Needs numpy 2.4.6. Inputs are numbers that f32 holds exactly (multiples of 1/64), so that the only
error of a tested backend is its own. null stands for NaN.
"""

import json

import numpy as np

RANDOM = np.random.default_rng(31)


def numbers(*shape, scale=1.0):
    return np.round(RANDOM.uniform(-scale, scale, shape) * 64) / 64


def flat(array):
    return [None if np.isnan(value) else float(f"{value:.10g}") for value in np.ravel(array)]


def route(logits, bias, choices, sigmoid, normalize, scale):
    """Chosen ids and weights, one token at a time, by a full sort."""
    clean = np.where(np.isnan(logits), -np.inf, logits)
    ids, weights = [], []
    for row in clean:
        if sigmoid:
            p = 1 / (1 + np.exp(-row))
        else:
            e = np.exp(row - row.max())
            p = e / e.sum()
        key = p if bias is None else p + bias
        # lexsort: the last key counts most; equal ones keep the lower id first.
        order = np.lexsort((np.arange(len(row)), -key))[:choices]
        w = p[order]
        if normalize:
            w = w / max(w.sum(), 2.0**-14)
        ids.append(order)
        weights.append(w * scale)
    return np.array(ids), np.array(weights)


def route_case(experts, choices, sigmoid, normalize, with_bias, scale=1.0, spoil=None, spread=4.0):
    logits = numbers(4, experts, scale=spread)
    if spoil == "ties":
        logits = np.round(logits)
    if spoil == "nan":
        logits[1, ::3] = np.nan
    if spoil == "tiny":
        logits -= 30
    bias = numbers(experts, scale=0.5) if with_bias else None
    ids, weights = route(logits, bias, choices, sigmoid, normalize, scale)
    return {"op": "route", "shape": [4, experts], "choices": choices, "sigmoid": sigmoid,
            "normalize": normalize, "scale": scale, "logits": flat(logits),
            "bias": [] if bias is None else flat(bias), "ids": [int(i) for i in np.ravel(ids)],
            "weights": flat(weights)}


def routes():
    for sigmoid in (False, True):
        for normalize in (False, True):
            for with_bias in (False, True):
                yield route_case(24, 4, sigmoid, normalize, with_bias, scale=2.5)
        yield route_case(16, 16, sigmoid, True, False)
        yield route_case(1, 1, sigmoid, False, False)
        yield route_case(20, 6, sigmoid, True, False, spoil="ties", spread=2.0)
        yield route_case(20, 6, sigmoid, True, False, spoil="nan")
    yield route_case(12, 3, True, True, False, spoil="tiny")


def silu(x):
    return x / (1 + np.exp(-x))


def moe_case(tokens, experts, choices, n, k, per_pair):
    ids = RANDOM.integers(0, experts, (tokens, choices))
    x = numbers(tokens * choices if per_pair else tokens, k)
    gate, up = numbers(experts, n, k), numbers(experts, n, k)
    gate_scale, up_scale = numbers(experts, scale=2.0), numbers(experts, scale=2.0)
    weights, base = numbers(tokens, choices), numbers(tokens, n)
    pairs = np.argsort(np.ravel(ids), kind="stable")
    starts = np.searchsorted(np.ravel(ids)[pairs], np.arange(experts + 1))
    rows = x if per_pair else np.repeat(x, choices, axis=0)
    chosen = np.ravel(ids)
    products = np.einsum("pnk,pk->pn", gate[chosen] * gate_scale[chosen, None, None], rows)
    ups = np.einsum("pnk,pk->pn", up[chosen] * up_scale[chosen, None, None], rows)
    combined = np.einsum("tj,tjn->tn", weights, products.reshape(tokens, choices, n))
    return {"op": "moe", "tokens": tokens, "experts": experts, "choices": choices, "n": n, "k": k,
            "x": flat(x), "ids": [int(i) for i in chosen], "gate": flat(gate), "up": flat(up),
            "gate_scale": flat(gate_scale), "up_scale": flat(up_scale), "weights": flat(weights),
            "base": flat(base), "pairs": [int(p) for p in pairs], "starts": [int(s) for s in starts],
            "products": flat(products), "gated": flat(silu(products) * ups),
            "combined": flat(combined), "added": flat(base + combined)}


def main():
    cases = list(routes())
    cases.append(moe_case(5, 4, 2, 3, 10, False))
    cases.append(moe_case(5, 4, 2, 3, 10, True))
    cases.append(moe_case(7, 6, 1, 2, 4, False))
    print("[")
    print(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases))
    print("]")


if __name__ == "__main__":
    main()
