"""CR-FM-NES, a natural evolution strategy whose covariance is 2 n numbers instead of n^2.

The search distribution is N(m, sigma^2 D (I + v v^T) D): a scale for each parameter, and one direction in
which they go together. Samples come in mirrored pairs z and -z. Only the order of the returns counts.

==========  ===================================================================================
m           mean, (n,)
sigma       step size; after an update the rest of the covariance has determinant 1
D           scales, the diagonal of a matrix, (n,)
v, u, a     the direction, (n,); u = v / |v|, a = |v|^2
z, y        draws of N(0, I), (lamb, n), and of N(0, I + v v^T): theta = m + sigma D y
lamb        samples per update, of which lamb_F did not fail
w           weights of the samples in their order, (lamb,), sum 0; mu_eff counts those with weight
p_s, p_c    evolution paths of the steps in z, which tells whether m moves, and in D y, (n,)
chi         what |p_s| is in the mean if the returns mean nothing
==========  ===================================================================================

While m moves (|p_s| >= chi), samples far away weigh more; where it stands still, sigma adapts faster. v and D
follow the natural gradient of the restricted covariance (VD-CMA), whose equations take O(n) to solve. Failed
episodes are what the paper calls infeasible: they rank last, those near m first, and v, D and sigma follow
more slowly. A batch that failed as a whole says nothing and changes nothing.

References: M. Nomura, I. Ono, "Fast Moving Natural Evolution Strategy for High-Dimensional Problems", 2022;
Y. Akimoto, A. Auger, N. Hansen, "Comparison-Based Natural Gradient Optimization in High Dimension", 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import lambertw

from klimb._validation import FloatArray
from klimb.baselines.conversation import Baseline, Proposal, Steps

# In the authors' package, D can go below 0, and v beyond what can be computed with: on a long slope, on a
# rotated cigar with many samples. Such a step of the two is not taken.
MOST = 0.9  # the share of a scale that one update may take away
LONGEST = 1e4  # |v|


def cr_fm_nes() -> Baseline:
    """Natural evolution strategy with a scale per parameter and one direction: linear in time and space."""
    # from a single pair, sigma would learn nothing
    return Baseline("cr-fm-nes", {}, _steps, usual_population, fewest=4)


def usual_population(n_parameters: int) -> int:
    """4 + 3 log n, made even."""
    population = int(4 + 3 * math.log(n_parameters))
    return population + population % 2


@dataclass(frozen=True)
class State:
    """All that an update changes."""

    m: FloatArray
    sigma: float
    D: FloatArray
    v: FloatArray
    p_s: FloatArray
    p_c: FloatArray


def _steps(mean: FloatArray, std: FloatArray, batch: int, seed: int) -> Steps:
    n = mean.size
    if n < 2:
        raise ValueError("cr-fm-nes needs at least 2 parameters; nelder-mead and l-bfgs can do with one.")
    if batch % 2:
        raise ValueError(
            f"cr-fm-nes tries every draw on both sides, so batch must be even, but {batch} came."
        )
    rng = np.random.default_rng(seed)
    sigma = math.exp(np.log(std).mean())
    v = rng.standard_normal(n) / math.sqrt(n)
    state = State(mean, sigma, std / sigma, v, np.zeros(n), np.zeros(n))
    while True:
        half = rng.standard_normal((batch // 2, n))
        z = np.concatenate([half, -half])
        returns = yield Proposal(_theta(state, z), state.m, partial(_draw, state))
        if not np.isnan(returns).all():
            state = update(state, z, returns)


def _draw(state: State, rng: np.random.Generator, count: int) -> FloatArray:
    return _theta(state, rng.standard_normal((count, state.m.size)))


def _theta(state: State, z: FloatArray) -> FloatArray:
    theta: FloatArray = state.m + state.sigma * (state.D * _correlated(state.v, z))
    return theta


def _correlated(v: FloatArray, z: FloatArray) -> FloatArray:
    """Draws of N(0, I + v v^T) from those of N(0, I), (lamb, n)."""
    a = v @ v
    y: FloatArray = z + np.outer(z @ v, (math.sqrt(1 + a) - 1) / a * v)
    return y


def update(state: State, z: FloatArray, returns: FloatArray) -> State:
    """Learn from the returns (lamb,) of m + sigma D y, NaN where an episode failed."""
    lamb, n = z.shape
    failed = np.isnan(returns)
    lamb_F = lamb - int(failed.sum())
    length = np.linalg.norm(z, axis=1)
    order = np.lexsort((np.where(failed, length, 0.0), np.where(failed, np.inf, -returns)))
    z, length = z[order], length[order]
    y = _correlated(state.v, z)

    positive = np.maximum(math.log(lamb / 2 + 1) - np.log(np.arange(1, lamb + 1)), 0.0)
    w = positive / positive.sum()
    mu_eff = 1 / (w @ w)
    w -= 1 / lamb

    c_s = (mu_eff + 2) / (n + mu_eff + 5)
    p_s = (1 - c_s) * state.p_s + math.sqrt(c_s * (2 - c_s) * mu_eff) * (w @ z)
    chi = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    speed = np.linalg.norm(p_s) / chi
    if speed >= 1:
        eta_sigma = 1.0
        alpha = _alpha(n) * min(1.0, math.sqrt(lamb / n)) * math.sqrt(lamb_F / lamb)
        far = positive * np.exp(alpha * (length - length.max()))
        w = far / far.sum() - 1 / lamb
    elif speed >= 0.1:
        eta_sigma = math.tanh((0.024 * lamb_F + 0.7 * n + 20) / (n + 12))
    else:
        eta_sigma = 2 * math.tanh((0.025 * lamb_F + 0.75 * n + 10) / (n + 4))

    c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
    step = state.D * (w @ y)
    p_c = (1 - c_c) * state.p_c + math.sqrt(c_c * (2 - c_c) * mu_eff) * step

    eta_B = math.tanh((min(0.02 * lamb_F, 3 * math.log(n)) + 5) / (0.23 * n + 25))
    c_1 = 2 / ((n + 1.3) ** 2 + mu_eff) * (n - 5) / 6 * lamb_F / lamb  # below 0 for n < 5: so is the authors'
    dv, dD = _natural_gradient(state.v, np.vstack([y, p_c / state.D]), np.append(eta_B * w, c_1))
    v, D = state.v, state.D
    if dD.min() > -MOST and np.linalg.norm(v + dv) < LONGEST:
        v, D = v + dv, D * (1 + dD)
    D = D / math.exp(np.log(D).mean() + math.log1p(v @ v) / (2 * n))  # |D (I + v v^T) D| = 1
    return State(
        m=state.m + state.sigma * step,
        sigma=state.sigma * math.exp(eta_sigma / 2 * (w @ (z * z - 1)).mean()),
        D=D,
        v=v,
        p_s=p_s,
        p_c=p_c,
    )


def _alpha(n: int) -> float:
    """The root of (1 + alpha^2) exp(alpha^2 / 2) / 0.24 = 10 + n."""
    return math.sqrt(2 * lambertw(0.12 * (10 + n) * math.exp(0.5)).real - 1)


def _natural_gradient(v: FloatArray, y: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Steps of v and, relative to it, of D, (n,) each, that make y (k, n) with weights w (k,) more likely.

    After t and s it is linear, so that the samples are summed first.
    """
    a = float(v @ v)
    gamma = 1 + a
    u = v / math.sqrt(a)
    along = y @ u
    joint = (w * along) @ y
    t = joint - (w @ along**2 + gamma * w.sum()) / 2 * u
    s = w @ (y * y) - a / gamma * u * joint - w.sum()

    u2 = u * u
    alpha = min(1.0, math.sqrt(a * a + (2 * gamma - math.sqrt(gamma)) / u2.max()) / (2 + a))
    b = 2 * alpha**2 - (1 - alpha**2) * a * a / gamma
    H = 2 - (b + 2 * alpha**2) * u2
    s -= alpha / gamma * ((2 + a) * u * t - a * (u @ t) * u2)
    s = s / H - b * (u2 @ (s / H)) / (1 + b * (u2 @ (u2 / H))) * (u2 / H)
    t -= alpha * ((2 + a) * u * s - (u2 @ s) * u)
    return t / math.sqrt(a), s
