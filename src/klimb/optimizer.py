"""What a user holds in their hands: Optimizer (ask and tell), and maximize for a plain function."""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._blas import single_threaded
from klimb._validation import FloatArray, lookup, numbers, told, whole
from klimb.algorithms import auto
from klimb.effectiveness import Effectiveness
from klimb.gaussian import Gaussian, diagonal, from_covariance
from klimb.search import Adam, Search, ask, tell
from klimb.state import Episodes, Found, Start, State
from klimb.updates import RULES, UpdateInfo

T = TypeVar("T", Gaussian, Episodes)

FORMAT = "klimb-optimizer"
# 1 had no kept episodes, 2 did not begin anew, 3 did not look around, 4 remembered no ranks, 5 weighed
# parameters as well; all are read.
FORMAT_VERSION = 6


class Optimizer:
    """Learns a parameter vector that maximises the return, by ask and tell.

    Parameters
    ----------
    algorithm
        A recipe such as ``klimb.dr_creps()``; ``klimb.auto()`` if left out.
    mean : (n,)
        Where to start.
    std
        Initial standard deviation, one number or one per parameter; or else
    covariance : (n, n)
        the initial covariance.
    seed
        A non-negative whole number makes the run repeatable; None takes a fresh one.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> optimizer = klimb.Optimizer(klimb.dr_creps(n_effective=2), mean=np.zeros(5), std=1.0, seed=0)
    >>> for _ in range(30):
    ...     theta = optimizer.ask(20)
    ...     info = optimizer.tell(theta, -np.sum((theta[:, :2] - 3.0) ** 2, axis=1))
    >>> bool(np.abs(optimizer.mean[:2] - 3.0).max() < 0.2)
    True
    """

    def __init__(
        self,
        algorithm: Search | None = None,
        *,
        mean: ArrayLike,
        std: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        seed: int | None = None,
    ) -> None:
        algorithm = auto() if algorithm is None else algorithm
        if hasattr(algorithm, "agent"):
            raise ValueError(
                f"{algorithm.name} acts step by step in an environment: klimb.baselines.train runs it."
            )
        if not isinstance(algorithm, Search):
            raise ValueError(
                "algorithm must be made by a recipe such as klimb.dr_creps(), or by "
                f"klimb.make_algorithm(name), but {algorithm!r} came."
            )
        if (std is None) == (covariance is None):
            raise ValueError("exactly one of std and covariance is needed.")
        belief = from_covariance(mean, covariance) if std is None else diagonal(mean, std)  # type: ignore[arg-type]
        algorithm = algorithm.sized(belief.n_parameters)
        algorithm.check_size(belief.n_parameters)
        self._algorithm = algorithm
        self._seed = int(np.random.SeedSequence().entropy) if seed is None else whole("seed", seed, 0)  # type: ignore[arg-type]
        self._state = State(belief)
        self._asked = 0

    @property
    def algorithm(self) -> Search:
        """The settings of the search."""
        return self._algorithm

    @property
    def belief(self) -> Gaussian:
        """The search distribution; while a search that began anew is behind, the best one so far."""
        return self._state.best

    @property
    def state(self) -> State:
        """All that the search carries from one update to the next, immutable."""
        return self._state

    @property
    def n_parameters(self) -> int:
        """Number of parameters, n."""
        return self.belief.n_parameters

    @property
    def mean(self) -> FloatArray:
        """Mean of the belief, (n,): the parameters to use after learning."""
        return self.belief.mean.copy()

    @property
    def std(self) -> FloatArray:
        """Standard deviation of the belief for every parameter, (n,)."""
        return self.belief.std

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the belief, (n, n), made on request."""
        return self.belief.covariance

    @property
    def entropy(self) -> float:
        """Entropy of the belief in nats."""
        return self.belief.entropy

    @property
    def iteration(self) -> int:
        """Number of updates so far."""
        return self._state.iteration

    @property
    def attempt(self) -> int:
        """How many times the search has looked around and begun anew; only auto does."""
        return self._state.attempt

    @property
    def seed(self) -> int:
        """The seed from which all samples derive."""
        return self._seed

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw from the belief, (count, n), to judge it; ask() draws what to learn from."""
        with single_threaded():
            return self.belief.sample(rng, count)

    def ask(self, count: int) -> FloatArray:
        """Draw `count` parameter vectors to try, (count, n).

        Until the next tell, further calls continue the same stream: two asks of 10 give what one of 20 gives.
        """
        count = whole("count", count, 1)
        with single_threaded():
            theta = ask(self._algorithm, self._state, self._seed, self._asked, count)
        self._asked += count
        return theta

    def tell(self, theta: ArrayLike, returns: ArrayLike) -> UpdateInfo:
        """Learn from episodes: their parameters (N, n), in any order, and their returns (N,).

        The parameters need not have been asked for. A return of NaN or -infinity is a failed episode and left
        out; at least two good ones are needed (for CEM, as many as its elites). On a ValueError the optimizer
        is as it was before.
        """
        theta, returns = told(theta, returns, self.n_parameters)
        good = np.isfinite(returns)
        n_good = int(good.sum())
        fewest = self._algorithm.fewest
        if n_good < fewest:
            raise ValueError(
                f"an update by {self._algorithm.name} needs at least {fewest} good episodes, but {n_good} of "
                f"{returns.size} are; tell these again together with more."
            )
        if n_good < returns.size:
            theta, returns = theta[good], returns[good]
        with single_threaded():
            self._state, info = tell(self._algorithm, self._state, theta, returns, self._seed)
        self._asked = 0
        return replace(info, n_used=n_good, n_failed=good.size - n_good)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, replacing it in one step; the next ask after load is identical."""
        replace_file(path, self._write)

    def to_bytes(self) -> bytes:
        """What :meth:`save` writes, for a database or a message."""
        return written(self._write)

    def _write(self, file: IO[bytes]) -> None:
        described, arrays = taken_apart(self._state)
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "algorithm": _describe(self._algorithm),
            "seed": self._seed,
            "asked": self._asked,
            **described,
        }
        put_arrays(file, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, effectiveness: Effectiveness | None = None) -> Optimizer:
        """Read what :meth:`save` wrote; `effectiveness` hands back a measure of the user's own."""
        return cls._read(lambda: open(path, "rb"), str(path), effectiveness)

    @classmethod
    def from_bytes(cls, data: bytes, *, effectiveness: Effectiveness | None = None) -> Optimizer:
        """Read what :meth:`to_bytes` made."""
        return cls._read(lambda: io.BytesIO(data), "this", effectiveness)

    @classmethod
    def _read(
        cls, opened: Callable[[], IO[bytes]], path: str, effectiveness: Effectiveness | None
    ) -> Optimizer:
        try:
            with opened() as file:
                header, arrays = get_arrays(file, FORMAT)
            version = header["version"]
        except FileNotFoundError:
            raise
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
        ) as error:
            raise ValueError(
                f"{path} is not a file that Optimizer.save wrote, or it is damaged: {error}."
            ) from None
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{path} was written by a newer klimb (format {version}, this one reads up to "
                f"{FORMAT_VERSION}); upgrade klimb."
            )
        try:
            optimizer = cls.__new__(cls)
            optimizer._algorithm = _restore(header["algorithm"], effectiveness)
            optimizer._seed = header["seed"]
            state = put_together(header, arrays)
            if version < 3 and state.memory and optimizer._algorithm.name == "auto":
                # where it began is not known: it will not begin anew
                start = Start(state.belief.mean, state.memory[-1], math.nan)
                state = replace(state, memory=state.memory[:-1], start=start)
            optimizer._state = state
            optimizer._asked = header["asked"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error} is missing or wrong.") from None
        return optimizer


