"""Naive twins of the attention mechanisms: full L x L weights (or plain loops) in float64, straight from the formula.

A twin is called as `twin(mechanism, q, k, v, keep)` with q, k, v float64 B x H x L x E and keep B x L, and returns
B x H x L x E; it takes parameters and random directions from the mechanism, and nothing else. Those of softmax, favor
and rbf also take other queries than keys, and numbers in place of keep: the weight of each key.
"""

import math

import torch
from scipy import linalg


def softmax(mechanism, q, k, v, keep):
    allowed = keep[:, None, None, :] * causal_mask(mechanism, q.shape[2])
    weights = torch.exp(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])) * allowed
    return normalised(weights) @ v


def favor(mechanism, q, k, v, keep):
    """Weights phi(q_i) . phi(k_j) / sum_j, phi as in Choromanski et al. 2021, with no stabiliser."""
    options = mechanism.options
    if options.kernel == "softmax" and options.epsilon:
        return published_favor(mechanism, q, k, v, keep, options.epsilon, options.stabiliser)
    w = favor_matrix(mechanism, q.shape[-1])
    kernels = {
        "softmax": lambda x: (
            torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(w))
        ),
        "exp": lambda x: torch.exp(x @ w.T) + (options.epsilon or 0.0),
        "relu": lambda x: (
            torch.relu(x @ w.T) + (0.001 if options.epsilon is None else options.epsilon)
        ),
        "elu1": lambda x: (
            torch.nn.functional.elu(x @ w.T)
            + 1
            + (0.001 if options.epsilon is None else options.epsilon)
        ),
        "square": lambda x: (
            (x @ w.T) ** 2 + (0.001 if options.epsilon is None else options.epsilon)
        ),
    }
    scale = 1.0 if options.projection == "identity" else q.shape[-1] ** -0.25
    phi = kernels[options.kernel]
    return linear_form(mechanism, phi(q * scale), phi(k * scale), v, keep)


def published_favor(mechanism, q, k, v, keep, epsilon, stabiliser="head"):
    """FAVOR+ as in the authors' code: one stabiliser for all real keys, something added to every feature."""
    dims_of_keys = {"head": (-1, -2), "all_heads": (-1, -2, -3)}[stabiliser]
    w = favor_matrix(mechanism, q.shape[-1]).to(q)

    def phi(x, dims, ignored):
        x = x / q.shape[-1] ** 0.25
        projected = x @ w.T
        stabiliser = projected.detach().masked_fill(ignored, -torch.inf).amax(dims, keepdim=True)
        return torch.exp(projected - x.square().sum(-1, keepdim=True) / 2 - stabiliser) + epsilon

    dropped = ~keep[:, None, :, None]
    k = k.masked_fill(dropped, 0.0)
    return linear_form(
        mechanism, phi(q, (-1,), torch.tensor(False)), phi(k, dims_of_keys, dropped), v, keep
    )


def favor_matrix(mechanism, width):
    """W, M x E, written out."""
    if mechanism.options.projection == "identity":
        return torch.eye(width, dtype=torch.float64)
    if mechanism.options.projection != "fastfood":
        return mechanism.directions_ME.double()
    fastfood, blocks = mechanism.fastfood, []
    for signs, order, gaussian, scale in zip(
        fastfood.signs_NP, fastfood.order_NP, fastfood.gaussian_NP, fastfood.scale_NP, strict=True
    ):
        h = torch.from_numpy(linalg.hadamard(len(signs))).double()
        permutation = torch.eye(len(signs), dtype=torch.float64)[order]
        diagonals = (torch.diag(x.double()) for x in (scale, gaussian, signs))
        s, g, b = diagonals
        blocks.append(s @ h @ g @ permutation @ h @ b)
    return torch.cat(blocks)[: fastfood.num_features, :width]


def rbf(mechanism, q, k, v, keep):
    """Weights phi(q_i) . phi(k_j) / sum_j with phi(x) = exp(-|x - a|^2 / (2 sigma^2)), differences written out."""
    anchors = mechanism.anchors_HME.double()
    sigma = mechanism.options.sigma or q.shape[-1] ** 0.25

    def phi(x):
        differences = x.unsqueeze(3) - anchors[:, None]
        return torch.exp(-differences.square().sum(-1) / (2 * sigma**2))

    return linear_form(mechanism, phi(q), phi(k), v, keep)


