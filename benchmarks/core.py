"""The core measured: safety on 10,000 random problems, speed as ratios, learning on the LQR.

Every timing is CPU time, the least of several, and a ratio within one run with single-threaded BLAS:
absolute times say more about the machine than about klimb. Run with ``make bench``.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np
import scipy.linalg
from problems import random_problem
from rich.console import Console
from rich.progress import track
from rich.table import Table

import klimb
from klimb.effectiveness import mutual_information
from klimb.updates import ConstrainedRelativeEntropy

PROBLEMS = 10_000
SEEDS = range(10)
MUSHROOM_LQR = 300  # episodes per second of MushroomRL 1.10.2 on a quiet core

console = Console(width=120)


def least(work: Callable[[], object], repeats: int = 7) -> float:
    """Least CPU time of `work` in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    made = Table(*columns, title=title, title_justify="left")
    for row in rows:
        made.add_row(*row)
    console.print(made)


def safety() -> None:
    """Both bounds on random problems, from easy to nasty."""
    failures, indefinite = 0, 0
    worst_kl = worst_drop = worst_active = -np.inf
    for seed in track(range(PROBLEMS), "random problems", console=console, transient=True):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng)
        full = bool(rng.random() < 0.7)
        update = ConstrainedRelativeEntropy(problem.epsilon, problem.kappa)
        try:
            posterior, info = update(problem.prior, problem.samples, problem.returns, full)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):
            failures += 1
            continue
        finite = np.isfinite(posterior.mean).all() and np.isfinite(posterior.variances).all()
        indefinite += not (finite and posterior.variances.min() > 0)
        kl = problem.prior.kl(posterior) - problem.epsilon
        drop = problem.prior.entropy - posterior.entropy - problem.kappa
        worst_kl, worst_drop = max(worst_kl, kl), max(worst_drop, drop)
        if info.eta is not None and info.eta > 1e-12:
            worst_active = max(worst_active, abs(kl))
        if info.omega is not None and info.eta is not None and info.omega > 1e-9 * (1 + info.eta):
            worst_active = max(worst_active, abs(drop))
    rows = [
        ("failures", str(failures), "0"),
        ("not positive definite", str(indefinite), "0"),
        ("KL above epsilon, worst", f"{worst_kl:.1e}", "1e-9"),
        ("entropy drop above kappa, worst", f"{worst_drop:.1e}", "1e-9"),
        ("active bound missed by, worst", f"{worst_active:.1e}", "1e-8"),
    ]
    table(f"CREPS update, {PROBLEMS} random problems", ("", "measured", "bar"), rows)


def update_time(algorithm: klimb.Search, n: int, batch: int) -> float:
    """CPU time of a tell in the middle of a run, in seconds."""
    task = klimb.make_task("sphere", n_parameters=n)
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(n), std=task.initial_std, seed=0)
    times = []
    for _ in range(12):
        theta = optimizer.ask(batch)
        returns = task.evaluate(theta)
        start = time.process_time()
        optimizer.tell(theta, returns)
        times.append(time.process_time() - start)
    return min(times[2:])  # after two updates all coordinates may be mixed


def speed() -> None:
    rng = np.random.default_rng(0)

    def eigh(n: int) -> float:
        A = rng.standard_normal((n, n))
        return least(lambda: scipy.linalg.eigh(A @ A.T))

    large, small = eigh(450), eigh(100)
    cases = [
        (
            "DR-CREPS n=450 m=200 N=15, Pearson",
            klimb.dr_creps(3.4, 20.0, 200),
            450,
            15,
            large,
            "eigh 450",
            1.0,
        ),
        (
            "DR-CREPS n=100 m=50 N=50, Pearson",
            klimb.dr_creps(4.7, 17.0, 50),
            100,
            50,
            large,
            "eigh 450",
            None,
        ),
        (
            "DR-CREPS n=100 m=50 N=50, MI",
            klimb.dr_creps(4.7, 17.0, 50, effectiveness="mutual-information"),
            100,
            50,
            large,
            "eigh 450",
            None,
        ),
        ("CREPS n=450 N=50, full", klimb.creps(4.7, 17.0), 450, 50, large, "eigh 450", 1.5),
        ("CREPS n=100 N=150, full", klimb.creps(4.7, 17.0), 100, 150, small, "eigh 100", None),
        ("MORE n=100 N=250, full", klimb.more(4.7, 17.0), 100, 250, small, "eigh 100", 40.0),
    ]
    rows = []
    for name, algorithm, n, batch, unit, unit_name, bar in cases:
        seconds = update_time(algorithm, n, batch)
        wanted = "" if bar is None else f"< {bar:g}"
        rows.append((name, f"{1e3 * seconds:.2f} ms", f"{seconds / unit:.2f} x {unit_name}", wanted))
    table("One update", ("", "CPU time", "ratio", "bar"), rows)

    from sklearn.feature_selection import mutual_info_regression

    X, y = rng.standard_normal((50, 100)), rng.standard_normal(50)
    mutual_information(X, y)
    ours = least(lambda: mutual_information(X, y))
    theirs = least(lambda: mutual_info_regression(X, y, n_neighbors=4), 3)
    error = np.abs(mutual_information(X, y) - mutual_info_regression(X, y, n_neighbors=4)).max()
    lqr = klimb.make_task("lqr")
    theta = 0.3 * rng.standard_normal((50, 100))
    lqr.evaluate(theta)
    rate = 50 / least(lambda: lqr.evaluate(theta), 50)
    rows = [
        (
            "mutual information 50 x 100",
            f"{1e3 * ours:.2f} ms",
            f"{theirs / ours:.0f} x scikit-learn",
            ">= 50",
        ),
        ("  difference to scikit-learn", f"{error:.1e}", "", "1e-8"),
        ("LQR, N=50", f"{rate:.0f} episodes/s", f"{rate / MUSHROOM_LQR:.0f} x MushroomRL", ">= 100"),
    ]
    table("Evaluation", ("", "", "ratio", "bar"), rows)


