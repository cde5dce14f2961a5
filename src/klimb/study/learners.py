"""What a study asks of the learner whose episodes it keeps, and the two kinds that learn by ask and tell.

klimb's own draw any number of samples and learn from any; a file holds their whole state. A baseline wants to
know the returns of certain parameter vectors before it goes on. It cannot be copied or written down, but all
that it does follows from its start and what it was told, so a study goes through its episodes again.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from klimb._blas import single_threaded
from klimb._validation import FloatArray, whole
from klimb.algorithms import BASELINES
from klimb.effectiveness import Effectiveness
from klimb.gaussian import Gaussian
from klimb.optimizer import Learner, Optimizer, Saves, batch_seed
from klimb.search import Search, ask, check_distance
from klimb.study.bounds import redraw
from klimb.study.settings import MOST, now
from klimb.tasks.task import episode_seeds
from klimb.updates import UpdateInfo

if TYPE_CHECKING:
    from klimb.baselines.conversation import Conversation


class Kept(Protocol):
    """A learner between two updates."""

    kind: ClassVar[str]
    """What the file calls it."""
    replays: ClassVar[bool]
    """Whether it is restored by learning again from all that the file holds."""
    resamples: ClassVar[bool]
    """Whether it can draw parameters that lie outside bounds anew."""
    fewest: int
    """Good samples that an update needs at least."""

    @property
    def learner(self) -> Learner:
        """What a user sees of it; where it replays, it is the one and only."""
        ...

    @property
    def due(self) -> int:
        """Samples that the next update takes; 0 where the search has come to its end."""
        ...

    @property
    def std(self) -> FloatArray | None:
        """Of the search distribution, (n,), if it is known."""
        ...

    def samples(self, first: int, count: int) -> FloatArray:
        """Samples `first` to `first` + `count` - 1 of this iteration, (k, n); fewer if it has no more."""
        ...

    def seeds(self, first: int, count: int) -> list[str]:
        """Seeds of their first episodes: those that maximize uses."""
        ...

    def redraw(self, theta: FloatArray, position: int, low: FloatArray, high: FloatArray) -> FloatArray:
        """Draw what lies outside of sample `position` anew."""
        ...

    def check_foreign(self, theta: FloatArray) -> None:
        """Raise a ValueError if it cannot learn from parameters (N, n) that are not of this iteration."""
        ...

    def learn(self, executed: FloatArray, drawn: FloatArray, returns: FloatArray) -> Learned:
        """Update: parameters (N, n) as they were executed and as they were drawn, returns (N,)."""
        ...


class Learned(NamedTuple):
    """What an update made."""

    after: Kept
    info: UpdateInfo
    effectiveness: FloatArray | None
    """By parameter, (n,)."""
    state: bytes | None
    """To be written to the file; None if it stays as it is."""


class Drawing:
    """One of klimb's own under way."""

    kind: ClassVar[str] = "optimizer"
    replays: ClassVar[bool] = False
    resamples: ClassVar[bool] = True

    def __init__(self, optimizer: Optimizer, batch: int) -> None:
        self.fewest = optimizer.algorithm.fewest
        self.due = whole("batch", batch, self.fewest, MOST)
        self._optimizer = optimizer

    @property
    def learner(self) -> Optimizer:
        """A copy."""
        return copy.copy(self._optimizer)

    @property
    def std(self) -> FloatArray:
        """See :class:`Kept`."""
        return self._optimizer.std

    def samples(self, first: int, count: int) -> FloatArray:
        """See :class:`Kept`."""
        optimizer = self._optimizer
        with single_threaded():
            return ask(optimizer.algorithm, optimizer.state, optimizer.seed, first, count)

    def seeds(self, first: int, count: int) -> list[str]:
        """See :class:`Kept`."""
        return sample_seeds(self._optimizer.seed, self._optimizer.iteration, 0, first, count, self.due)

    def redraw(self, theta: FloatArray, position: int, low: FloatArray, high: FloatArray) -> FloatArray:
        """See :class:`Kept`."""
        optimizer = self._optimizer
        belief, factors = optimizer.state.belief, optimizer.state.exploration
        sampled = belief if factors is None else replace(belief, variances=belief.variances * factors)
        stream = np.random.SeedSequence(optimizer.seed, spawn_key=(optimizer.iteration, 3, position))
        with single_threaded():
            return redraw(sampled, theta, low, high, np.random.default_rng(stream))

    def check_foreign(self, theta: FloatArray) -> None:
        """See :class:`Kept`."""
        belief = self._optimizer.state.belief
        check_distance(belief.to_local(theta), belief)

    def learn(self, executed: FloatArray, drawn: FloatArray, returns: FloatArray) -> Learned:
        """See :class:`Kept`; it learns from what was executed, because that is what the return belongs to."""
        optimizer = copy.copy(self._optimizer)
        info = optimizer.tell(executed, returns)
        with np.errstate(over="ignore"):
            mean_return = returns[np.isfinite(returns)].mean()
        if not math.isfinite(mean_return + info.kl + optimizer.entropy):
            raise ValueError("the returns are too large to compute with.")
        measured = info.relevance
        if measured is None and info.effectiveness is not None:
            measured = _by_parameter(info.effectiveness, self._optimizer.state.belief)
        state = optimizer.to_bytes()
        # never the one that made the update: arrays that lie as in the file give everyone the same bits
        measure = optimizer.algorithm.effectiveness
        after = Optimizer.from_bytes(state, effectiveness=measure if callable(measure) else None)
        return Learned(Drawing(after, self.due), info, measured, state)


