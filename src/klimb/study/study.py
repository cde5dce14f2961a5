"""Studies: learning on a real robot, with every episode kept in one file.

A *sample* is one parameter vector that klimb proposes; an *episode* is one run of it on the robot. Usually
that is the same; with ``repeats=3`` every sample has three episodes, and their mean return is learned from.
Everything that happens is a transaction on the file: docs/studies.md says what that guarantees.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray, is_number, numbers, samples, vector, whole
from klimb.algorithms import ALGORITHMS, BASELINES
from klimb.effectiveness import Effectiveness
from klimb.optimizer import CURVE, Evaluates, Learner, Progress, Result, Starts, Submits, submitting
from klimb.search import Search
from klimb.study import acting, tables
from klimb.study.bounds import outside as lies_outside
from klimb.study.file import INSERT_SAMPLE, File, StudyError, create_file, damaged, insert
from klimb.study.learners import Conversing, Drawing, Kept, begin, restore, update_row
from klimb.study.settings import (
    LARGEST_ID,
    MOST,
    Settings,
    as_text,
    check_bounds,
    check_inside,
    check_names,
    check_return,
    check_start,
    check_text,
    count_parameters,
    default_names,
    now,
    read_settings,
    settings_row,
    strict_json,
)
from klimb.updates import UpdateInfo

if TYPE_CHECKING:
    from klimb.baselines import Stepwise, Trained

Callback = Callable[[Progress], object]
Outcome = tuple[int, str, float | None, str | None, str | None]  # episode, status, return, reason, extra

INSERT_TRIAL = (
    "INSERT INTO trials (id, sample, repeat, seed, status, issued) VALUES (?, ?, ?, ?, 'pending', 0)"
)

# Effectiveness of one batch is noisy; a status averages over the last so many updates.
WITNESSES = 20


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode to run.

    Attributes
    ----------
    id
        To tell its return by.
    parameters : (n,)
        What to execute.
    seed
        For a simulated episode.
    iteration
        Number of updates at the time it was drawn.
    repeat
        Which of the repeats of these parameters it is, from 0; further ones are retries.
    bounds
        "inside"; or what was done to bring it inside: "resampled" or "clipped".
    study
        Which study it belongs to.
    """

    id: int
    parameters: FloatArray
    seed: int
    iteration: int
    repeat: int
    bounds: str
    study: str


@dataclass(frozen=True)
class Pending:
    """An episode that has not come back.

    Attributes
    ----------
    episode
        Its number.
    since
        When it was last handed out, in UTC; None if it waits to be.
    issued
        How often it was handed out.
    """

    episode: int
    since: str | None
    issued: int


@dataclass(frozen=True, eq=False)
class Status:
    """How a study stands.

    Attributes
    ----------
    settings
        What it was created with.
    updates
        How many there were.
    done, failed
        Episodes by status.
    pending
        Those that have not come back.
    settled, needed
        Samples that wait for the next update, and how many it takes: a batch, or what a baseline wants to
        know. 0 are needed where a search has come to its end.
    best_return, best_episode
        Of the best sample, None before the first.
    curve
        As in :class:`~klimb.Result`: one record per update, of a baseline per batch.
    effectiveness : (n,) or None
        How much each parameter matters, averaged over the last updates; None where it is not measured.
    mean : (n,)
        The parameters to use.
    std : (n,) or None
        Of the search distribution; None for a baseline.
    failures
        The latest failed episodes and their reasons.
    """

    settings: Settings
    updates: int
    done: int
    failed: int
    pending: list[Pending]
    settled: int
    needed: int
    best_return: float | None
    best_episode: int | None
    curve: NDArray[np.void]
    effectiveness: FloatArray | None
    mean: FloatArray
    std: FloatArray | None
    failures: list[tuple[int, str]]

    @property
    def ended(self) -> bool:
        """Whether the search has come to its end: it has nothing left to try."""
        return self.needed == 0

    @property
    def matters(self) -> list[tuple[str, float]]:
        """Parameters by name and their effectiveness, what matters most first."""
        if self.effectiveness is None:
            return []
        order = np.argsort(-self.effectiveness, kind="stable")
        return [(self.settings.names[j], float(self.effectiveness[j])) for j in order]


@dataclass(frozen=True, eq=False)
class Made:
    """An update that was made: what a callback is told of it."""

    info: UpdateInfo
    theta: FloatArray
    returns: FloatArray
    episodes: int
    best_return: float
    after: Kept | None = None