def replace_file(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None]) -> None:
    """Let `write` fill a file and put it in the place of `path` in one step."""
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def written(write: Callable[[IO[bytes]], None]) -> bytes:
    """What `write` puts into a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def put_arrays(file: IO[bytes], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays and a header as .npz."""
    plain: Any = {"header": np.array(json.dumps(header)), **arrays}
    np.savez(file, **plain)


def get_arrays(file: IO[bytes], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what :func:`put_arrays` wrote, if its format is `kind`; there are many errors if it is not."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(str(arrays.pop("header")))
    if header["format"] != kind:
        raise ValueError("another format")
    return header, arrays


def taken_apart(state: State, prefix: str = "") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A state as plain data and as arrays by their names."""
    plain: dict[str, Any] = {
        "iteration": state.iteration,
        "attempt": state.attempt,
        "ahead": state.ahead,
        "looking": state.looking,
        "spent": state.spent,
        "rough": state.rough,
        "rare": state.rare,
        "found": None if state.found is None else state.found.level,
        "start": None if state.start is None else state.start.level,
        "aside": None,
    }
    arrays = plain_arrays(state.belief, prefix)
    arrays |= {f"{prefix}memory_{index}": array for index, array in enumerate(state.memory)}
    if state.exploration is not None:
        arrays[f"{prefix}exploration"] = state.exploration
    if state.kept is not None:
        arrays |= plain_arrays(state.kept, f"{prefix}kept_")
    if state.found is not None:
        arrays |= plain_arrays(state.found.belief, f"{prefix}found_")
    if state.start is not None:
        arrays |= {f"{prefix}start_mean": state.start.mean, f"{prefix}start_std": state.start.std}
    if state.aside is not None:
        plain["aside"], others = taken_apart(state.aside, f"{prefix}aside_")
        arrays |= others
    return plain, arrays


def put_together(plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> State:
    """What :func:`taken_apart` made; earlier versions left out what they did not have."""
    found = start = aside = None
    if plain.get("found") is not None:
        found = Found(from_arrays(Gaussian, arrays, f"{prefix}found_"), plain["found"])
    if plain.get("start") is not None:
        start = Start(arrays[f"{prefix}start_mean"], arrays[f"{prefix}start_std"], plain["start"])
    if plain.get("aside") is not None:
        aside = put_together(plain["aside"], arrays, f"{prefix}aside_")
    n_remembered = sum(name.startswith(f"{prefix}memory_") for name in arrays)
    return State(
        from_arrays(Gaussian, arrays, prefix),
        plain["iteration"],
        arrays.get(f"{prefix}exploration"),
        tuple(arrays[f"{prefix}memory_{index}"] for index in range(n_remembered)),
        from_arrays(Episodes, arrays, f"{prefix}kept_") if f"{prefix}kept_theta" in arrays else None,
        plain.get("attempt", 0),
        found,
        plain.get("ahead", True),
        start,
        plain.get("looking", False),
        aside,
        plain.get("spent", 0),
        plain.get("rough", 0.0),
        plain.get("rare", False),
    )


def plain_arrays(value: Gaussian | Episodes, prefix: str = "") -> dict[str, NDArray[Any]]:
    """The arrays that make it up, by their names."""
    return {prefix + field.name: getattr(value, field.name) for field in fields(value)}


def from_arrays(kind: type[T], arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> T:
    """What :func:`plain_arrays` took apart."""
    return kind(*(arrays[prefix + field.name] for field in fields(kind)))


def _describe(search: Search) -> dict[str, Any]:
    """The settings of a search as plain data."""
    plain = {field.name: getattr(search, field.name) for field in fields(Search)}
    plain["update"] = {"rule": search.update.rule, **asdict(search.update)}  # type: ignore[arg-type]
    plain["step"] = None if search.step is None else asdict(search.step)
    if callable(search.effectiveness):
        plain["effectiveness"] = {"callable": getattr(search.effectiveness, "__qualname__", "?")}
    return plain


def _restore(plain: dict[str, Any], effectiveness: Effectiveness | None) -> Search:
    """A search from what :func:`_describe` made of it."""
    update = dict(plain["update"])
    rule = lookup("update rule", update.pop("rule"), RULES)
    measure = plain["effectiveness"]
    if isinstance(measure, dict):
        if effectiveness is None:
            raise ValueError(
                f"the search measures effectiveness with a function of yours, {measure['callable']!r}, which "
                "no file can hold: pass it as load(path, effectiveness=...)."
            )
        measure = effectiveness
    step = None if plain["step"] is None else Adam(**plain["step"])
    return Search(**{**plain, "update": rule(**update), "effectiveness": measure, "step": step})


class Saves(Protocol):
    """What every learner has to offer in the end."""

    @property
    def iteration(self) -> int:
        """Number of updates so far."""
        ...

    @property
    def mean(self) -> FloatArray:
        """The parameters to use."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned to a file."""
        ...


class Learner(Saves, Protocol):
    """What :func:`maximize` drives by ask and tell: an :class:`Optimizer`, or a baseline under way."""

    @property
    def n_parameters(self) -> int: ...  # noqa: D102

    @property
    def seed(self) -> int: ...  # noqa: D102

    @property
    def entropy(self) -> float:
        """Entropy of the search distribution, NaN if it is not known."""
        ...

    def ask(self, count: int) -> FloatArray:
        """At most `count` parameter vectors to try, (k, n); none when the search has come to its end."""
        ...

    def tell(self, theta: FloatArray, returns: FloatArray) -> UpdateInfo:
        """Learn from episodes."""
        ...

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw from the search distribution, (count, n); the parameters to use if there is none."""
        ...

    def to_bytes(self) -> bytes:
        """What :meth:`save` writes."""
        ...


class Starts(Protocol):
    """A search that klimb did not invent, such as ``klimb.make_algorithm("cma-es")``."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def fewest(self) -> int: ...  # noqa: D102

    @property
    def usual_batch(self) -> Callable[[int], int]: ...  # noqa: D102

    def start(self, *, mean: ArrayLike, std: ArrayLike, batch: int, seed: int | None = None) -> Learner:
        """Begin around `mean` with `std`, learning from `batch` episodes at a time."""
        ...


@dataclass(frozen=True, eq=False)
class Progress:
    """What a callback of :func:`maximize` sees after every batch.

    A batch with too few good episodes is no update yet: ``info.n_used`` is 0, and its episodes are there
    again with the next batch. `success` is known to learners that act in an environment only.
    """

    optimizer: Saves
    info: UpdateInfo
    theta: FloatArray
    returns: FloatArray
    episodes: int
    best_return: float
    success: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """What :func:`maximize` found.

    Attributes
    ----------
    mean : (n,)
        Mean of the final belief: the parameters to use.
    best_parameters, best_return
        Of the best single episode; with noise, luck is part of it.
    curve
        One record per batch, ready for ``pandas.DataFrame(result.curve)``: episodes, mean_return,
        best_return, kl, entropy, n_failed.
    episodes, n_failed
        How many episodes were spent, and how many of them failed.
    optimizer
        To go on from here: an :class:`Optimizer`, or a baseline under way.
    """

    mean: FloatArray
    best_parameters: FloatArray
    best_return: float
    curve: NDArray[np.void]
    episodes: int
    n_failed: int
    optimizer: Learner


class Evaluates(Protocol):
    """A task: evaluates many parameter vectors at once."""

    def evaluate(self, theta: FloatArray, seed: int) -> FloatArray:
        """Returns (N,) of the rows of `theta`."""
        ...


class Submits(Protocol):
    """A task that is evaluated in the background: :class:`klimb.Workers`."""

    @property
    def count(self) -> int:
        """How many workers there are."""
        ...

    def submit(self, theta: FloatArray, seed: ArrayLike) -> NDArray[np.int64]:
        """Begin to evaluate the rows of `theta` and give a ticket for each."""
        ...

    def collect(self, count: int) -> tuple[NDArray[np.int64], FloatArray, Any]:
        """Tickets and returns, and more, of what is finished, once that are `count` episodes or all."""
        ...

    def abandon(self) -> None:
        """Forget what was submitted."""
        ...


CURVE = np.dtype(
    [(name, np.float64) for name in ("episodes", "mean_return", "best_return", "kl", "entropy", "n_failed")]
)


def maximize(
    f: Callable[[FloatArray], float] | Evaluates,
    algorithm: Search | Starts | None = None,
    *,
    mean: ArrayLike,
    std: ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    episodes: int = 5000,
    batch: int | None = None,
    seed: int | None = None,
    callback: Callable[[Progress], object] | None = None,
    asynchronous: bool = False,
) -> Result:
    """Maximise a function of one parameter vector, or a task.

    Parameters
    ----------
    f
        Takes a vector (n,) and returns a number, NaN if the episode failed; or has ``evaluate(theta, seed)``
        for many at once.
    algorithm
        A recipe such as ``klimb.dr_creps()``, or a baseline such as ``klimb.make_algorithm("cma-es")``, which
        starts from `std`; ``klimb.auto()`` if left out.
    mean, std, covariance, seed
        As for :class:`Optimizer`.
    episodes
        How many to spend at most; a rest too small for a batch is not spent.
    batch
        How many per update; what suits the algorithm if left out.
    callback
        Called with a :class:`Progress` after every update; returning True ends the search.
    asynchronous
        Update as soon as `batch` returns are in, and learn from late ones in the next update: no worker waits
        for the slowest episode of a batch. `f` must be :class:`klimb.Workers`, `algorithm` one of klimb's
        own. The result then depends on which episodes came first.
    """
    algorithm = auto() if algorithm is None else algorithm
    if batch is None:  # what acts step by step has no usual number; it is refused below
        batch = algorithm.usual_batch(np.size(mean)) if hasattr(algorithm, "usual_batch") else 50
        batch = max(algorithm.fewest, batch)
    batch = min(whole("batch", batch, algorithm.fewest), whole("episodes", episodes, algorithm.fewest))
    optimizer: Learner
    if isinstance(algorithm, Search) or not hasattr(algorithm, "start"):
        optimizer = Optimizer(algorithm, mean=mean, std=std, covariance=covariance, seed=seed)  # type: ignore[arg-type]
    else:
        if std is None or covariance is not None:
            raise ValueError(f"{algorithm.name} starts from std; klimb's own algorithms take a covariance.")
        optimizer = algorithm.start(mean=mean, std=std, batch=batch, seed=seed)
    if asynchronous:
        return _maximize_asynchronously(submitting(f), optimizer, episodes, batch, callback)
    tally = Tally(optimizer, callback)
    nothing = np.empty((0, optimizer.n_parameters)), np.empty(0)
    waiting = nothing
    while tally.spent + batch <= episodes:
        if isinstance(optimizer, Optimizer):
            tried = _draw_batch(f, optimizer, batch, *waiting)
        else:
            tried = _converse(f, optimizer, batch, tally.spent)
        if not tried.fresh or tally.add(tried) or tried.fresh < batch:  # fewer: it has come to its end
            break
        waiting = nothing if tried.told else (tried.theta, tried.returns)
    return tally.result()


class Batch(NamedTuple):
    """Episodes that were tried together: parameters (N, n), returns (N,), and what came of them."""

    theta: FloatArray
    returns: FloatArray
    fresh: int
    """How many of them are new, the last ones; the others waited for enough good ones."""
    info: UpdateInfo
    told: bool
    """Whether they were learned from."""


class Tally:
    """What has come of a search so far, batch by batch."""

    def __init__(self, optimizer: Learner, callback: Callable[[Progress], object] | None) -> None:
        self.optimizer, self.callback = optimizer, callback
        self.spent = self.n_failed = 0
        self.best_parameters, self.best_return = optimizer.mean, -np.inf
        self.curve: list[tuple[float, ...]] = []

    def add(self, tried: Batch) -> bool:
        """Take in a batch, and tell the callback; whether the search is to end."""
        theta, returns, good = tried.theta, tried.returns, np.isfinite(tried.returns)
        self.spent += tried.fresh
        self.n_failed += tried.fresh - int(good[-tried.fresh :].sum())
        if good.any() and returns[good].max() > self.best_return:
            top = int(np.argmax(np.where(good, returns, -np.inf)))
            self.best_parameters, self.best_return = theta[top].copy(), float(returns[top])
        if tried.told and good.any():
            mean_return, failed = float(returns[good].mean()), good.size - int(good.sum())
            entropy = self.optimizer.entropy
            self.curve.append((self.spent, mean_return, self.best_return, tried.info.kl, entropy, failed))
        if self.callback is None:
            return False
        progress = Progress(self.optimizer, tried.info, theta, returns, self.spent, self.best_return)
        return self.callback(progress) is True

    def result(self) -> Result:
        """What was found."""
        if not self.curve:
            n_good = self.spent - self.n_failed
            raise RuntimeError(f"only {n_good} of {self.spent} episodes were good: nothing to learn from.")
        made = np.array(self.curve, dtype=CURVE)
        best = self.best_parameters, self.best_return
        return Result(self.optimizer.mean, *best, made, self.spent, self.n_failed, self.optimizer)


def _draw_batch(
    f: Callable[[FloatArray], float] | Evaluates,
    optimizer: Optimizer,
    batch: int,
    theta: FloatArray,
    returns: FloatArray,
) -> Batch:
    """Try a batch, and learn from it and from what waits, if enough of them are good."""
    asked = optimizer.ask(batch)
    seeds = batch_seed(optimizer.seed, optimizer.iteration, len(theta), batch)
    theta = np.vstack([theta, asked])
    returns = np.append(returns, _evaluate(f, asked, seeds))
    return _learn(optimizer, theta, returns, batch)


def _learn(optimizer: Optimizer, theta: FloatArray, returns: FloatArray, fresh: int) -> Batch:
    """Learn from episodes, if enough of them are good."""
    n_good = int(np.isfinite(returns).sum())
    if n_good < optimizer.algorithm.fewest:
        info = UpdateInfo(n_failed=returns.size - n_good, informative=False)
        return Batch(theta, returns, fresh, info, told=False)
    return Batch(theta, returns, fresh, optimizer.tell(theta, returns), told=True)


def _converse(
    f: Callable[[FloatArray], float] | Evaluates, learner: Learner, batch: int, spent: int
) -> Batch:
    """Let a baseline try a batch: it is told what it asked for piece by piece, and may come to its end."""
    theta, returns = np.empty((0, learner.n_parameters)), np.empty(0)
    info = UpdateInfo(informative=False)
    while len(theta) < batch:
        asked = learner.ask(batch - len(theta))
        if not len(asked):
            break
        # it counts its iterations in its own way
        answers = _evaluate(f, asked, batch_seed(learner.seed, 0, spent + len(theta), batch))
        info = learner.tell(asked, answers)
        theta, returns = np.vstack([theta, asked]), np.append(returns, answers)
    return Batch(theta, returns, len(theta), info, told=True)


def _maximize_asynchronously(
    workers: Submits,
    optimizer: Learner,
    episodes: int,
    batch: int,
    callback: Callable[[Progress], object] | None,
) -> Result:
    """Maximise with updates from the first `batch` returns to come, whichever samples they are of."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError("a baseline learns from whole batches: leave asynchronous out.")
    tally = Tally(optimizer, callback)
    planned = episodes // batch * batch
    submitted = asked = 0
    flying: dict[int, FloatArray] = {}
    # what came back and has not been learned from
    theta, returns = np.empty((0, optimizer.n_parameters)), np.empty(0)
    wanted = batch  # how many returns the next update needs; more after a batch with too few good ones
    try:
        while tally.spent < planned:
            # one more for each worker than the update needs: so none waits, and few samples are late
            fresh = min(wanted + workers.count - len(flying) - len(returns), planned - submitted)
            if fresh > 0:
                drawn = optimizer.ask(fresh)
                seeds = batch_seed(optimizer.seed, optimizer.iteration, asked, batch)
                tickets = workers.submit(drawn, int(seeds.generate_state(1, np.uint64)[0]))
                flying.update(zip(tickets.tolist(), drawn, strict=True))
                asked += fresh
                submitted += fresh
            ended, values, *_ = workers.collect(wanted - len(returns))
            theta = np.vstack([theta, *(flying.pop(ticket) for ticket in ended.tolist())])
            returns = np.append(returns, values)
            tried = _learn(optimizer, theta[:wanted], returns[:wanted], batch)
            if tried.told:
                theta, returns, wanted, asked = theta[wanted:], returns[wanted:], batch, 0
            else:
                wanted += batch
            if tally.add(tried):
                break
    finally:
        workers.abandon()
    return tally.result()


def submitting(f: Any) -> Submits:
    """Refuse what cannot be evaluated in the background."""
    if not (hasattr(f, "submit") and hasattr(f, "collect")):
        raise ValueError("asynchronous updates need workers: pass klimb.Workers(task, ...).")
    workers: Submits = f
    return workers


def batch_seed(seed: int, iteration: int, first: int, batch: int) -> np.random.SeedSequence:
    """What the seeds of a batch of episodes derive from; it begins with sample `first` of the iteration."""
    return np.random.SeedSequence(seed, spawn_key=(iteration, 2, iteration * batch + first))


def _evaluate(
    f: Callable[[FloatArray], float] | Evaluates, theta: FloatArray, seeds: np.random.SeedSequence
) -> FloatArray:
    """Returns of the rows of `theta`, (N,)."""
    if callable(f):
        return np.array([float(f(row)) for row in theta])
    return numbers("returns", f.evaluate(theta, int(seeds.generate_state(1, np.uint64)[0])))
