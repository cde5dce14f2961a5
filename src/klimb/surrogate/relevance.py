"""Which directions and which parameters matter: the prior that this gives, and how it is learned."""

from __future__ import annotations

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian, on_diagonal

# Share of the prior that goes to all directions alike: none is ever given up, and W takes noise for relevance
# until there are many episodes per parameter.
ALIKE = 0.8


def total(W: FloatArray) -> float:
    """Trace of W, a matrix or its diagonal."""
    return float(np.trace(W) if W.ndim == 2 else W.sum())


def blend(W: FloatArray, seen: FloatArray, rate: float) -> FloatArray:
    """Move W the share `rate` of its way to what was seen, in units of its trace."""
    size = total(seen)
    return W if size <= 0 else (1 - rate) * W + (rate / size) * seen


def prior_shape(W: FloatArray) -> FloatArray:
    """V, of trace 1: the relevance of directions and, by the share :data:`ALIKE`, the same for all."""
    V: FloatArray = (1 - ALIKE) * W
    everywhere = on_diagonal(V) if V.ndim == 2 else V
    everywhere += ALIKE / len(V)
    return V


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