def linformer(mechanism, q, k, v, keep):
    """softmax(Q (E K)^T / sqrt(E)) (F V), head by head; token i has position i."""
    matrices = mechanism.matrices_CPGN.double()[:, : q.shape[2]]
    out = []
    for head in range(q.shape[1]):
        e_LN, f_LN = (matrices[index, :, head if matrices.shape[2] > 1 else 0] for index in (0, -1))
        short_k, short_v = (m.T @ (x[:, head] * keep[..., None]) for m, x in ((e_LN, k), (f_LN, v)))
        weights = torch.softmax(
            q[:, head] @ short_k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1
        )
        out.append(weights @ short_v)
    return torch.stack(out, dim=1)


def window(mechanism, q, k, v, keep):
    """Scores within the band and 0 elsewhere, convolved along the keys with one kernel after the other."""
    length, r = q.shape[2], mechanism.options.half_width
    place = torch.arange(length)
    allowed = ((place[:, None] - place).abs() <= r) & keep[:, None, None, :]
    scores = (
        q
        @ k.transpose(-1, -2)
        / (math.sqrt(q.shape[-1]) if mechanism.options.scale else 1)
        * allowed
    )
    for taps_HW in mechanism.taps_NHW.double():
        scores = shifted_sum(scores, taps_HW[:, None, :]) * allowed
    if mechanism.options.normalize == "softmax":
        return normalised(torch.exp(scores) * allowed) @ v
    if mechanism.options.normalize == "l1":
        total = scores.abs().sum(-1, keepdim=True)
        return scores / total.masked_fill(total == 0, 1.0) @ v
    return scores @ v


def conv(mechanism, q, k, v, keep):
    """R^T softmax((R q')(C k')^T / sqrt(E)) (C v') + favor(q, k, v), or with C v; token i has position i."""
    heads, length, dim = q.shape[1:]
    real = keep[:, None, :, None]
    rows, columns = (
        matrix.double()[:length].T for matrix in (mechanism.rows_PK, mechanism.columns_PK)
    )
    features = []
    for index, x in enumerate((q, k, v) if mechanism.options.skip == "output" else (q, k)):
        along_tokens = (x * real).transpose(2, 3)  # B x H x E x L
        transforms = [
            shifted_sum(along_tokens, kernels[index].double().view(heads, dim, -1))
            for kernels in mechanism.kernels_3CT
        ]
        features.append(sum(transforms).transpose(2, 3) * real)
    if mechanism.options.skip == "map":
        features.append(v * real)
    short_q, short_k, short_v = (
        m @ x for m, x in zip((rows, columns, columns), features, strict=True)
    )
    weights = torch.softmax(short_q @ short_k.transpose(2, 3) / math.sqrt(dim), dim=-1)
    return rows.T @ weights @ short_v + favor(mechanism.skip, q, k, v, keep)


def shifted_sum(x, taps):
    """y[..., j] = sum_t taps[..., t] x[..., j + t], t = -r..r, 0 beyond the ends; taps: ... x (2r+1)."""
    length, r = x.shape[-1], taps.shape[-1] // 2
    total = torch.zeros_like(x)
    for t in range(max(-r, 1 - length), min(r, length - 1) + 1):
        from_j, to_j = max(0, -t), min(length, length - t)
        total[..., from_j:to_j] += taps[..., t + r, None] * x[..., from_j + t : to_j + t]
    return total


def lsh(mechanism, q, k, v, keep):
    """Weights N_ij exp(q_i . q_j / sqrt(E)), N_ij the number of rounds in which j is in a chunk that i sees."""
    seen = torch.zeros(*q.shape[:3], q.shape[2], dtype=torch.float64)
    for rotation in mechanism.rotations_REM:
        for cell in range(q.shape[0]):
            for head in range(q.shape[1]):
                rotated = [
                    q[cell, head, i].detach().float() @ rotation.float() for i in range(q.shape[2])
                ]
                buckets = [int(torch.cat([x, -x]).argmax()) if len(x) else 0 for x in rotated]
                real = [i for i in range(q.shape[2]) if keep[cell, i]]
                chunk = {
                    i: place // mechanism.options.chunk_size
                    for place, i in enumerate(sorted(real, key=lambda i: (buckets[i], i)))
                }
                chunks, places = torch.tensor([chunk[i] for i in real]), torch.tensor(real)
                ahead = chunks[:, None] - chunks
                sees = ((ahead == 0) | (ahead == 1)) & ~torch.eye(len(real), dtype=torch.bool)
                seen[cell, head, places[:, None], places] += sees
    alone = seen.sum(-1, keepdim=True) == 0
    scores = (q @ q.transpose(2, 3)).masked_fill(seen == 0, 0.0) / math.sqrt(q.shape[-1])
    return torch.where(alone, v, normalised(seen * torch.exp(scores)) @ v)


