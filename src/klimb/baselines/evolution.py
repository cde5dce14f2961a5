"""CMA-ES in three forms, from pycma (extra "peers").

The covariance that is learned is full (n^2 numbers), diagonal (sep-CMA), or diagonal plus as many directions
as prove useful (VkD-CMA). Each run is pycma's own, number for number: ``cma.CMAEvolutionStrategy(mean, std,
{"popsize": batch, "seed": seed})`` and its ask and tell. What differs: pycma minimises, so costs are minus
the returns; its random numbers come from a generator of their own and not from numpy's global one; and
pycma's termination criteria are not asked, the budget of episodes decides.

References: N. Hansen, A. Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", 2001;
R. Ros, N. Hansen, "A Simple Modification in CMA-ES Achieving Linear Time and Space Complexity", 2008;
Y. Akimoto, N. Hansen, "Projection-Based Restricted Covariance Matrix Adaptation for High Dimension", 2016.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from klimb._validation import FloatArray
from klimb.baselines.conversation import Baseline, Proposal, Steps


def cma_es() -> Baseline:
    """Covariance matrix adaptation evolution strategy (pycma)."""
    return _baseline("cma-es", dict)


def sep_cma() -> Baseline:
    """CMA-ES with a diagonal covariance: linear in time and space (pycma)."""
    return _baseline("sep-cma", lambda: {"CMA_diagonal": True})


def vkd_cma() -> Baseline:
    """CMA-ES with a diagonal covariance and some directions, as many as prove useful (pycma)."""
    return _baseline("vkd-cma", _vkd_options)


def _vkd_options() -> dict[str, Any]:
    from cma.restricted_gaussian_sampler import GaussVkDSampler

    options: dict[str, Any] = GaussVkDSampler.extend_cma_options()
    return options


def _baseline(name: str, options: Callable[[], dict[str, Any]]) -> Baseline:
    return Baseline(name, {}, partial(_steps, options), usual_population, fewest=4)


def usual_population(n_parameters: int) -> int:
    """Pycma's default, 4 + 3 log n."""
    return int(4 + 3 * math.log(n_parameters))


def _steps(
    more_options: Callable[[], dict[str, Any]], mean: FloatArray, std: FloatArray, batch: int, seed: int
) -> Steps:
    if mean.size < 2:
        raise ValueError("pycma needs at least 2 parameters; nelder-mead and l-bfgs can do with one.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pycma says what it thinks of plotting and rare settings
        import cma

        alike = bool((std == std[0]).all())
        randn = random_state(seed).randn
        options = {
            "popsize": batch,
            "randn": randn,
            "CMA_sampler_options": {"randn": randn},  # VkD-CMA's sampler is not told otherwise
            "seed": math.nan,  # leave numpy's global generator alone
            "verbose": -9,
            **({} if alike else {"CMA_stds": std}),
            **more_options(),
        }
        search = cma.CMAEvolutionStrategy(mean, float(std[0]) if alike else 1.0, options)
        population = search.ask()
    while True:
        returns = yield Proposal(np.array(population), search.mean.copy(), partial(_draw, search))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            search.tell(population, costs(returns).tolist())
            population = search.ask()


def random_state(seed: int) -> np.random.RandomState:
    """What ``numpy.random.seed(seed)`` makes of the global generator, which is what pycma uses."""
    if seed < 2**32:
        return np.random.RandomState(seed)
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def costs(returns: FloatArray) -> FloatArray:
    """What to minimise, (N,); a failed episode costs more than any other of its batch."""
    good = returns[np.isfinite(returns)]
    if good.size == 0:
        return np.zeros(returns.size)  # nothing to choose between
    return np.where(np.isfinite(returns), -returns, 1 + good.max() - 2 * good.min())


def _draw(search: Any, rng: np.random.Generator, count: int) -> FloatArray:
    """Draw from the search distribution without a trace in the search."""
    sampler = copy.deepcopy(search.sm)
    sampler.randn = lambda *shape: rng.standard_normal(shape)
    if hasattr(sampler, "flg_injection"):
        sampler.flg_injection = False  # VkD-CMA's two steps along the latest shift are no samples
    return np.asarray(search.mean + search.sigma * (search.sigma_vec * np.asarray(sampler.sample(count))))
