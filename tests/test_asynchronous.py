"""Asynchronous updates: no sample is lost or used twice, a late one goes into the next update."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation_tasks import naps
from typer.testing import CliRunner

import klimb
from klimb.cli import app
from klimb.evaluation import Workers
from klimb.tasks import make_task, task_from_function

SPHERE = make_task("sphere", n_parameters=4)
SETTINGS = {"mean": np.ones(4), "std": 1.0, "episodes": 95, "batch": 10, "seed": 3}


class Background:
    """Evaluates in this process, and hands results out in an order of its own choosing."""

    def __init__(self, task, count, late=(), fail=()):
        self.task, self.count, self.late, self.fail = task, count, set(late), set(fail)
        self.held, self.ended, self.tickets, self.seeds = [], [], 0, []

    def submit(self, theta, seed):
        tickets = np.arange(self.tickets, self.tickets + len(theta))
        self.tickets += len(theta)
        self.seeds.append(seed)
        for ticket, value in zip(tickets, self.task.evaluate(theta, seed), strict=True):
            value = np.nan if ticket in self.fail else value
            (self.held if ticket in self.late else self.ended).append((ticket, value))
        return tickets

    def collect(self, count):
        if len(self.ended) < count:  # everything else has come: now the late ones do
            self.ended, self.held = self.ended + self.held, []
        tickets, returns = zip(*self.ended, strict=True) if self.ended else ((), ())
        self.ended = []
        return np.array(tickets, dtype=int), np.array(returns, dtype=float), None

    def abandon(self):
        self.held, self.ended = [], []


def watched(task, algorithm=None, **changes):
    seen = []
    algorithm = algorithm or klimb.cem(n_elite=4)
    result = klimb.maximize(
        task, algorithm, **SETTINGS | changes, callback=seen.append, asynchronous=hasattr(task, "submit")
    )
    return result, seen


def test_without_a_worker_to_spare_it_is_the_synchronous_search():
    result, seen = watched(Background(SPHERE, 0))
    expected, expected_seen = watched(SPHERE)
    assert np.array_equal(result.mean, expected.mean)
    assert np.array_equal(result.curve, expected.curve)
    assert np.array_equal(result.best_parameters, expected.best_parameters)
    assert [update.episodes for update in seen] == [update.episodes for update in expected_seen]


def test_a_late_result_goes_into_the_next_update():
    _, prompt = watched(Background(SPHERE, 2))
    result, seen = watched(Background(SPHERE, 2, late=[4]))
    late = prompt[0].theta[4]
    assert not (seen[0].theta == late).all(axis=1).any()
    assert (seen[-1].theta == late).all(axis=1).sum() + (seen[1].theta == late).all(axis=1).sum() == 1
    assert result.episodes == 90
    assert [len(update.theta) for update in seen] == [10] * 9
    used = np.concatenate([update.theta for update in seen])
    assert len(np.unique(used, axis=0)) == 90  # each once


def test_failed_episodes_are_carried_over_until_there_are_enough_good_ones():
    result, seen = watched(Background(SPHERE, 2, fail=range(15)), episodes=40)
    assert [update.info.n_used for update in seen] == [0, 5, 10, 10]
    assert result.n_failed == 15
    with pytest.raises(RuntimeError, match="nothing to learn from"):
        watched(Background(SPHERE, 2, fail=range(100)), episodes=40)


def test_seeds_of_episodes_never_come_twice():
    background = Background(SPHERE, 3)
    watched(background)
    assert len(set(background.seeds)) == len(background.seeds) == 9


def test_a_slow_episode_holds_no_update_up():
    seen = []
    with Workers(task_from_function(naps, 1), 2) as workers:
        workers.evaluate(np.full((4, 1), 0.03))  # the pace is known: one or two at a time
        submit = workers.submit

        def submit_a_slow_one_first(theta, seed):
            durations = np.full_like(theta, 0.03)
            durations[0] = 0.03 if seen else 1.0
            return submit(durations, seed)

        workers.submit = submit_a_slow_one_first
        settings = SETTINGS | {"mean": [0.0], "episodes": 50, "callback": seen.append}
        klimb.maximize(workers, klimb.cem(n_elite=2), **settings, asynchronous=True)
    assert [len(update.returns) for update in seen] == [10] * 5
    assert 1.0 not in seen[0].returns
    assert sum((update.returns == 1.0).sum() for update in seen) == 1


def test_what_cannot_be_asynchronous_is_refused():
    with pytest.raises(ValueError, match="asynchronous updates need workers"):
        klimb.maximize(SPHERE, klimb.cem(n_elite=4), **SETTINGS, asynchronous=True)
    with pytest.raises(ValueError, match="a baseline learns from whole batches"):
        klimb.maximize(Background(SPHERE, 1), klimb.make_algorithm("ars"), **SETTINGS, asynchronous=True)
    done = CliRunner().invoke(app, ["run", "lqr", "--algorithm", "ars", "--async"])
    assert done.exit_code == 2
    assert "--async is of no use to ars, which learns from whole batches" in done.stderr


def create(path):
    return klimb.Study.create(path, klimb.cem(n_elite=4), mean=np.ones(4), std=1.0, batch=10, seed=3)


def test_a_study_of_a_baseline_cannot_be_asynchronous(tmp_path):
    ars = klimb.make_algorithm("ars")
    with klimb.Study.create(tmp_path / "ars.db", ars, mean=np.ones(4), std=1.0, batch=8, seed=3) as study:
        with pytest.raises(ValueError, match="ars learns from whole batches"):
            study.run(Background(SPHERE, 1), episodes=16, asynchronous=True)
        assert study.status().done == 0


def test_a_study_learns_asynchronously_and_takes_up_what_was_pending(tmp_path):
    with create(tmp_path / "sync.db") as study:
        expected = study.run(SPHERE, episodes=90)
    with create(tmp_path / "prompt.db") as study:
        result = study.run(Background(SPHERE, 0), episodes=90, asynchronous=True)
        assert np.array_equal(result.mean, expected.mean)
    with create(tmp_path / "late.db") as study:
        study.run(Background(SPHERE, 3, late=[2, 5]), episodes=90, asynchronous=True, callback=lambda _: True)
        standing = study.status()
        assert (standing.done, standing.updates) == (11, 1)  # 13 were handed out
        assert len(standing.pending) == 2
        study.run(Background(SPHERE, 3, late=[1]), episodes=90, asynchronous=True)
        standing = study.status()
        assert (standing.done, standing.failed, standing.pending) == (90, 0, [])
        assert (np.diff(standing.curve["episodes"], prepend=0) >= 10).all()


def test_the_command_line_runs_asynchronously_and_counts_successes():
    command = ["run", "air-hockey", "--episodes", "60", "--batch", "20", "--quiet", "--json"]
    done = CliRunner().invoke(app, [*command, "--workers", "2", "--async"])
    assert done.exit_code == 0, done.output
    assert '"episodes": 60' in done.stdout
    assert '"updates": 3' in done.stdout