def linear_form(mechanism, phi_q, phi_k, v, keep):
    """phi(Q) phi(K)^T V with rows of weights that sum to 1."""
    weights = (
        phi_q
        @ phi_k.transpose(-1, -2)
        * (keep[:, None, None, :] * causal_mask(mechanism, v.shape[2]))
    )
    return (normalised(weights) if getattr(mechanism.options, "divide", True) else weights) @ v


def normalised(weights):
    """Rows that sum to 1; those of dropped tokens that no key comes before stay 0."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def causal_mask(mechanism, length):
    """The keys that each query may see: all of them, 1 x 1, or those up to its own token, L x L."""
    is_causal = getattr(mechanism.options, "causal", False)
    return (
        torch.ones(length, length, dtype=torch.bool).tril()
        if is_causal
        else torch.ones(1, 1, dtype=torch.bool)
    )


# The twin of each mechanism.
TWINS = {
    "softmax": softmax,
    "favor": favor,
    "rbf": rbf,
    "linformer": linformer,
    "window": window,
    "evo": window,
    "conv": conv,
    "lsh": lsh,
}

# Cases of the tests of the contract: every mechanism with its defaults, and with other options that change its result.
CASES = {
    "softmax": {"name": "softmax"},
    "softmax causal": {"name": "softmax", "causal": True},
    "favor": {"name": "favor"},
    "favor gaussian": {"name": "favor", "projection": "gaussian"},
    "favor fastfood": {"name": "favor", "projection": "fastfood"},
    "favor published": {"name": "favor", "epsilon": 1e-4},
    "favor published all heads": {"name": "favor", "epsilon": 1e-4, "stabiliser": "all_heads"},
    "favor causal": {"name": "favor", "causal": True},
    "favor relu": {"name": "favor", "kernel": "relu"},
    "favor relu causal": {"name": "favor", "kernel": "relu", "causal": True},
    "favor relu identity": {"name": "favor", "kernel": "relu", "projection": "identity"},
    "favor elu1": {"name": "favor", "kernel": "elu1", "epsilon": 0.0},
    "favor square": {"name": "favor", "kernel": "square", "projection": "gaussian"},
    "favor exp": {"name": "favor", "kernel": "exp"},
    "favor exp epsilon": {"name": "favor", "kernel": "exp", "epsilon": 0.1, "num_features": 20},
    "favor undivided": {"name": "favor", "divide": False},
    "favor undivided elu1": {"name": "favor", "kernel": "elu1", "divide": False},
    "rbf": {"name": "rbf"},
    "rbf causal": {"name": "rbf", "causal": True},
    "rbf learned": {"name": "rbf", "init": "learned", "num_anchors": 5, "sigma": 1.5},
    "linformer": {"name": "linformer"},
    "linformer headwise": {"name": "linformer", "sharing": "headwise", "projected_length": 7},
    "linformer layerwise": {"name": "linformer", "sharing": "layerwise", "projected_length": 7},
    "window": {"name": "window"},
    "window l1": {"name": "window", "half_width": 5, "normalize": "l1"},
    "window none": {"name": "window", "half_width": 5, "normalize": "none"},
    "window unscaled": {"name": "window", "half_width": 5, "scale": False},
    "evo": {"name": "evo"},
    "evo narrow": {"name": "evo", "half_width": 3, "num_convolutions": 3},
    "conv": {"name": "conv"},
    "conv three sizes": {
        "name": "conv",
        "kernel_sizes": [1, 5, 3],
        "projected_length": 7,
        "num_features": 8,
    },
    "conv map": {"name": "conv", "skip": "map", "projected_length": 7},
    "lsh": {"name": "lsh"},
    "lsh small chunks": {"name": "lsh", "chunk_size": 5, "num_buckets": 4, "num_rounds": 3},
}
