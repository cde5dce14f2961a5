"""MORE: climb a quadratic model of the returns under bounds on divergence and entropy (Abdolmaleki 2015).

Symbols, all in coordinates whitened by the old standard deviations: samples y (N, n), standardised returns J,
model  J ~ b + g'y + y'Hy/2  with H negative semidefinite, multipliers eta (divergence) and omega (entropy).
"""

from __future__ import annotations

import math

import numpy as np

from klimb._validation import FloatArray
from klimb.fitting import largest_step
from klimb.gaussian import Gaussian, from_whitened, unmixed

# Ridge penalties tried, as shares of the kernel's mean eigenvalue; cross-validation picks one.
RIDGES = np.logspace(-6, 3, 19)


def quadratic_model(y: FloatArray, J: FloatArray, full: bool) -> tuple[FloatArray, FloatArray]:
    """Gradient g (n,) and Hessian H, (n, n) if `full` or else its diagonal (n,), by ridge regression.

    The features are the Hermite polynomials of degree one and two, orthonormal under N(0, I):
    y_i, (y_i^2 - 1)/sqrt 2 and y_i y_j. Their inner product is a kernel, so that only an N x N
    matrix is ever solved: k(y, y') = y.y' + ((y.y')^2 - |y|^2 - |y'|^2 + n) / 2. The penalty minimises
    the generalised cross-validation error, which a single eigendecomposition gives for all penalties.
    """
    gram = y @ y.T
    if full:
        squares = np.diag(gram)
        kernel = gram + (np.square(gram) - squares - squares[:, None] + y.shape[1]) / 2
    else:
        bent = np.square(y) - 1
        kernel = gram + bent @ bent.T / 2
    kernel -= kernel.mean(0)  # a constant costs nothing: centre the features
    kernel -= kernel.mean(1)[:, None]
    values, vectors = np.linalg.eigh(kernel)
    values = np.maximum(values, 0.0)
    target = vectors.T @ J
    penalties = RIDGES[:, None] * values.mean()
    shrink = penalties / (values + penalties)  # residuals are shrink * target
    error = np.square(shrink * target).sum(1) / np.square(shrink.sum(1) - 1)
    error[shrink.sum(1) < 1.5] = math.inf  # nothing left to judge by
    penalty = penalties[np.argmin(error)]
    alpha = vectors @ (target / (values + penalty))
    alpha -= alpha.mean()
    g = alpha @ y
    if not full:
        return g, alpha @ bent
    H = (y.T * alpha) @ y
    return g, H  # sum alpha = 0: the -|y|^2 part of the kernel leaves no trace in H


def more_update(
    std: FloatArray, samples: FloatArray, J: FloatArray, full: bool, epsilon: float, kappa: float
) -> tuple[Gaussian, float, float]:
    """Maximise the expected model return with KL(new || old) <= epsilon and entropy drop <= kappa.

    The solution is  precision (eta I - H) / (eta + omega),  mean (eta I - H)^-1 g. In the eigenbasis of H
    both are scalars, the entropy bound fixes omega for every eta, and KL(eta) = epsilon is one monotone root.

    Returns
    -------
    gaussian
        In local coordinates.
    eta, omega
    """
    n = std.size
    g, H = quadratic_model(samples / std, J, full)
    if full:
        h, V = np.linalg.eigh(H)
        g = V.T @ g
    else:
        h = H
    curvature = np.maximum(-h, 0.0)  # the concave part
    g_squared = np.square(g)

    def variance(eta: float) -> FloatArray:
        """v = (eta + omega) / (eta - h), with eta + omega as small as the entropy bound allows."""
        log_a = np.log(curvature + eta)
        log_sum = max(math.log(eta) if eta > 0 else -math.inf, (float(log_a.sum()) - 2 * kappa) / n)
        v: FloatArray = np.exp(log_sum - log_a)
        return v

    def divergence(eta: float) -> float:
        if eta == 0 and (curvature.min() == 0 or math.isinf(kappa)):
            return math.inf  # a direction without any width, or without any bound on it
        v = variance(eta)
        return 0.5 * float((v - 1 - np.log(v) + g_squared / np.square(curvature + eta)).sum())

    eta = largest_step(divergence, epsilon)
    v = variance(eta)
    mean = g / (curvature + eta)
    omega = float(v[0] * (curvature[0] + eta)) - eta
    if full:
        gaussian = from_whitened(std * (V @ mean), std, np.sqrt(v)[:, None] * V.T, float(np.log(v).sum()))
    else:
        gaussian = unmixed(std * mean, np.square(std) * v)
    return gaussian, eta, max(0.0, omega)