def million() -> None:
    """One ask and tell with a million parameters, in a process of its own for the sake of its memory."""
    output = subprocess.run(
        [sys.executable, __file__, "--million"], check=True, capture_output=True, text=True
    )
    drawing, step, gigabytes = map(float, output.stdout.split())
    rows = [
        ("ask + tell", f"{step:.2f} s", f"{step / drawing:.2f} x drawing 50e6 normals", "<= 4"),
        ("peak memory", f"{gigabytes:.2f} GB", "", "<= 3"),
    ]
    table("DR-CREPS, n = 1,000,000, m = 50, N = 50", ("", "measured", "ratio", "bar"), rows)


def measure_million() -> None:
    n, N = 1_000_000, 50
    drawing = least(lambda: np.random.default_rng(0).standard_normal((N, n)), 3)
    optimizer = klimb.Optimizer(klimb.dr_creps(3.0, 10.0, n_effective=50), mean=np.zeros(n), std=1.0, seed=0)
    times = []
    for _ in range(4):
        start = time.process_time()
        theta = optimizer.ask(N)
        asked = time.process_time() - start
        returns = -np.square(theta[:, :100]).sum(1)
        start = time.process_time()
        optimizer.tell(theta, returns)
        times.append(asked + time.process_time() - start)
    print(drawing, min(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def learning() -> None:
    """Mean return under the belief on the LQR, the paper's settings."""
    task = klimb.make_task("lqr")
    variants = {
        "DR-CREPS (PCC)": (klimb.dr_creps(4.7, 17.0, 50, 0.1), 50),
        "DR-CREPS (PCC) without PE": (klimb.dr_creps(4.7, 17.0, 50, 1.0), 50),
        "DR-CREPS (MI)": (klimb.dr_creps(4.7, 17.0, 50, 0.1, "mutual-information"), 50),
        "CREPS, N=150": (klimb.creps(4.7, 17.0), 150),
        "CREPS, small batch, N=50": (klimb.creps(4.7, 17.0), 50),
        "MORE, N=250": (klimb.more(4.7, 17.0), 250),
    }
    marks = (1000, 2000, 3000, 5000)
    rows = []
    for name, (algorithm, batch) in track(variants.items(), "LQR", console=console, transient=True):
        curves = np.empty((len(SEEDS), len(marks)))
        for row, seed in enumerate(SEEDS):
            optimizer = klimb.Optimizer(algorithm, mean=np.zeros(100), std=0.3, seed=seed)
            for episodes in range(batch, 5001, batch):
                theta = optimizer.ask(batch)
                optimizer.tell(theta, task.evaluate(theta))
                draws = optimizer.belief.sample(np.random.default_rng([seed, episodes]), 200)
                reached = task.evaluate(draws).mean()
                for column, mark in enumerate(marks):
                    if episodes <= mark:
                        curves[row, column] = reached
        mean, error = curves.mean(0), 1.96 * curves.std(0, ddof=1) / np.sqrt(len(SEEDS))
        rows.append((name, *(f"{m:.2f} ± {e:.2f}" for m, e in zip(mean, error, strict=True))))
    columns = ("", *(f"{mark} episodes" for mark in marks))
    title = (
        f"LQR, mean return under the belief, {len(SEEDS)} seeds, 95 % interval (optimum {task.optimum:.3f})"
    )
    table(title, columns, rows)


if __name__ == "__main__":
    if "--million" in sys.argv:
        measure_million()
    else:
        speed()
        million()
        learning()
        safety()
