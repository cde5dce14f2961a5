"""Does a task keep its promises? ``check_task`` tries, and says what to do about what it finds.

    findings = check_task(load_task("my_module:MyTask"))
    ok = not any(finding.status == "error" for finding in findings)

An "error" is a promise that klimb relies on and the task breaks; a "warning" is worth a look.
"""

from __future__ import annotations

import inspect
import math
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from klimb._validation import FloatArray, nearest, whole
from klimb.tasks.task import episode_seeds

OK, WARNING, ERROR = "ok", "warning", "error"
MANY_FAILURES = 0.1  # of the episodes of the initial distribution


class Finding(NamedTuple):
    """A line of the report."""

    status: str
    """"ok", "warning" or "error"."""
    name: str
    """What was tried."""
    detail: str
    """What came out, and what to do about it."""


# ----------------------------------------------------------------------------------------------- loading


def load_object(place: str) -> Any:
    """Import ``module:name``, where the module may lie in the current directory.

    Raises
    ------
    ValueError
        If there is no such module or name. An exception inside the module is not caught.
    """
    module_name, colon, name = place.partition(":")
    if not (colon and module_name and name):
        raise ValueError(f"the object must be written module:name, such as my_task:task, but {place!r} came.")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        hint = ".".join(Path(module_name.removesuffix(".py")).parts).strip(".")
        raise ValueError(
            f"the module must be written as Python imports it, {hint}:{name}, but {place!r} came."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    invalidate_caches()  # the file may be newer than Python's last look at the directory
    try:
        found = find_spec(module_name) is not None
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the package is there, but something that it imports is not
        found = False
    if not found:
        files = [path.stem for path in Path.cwd().glob("*.py")]
        raise ValueError(
            f"there is no module {module_name!r} in {here} or among the packages. In this directory, "
            f"{nearest(module_name, files)}"
        )
    item: Any = import_module(module_name)
    for part in name.split("."):
        if not hasattr(item, part):
            names = [other for other in dir(item) if not other.startswith("_")]
            raise ValueError(f"{module_name} has no {name!r}: {nearest(part, names)}")
        item = getattr(item, part)
    return item


def load_task(place: str, **options: Any) -> Any:
    """The task at ``module:name``: an object as it is, a class or function called with the options."""
    item = load_object(place)
    if hasattr(item, "evaluate") and not inspect.isclass(item):
        if options:
            raise ValueError(
                f"{place} is a task already, so it takes no options, but {sorted(options)} came."
            )
        return item
    if not callable(item):
        raise ValueError(
            f"{place} must be a task, or a class or function that makes one, but it is {item!r}."
        )
    try:
        inspect.signature(item).bind(**options)
    except TypeError as error:
        raise ValueError(
            f"{place} cannot be called with the options {sorted(options)}: {error}. A function of "
            "(theta, seed) becomes a task by klimb.tasks.task_from_function."
        ) from None
    return item(**options)


# ---------------------------------------------------------------------------------------------- checking


def check_task(task: Any, *, episodes: int = 8, seed: int = 0) -> list[Finding]:
    """Try out whether `task` is one that klimb can learn.

    Parameters
    ----------
    task
        What should be a :class:`klimb.tasks.Task`.
    episodes
        Size of the batches; about ten of them are evaluated.
    seed
        Of the parameters, drawn from the initial distribution, and of the episodes.

    Returns
    -------
    list of Finding
        In the order of the tries. If the task lacks what the later tries need, they are left out.
    """
    episodes, seed = whole("episodes", episodes, 2), whole("seed", seed, 0)
    findings = list(_attributes(task))
    if any(finding.status == ERROR for finding in findings):
        return findings
    n = int(task.n_parameters)
    theta = np.random.default_rng(seed).normal(0.0, float(task.initial_std), (episodes, n))
    first = _attempt("returns", lambda: _returns(task, theta, seed))
    findings.append(first)
    if first.status == ERROR:
        return findings
    tries: dict[str, Callable[[], Finding]] = {
        "finite": lambda: _finite(task, theta, seed),
        "deterministic": lambda: _deterministic(task, theta, seed),
        "seeds": lambda: _seeds(task, theta, seed),
        "any batch": lambda: _any_batch(task, theta, seed),
        "theta": lambda: _theta_kept(task, theta, seed),
        "empty batch": lambda: _empty(task, theta),
        "wrong input": lambda: _wrong_input(task, theta, seed),
        "success": lambda: _success(task, theta, seed),
        "optimum": lambda: _optimum(task, theta, seed),
        "pickle": lambda: _pickle(task, theta, seed),
        "speed": lambda: _speed(task, theta, seed),
    }
    return findings + [_attempt(name, check) for name, check in tries.items()]


def _attempt(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # whatever the task raises is what we came to find out
        return Finding(ERROR, name, f"evaluate raised {type(error).__name__}: {error}")


def _attributes(task: Any) -> Iterator[Finding]:
    """Look at what must be there."""
    n = getattr(task, "n_parameters", None)
    if isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1:
        yield Finding(OK, "n_parameters", f"{n}")
    else:
        yield Finding(ERROR, "n_parameters", f"must be a whole number of at least 1, but it is {n!r}.")
    std = getattr(task, "initial_std", None)
    if isinstance(std, (int, float, np.integer, np.floating)) and 0 < std < math.inf:
        yield Finding(OK, "initial_std", f"{std:g}")
    else:
        yield Finding(ERROR, "initial_std", f"must be a finite number above 0, but it is {std!r}.")
    evaluate = getattr(task, "evaluate", None)
    if not callable(evaluate):
        yield Finding(
            ERROR, "evaluate", "is missing: a method evaluate(theta, seed=0) that gives returns (N,)."
        )
        return
    try:
        inspect.signature(evaluate).bind(None, seed=0)
    except TypeError as error:
        signature = inspect.signature(evaluate)
        yield Finding(ERROR, "evaluate", f"must take (theta, seed=0), but it takes {signature}: {error}.")
    else:
        yield Finding(OK, "evaluate", "takes theta and seed")


def _returns(task: Any, theta: FloatArray, seed: int) -> Finding:
    returns = task.evaluate(theta.copy(), seed=seed)
    wanted = f"({len(theta)},) float64"
    if not isinstance(returns, np.ndarray):
        return Finding(ERROR, "returns", f"must be an array {wanted}, but they are {type(returns).__name__}.")
    came = f"{returns.shape} {returns.dtype}"
    if returns.shape != (len(theta),) or returns.dtype != np.float64:
        return Finding(ERROR, "returns", f"must be {wanted} for {len(theta)} episodes, but they are {came}.")
    return Finding(OK, "returns", came)


def _finite(task: Any, theta: FloatArray, seed: int) -> Finding:
    returns = task.evaluate(theta.copy(), seed=seed)
    if np.isposinf(returns).any():
        return Finding(ERROR, "finite", "a return is +infinity, which no episode can beat: bound the return.")
    good = returns[np.isfinite(returns)]
    n_failed = len(returns) - len(good)
    if n_failed > MANY_FAILURES * len(returns):
        return Finding(
            WARNING if len(good) > 1 else ERROR,
            "finite",
            f"{n_failed} of {len(returns)} episodes failed at the initial distribution. They teach nothing; "
            "a lower initial_std may help.",
        )
    if np.ptp(good) == 0.0:
        return Finding(
            WARNING,
            "finite",
            f"all {len(good)} episodes returned {good[0]:.5g}: the start of the search may be a plateau.",
        )
    return Finding(OK, "finite", f"returns from {good.min():.5g} to {good.max():.5g}, {n_failed} failed")


def _deterministic(task: Any, theta: FloatArray, seed: int) -> Finding:
    first, second = task.evaluate(theta.copy(), seed=seed), task.evaluate(theta.copy(), seed=seed)
    if not _same(first, second):
        return Finding(
            ERROR,
            "deterministic",
            f"the same theta and seed gave other returns: {_difference(first, second)}. Derive all "
            "randomness from the episode's seed, and reset everything.",
        )
    noisy = not _same(first, task.evaluate(theta.copy(), seed=seed + 1))
    return Finding(OK, "deterministic", "the seed matters" if noisy else "the seed does not matter")


def _seeds(task: Any, theta: FloatArray, seed: int) -> Finding:
    whole_batch = task.evaluate(theta.copy(), seed=seed)
    each = task.evaluate(theta.copy(), seed=episode_seeds(seed, len(theta)))
    if not _same(whole_batch, each):
        return Finding(
            ERROR,
            "seeds",
            f"seed=s and seed=episode_seeds(s, N) differ: {_difference(whole_batch, each)}. Begin evaluate "
            "with seeds = klimb.tasks.episode_seeds(seed, len(theta)).",
        )
    return Finding(OK, "seeds", "one for the batch or one per episode")


def _any_batch(task: Any, theta: FloatArray, seed: int) -> Finding:
    seeds = episode_seeds(seed, len(theta))
    together = task.evaluate(theta.copy(), seed=seeds)
    order = np.random.default_rng(seed).permutation(len(theta))
    shuffled = np.empty_like(together)
    shuffled[order] = task.evaluate(theta[order], seed=seeds[order])
    rows = [(theta[k : k + 1].copy(), seeds[k : k + 1]) for k in range(len(theta))]
    alone = np.array([task.evaluate(row, seed=row_seed)[0] for row, row_seed in rows])
    for how, returns in (("in another order", shuffled), ("one at a time", alone)):
        if not _same(together, returns):
            return Finding(
                ERROR,
                "any batch",
                f"evaluated {how}, returns differ: {_difference(together, returns)}. A return may depend on "
                "nothing but its own theta and seed. Reset everything between episodes; and mind that sums "
                "over whole batches (theta @ matrix) can round differently with the size of the batch.",
            )
    return Finding(OK, "any batch", "the same returns in any order and batch size")


def _theta_kept(task: Any, theta: FloatArray, seed: int) -> Finding:
    given = theta.copy()
    task.evaluate(given, seed=seed)
    if not np.array_equal(given, theta):
        return Finding(ERROR, "theta", "evaluate changed the array that it was given: work on a copy.")
    expected = task.evaluate(theta.copy(), seed=seed)
    locked = np.asfortranarray(theta)
    locked.flags.writeable = False
    if not _same(expected, task.evaluate(locked, seed=seed)):
        return Finding(
            ERROR, "theta", "the returns depend on how theta lies in memory: np.ascontiguousarray helps."
        )
    return Finding(OK, "theta", "is left as it was")


def _empty(task: Any, theta: FloatArray) -> Finding:
    try:
        returns = task.evaluate(theta[:0], seed=0)
    except Exception as error:
        return Finding(WARNING, "empty batch", f"evaluate raised {type(error).__name__}: {error}")
    if np.shape(returns) != (0,):
        return Finding(WARNING, "empty batch", f"should give shape (0,), but gave {np.shape(returns)}.")
    return Finding(OK, "empty batch", "gives no returns")


def _wrong_input(task: Any, theta: FloatArray, seed: int) -> Finding:
    count, n = theta.shape
    wrong: dict[str, tuple[Any, Any]] = {
        f"theta of shape ({n},)": (theta[0].copy(), seed),
        f"theta of shape ({count}, {n + 1})": (np.zeros((count, n + 1)), seed),
        f"{count + 1} seeds for {count} episodes": (theta.copy(), episode_seeds(seed, count + 1)),
        "a negative seed": (theta.copy(), -1),
    }
    silent = []
    for what, (parameters, seeds) in wrong.items():
        try:
            task.evaluate(parameters, seed=seeds)
        except ValueError:
            continue
        except Exception as error:
            silent.append(f"{what} raised {type(error).__name__}")
        else:
            silent.append(f"{what} was accepted")
    if silent:
        text = "; ".join(silent) + ". A ValueError is expected; klimb.tasks.episode_seeds checks the seeds."
        return Finding(ERROR, "wrong input", text)
    return Finding(OK, "wrong input", "raises ValueError")


def _success(task: Any, theta: FloatArray, seed: int) -> Finding:
    if "return_success" not in inspect.signature(task.evaluate).parameters:
        return Finding(OK, "success", "is not reported")
    try:
        returns, success = task.evaluate(theta.copy(), seed=seed, return_success=True)
    except ValueError as error:
        return Finding(OK, "success", f"is not reported: {error}")
    if np.shape(success) != (len(theta),) or np.asarray(success).dtype != np.bool_:
        text = f"must be ({len(theta)},) bool, but it is {np.shape(success)} {np.asarray(success).dtype}."
        return Finding(ERROR, "success", text)
    if not _same(returns, task.evaluate(theta.copy(), seed=seed)):
        return Finding(ERROR, "success", "return_success=True changes the returns.")
    return Finding(OK, "success", f"{int(success.sum())} of {len(theta)} at the initial distribution")


def _optimum(task: Any, theta: FloatArray, seed: int) -> Finding:
    if not hasattr(task, "optimum"):
        return Finding(WARNING, "optimum", "is missing; set it to None if it is not known.")
    optimum: Any = task.optimum
    if optimum is None:
        return Finding(OK, "optimum", "is not known")
    if not isinstance(optimum, (int, float, np.integer, np.floating)):
        return Finding(ERROR, "optimum", f"must be a number or None, but it is {optimum!r}.")
    optimum = float(optimum)
    returns = task.evaluate(theta.copy(), seed=seed)
    best = returns.max(initial=-np.inf, where=np.isfinite(returns))
    if best > optimum + 1e-9 * max(1.0, abs(optimum)):
        text = f"is {optimum:.5g}, but an episode returned {best:.5g}; with noise that may be luck."
        return Finding(WARNING, "optimum", text)
    return Finding(OK, "optimum", f"{optimum:.5g}, not beaten")


def _pickle(task: Any, theta: FloatArray, seed: int) -> Finding:
    try:
        copy = pickle.loads(pickle.dumps(task))
    except Exception as error:  # pickling runs the code of any class
        text = f"does not work, so worker processes cannot evaluate the task: {error}"
        return Finding(WARNING, "pickle", text)
    if not _same(task.evaluate(theta.copy(), seed=seed), copy.evaluate(theta.copy(), seed=seed)):
        return Finding(WARNING, "pickle", "a pickled copy returns something else, and so would workers.")
    return Finding(OK, "pickle", "a copy gives the same returns")


def _speed(task: Any, theta: FloatArray, seed: int) -> Finding:
    begin = time.perf_counter()
    task.evaluate(theta.copy(), seed=seed)
    seconds = max(time.perf_counter() - begin, 1e-9)
    return Finding(OK, "speed", f"{len(theta) / seconds:.3g} episodes/s in batches of {len(theta)}")


def _same(first: Any, second: Any) -> bool:
    """Whether returns agree to the last bit, failed episodes included."""
    return np.array_equal(first, second, equal_nan=True)


def _difference(first: FloatArray, second: FloatArray) -> str:
    """Where two batches of returns differ first."""
    if np.shape(first) != np.shape(second):
        return f"{np.shape(first)} and {np.shape(second)}"
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    place = int(np.flatnonzero(~same)[0])
    return f"episode {place} returned {float(first[place])!r} and {float(second[place])!r}"