class Conversing:
    """A baseline under way."""

    kind: ClassVar[str] = "conversation"
    replays: ClassVar[bool] = True
    resamples: ClassVar[bool] = False
    fewest = 0  # it deals with failed episodes itself
    std = None

    def __init__(self, conversation: Conversation, batch: int) -> None:
        self.learner = conversation
        self._batch = batch
        self._wanted = conversation.wanted

    @property
    def due(self) -> int:
        """See :class:`Kept`."""
        return len(self._wanted)

    def samples(self, first: int, count: int) -> FloatArray:
        """See :class:`Kept`."""
        return self._wanted[first : first + count].copy()

    def seeds(self, first: int, count: int) -> list[str]:
        """See :class:`Kept`."""
        begin = self.learner.n_told
        return sample_seeds(self.learner.seed, 0, begin, begin + first, count, self._batch)

    def redraw(self, theta: FloatArray, position: int, low: FloatArray, high: FloatArray) -> FloatArray:
        """See :class:`Kept`; :meth:`Study.create` makes no study that would ask for it."""
        raise ValueError(
            f"{self.learner.algorithm.name} cannot draw anew: create the study with outside='clip'."
        )

    def check_foreign(self, theta: FloatArray) -> None:
        """See :class:`Kept`."""
        raise ValueError(
            f"{self.learner.algorithm.name} learns only from what it asked for since its last update; other "
            "episodes are of no use to it. (klimb's own algorithms learn from any.)"
        )

    def learn(self, executed: FloatArray, drawn: FloatArray, returns: FloatArray) -> Learned:
        """See :class:`Kept`; a return is told for what was drawn, in the order in which that was."""
        if not np.array_equal(drawn, self._wanted):
            raise ValueError(f"these are not the parameters that {self.learner.algorithm.name} wants to know")
        self.learner.answer(returns)
        n_good, unknown = int(np.isfinite(returns).sum()), math.nan
        info = UpdateInfo(kl=unknown, entropy_drop=unknown, n_used=n_good, n_failed=returns.size - n_good)
        return Learned(Conversing(self.learner, self._batch), info, None, None)


def begin(algorithm: Any, start: dict[str, ArrayLike | None], batch: int, seed: int | None) -> Kept:
    """A learner at its start: mean, and std or covariance."""
    if isinstance(algorithm, Search):
        return Drawing(Optimizer(algorithm, seed=seed, **start), batch)  # type: ignore[arg-type]
    if start["std"] is None or start["covariance"] is not None:
        raise ValueError(f"{algorithm.name} starts from std; klimb's own algorithms take a covariance.")
    if algorithm.name not in BASELINES:
        raise ValueError(f"a study can hold the baselines of klimb list algorithms, not {algorithm.name}.")
    conversation = algorithm.start(mean=start["mean"], std=start["std"], batch=batch, seed=seed)
    return Conversing(conversation, whole("batch", batch, 1, MOST))


def restore(kind: str, state: bytes, batch: int, effectiveness: Effectiveness) -> Kept:
    """A learner from its bytes; one that replays is at its start."""
    if kind == Drawing.kind:
        return Drawing(Optimizer.from_bytes(state, effectiveness=effectiveness), batch)
    from klimb.baselines.conversation import from_bytes

    return Conversing(from_bytes(state), batch)


def sample_seeds(seed: int, iteration: int, begin: int, first: int, count: int, batch: int) -> list[str]:
    """Seeds of samples `first` to `first` + `count` - 1: those that maximize uses.

    It asks for samples in pieces that end with a batch and where a search must know more; the latest
    such piece begins with sample `begin`. Each piece has a seed of its own, spread over its samples.
    """
    seeds: list[str] = []
    place = first
    while place < first + count:
        edge = place - place % batch
        start, stop = max(begin, edge), min(first + count, edge + batch)
        source = batch_seed(seed, iteration, start, batch).generate_state(1, np.uint64)[0]
        seeds += map(str, episode_seeds(int(source), stop - start)[place - start :])
        place = stop
    return seeds


def update_row(
    number: int, info: UpdateInfo, returns: FloatArray, episodes: int, best_return: float, learner: Saves
) -> dict[str, Any]:
    """The row of update `number`, which rests on `returns` (N,); `learner` is the one after it."""
    good = returns[np.isfinite(returns)]
    with np.errstate(over="ignore"):
        mean_return = float(good.mean()) if good.size else None
    return {
        "number": number,
        "made": now(),
        "episodes": episodes,
        "n_used": info.n_used,
        "n_failed": info.n_failed,
        "mean_return": mean_return,
        "best_return": best_return,
        "kl": info.kl,
        "entropy": getattr(learner, "entropy", None),
        "entropy_drop": info.entropy_drop,
        "eta": info.eta,
        "omega": info.omega,
        "temperature": info.temperature,
        "effective_sample_size": info.effective_sample_size,
        "informative": info.informative,
        "mean": np.float64(learner.mean).tobytes(),
        "selected": None if info.selected is None else info.selected.astype("<i8").tobytes(),
    }


def _by_parameter(effectiveness: FloatArray, belief: Gaussian) -> FloatArray:
    """Spread the effectiveness of local coordinates, (n,), over the parameters that they mix."""
    spread = effectiveness.copy()
    spread[belief.mixed] = np.square(belief.rotation) @ effectiveness[belief.mixed]
    return spread
