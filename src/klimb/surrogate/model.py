"""The quadratic model of the returns: a Gaussian process, its amplitudes and its skill."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import on_diagonal
from klimb.surrogate._matrices import solved, weighted_square
from klimb.surrogate.noise import hidden_share
from klimb.surrogate.returns import FAR, nearness, remoteness
from klimb.surrogate.twins import Twins

# Episodes that are kept: 2 n, enough for a gradient twice over, but so many at least and at most. A quadratic
# of 20 parameters has 231 unknowns; the time that an update takes grows with the third power.
FEWEST_KEPT, MOST_KEPT = 200, 1000
# In noise so many at least, if they tell all unknowns of a quadratic.
FEWEST_IN_NOISE = 400
# Amplitudes start as shares of the variance: of the parts of the quadratic and of the remainder.
FIRST_SHARES = (0.3, 0.1, 0.1, 0.3, 0.3, 0.1)
# Which of them are those of the kernel, as its parts lie in memory; the last for a full covariance alone.
ALONG = 5
SIGNAL = (0, 1, 2, ALONG)
# A share below this is as good as none; above, the returns at hand are all but equal.
SMALLEST_SHARE, LARGEST_SHARE = 1e-12, 1e4
# Steps towards the greatest likelihood per update. It moves on slowly, and so do they.
STEPS = 2
# The variance of the constant: large against 1, the variance of what it is added to.
CONSTANT = 100.0
# Skill is believed up to here; a perfect fit of few episodes is none.
LARGEST_SKILL = 0.999


class Fit(NamedTuple):
    """The surrogate: gradient g (n,), curvature H, how well it predicts, and the amplitudes t (6,).

    `variance` is that of a return under the belief, in the same units, of which `unexplained` is not the
    surrogate's, and `nearby` what is unexplained of episodes that are about as far away as new ones.
    """

    gradient: FloatArray
    hessian: FloatArray
    amplitudes: FloatArray
    skill: float
    variance: float
    unexplained: float
    nearby: float


def fit_surrogate(
    z: FloatArray,
    y: FloatArray,
    twins: Twins,
    V: FloatArray,
    t: FloatArray | None,
    std: FloatArray,
    rotation: FloatArray | None = None,
    measured: float = 0.0,
    exploration: FloatArray | None = None,
    parameters: FloatArray | None = None,
) -> Fit:
    """Fit the quadratic to whitened samples (N, n) and standardised returns y (N,).

    Parameters are x = R diag(s) z, with the standard deviations s (n,) and the rotation R (n, n) or None;
    `measured` is the variance of the noise of y, `exploration` (n,) by how much new samples vary more than
    the belief, `parameters` are the x (N, n) if they are known already.
    """
    (N, n), full = z.shape, V.ndim == 2
    zV = z @ V if full else z * V
    distance = np.einsum("ij,ij->i", z, zV)
    usual = max(1.0, float(np.sort(distance)[N // 4]))
    far = distance > FAR * usual
    if far.any():
        shrink = FAR * usual / distance[far]
        z, zV, y, parameters = z.copy(), zV.copy(), y.copy(), None
        z[far] *= np.sqrt(shrink)[:, None]
        zV[far] *= np.sqrt(shrink)[:, None]
        y[far] *= shrink  # as a quadratic would
        distance[far] = FAR * usual
    length = np.einsum("ij,ij->i", z, z)
    q = (length - n) / math.sqrt(2 * n)
    kernel = kernel_of(z, zV, q, V, std, rotation, parameters)
    # what no quadratic explains, a remainder of the third order, grows with the sixth power of the distance;
    # as long as there are few episodes, those far away are worth a little more than that
    remainder = np.maximum(1.0, distance / usual) ** (2.5 + 0.5 * min(1.0, N / FEWEST_KEPT))
    first, second, alone = twins
    remainder[first] = remainder[second] = (remainder[first] + remainder[second]) / 2
    near = nearness(remoteness(length))
    likely = most_likely(kernel.parts, y, twins, remainder, near, V, t, measured)
    alpha, used = likely.alpha, likely.used

    # odd and even parts of twins have noise of their own
    odd = measured + used[3] * remainder[first]
    weight = 1 / np.concatenate([odd, odd + used[4] * remainder[first], likely.scatter[alone]])
    rest = twins.parts(left_out(alpha, likely.inverse, twins))
    skill = held_out_skill(twins.parts(y), rest, twins.parts(np.ones(N)), weight)
    unexplained = nearby = left_over(rest, weight, first.size)
    if measured > 0:  # further away few episodes tell what to expect, and that is no noise
        if exploration is not None:
            near = nearness(remoteness(np.square(z) @ (1 / exploration)))
        of_pair = (near[first] + near[second]) / 2
        nearby = left_over(rest, weight * np.concatenate([of_pair, of_pair, near[alone]]), first.size)

    tilt = 2 * used[2] * float(alpha @ q) / math.sqrt(2 * n)
    if full:
        g = used[0] * (alpha @ zV)
        H = weighted_square(zV, 2 * used[1] * alpha)
        on_diagonal(H)[:] += tilt
        bends = 2 * used[ALONG] * kernel.own * (alpha @ kernel.bent)  # of the parameters
        H += np.diag(bends) if kernel.frame is None else weighted_square(kernel.frame, bends)
    else:
        g = used[0] * V * (alpha @ z)
        H = 2 * used[1] * V * (alpha @ kernel.bent) + tilt
    variance = float(g @ g + np.square(H).sum() / 2) + unexplained
    return Fit(g, H, likely.amplitudes, skill, variance, unexplained, nearby)


class Kernel(NamedTuple):
    """The parts of the kernel, and the curvature along parameters that is one of them.

    `parts` (3 or 4, N, N) are linear, quadratic, isotropic and, for a full covariance, along the parameters.
    `bent` (N, n) is c, `own` (n,) what V says of each parameter, and `frame` (n, n) has the parameters in the
    coordinates z as its rows, in units of their standard deviations; None where they are the same.
    """

    parts: FloatArray
    bent: FloatArray
    own: FloatArray
    frame: FloatArray | None


def kernel_of(
    z: FloatArray,
    zV: FloatArray,
    q: FloatArray,
    V: FloatArray,
    std: FloatArray,
    rotation: FloatArray | None,
    parameters: FloatArray | None,
) -> Kernel:
    """The kernel of samples z (N, n); for the other arguments see :func:`fit_surrogate`."""
    N, full = len(z), V.ndim == 2
    parts = np.empty(
        (4 if full else 3, N, N)
    )  # one after the other: one product sums up, or takes all traces
    linear, quadratic, isotropic = parts[:3]
    np.matmul(zV, z.T, out=linear)
    np.multiply(q[:, None], q, out=isotropic)
    if not full:
        bent = np.square(z) * V
        np.matmul(bent, bent.T, out=quadratic)  # all curvature is along parameters
        return Kernel(parts, bent, V, None)
    if rotation is None:
        frame, x, own = None, z, np.diag(V)
    else:  # parameters in units of their standard deviations
        frame = rotation * std
        deviation = np.sqrt(np.square(frame).sum(1))
        x = (z @ frame.T if parameters is None else parameters) / deviation
        frame, back = frame / deviation[:, None], deviation[:, None] * (rotation / std)
        own = np.einsum("ij,ij->i", back @ V, back)
    bent = np.square(x) * own
    np.square(linear, out=quadratic)
    np.matmul(bent, bent.T, out=parts[3])
    return Kernel(parts, bent, own, frame)


class Likely(NamedTuple):
    """Amplitudes t (6,) as they were `used` last, and as they ought to be next; with the former, K^-1.

    `alpha` (N,) is K^-1 y, `inverse` (N, N) the upper half of K^-1, `scatter` (N,) what was added to the
    diagonal.
    """

    used: FloatArray
    amplitudes: FloatArray
    alpha: FloatArray
    inverse: FloatArray
    scatter: FloatArray


def most_likely(
    parts: FloatArray,
    y: FloatArray,
    twins: Twins,
    remainder: FloatArray,
    near: FloatArray,
    V: FloatArray,
    t: FloatArray | None,
    measured: float,
) -> Likely:
    """Climb the marginal likelihood of y (N,) by :data:`STEPS` steps of the amplitudes, from t on.

    `remainder` (N,) is how much of it there is for each episode, `near` (N,) how much each counts for the
    size of what amplitudes belong to; `measured` is the variance of the noise.
    """
    N = y.size
    first, second, alone = twins
    of_both, of_one = remainder[first] / 2, remainder[alone] / 2
    flat, diagonals = parts.reshape(len(parts), N * N), np.diagonal(parts, axis1=1, axis2=2)
    signal, sizes = np.array(SIGNAL[: len(parts)]), np.ones(6)
    sizes[signal] = np.maximum(diagonals @ near / near.sum(), 1e-300)
    t = np.array(FIRST_SHARES) / sizes if t is None else t
    K, found, wanted = np.empty((N, N)), np.zeros(6), np.zeros(6)
    for _ in range(STEPS):
        t = t.clip(SMALLEST_SHARE / sizes, LARGEST_SHARE / sizes)
        if ALONG not in signal:
            t[ALONG] = 0.0
        if measured > 0:  # a slope that noise hides is there: the optimum is as far away as the belief says
            t[0] = min(max(t[0], hidden_share(t, measured) * bend(t, V)), LARGEST_SHARE / sizes[0])
        used = t
        np.matmul(t[signal], flat, out=K.reshape(N * N))
        K += CONSTANT
        scatter = measured + (t[3] + t[4] / 2) * remainder
        K[first, second] += t[4] * of_both  # noise of the even part: shared by twins
        K[second, first] += t[4] * of_both
        alpha, inverse, scatter = solved(K, scatter, y)
        variance, shared = np.diag(inverse), inverse[first, second]
        # each amplitude grows by the root of what it explains over what it should: the likelihood never falls
        found[signal] = parts @ alpha @ alpha
        found[3] = np.square(alpha) @ remainder
        found[4] = np.square(alpha[first] + alpha[second]) @ of_both + np.square(alpha[alone]) @ of_one
        wanted[signal] = 2 * (flat @ inverse.reshape(N * N)) - diagonals @ variance
        wanted[3] = variance @ remainder
        wanted[4] = (variance[first] + variance[second] + 2 * shared) @ of_both + variance[alone] @ of_one
        with np.errstate(over="ignore"):
            t = t * np.sqrt((found / np.maximum(wanted, 1e-300)).clip(1e-4, 1e4))
    return Likely(used, t, alpha, inverse, scatter)


def left_out(alpha: FloatArray, inverse: FloatArray, twins: Twins) -> FloatArray:
    """Residuals (N,) of held-out returns in closed form; twins are held out together."""
    first, second, _ = twins
    variance, shared = np.diag(inverse), inverse[first, second]
    residuals = alpha / variance
    product = variance[first] * variance[second]
    determinant = np.maximum(product - np.square(shared), 1e-15 * product)
    residuals[first] = (variance[second] * alpha[first] - shared * alpha[second]) / determinant
    residuals[second] = (variance[first] * alpha[second] - shared * alpha[first]) / determinant
    return residuals


def left_over(rest: FloatArray, weight: FloatArray, n_pairs: int) -> float:
    """Mean square of residuals (N,), of which `n_pairs` are odd parts: of these or of the others, if more."""
    odd, even = slice(n_pairs), slice(n_pairs, None)
    first, second = (np.square(rest[part]) @ weight[part] for part in (odd, even))
    return max(
        float(first / weight[odd].sum()) if n_pairs else 0.0, float(second / weight[even].sum()), 1e-300
    )


def held_out_skill(y: FloatArray, left_out: FloatArray, constant: FloatArray, weight: FloatArray) -> float:
    """Share of the weighted variance that held-out predictions explain, less half its standard error."""
    mean = float((weight * constant) @ y / ((weight * constant) @ constant))
    before = weight * np.square(y - mean * constant)
    after = weight * np.square(left_out)
    size = float(before.sum())
    if size <= 0:
        return 0.0
    share = 1 - float(after.sum()) / size
    error = float(np.linalg.norm(before - after - share * before)) / size  # of a ratio; these sum up to 0
    return min(max(share - error / 2, 0.0), LARGEST_SKILL)


def bend(amplitudes: FloatArray, V: FloatArray) -> float:
    """What the curvature counts for, as the slope does by its amplitude: twice its variance, about."""
    _, quadratic, isotropic, _, even, along = amplitudes
    # t2 is the variance of all curvature, for which noise is taken easily, t2 |V|^2 that of the mean
    # curvature, which is blind to a rough landscape: this lies between them, and so for t6
    size = math.sqrt(float(np.square(V).sum()))
    return float(2 * ((2 * quadratic + along) * size + isotropic + even))


def unknowns(n: int, full: bool) -> int:
    """How many numbers a quadratic of n parameters has; without mixed terms if not `full`."""
    return (n + 1) * (n + 2) // 2 if full else 2 * n + 1
