"""Which parameters and which directions matter: the prior that this gives, and how it is learned."""

from __future__ import annotations

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian, on_diagonal

# Share of the prior that goes to all directions alike, so that none is ever given up, and of the relevance of
# directions, which takes noise for relevance until there are many episodes per parameter.
EVERYWHERE, ALIKE = 0.05, 0.8
# The relevance of a parameter lies between these; 1 is the average. An update changes it by a factor of 2 at
# most, and goes a tenth as far as that of directions: what is taken for irrelevant is hardly looked at again.
LEAST_RELEVANT, MOST_RELEVANT = 1e-4, 1e4
LARGEST_FACTOR, PATIENCE = 2.0, 0.1


def total(W: FloatArray) -> float:
    """Trace of W, a matrix or its diagonal."""
    return float(np.trace(W) if W.ndim == 2 else W.sum())


def blend(W: FloatArray, seen: FloatArray, rate: float) -> FloatArray:
    """Move W the share `rate` of its way to what was seen, in units of its trace."""
    size = total(seen)
    return W if size <= 0 else (1 - rate) * W + (rate / size) * seen


def prior_shape(W: FloatArray, r: FloatArray, std: FloatArray, rotation: FloatArray | None) -> FloatArray:
    """V: the relevance of directions, on either side that of parameters, and something for all; of trace 1.

    In parameters x = R diag(s) z the prior of the slope is diag(r)^(1/2) W diag(r)^(1/2), where W stands for
    the relevance of directions with the share :data:`ALIKE` for all of them.
    """
    n = len(W)
    V: FloatArray = (1 - ALIKE) * W
    if W.ndim == 1:
        V = r * (V + ALIKE / n)
        V *= (1 - EVERYWHERE) / V.sum()
        V += EVERYWHERE / n
        return V
    on_diagonal(V)[:] += ALIKE / n
    root = np.sqrt(r)
    if rotation is None:
        V *= np.outer(root, root)
    else:
        turned = (rotation.T * root) @ rotation * (std[:, None] / std)
        V = turned @ V @ turned.T
    V *= (1 - EVERYWHERE) / np.trace(V)
    on_diagonal(V)[:] += EVERYWHERE / n
    return V


def reweighted(r: FloatArray, found: FloatArray, wanted: FloatArray, rate: float) -> FloatArray:
    """Move the relevance of parameters towards what their slopes explain; 1 on average.

    With the rate 1 this is about a step of expectation maximisation: r becomes the mean square of the slope
    under the posterior. Where the episodes do not tell a slope, found and wanted are 0 and r stays.
    """
    factor = 1 / (1 + rate * wanted) + rate * found
    r = r * factor.clip(1 / LARGEST_FACTOR, LARGEST_FACTOR)
    weights: FloatArray = (r / r.mean()).clip(LEAST_RELEVANT, MOST_RELEVANT)
    return weights


def by_parameter(belief: Gaussian, seen: FloatArray, unit: FloatArray) -> FloatArray:
    """How much each parameter matters: its squared slope, per `unit` of the parameter, in shares of 1.

    `seen` is that of the whitened coordinates, (n, n) or its diagonal (n,).
    """
    if seen.ndim == 1:
        slopes = seen / belief.variances
    elif belief.mixed.size:
        axes = belief.rotation / np.sqrt(belief.variances)
        slopes = np.maximum(np.einsum("ij,ij->i", axes @ seen, axes), 0.0)
    else:
        slopes = np.diag(seen) / belief.variances
    influence = slopes / slopes.max() * np.square(unit / unit.max()) if slopes.max() > 0 else slopes
    total = float(influence.sum())
    shares: FloatArray = influence / total if total > 0 else np.full(influence.size, 1 / influence.size)
    return shares