class Study:
    """Learning whose every episode is kept in a file, by ask and tell from any number of processes.

    ``Study(path)`` opens what :meth:`create` or ``klimb study create`` made. Use it from one thread; another
    thread or process opens the file for itself.

    Parameters
    ----------
    path
        The file.
    effectiveness
        Hands back a measure of the user's own, which no file can hold.
    callback
        Called with a :class:`~klimb.Progress` after every update that this object makes.

    Examples
    --------
    >>> import tempfile, klimb
    >>> path = tempfile.mkdtemp() + "/arm.db"
    >>> with klimb.Study.create(path, klimb.creps(), mean=[0.0, 0.0], std=1.0, batch=20, seed=0) as study:
    ...     for _ in range(40):
    ...         episode = study.ask()
    ...         info = study.tell(episode, -sum((episode.parameters - 1.0) ** 2))
    ...     study.status().updates
    2
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        effectiveness: Effectiveness | None = None,
        callback: Callback | None = None,
    ) -> None:
        self._effectiveness = effectiveness
        self._callback = callback
        self._cache: Kept | None = None
        self._file = File(Path(path))
        try:
            self._settings = read_settings(self._file)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        algorithm: Search | Starts | Stepwise,
        *,
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        outside: str = "resample",
        batch: int | None = None,
        repeats: int = 1,
        seed: int | None = None,
        run: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
    ) -> Study:
        """Make a new study and open it.

        Parameters
        ----------
        path
            A file that does not exist yet.
        algorithm, mean, std, covariance, seed
            As for :class:`~klimb.Optimizer`. With bounds on both sides, `mean` may be left out (their middle)
            and `std` as well (a quarter of the way between them). A baseline, ``klimb.make_algorithm
            ("cma-es")`` for example, starts from `std`; of one that acts step by step, `mean` is the policy
            to start with, :func:`klimb.baselines.first_policy`.
        low, high
            Bounds of what is executed, one number or one per parameter; infinite where there is none.
        names
            Of the parameters; p0, p1, ... if left out.
        outside
            "resample" draws parameters outside the bounds anew, "clip" moves them to the nearest bound; a
            baseline can be clipped only.
        batch
            Samples per update; the algorithm's usual number if left out. (Of one that acts step by step:
            episodes, which are the repeats of its one sample.)
        repeats
            Episodes per sample; the mean of their returns is learned from.
        run
            What a simulated run needs to go on: anything that JSON can hold, by name.
        callback
            As for :class:`Study`.
        """
        acts = hasattr(algorithm, "agent")
        if not (isinstance(algorithm, Search) or hasattr(algorithm, "start") or acts):
            raise ValueError(
                "algorithm must come from a recipe such as klimb.dr_creps(), or from "
                f"klimb.make_algorithm(name), not {algorithm!r}."
            )
        n = count_parameters(mean=mean, names=names, low=low, high=high, std=std, covariance=covariance)
        if batch is None:
            batch = _usual_batch(algorithm, n)
        names = None if names is None else check_names(names, n)
        bounds = check_bounds(low, high, n)
        if acts:
            if repeats != 1 or not (std is covariance is bounds is None):
                raise ValueError(f"{algorithm.name} acts step by step: there are no std, bounds and repeats.")
            state, seed = acting.begin(algorithm, mean, batch, seed)
            kind, batch, repeats = acting.KIND, 1, batch
        else:
            mean, std = check_start(mean, std, covariance, bounds, n)
            kept = begin(algorithm, {"mean": mean, "std": std, "covariance": covariance}, batch, seed)
            if bounds is not None and outside == "resample" and not kept.resamples:
                raise ValueError(
                    f"{algorithm.name} cannot draw parameters outside the bounds anew, because its draws are "
                    'its own: move them to the nearest bound, outside="clip", on the command line --outside '
                    "clip."
                )
            check_inside(kept.learner.mean, bounds, names or default_names(n))
            state, kind, seed = kept.learner.to_bytes(), kept.kind, kept.learner.seed
        row = settings_row(algorithm, kind, n, seed, names, bounds, outside, batch, repeats, run)

        def fill(connection: sqlite3.Connection) -> None:
            insert(connection, "study", row)
            insert(connection, "state", {"one": 1, "iteration": 0, "optimizer": state})

        create_file(Path(path), fill)
        measure = getattr(algorithm, "effectiveness", None)
        return cls(path, effectiveness=measure if callable(measure) else None, callback=callback)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def settings(self) -> Settings:
        """What the study was created with."""
        return self._settings

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self._settings.names

    @property
    def optimizer(self) -> Any:
        """The optimizer, or the baseline, after the latest update; changing it does not change the study.

        An :class:`~klimb.Optimizer` or a :class:`klimb.baselines.Conversation`.
        """
        with self._file.reading():
            return self._give_away()

    def close(self) -> None:
        """Let go of the file; the last process to do so leaves it without files beside it."""
        self._cache = None
        self._file.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ask and tell

    def ask(self, *, reissue_after: float | None = None) -> Episode:
        """Hand out an episode to run: one that waits (a repeat, a retry), or else a new one.

        Parameters
        ----------
        reissue_after
            Seconds after which an episode that has not come back is handed out again. With a single robot,
            0 is right: what was handed out before can only have been lost.
        """
        for episode in self.ask_many(1, reissue_after=reissue_after):
            return episode
        raise self._nothing_to_ask()

    def ask_many(self, count: int, *, reissue_after: float | None = None) -> list[Episode]:
        """Hand out `count` episodes in one transaction; see :meth:`ask`.

        A baseline gives fewer, or none, where it must know the returns of pending episodes first, or has come
        to its end: :meth:`status` says which.
        """
        count = whole("count", count, 1, MOST)
        lost = None if reissue_after is None else _cutoff("reissue_after", reissue_after)
        with self._writing(tidied=True):
            chosen = self._pending("asked IS NULL ORDER BY id LIMIT ?", count)
            if lost is not None and len(chosen) < count:
                chosen += self._pending("asked <= ? ORDER BY id LIMIT ?", lost, count - len(chosen))
            missing = count - len(chosen)
            if missing:
                chosen += self._draw(math.ceil(missing / self._settings.repeats))[:missing]
            moment = now()
            self._file.change(
                "UPDATE trials SET asked = ?, issued = issued + 1 WHERE id = ?",
                [(moment, number) for number in chosen],
            )
            return [self._episode(number) for number in chosen]

    def tell(
        self, episode: Episode | int, return_: float, *, extra: Mapping[str, Any] | None = None
    ) -> UpdateInfo | None:
        """Store the return of an episode; what the update did, if this one completed a batch.

        Parameters
        ----------
        episode
            What :meth:`ask` gave, or its number.
        return_
            A finite number; larger is better. For an episode that failed use :meth:`fail`.
        extra
            Further measurements, kept as JSON.
        """
        outcome = (self._number(episode), "done", check_return(return_), None, _extra(extra))
        return _info(self._settle([outcome]))

    def tell_many(self, episodes: Sequence[Episode | int], returns: ArrayLike) -> UpdateInfo | None:
        """Store many returns in one transaction; as for Optimizer.tell, NaN or -infinity is a failed one."""
        return _info(self._settle(self._outcomes(episodes, returns)))

    def fail(
        self,
        episodes: Episode | int | Sequence[Episode | int],
        reason: str = "declared failed",
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> UpdateInfo | None:
        """Declare episodes failed: kept, left out of the update, counted for the batch."""
        if not isinstance(episodes, Sequence):
            episodes = [episodes]
        ending = ("failed", None, check_text("reason", reason), _extra(extra))
        return _info(self._settle([(self._number(episode), *ending) for episode in episodes]))

    def overdue(self, seconds: float) -> list[int]:
        """Numbers of pending episodes that were handed out at least so long ago, or wait to be."""
        cutoff = _cutoff("seconds", seconds)
        with self._file.reading():
            return self._pending("(asked <= ? OR asked IS NULL) ORDER BY id", cutoff)

    def retry(self, episode: Episode | int) -> int:
        """Let the next ask hand out the parameters of a failed episode again; the new episode's number.

        The failed one stays as it is. If an update left it out already, the new one goes into the next; with
        a baseline it is too late then.
        """
        number = self._number(episode)
        with self._writing():
            status, _, _ = self._standing(number)
            if status != "failed":
                raise ValueError(f"only a failed episode can be retried, but episode {number} is {status}.")
            sample, iteration, used, blob = self._file.one(
                'SELECT sample, iteration, "update", parameters FROM episodes WHERE episode = ?', number
            )
            if used is not None:
                self._learner().check_foreign(self._floats(blob)[None])
            waiting = self._pending("sample = ? AND repeat >= ?", sample, self._settings.repeats)
            if waiting:
                raise ValueError(f"episode {number} is being retried already, as episode {waiting[0]}.")
            (repeat,) = self._file.one("SELECT max(repeat) + 1 FROM trials WHERE sample = ?", sample)
            repeat = max(repeat, self._settings.repeats)
            (last,) = self._file.one("SELECT max(id) FROM trials")
            seed = _spawned_seed(self._settings.seed, iteration, 5, sample, repeat)
            self._file.change(INSERT_TRIAL, [(last + 1, sample, repeat, seed)])
        return int(last) + 1

    def insert(self, parameters: ArrayLike, return_: float, *, extra: Mapping[str, Any] | None = None) -> int:
        """Add an episode that klimb did not ask for, such as one taught by hand; its number."""
        theta = samples("parameters", [vector("parameters", parameters)], self._settings.n_parameters)
        return self._add("inserted", theta, [("done", check_return(return_), None, _extra(extra))])[0]

    def import_csv(self, path: str | os.PathLike[str]) -> list[int]:
        """Add the episodes of a table with a column per parameter and ``return``; their numbers.

        An empty return is a failed episode. Other columns that :meth:`export` writes are passed over; any
        more are kept as extra measurements. All are added in one transaction, and learned from at once if
        they are a batch or more.
        """
        theta, outcomes = tables.read_csv(Path(path), self._settings.names)
        return self._add("imported", theta, outcomes)

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all episodes to a .csv, .jsonl or .parquet file; how many there are."""
        write = tables.writer(Path(path))
        with self._file.reading():
            (count,) = self._file.one("SELECT count(*) FROM trials")
            with closing(self._rows()) as rows:  # an open query would outlive the transaction
                write(Path(path), self._settings.names, rows)
        return int(count)

    # simulated episodes

    def run(
        self,
        f: Callable[[FloatArray], float] | Evaluates,
        *,
        episodes: int,
        callback: Callback | None = None,
        asynchronous: bool = False,
    ) -> Result | Trained:
        """Run episodes of a function or a task until the study has `episodes` of them, as maximize does.

        Going on after a crash gives to the bit what would have come without it. One process at a time: it
        takes up what another one left pending.

        A learner that acts step by step is run as :func:`klimb.baselines.train` does, and always from its
        start: no file could hold it. What it learns again is compared with what is stored, and only what
        is new is added.

        Parameters
        ----------
        f
            As for :func:`~klimb.maximize`; a task must take one seed per episode.
        episodes
            How many the study is to have in all; a rest too small for a batch is not run.
        callback
            Called with a :class:`~klimb.Progress` after every batch; returning True ends the run.
        asynchronous
            As for :func:`~klimb.maximize`: every return is stored when it comes, and an update made when a
            batch's worth of them is in.
        """
        whole("episodes", episodes, 1)
        if asynchronous:
            if self._settings.learner != Drawing.kind:
                raise ValueError(
                    f"{self._settings.algorithm} learns from whole batches: leave asynchronous out."
                )
            self._run_asynchronously(submitting(f), episodes, callback)
            return self.result()
        with self._file.reading():
            done, best = self._file.one(
                "SELECT count(*), coalesce(max(return), -9e999) FROM trials WHERE status != 'pending'"
            )
        if self._settings.learner == acting.KIND:
            return self._train(f, max(episodes, done), callback)
        count = self._settings.batch * self._settings.repeats
        while done + (left := count - done % count) <= episodes:
            made = self._run_batch(f, left, done, best)
            if made is None:
                break
            done, best = made.episodes, made.best_return
            if callback is not None and callback(self._progress(made)) is True:
                break
        return self.result()

    def judge_mean(self, task: Evaluates) -> None:
        """Run the mean of the search distribution once, unless that was done since the latest update.

        Its return is kept beside the update, for the learning curve. It is an episode of a simulation, not
        counted and not learned from; ``klimb run --study`` does this after every batch.
        """
        with self._file.reading():
            latest = self._file.all(
                "SELECT number, mean FROM updates WHERE number = (SELECT max(number) FROM updates) "
                "AND number NOT IN (SELECT number FROM mean_policy)"
            )
        for number, mean in latest:
            seed = int(_spawned_seed(self._settings.seed, number, 4))
            (value,) = _evaluate(task, self._floats(mean)[None], [seed]).tolist()
            if math.isfinite(value):
                with self._file.writing():
                    row = [(number, value)]
                    self._file.change("INSERT OR IGNORE INTO mean_policy (number, return) VALUES (?, ?)", row)

    def _run_batch(
        self, f: Callable[[FloatArray], float] | Evaluates, count: int, done: int, best: float
    ) -> Made | None:
        """Run `count` episodes, or as many as there are before the search ends; None if it has ended.

        A baseline may have to know the returns of some before it can name the others.
        """
        pieces: list[tuple[FloatArray, FloatArray]] = []
        info = None
        while count:
            asked = self.ask_many(count, reissue_after=0)
            if not asked:
                if self.status().ended:
                    break
                raise self._nothing_to_ask()
            theta = np.array([episode.parameters for episode in asked])
            returns = _evaluate(f, theta, [episode.seed for episode in asked])
            made = self._settle(self._outcomes(asked, returns))
            done, count = done + len(asked), count - len(asked)
            if made is not None:
                info, best = made.info, max(best, made.best_return)
                if not (pieces or count):
                    return replace(made, episodes=done)
            pieces.append((theta, returns))
        if not pieces:
            return None
        theta, returns = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        good = np.isfinite(returns)
        if info is None:  # no update: too few good ones, or a baseline wants to know more
            info = UpdateInfo(n_failed=int((~good).sum()), informative=False)
        return Made(info, theta, returns, done, float(np.max(returns, initial=best, where=good)))

    def _train(self, task: Any, episodes: int, callback: Callback | None) -> Trained:
        """Learn as ``train`` does, from the start, and keep what is new."""
        from klimb.baselines import train

        settings = self._settings
        if episodes < settings.repeats:
            raise ValueError(f"an update takes {settings.repeats} episodes, but there are only {episodes}.")
        with self._file.reading():
            algorithm, _ = self._agent()

        def keep(progress: Progress) -> object:
            acting.record(self._file, settings, progress)
            if self._callback is not None:
                self._callback(progress)
            return callback is not None and callback(progress)

        budget = {"episodes": episodes, "batch": settings.repeats, "seed": settings.seed}
        return train(task, algorithm, callback=keep, **budget)

    def _run_asynchronously(self, workers: Submits, episodes: int, callback: Callback | None) -> None:
        count = self._settings.batch * self._settings.repeats
        planned = episodes // count * count
        standing = self.status()
        done, settled = standing.done + standing.failed, standing.settled * self._settings.repeats
        left_over = len(standing.pending)  # by a run that broke off
        flying: dict[int, Episode] = {}
        try:
            while done < planned:
                # for each worker one more than the update needs, so that none waits and few samples are late
                fresh = max(count - settled, 0) + workers.count - len(flying)
                fresh = min(max(fresh, left_over), planned - done - len(flying))
                if fresh > 0:
                    asked = self.ask_many(fresh, reissue_after=0 if left_over else None)
                    theta = np.array([episode.parameters for episode in asked])
                    seeds = np.array([episode.seed for episode in asked], dtype=np.uint64)
                    flying.update(zip(workers.submit(theta, seeds).tolist(), asked, strict=True))
                    left_over = 0
                tickets, returns, *_ = workers.collect(1)
                ended = [flying.pop(ticket) for ticket in tickets.tolist()]
                made = self._settle(self._outcomes(ended, returns))
                done, settled = done + len(ended), settled + len(ended)
                if made is not None:
                    settled = 0
                    if callback is not None and callback(self._progress(made)) is True:
                        return
        finally:
            workers.abandon()

    def result(self) -> Result:
        """What was found so far, as :func:`~klimb.maximize` gives it."""
        status = self.status()
        ended = status.done + status.failed
        if not status.curve.size or status.best_return is None:
            raise StudyError(
                f"{self.path} has had no update yet: {status.done} of {ended} episodes were good, nothing to "
                "learn from."
            )
        with self._file.reading():
            optimizer = self._give_away()
            (blob,) = self._file.one("SELECT parameters FROM samples WHERE id = ?", status.best_episode)
            best = self._floats(blob)
        return Result(optimizer.mean, best, status.best_return, status.curve, ended, status.failed, optimizer)

    # how it stands

    def status(self) -> Status:
        """How the study stands."""
        rows = self._file.all
        with self._file.reading():
            counts = dict(rows("SELECT status, count(*) FROM trials GROUP BY status"))
            pending = rows(
                "SELECT id, asked, issued FROM trials WHERE status = 'pending' "
                "ORDER BY asked IS NULL, asked, id"
            )
            latest = rows("SELECT mean FROM updates ORDER BY number DESC LIMIT 1")
            measured = rows(
                "SELECT effectiveness FROM updates WHERE effectiveness IS NOT NULL "
                "ORDER BY number DESC LIMIT ?",
                WITNESSES,
            )
            best = rows(
                "SELECT sample, avg(return) AS mean FROM trials WHERE status = 'done' GROUP BY sample "
                "ORDER BY mean DESC, sample LIMIT 1"
            )
            failures = rows(
                "SELECT id, reason FROM trials WHERE status = 'failed' ORDER BY told DESC, id DESC LIMIT 5"
            )
            (updates,) = self._file.one("SELECT iteration FROM state")
            settled, needed, std = self._settled(), 1, None
            if self._settings.learner == acting.KIND:
                mean = self._floats(latest[0][0]) if latest else self._agent()[1]
            else:
                kept = self._learner()
                needed, std, mean = kept.due, kept.std, kept.learner.mean
            with self._file.decoding():
                curve = self._curve(ended=needed == 0)
        witnesses = [self._floats(blob) for (blob,) in measured]
        with self._file.decoding():
            return Status(
                settings=self._settings,
                updates=updates,
                done=counts.get("done", 0),
                failed=counts.get("failed", 0),
                pending=[
                    Pending(int(number), _text(since), int(issued)) for number, since, issued in pending
                ],
                settled=settled,
                needed=needed,
                best_return=float(best[0][1]) if best else None,
                best_episode=int(best[0][0]) if best else None,
                curve=np.array(curve, dtype=CURVE),
                effectiveness=np.mean(witnesses, axis=0) if witnesses else None,
                mean=mean,
                std=std,
                failures=[(int(number), _text(reason) or "") for number, reason in failures],
            )

    def effective_sample_sizes(self) -> list[float]:
        """Of every update that has one: how many samples it rests on."""
        with self._file.reading():
            rows = self._file.all("SELECT effective_sample_size FROM updates ORDER BY number")
        return [size for (size,) in rows if size is not None]

    # inside a transaction

    @contextmanager
    def _writing(self, *, tidied: bool = False) -> Iterator[None]:
        """A transaction that changes the file."""
        if self._settings.learner == Conversing.kind and self._cache is None:
            with self._file.reading():  # going through a long search again keeps nobody else from writing
                self._learner()
        with self._file.writing(tidied=tidied):
            yield

    def _curve(self, *, ended: bool) -> list[tuple[float, ...]]:
        """The records of the learning curve.

        A baseline has one per batch of samples, in the order in which they were asked for, as in maximize:
        its updates may rest on a single one, or on more than a batch. The last is smaller if it `ended`.
        """
        if self._settings.learner != Conversing.kind:
            columns = ", ".join(CURVE.names or ())
            rows = self._file.all(
                f"SELECT {columns} FROM updates WHERE mean_return IS NOT NULL ORDER BY number"
            )
            return [tuple(math.nan if value is None else value for value in row) for row in rows]
        trials: dict[int, list[float | None]] = {}
        pending = set()
        for sample, status, value in self._file.rows(
            "SELECT sample, status, return FROM trials ORDER BY sample, repeat"
        ):
            trials.setdefault(sample, []).append(value)
            if status == "pending":
                pending.add(sample)
        curve: list[tuple[float, ...]] = []
        spent, best = 0, -math.inf
        numbers, batch = list(trials), self._settings.batch
        for first in range(0, len(numbers), batch):
            group = numbers[first : first + batch]
            if pending.intersection(group) or (len(group) < batch and not ended):
                break
            spent += sum(len(trials[sample]) for sample in group)
            returns = np.array([_mean_return(trials[sample]) for sample in group])
            good = returns[np.isfinite(returns)]
            if good.size:
                best = max(best, float(good.max()))
                with np.errstate(over="ignore"):
                    mean_return = float(good.mean())
                curve.append((spent, mean_return, best, math.nan, math.nan, returns.size - good.size))
        return curve

    def _pending(self, condition: str, *values: Any) -> list[int]:
        rows = self._file.all(f"SELECT id FROM trials WHERE status = 'pending' AND {condition}", *values)
        return [number for (number,) in rows]

    def _draw(self, count: int) -> list[int]:
        """Store `count` new samples of this iteration, each with its repeats; the numbers of the episodes.

        There may be fewer where a baseline must know more first.
        """
        settings, kept = self._settings, self._learner()
        iteration, seed = kept.learner.iteration, settings.seed
        (last,) = self._file.one("SELECT max(position) FROM samples WHERE iteration = ?", iteration)
        first = 0 if last is None else last + 1
        (last,) = self._file.one("SELECT coalesce(max(id), 0) FROM trials")
        number = last + 1
        drawn = kept.samples(first, count)
        held = [self._hold(theta, kept, first + i) for i, theta in enumerate(drawn)]
        seeds = kept.seeds(first, len(drawn))
        fresh, trials = [], []
        for position, (theta, bounds) in enumerate(held, start=first):
            place = position - first
            original = drawn[place].tobytes() if bounds == "clipped" else None
            fresh.append((number, iteration, position, "asked", bounds, theta.tobytes(), original))
            for repeat in range(settings.repeats):
                own = _spawned_seed(seed, iteration, 4, position, repeat) if repeat else seeds[place]
                trials.append((number + repeat, number, repeat, own))
            number += settings.repeats
        self._file.change(INSERT_SAMPLE, fresh)
        self._file.change(INSERT_TRIAL, trials)
        return [trial[0] for trial in trials]

    def _hold(self, theta: FloatArray, kept: Kept, position: int) -> tuple[FloatArray, str]:
        """What is executed of a sample, and what was done to keep it within the bounds."""
        bounds = self._settings.bounds
        if bounds is None or not lies_outside(theta, *bounds):
            return theta, "inside"
        if self._settings.outside == "clip":
            return np.clip(theta, *bounds), "clipped"
        return kept.redraw(theta, position, *bounds), "resampled"

    def _outcomes(self, episodes: Sequence[Episode | int], returns: ArrayLike) -> list[Outcome]:
        """What becomes of episodes by their returns."""
        values, count = numbers("returns", returns), len(episodes)
        if values.shape != (count,):
            raise ValueError(
                f"returns must be {count} numbers, one per episode; the shape is {values.shape}."
            )
        if np.isposinf(values).any():
            raise ValueError("a return is +infinity, which no episode can beat; a failed one has NaN.")
        return [
            (self._number(episode), "done", value, None, None)
            if math.isfinite(value)
            else (self._number(episode), "failed", None, f"the return is {value}", None)
            for episode, value in zip(episodes, values.tolist(), strict=True)
        ]

    def _settle(self, outcomes: Sequence[Outcome]) -> Made | None:
        """Store how episodes ended, and update if that completes a batch."""
        with self._writing():
            moment, told = now(), set()
            for number, *_ in outcomes:
                self._check_pending(number)
                if number in told:
                    raise ValueError(f"episode {number} comes twice.")
                told.add(number)
            self._file.change(
                "UPDATE trials SET status = ?, return = ?, reason = ?, extra = ?, told = ? WHERE id = ?",
                [(*ending, moment, number) for number, *ending in outcomes],
            )
            made = self._update_if_due()
        return self._announce(made)

    def _add(
        self,
        origin: str,
        theta: FloatArray,
        outcomes: Sequence[tuple[str, float | None, str | None, str | None]],
    ) -> list[int]:
        """Store episodes that were not asked for."""
        limits = self._settings.bounds
        with self._writing(tidied=True):
            kept = self._learner()
            kept.check_foreign(theta)
            iteration = kept.learner.iteration
            (last,) = self._file.one("SELECT coalesce(max(id), 0) FROM trials")
            moment, fresh, trials = now(), [], []
            for number, (row, outcome) in enumerate(zip(theta, outcomes, strict=True), start=last + 1):
                bounds = "inside" if limits is None or not lies_outside(row, *limits) else "outside"
                fresh.append((number, iteration, None, origin, bounds, row.tobytes(), None))
                trials.append((number, number, *outcome, moment))
            self._file.change(INSERT_SAMPLE, fresh)
            self._file.change(
                "INSERT INTO trials (id, sample, status, return, reason, extra, told, repeat, issued) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
                trials,
            )
            made = self._update_if_due()
        self._announce(made)
        return [trial[0] for trial in trials]

    def _settled(self) -> int:
        """Number of samples that wait for an update, all of whose episodes have ended."""
        (count,) = self._file.one(
            "SELECT count(*) FROM (SELECT 1 FROM trials WHERE used IS NULL GROUP BY sample "
            "HAVING sum(status = 'pending') = 0)"
        )
        return int(count)

    def _update_if_due(self) -> Made | Exception | None:
        """Learn from all settled samples, by their numbers, if they are as many as due and enough good.

        What goes wrong in the update itself is returned, not raised: the returns just told are to be kept.
        """
        kept = self._learner()
        if not 0 < kept.due <= self._settled():
            return None
        rows = self._file.all(
            "SELECT trials.id, sample, return, parameters, drawn FROM trials JOIN samples ON "
            "samples.id = sample WHERE used IS NULL AND sample NOT IN "
            "(SELECT sample FROM trials WHERE used IS NULL AND status = 'pending') ORDER BY sample, trials.id"
        )
        with self._file.decoding():
            theta, drawn, returns = self._samples(rows)
        good = returns[np.isfinite(returns)]
        if good.size < kept.fewest:
            return None
        self._cache = None  # until the transaction is through: a baseline that has learned cannot go back
        try:
            learned = kept.learn(theta, drawn, returns)
        except Exception as error:  # a measure of the user's own may raise anything
            return error
        after, info = learned.after, learned.info
        last = self._file.all("SELECT episodes, best_return FROM updates ORDER BY number DESC LIMIT 1")
        spent, best = last[0] if last else (0, -math.inf)
        episodes, best = spent + len(rows), float(np.max(good, initial=best))
        number = after.learner.iteration
        row = update_row(number, info, returns, episodes, best, after.learner)
        for name, vector_ in (("std", after.std), ("effectiveness", learned.effectiveness)):
            row[name] = None if vector_ is None else vector_.tobytes()
        self._file.insert("updates", row)
        self._file.change("UPDATE trials SET used = ? WHERE id = ?", [(number, one[0]) for one in rows])
        self._file.change("UPDATE state SET iteration = ?", [(number,)])
        if learned.state is not None:
            self._file.change("UPDATE state SET optimizer = ?", [(learned.state,)])
        return Made(info, theta, returns, episodes, best, after)

    def _samples(self, rows: Sequence[tuple[Any, ...]]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Parameters as executed and as drawn, and mean returns of the samples that episodes belong to."""
        blobs: dict[int, tuple[bytes, bytes]] = {}
        values: dict[int, list[float | None]] = {}
        for _, sample, value, blob, drawn in rows:
            blobs.setdefault(sample, (blob, drawn or blob))
            values.setdefault(sample, []).append(value)
        executed, drawn = (
            np.array([self._floats(pair[place]) for pair in blobs.values()]) for place in (0, 1)
        )
        return executed, drawn, np.array([_mean_return(some) for some in values.values()])

    def _announce(self, made: Made | Exception | None) -> Made | None:
        """After the transaction: tell the callback of the update, or the caller that it failed."""
        if isinstance(made, Exception):
            raise StudyError(
                f"what was told is stored, but the update failed: {str(made) or type(made).__name__} "
                "It is tried again with the next return."
            ) from made
        if made is not None:
            self._cache = made.after
            if self._callback is not None:
                self._callback(self._progress(made))
        return made

    def _progress(self, made: Made) -> Progress:
        with self._file.reading():
            learner = self._learner().learner
        return Progress(learner, made.info, made.theta, made.returns, made.episodes, made.best_return)

    def _nothing_to_ask(self) -> StudyError:
        """Why a baseline has nothing to hand out."""
        status, name = self.status(), self._settings.algorithm
        if status.ended:
            return StudyError(f"{name} has come to its end: it has nothing left to try.")
        waiting = [str(one.episode) for one in status.pending]
        if not waiting:
            return StudyError(
                f"{self.path} cannot go on: all returns of update {status.updates + 1} are stored, but "
                f"{name} failed to learn from them."
            )
        some = ", ".join(waiting[:10]) + (f" and {len(waiting) - 10} more" if len(waiting) > 10 else "")
        return StudyError(
            f"{name} must know more before it can name other parameters: episode {some} has not come back. "
            "Tell its return, declare it failed, or hand it out again: reissue_after=SECONDS, on the command "
            "line --reissue-after TIME."
        )

    def _standing(self, number: int) -> tuple[Any, ...]:
        """Status, return and reason of an episode, or a ValueError if there is none."""
        rows = self._file.all("SELECT status, return, reason FROM trials WHERE id = ?", number)
        if not rows:
            (last,) = self._file.one("SELECT max(id) FROM trials")
            there = "none has been handed out yet" if last is None else f"the last one is {last}"
            raise ValueError(f"{self.path} has no episode {number}: {there}.")
        return rows[0]

    def _check_pending(self, number: int) -> None:
        """Refuse to overwrite a result."""
        status, value, reason = self._standing(number)
        if status == "done":
            raise ValueError(f"episode {number} was told before, with the return {value}; that is kept.")
        if status == "failed":
            raise ValueError(
                f"episode {number} was told before, as failed ({reason}); to run it again: klimb study retry "
                f"{self.path} {number}"
            )

    def _episode(self, number: int) -> Episode:
        row = "SELECT iteration, repeat, bounds, seed, parameters FROM episodes WHERE episode = ?"
        iteration, repeat, bounds, seed, blob = self._file.one(row, number)
        theta = self._floats(blob)
        with self._file.decoding():
            return Episode(number, theta, int(seed), iteration, repeat, bounds, self._settings.uid)

    def _rows(self) -> Generator[tables.Row]:
        """Every episode, for export."""
        columns = ", ".join(f'"{name}"' for name in tables.COLUMNS)
        query = f"SELECT {columns}, parameters, drawn FROM episodes ORDER BY episode"
        for *stored, blob, drawn in self._file.rows(query):
            record = dict(zip(tables.COLUMNS, stored, strict=True))
            with self._file.decoding():
                record["seed"] = None if record["seed"] is None else int(record["seed"])
                record["extra"] = None if record["extra"] is None else dict(json.loads(record["extra"]))
            yield record, self._floats(blob), None if drawn is None else self._floats(drawn)

    def _learner(self) -> Kept:
        """The learner of the state in the file, brought up to date where another update was made."""
        if self._settings.learner == acting.KIND:
            raise ValueError(
                f"{self._settings.algorithm} acts step by step, so that nobody else can run its episodes: go "
                f"on with klimb study resume {self.path}, or in Python with Study.run(task, episodes=...)."
            )
        (iteration,) = self._file.one("SELECT iteration FROM state")
        if self._cache is None or self._cache.learner.iteration != iteration:
            self._cache = self._restored(iteration)
        return self._cache

    def _restored(self, iteration: int) -> Kept:
        """The learner after so many updates."""
        kept, self._cache = self._cache, None
        if kept is None or not kept.replays or kept.learner.iteration > iteration:
            measure = self._effectiveness or _absent_measure(self._settings.measure)
            (blob,) = self._file.one("SELECT optimizer FROM state")
            with self._file.decoding():
                kept = restore(self._settings.learner, blob, self._settings.batch, measure)
        while kept.replays and kept.learner.iteration < iteration:
            rows = self._file.all(
                "SELECT trials.id, sample, return, parameters, drawn FROM samples JOIN trials ON "
                "sample = samples.id WHERE iteration = ? ORDER BY sample, trials.id",
                kept.learner.iteration,
            )
            with self._file.decoding():
                told = self._samples(rows)
            try:
                kept = kept.learn(*told).after
            except ValueError as error:
                raise StudyError(
                    f"{self.path} cannot be taken up here: gone through again, {self._settings.algorithm} "
                    f"does not come to what is stored for update {kept.learner.iteration + 1} ({error}). It "
                    "was made with another version of a library, or on another kind of computer, or it is "
                    "damaged."
                ) from None
        learner = kept.learner
        if (learner.iteration, learner.n_parameters) != (iteration, self._settings.n_parameters):
            raise damaged(self.path, "the optimizer does not fit the rest")
        return kept

    def _give_away(self) -> Learner:
        """The learner for a user to keep: a copy, or else the study goes through its episodes again."""
        kept = self._learner()
        if kept.replays:
            self._cache = None
        return kept.learner

    def _agent(self) -> tuple[Stepwise, FloatArray]:
        """A learner that acts step by step: its settings, and the policy that it starts with."""
        (blob,) = self._file.one("SELECT optimizer FROM state")
        with self._file.decoding():
            return acting.restore(blob)

    def _floats(self, blob: Any) -> FloatArray:
        """A vector (n,) of the file; a copy that can be written."""
        n = self._settings.n_parameters
        if not isinstance(blob, bytes) or len(blob) != 8 * n:
            raise damaged(self.path, f"a vector is not {n} numbers long")
        array = np.frombuffer(blob, dtype="<f8").astype(np.float64)
        if not np.isfinite(array).all():
            raise damaged(self.path, "a vector is not finite")
        return array

    def _number(self, episode: Episode | int) -> int:
        if not isinstance(episode, Episode):
            return whole("episode", episode, 1, LARGEST_ID)
        if episode.study != self._settings.uid:
            raise ValueError(
                f"episode {episode.id} belongs to another study, {episode.study}, not to {self.path}, "
                f"{self._settings.uid}."
            )
        return episode.id


def _absent_measure(name: str | None) -> Effectiveness:
    """Stands in for a measure of the user's own: all but an update works without it."""

    def measure(local: FloatArray, returns: FloatArray, rng: np.random.Generator) -> FloatArray:
        raise ValueError(
            f"effectiveness is measured with a function of yours, {name!r}, which no file can hold: open the "
            "study in Python as klimb.Study(path, effectiveness=...)."
        )

    return measure


def _usual_batch(algorithm: Any, n: int) -> int:
    """The algorithm's usual number of samples (or episodes) per update."""
    entry = (ALGORITHMS | BASELINES).get(algorithm.name)
    if entry is not None and entry.batch is not None:
        return entry.batch
    return algorithm.usual_batch(n) if hasattr(algorithm, "usual_batch") else 50


def _mean_return(returns: Sequence[float | None]) -> float:
    """Of the episodes of a sample that did not fail; NaN where all did."""
    good = [value for value in returns if value is not None]
    return math.fsum(value / len(good) for value in good) if good else math.nan


def _spawned_seed(seed: int, *key: int) -> str:
    """The seed of an episode that maximize does not have: a repeat, or a retry."""
    source = np.random.SeedSequence(seed, spawn_key=key)
    return str(source.generate_state(1, np.uint64)[0])


def _evaluate(
    f: Callable[[FloatArray], float] | Evaluates, theta: FloatArray, seeds: list[int]
) -> FloatArray:
    """Returns of the rows of `theta`, each with a seed of its own."""
    if callable(f):
        return np.array([float(f(row)) for row in theta])
    evaluate: Callable[..., Any] = f.evaluate
    return numbers("returns", evaluate(theta, np.array(seeds, dtype=np.uint64)))


def _info(made: Made | None) -> UpdateInfo | None:
    return None if made is None else made.info


def _extra(extra: Mapping[str, Any] | None) -> str | None:
    return None if extra is None else strict_json("extra", extra)


def _text(value: Any) -> str | None:
    if not (value is None or isinstance(value, str)):
        raise ValueError(f"{value!r} is no text")
    return value


def _cutoff(name: str, seconds: float) -> str:
    """The moment so many seconds ago; 0 counts everything, whatever the clocks say."""
    if not (is_number(seconds) and 0 <= seconds <= 1e9):
        raise ValueError(f"{name} must be a number of seconds from 0 to 1e9, but {seconds!r} came.")
    return "9999" if seconds == 0 else as_text(datetime.now(UTC) - timedelta(seconds=float(seconds)))
