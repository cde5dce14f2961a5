"""Ask and tell for searches over parameter vectors that klimb did not invent.

Such a search is a generator: it yields a :class:`Proposal`, the parameter vectors whose returns it wants to
know next, is sent these returns, and so on. :class:`Conversation` lets a user hold it as they would an
:class:`klimb.Optimizer`: asked for more than the search wants to know, it gives fewer; told a part, it waits
for the rest.

Everything a search does follows from its settings, its start, its seed and the returns it was told. A file
therefore holds just these, and reading it goes through them again.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from klimb._blas import single_threaded
from klimb._validation import FloatArray, numbers, told, vector, whole
from klimb.algorithms import make_algorithm
from klimb.gaussian import diagonal
from klimb.optimizer import get_arrays, put_arrays, replace_file, written
from klimb.updates import UpdateInfo

FORMAT = "klimb-baseline"
FORMAT_VERSION = 1

Draw = Callable[[np.random.Generator, int], FloatArray]


class Proposal(NamedTuple):
    """What a search wants to know, and what it would answer now."""

    theta: FloatArray
    """Parameter vectors to try, (k, n); none where the search has come to its end."""
    mean: FloatArray
    """The parameters to use by what is known so far, (n,)."""
    draw: Draw | None = None
    """Samples of the search distribution, if there is one: (generator, count) -> (count, n)."""


#: Sent the returns (k,) of a proposal, NaN where an episode failed; returns the last proposal when it ends.
Steps = Generator[Proposal, FloatArray, Proposal]


@dataclass(frozen=True)
class Baseline:
    """A search with its settings.

    Attributes
    ----------
    name
        As in ``klimb list algorithms``.
    settings
        What its recipe was given.
    steps
        Starts it: (mean (n,), std (n,), batch, seed) -> :data:`Steps`.
    usual_batch
        The number of episodes per update that suits n parameters.
    fewest
        The smallest number of episodes per update that it can use.
    """

    name: str
    settings: Mapping[str, Any]
    steps: Callable[[FloatArray, FloatArray, int, int], Steps]
    usual_batch: Callable[[int], int]
    fewest: int = 1

    def start(self, *, mean: ArrayLike, std: ArrayLike, batch: int, seed: int | None = None) -> Conversation:
        """Begin a search around `mean` (n,) with standard deviation `std`; see :class:`klimb.Optimizer`."""
        return Conversation(self, mean, std, batch, seed)


class Conversation:
    """A search under way, by ask and tell.

    It differs from :class:`klimb.Optimizer` in three things. :meth:`ask` gives fewer rows than it is asked
    for where the search needs their returns before it knows what to try next, and none when the search has
    ended. :meth:`tell` takes what was asked for, in any order, and nothing else. And ``batch`` is fixed at
    the start.
    """

    def __init__(
        self, baseline: Baseline, mean: ArrayLike, std: ArrayLike, batch: int, seed: int | None
    ) -> None:
        start = diagonal(vector("mean", mean), std)  # which checks both
        self._baseline = baseline
        self._mean, self._std = start.mean, start.std
        # pycma is told exactly what came, not the root of its square
        self._std = np.broadcast_to(numbers("std", std), self._std.shape).copy()
        self._batch = check_batch(baseline, batch)
        self._seed = int(np.random.SeedSequence().entropy) if seed is None else whole("seed", seed, 0)  # type: ignore[arg-type]
        self._told: list[FloatArray] = []
        self._n_told = 0
        self._handed = 0
        self._steps = baseline.steps(self._mean.copy(), self._std.copy(), self._batch, self._seed)
        with single_threaded():
            self._receive(next(self._steps))

    @property
    def algorithm(self) -> Baseline:
        """The settings of the search."""
        return self._baseline

    @property
    def n_parameters(self) -> int:
        """Number of parameters, n."""
        return self._mean.size

    @property
    def mean(self) -> FloatArray:
        """The parameters to use, (n,): the mean of the search distribution, or the best known."""
        return self._proposal.mean.copy()

    @property
    def entropy(self) -> float:
        """Not known: NaN."""
        return float("nan")

    @property
    def iteration(self) -> int:
        """Number of updates so far."""
        return len(self._told)

    @property
    def seed(self) -> int:
        """The seed from which all samples derive."""
        return self._seed

    @property
    def ended(self) -> bool:
        """Whether the search has come to its end: it has nothing left to ask."""
        return len(self._proposal.theta) == 0

    @property
    def wanted(self) -> FloatArray:
        """What the search wants to know before it goes on, (k, n); none where it has ended."""
        return self._proposal.theta.copy()

    @property
    def n_told(self) -> int:
        """Number of parameter vectors that it learned from so far."""
        return self._n_told

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw from the search distribution, (count, n); the parameters to use, if there is none."""
        if self._proposal.draw is None:
            return np.tile(self._proposal.mean, (count, 1))
        with single_threaded():
            return self._proposal.draw(rng, count)

    def ask(self, count: int) -> FloatArray:
        """Give at most `count` parameter vectors to try, (k, n).

        Fewer come where the search needs to know more first, and those that were asked for and not told yet
        are not given again. None come from a search that has :attr:`ended`.
        """
        first = self._handed
        self._handed = min(first + whole("count", count, 1), len(self._proposal.theta))
        return self._proposal.theta[first : self._handed].copy()

    def tell(self, theta: ArrayLike, returns: ArrayLike) -> UpdateInfo:
        """Answer: parameter vectors (k, n) that were asked for, in any order, and their returns (k,).

        A return of NaN or -infinity is a failed episode. With the last answer of a batch the search goes on.
        """
        theta, returns = told(theta, returns, self.n_parameters)
        open_places: dict[bytes, list[int]] = {}
        for place in range(self._handed - 1, -1, -1):
            if not self._answered[place]:
                open_places.setdefault(self._proposal.theta[place].tobytes(), []).append(place)
        places = []
        for row, wanted in enumerate(theta):
            asked = open_places.get(wanted.tobytes())
            if not asked:
                raise ValueError(
                    f"theta[{row}] is not what {self._baseline.name} asked for, or it was told before; other "
                    "episodes are of no use to it. (klimb's own algorithms learn from any.)"
                )
            places.append(asked.pop())
        good = np.isfinite(returns)
        self._returns[places] = np.where(good, returns, np.nan)
        self._answered[places] = True
        if self._answered.all() and not self.ended:
            self.answer(self._returns)
        n_good = int(good.sum())
        unknown = float("nan")
        return UpdateInfo(kl=unknown, entropy_drop=unknown, n_used=n_good, n_failed=good.size - n_good)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file that :func:`load` reads; what was told of a batch in part is lost."""
        replace_file(path, self._write)

    def to_bytes(self) -> bytes:
        """What :meth:`save` writes, for a database or a message."""
        return written(self._write)

    def _write(self, file: IO[bytes]) -> None:
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "algorithm": self._baseline.name,
            "settings": dict(self._baseline.settings),
            "seed": self._seed,
            "batch": self._batch,
        }
        arrays = {
            "start": self._mean,
            "std": self._std,
            "mean": self._proposal.mean,
            "returns": np.concatenate([np.empty(0), *self._told]),
            "sizes": np.array([told.size for told in self._told], dtype=np.int64),
        }
        put_arrays(file, header, arrays)

    def answer(self, returns: FloatArray) -> None:
        """Tell the returns (k,) of all that is :attr:`wanted`, NaN where an episode failed."""
        if returns.shape != self._returns.shape or self.ended:
            raise ValueError(
                f"{len(self._returns)} returns are wanted, one per row, but {returns.size} came."
            )
        with single_threaded():
            try:
                proposal = self._steps.send(returns.copy())
            except StopIteration as end:
                proposal = end.value
        self._told.append(returns)
        self._n_told += returns.size
        self._receive(proposal)

    def _receive(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._handed = 0
        self._returns = np.full(len(proposal.theta), np.nan)
        self._answered = np.zeros(len(proposal.theta), dtype=np.bool_)


def check_batch(baseline: Baseline, batch: int) -> int:
    """Return `batch` if the search can use it."""
    if batch < baseline.fewest:
        raise ValueError(
            f"{baseline.name} needs a population (batch) of at least {baseline.fewest}, but {batch} came; "
            "nelder-mead, l-bfgs and random-search can do with any."
        )
    return whole("batch", batch, baseline.fewest)


def load(path: str | os.PathLike[str]) -> Conversation:
    """Read what :meth:`Conversation.save` wrote, by going through the search again."""
    with open(path, "rb") as file:
        return _read(file, str(path))


def from_bytes(data: bytes) -> Conversation:
    """Read what :meth:`Conversation.to_bytes` made."""
    return _read(io.BytesIO(data), "this")


def _read(file: IO[bytes], name: str) -> Conversation:
    try:
        header, arrays = get_arrays(file, FORMAT)
        if header["version"] > FORMAT_VERSION:
            raise ValueError("a newer klimb wrote it")
        baseline = make_algorithm(header["algorithm"], **header["settings"])
        if not isinstance(baseline, Baseline):
            raise ValueError(f"{header['algorithm']} learns step by step")
        conversation = baseline.start(
            mean=arrays["start"], std=arrays["std"], batch=header["batch"], seed=header["seed"]
        )
        for returns in np.split(arrays["returns"], np.cumsum(arrays["sizes"])[:-1]):
            if returns.size:
                conversation.answer(returns)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name} is not a file that a baseline saved, or it is damaged: {error}.") from None
    return conversation
