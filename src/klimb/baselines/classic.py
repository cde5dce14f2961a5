"""Nelder-Mead and L-BFGS-B from scipy, which minimise a function that they call.

They are turned inside out: scipy runs in a thread that waits whenever it wants to know a value. The two take
turns, so that nothing ever happens at the same time.

Both work in units of `std`: the first simplex of Nelder-Mead has the corners mean + std_i e_i, and L-BFGS
takes finite differences of `step` std and begins with a step of length 1 in these units. (scipy's own first
simplex is 5 % of each parameter, and .00025 where that is zero, as it is at a mean of 0.)

References: J. Nelder, R. Mead, "A Simplex Method for Function Minimization", 1965; R. Byrd, P. Lu, J.
Nocedal, C. Zhu, "A Limited Memory Algorithm for Bound Constrained Optimization", 1995.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from scipy.optimize import minimize

from klimb._validation import FloatArray, positive
from klimb.baselines.conversation import Baseline, Proposal, Steps

ENDLESS = 10**9  # the budget of episodes decides, not scipy's limits
SQRT_EPS = float(np.sqrt(np.finfo(np.float64).eps))  # scipy's step for forward differences
CHUNK = 50  # episodes per record of the learning curve

#: Values of points: (k, n) in units of std around the mean -> costs (k,), infinity where an episode failed.
Evaluate = Callable[[FloatArray], FloatArray]


def nelder_mead(tolerance: float = 1e-4, adaptive: bool = False) -> Baseline:
    """Nelder-Mead simplex method (scipy); one episode at a time.

    Parameters
    ----------
    tolerance
        It ends when the simplex spans less than this in both parameters (over std) and returns.
    adaptive
        Suit its coefficients to the number of parameters (Gao & Han 2012).
    """
    settings = {"tolerance": positive("tolerance", tolerance), "adaptive": bool(adaptive)}
    return Baseline("nelder-mead", settings, partial(_inside_out, partial(_nelder_mead, settings)), _chunk)


def l_bfgs(tolerance: float = 2.2e-9, step: float = SQRT_EPS) -> Baseline:
    """L-BFGS-B (scipy); a gradient costs n + 1 episodes.

    Parameters
    ----------
    tolerance
        It ends when an iteration improves the return, relative to its size, by less than this.
    step
        Of the forward differences, in units of std; noise in the returns is divided by it.
    """
    settings = {"tolerance": positive("tolerance", tolerance), "step": positive("step", step)}
    return Baseline("l-bfgs", settings, partial(_inside_out, partial(_l_bfgs, settings)), _chunk)


def _chunk(n_parameters: int) -> int:
    return CHUNK


def _nelder_mead(settings: dict[str, Any], n: int, evaluate: Evaluate) -> None:
    minimize(
        lambda z: float(evaluate(z[None])[0]),
        np.zeros(n),
        method="Nelder-Mead",
        options={
            "initial_simplex": np.vstack([np.zeros(n), np.eye(n)]),
            "xatol": settings["tolerance"],
            "fatol": settings["tolerance"],
            "adaptive": settings["adaptive"],
            "maxiter": ENDLESS,
            "maxfev": ENDLESS,
        },
    )


def _l_bfgs(settings: dict[str, Any], n: int, evaluate: Evaluate) -> None:
    step = settings["step"]
    worst = 0.0

    def value_and_gradient(z: FloatArray) -> tuple[float, FloatArray]:
        nonlocal worst
        values = evaluate(np.vstack([z, z + step * np.eye(n)]))
        good = np.isfinite(values)
        worst = max(worst, values[good].max(initial=worst))
        if not good[0]:
            return worst, np.zeros(n)  # a line search turns back from here
        # a neighbour whose episode failed says nothing of the slope
        return float(values[0]), np.where(good[1:], (values[1:] - values[0]) / step, 0.0)

    minimize(
        value_and_gradient,
        np.zeros(n),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": settings["tolerance"], "maxiter": ENDLESS, "maxfun": ENDLESS},
    )


class _Left(Exception):  # noqa: N818  (no error: the way out of a function of scipy's)
    """Nobody will answer any more."""


def _inside_out(
    minimise: Callable[[int, Evaluate], None], mean: FloatArray, std: FloatArray, batch: int, seed: int
) -> Steps:
    """Run `minimise` in a thread; what it wants to evaluate is yielded, and the best point kept."""
    questions: SimpleQueue[FloatArray | BaseException | None] = SimpleQueue()
    answers: SimpleQueue[FloatArray | None] = SimpleQueue()

    def evaluate(z: FloatArray) -> FloatArray:
        questions.put(np.array(z))
        answer = answers.get()
        if answer is None:
            raise _Left
        return answer

    def work() -> None:
        try:
            with np.errstate(all="ignore"):  # infinite costs are compared with each other
                minimise(mean.size, evaluate)
            questions.put(None)
        except _Left:
            pass
        except BaseException as error:
            questions.put(error)

    thread = threading.Thread(target=work, name="klimb-scipy", daemon=True)
    thread.start()
    best, lowest = mean, np.inf
    try:
        while True:
            question = questions.get()
            if question is None:
                return Proposal(np.empty((0, mean.size)), best)
            if isinstance(question, BaseException):
                raise question
            theta = mean + std * question
            returns = yield Proposal(theta, best)
            values = np.where(np.isfinite(returns), -returns, np.inf)
            if values[0] < lowest:  # the others are neighbours, for differences
                best, lowest = theta[0], float(values[0])
            answers.put(values)
    finally:
        answers.put(None)
        thread.join()
