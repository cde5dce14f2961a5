"""klimb beside its peers: MushroomRL, pycma and scikit-learn, in one run on one machine.

``make bench-peers`` runs it. Figures go to ``benchmarks/results/peers.json``, and from there a table and a
picture into docs/performance.md; ``python benchmarks/peers.py --draw`` only does the latter. All times are
CPU time with one BLAS thread. A measurement of a peer that takes longer than its limit is given up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from core import console, least
from publishing import DOCS, publish
from rich.progress import Progress

import klimb
from klimb.effectiveness import mutual_information

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "peers.json"
PAGE, PICTURE = DOCS / "performance.md", DOCS / "figures" / "performance.png"

SIZES = (100, 450, 1000)
BATCH = 250
LIMIT = 240  # seconds of wall time that a measurement of a peer may take, its start included
GIVEN_UP = f"over {LIMIT} s"
GROWTH = tuple(10**power for power in (2, 3, 4, 5, 6))
GROWTH_BATCH, GROWTH_LIMIT = 50, 20.0  # a step that takes longer is not tried with more parameters
# as in peers_mushroom.py
EPSILON, KAPPA, BETA = 1.0, 5.0, 2.0
OURS: dict[str, Callable[[int], klimb.Search]] = {
    "DR-CREPS": lambda n: klimb.dr_creps(EPSILON, KAPPA, n_effective=n // 2),
    "CREPS": lambda n: klimb.creps(EPSILON, KAPPA),
    "REPS": lambda n: klimb.reps(EPSILON),
    "RWR": lambda n: klimb.rwr(BETA),
    "MORE": lambda n: klimb.more(EPSILON, KAPPA),
}
TASKS = {"lqr": 50, "ship-steering": 15}


def mushroom(python: str, *words: Any) -> dict[str, Any]:
    """A measurement in MushroomRL's own environment."""
    command = [python, str(HERE / "peers_mushroom.py"), *map(str, words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": GIVEN_UP}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": last[0]}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def update_seconds(algorithm: klimb.Search, n: int) -> float:
    """Least CPU time of a tell, on the problem of peers_mushroom.py."""
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(n), std=1.0, seed=0)
    times = []
    for _ in range(6):
        theta = optimizer.ask(BATCH)
        begin = time.process_time()
        optimizer.tell(theta, -np.square(theta - 1.0).sum(axis=1))
        times.append(time.process_time() - begin)
    return min(times)


def episode_rate(name: str, batch: int) -> dict[str, float]:
    """Episodes per second of CPU time, with parameters from the task's initial distribution."""
    task = klimb.make_task(name)
    theta = task.initial_std * np.random.default_rng(0).standard_normal((batch, task.n_parameters))
    task.evaluate(theta)
    return {"rate": batch / least(lambda: task.evaluate(theta), 20)}


def information(N: int, n: int) -> dict[str, float]:
    """Mutual information of n parameters with the return, by klimb and by scikit-learn."""
    from sklearn.feature_selection import mutual_info_regression

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, n)), rng.standard_normal(N)
    ours = mutual_information(X, y)
    theirs = mutual_info_regression(X, y, n_neighbors=4)
    return {
        "klimb": least(lambda: mutual_information(X, y)),
        "scikit-learn": least(lambda: mutual_info_regression(X, y, n_neighbors=4), 3),
        "difference": float(np.abs(ours - theirs).max()),
    }


def ours_step(covariance: Literal["full", "diagonal"]) -> Callable[[int], Callable[[], None]]:
    """One ask and tell of DR-CREPS."""

    def make(n: int) -> Callable[[], None]:
        algorithm = klimb.dr_creps(EPSILON, KAPPA, n_effective=50, covariance=covariance)
        optimizer = klimb.Optimizer(algorithm, mean=np.zeros(n), std=1.0, seed=0)

        def step() -> None:
            theta = optimizer.ask(GROWTH_BATCH)
            optimizer.tell(theta, -np.square(theta[:, :100] - 1.0).sum(axis=1))

        return step

    return make


def pycma_step(restricted: bool) -> Callable[[int], Callable[[], None]]:
    """One ask and tell of pycma, with a full covariance or that of VkD-CMA."""

    def make(n: int) -> Callable[[], None]:
        import cma
        from cma.restricted_gaussian_sampler import GaussVkDSampler

        options: dict[str, Any] = {"popsize": GROWTH_BATCH, "seed": 1, "verbose": -9}
        if restricted:
            options = GaussVkDSampler.extend_cma_options(options)
        search = cma.CMAEvolutionStrategy(np.zeros(n), 1.0, options)

        def step() -> None:
            theta = search.ask()
            search.tell(theta, [float(np.square(row[:100] - 1.0).sum()) for row in theta])

        return step

    return make


STEPS: dict[str, Callable[[int], Callable[[], None]]] = {
    "klimb DR-CREPS": ours_step("full"),
    "klimb DR-CREPS, diagonal": ours_step("diagonal"),
    "pycma, full": pycma_step(restricted=False),
    "pycma, VkD": pycma_step(restricted=True),
}
LARGEST = {
    "pycma, full": 3_000
}  # beyond, its n x n matrices would fill the memory before the limit is reached


def step_seconds(make: Callable[[int], Callable[[], None]], n: int) -> float:
    """Mean CPU time of an ask and tell: pycma does not decompose its covariance in each of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pycma says what it thinks of plotting and large dimensions
        step = make(n)
        step()
        count, begin = 0, time.process_time()
        while count < 3 or (count < 30 and time.process_time() - begin < 3.0):
            step()
            count += 1
            if time.process_time() - begin > GROWTH_LIMIT:
                break
    return (time.process_time() - begin) / count


def measure(python: str | None) -> dict[str, Any]:
    """All of it."""
    figures: dict[str, Any] = {"machine": machine(python), "update": {}, "episodes": {}, "information": []}
    absent = {"error": "not installed"}
    with Progress(console=console, transient=True) as bar:
        place = bar.add_task("updates", total=len(SIZES) * len(OURS) + len(TASKS) + 3 + len(STEPS))
        for n in SIZES:
            for name, make in OURS.items():
                theirs = None
                if name != "DR-CREPS":
                    theirs = absent if python is None else mushroom(python, "update", name, n, BATCH)
                ours = update_seconds(make(n), n)
                figures["update"][f"{name} {n}"] = {"klimb": ours, "mushroom": theirs}
                bar.advance(place)
        for name, batch in TASKS.items():
            bar.update(place, description="episodes")
            theirs = absent if python is None else mushroom(python, "episodes", name)
            figures["episodes"][name] = {"klimb": episode_rate(name, batch), "mushroom": theirs}
            bar.advance(place)
        for N, n in ((50, 100), (250, 450), (250, 1000)):
            bar.update(place, description="mutual information")
            figures["information"].append({"N": N, "n": n, **information(N, n)})
            bar.advance(place)
        figures["growth"] = {}
        for name, make_step in STEPS.items():
            bar.update(place, description=name)
            measured: dict[str, float] = {}
            for n in GROWTH:
                if n > LARGEST.get(name, n) or (measured and max(measured.values()) > GROWTH_LIMIT / 3):
                    break
                measured[str(n)] = step_seconds(make_step, n)
            figures["growth"][name] = measured
            bar.advance(place)
    return figures


def machine(python: str | None) -> dict[str, str]:
    """Where this was measured, and with what."""
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    packages = ("klimb", "numpy", "scipy", "cma", "scikit-learn")
    found = {name: version(name) for name in packages}
    if python is not None:
        code = "from importlib.metadata import version as v; print(v('mushroom-rl'), v('numpy'))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        found["mushroom-rl"] = "{} (numpy {})".format(*done.stdout.split())
    return {
        "processor": processor,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        **found,
    }


# ------------------------------------------------------------------------------------------------ the page


def seconds(value: float | None) -> str:
    """Three digits and a fitting unit."""
    if value is None:
        return "-"
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def grid(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *map(list, rows)]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def beside(ours: float, theirs: dict[str, Any] | None, key: str) -> tuple[str, str]:
    """What a peer needs or manages, and how many times better klimb is."""
    if theirs is None:
        return "has none", ""
    value, error = theirs.get(key), theirs.get("error")
    if value is None:
        return f"given up: {error}" if error == GIVEN_UP else f"fails ({error})", ""
    ratio = value / ours if key == "seconds" else ours / value
    text = seconds(value) if key == "seconds" else f"{value:.3g}"
    return text + (f", then fails ({error})" if error else ""), f"{ratio:.2g}"


def page(figures: dict[str, Any]) -> str:
    """The made part of docs/performance.md."""
    where = figures["machine"]
    processor, cores, python = where["processor"], where["cores"], where["python"]
    names = [f"{name} {where[name]}" for name in where if name not in ("processor", "cores", "python")]
    lines = [f"{processor}, {cores} cores, Python {python}; {', '.join(names)}.", ""]
    lines += [
        "### Seconds per update",
        "",
        f"{BATCH} episodes per update, full covariance, epsilon 1, kappa 5.",
        "",
    ]
    rows = []
    for name, entry in figures["update"].items():
        algorithm, n = name.rsplit(" ", 1)
        rows.append(
            (algorithm, n, seconds(entry["klimb"]), *beside(entry["klimb"], entry["mushroom"], "seconds"))
        )
    lines += grid(("algorithm", "n", "klimb", "MushroomRL", "times as fast"), rows)
    lines += ["### Episodes per second", ""]
    rows = []
    for name, entry in figures["episodes"].items():
        rate = entry["klimb"]["rate"]
        rows.append((name, str(TASKS[name]), f"{rate:.3g}", *beside(rate, entry["mushroom"], "rate")))
    lines += grid(("task", "batch", "klimb", "MushroomRL", "times as fast"), rows)
    lines += ["### Mutual information with the return", ""]
    rows = []
    for entry in figures["information"]:
        ours, theirs = entry["klimb"], entry["scikit-learn"]
        gap = f"{entry['difference']:.0e}"
        rows.append(
            (f"{entry['N']} x {entry['n']}", seconds(ours), seconds(theirs), f"{theirs / ours:.2g}", gap)
        )
    lines += grid(("samples", "klimb", "scikit-learn", "times as fast", "largest difference"), rows)
    lines += [
        "### One ask and tell as n grows",
        "",
        f"{GROWTH_BATCH} episodes per update; n_effective = 50.",
        "",
    ]
    columns = [f"n = {n:,}" for n in GROWTH]
    rows = []
    for name, measured in figures["growth"].items():
        rows.append((name, *(seconds(measured.get(str(n))) for n in GROWTH)))
    lines += grid(("", *columns), rows)
    lines += ["![seconds per ask and tell against the number of parameters](figures/performance.png)"]
    return "\n".join(lines)


def draw(figures: dict[str, Any]) -> None:
    """The growth of ask + tell, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    # Okabe and Ito's palette
    styles = dict(
        zip(STEPS, (("#0072B2", "o"), ("#56B4E9", "s"), ("#D55E00", "^"), ("#E69F00", "v")), strict=True)
    )
    for name, measured in figures["growth"].items():
        colour, marker = styles[name]
        axes.loglog(
            [int(n) for n in measured], list(measured.values()), color=colour, marker=marker, label=name
        )
    axes.set(xlabel="parameters n", ylabel="CPU seconds per ask + tell")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mushroom", metavar="PYTHON", help="interpreter of an environment with MushroomRL")
    parser.add_argument("--draw", action="store_true", help="only write the page from the stored figures")
    arguments = parser.parse_args()
    if not arguments.draw:
        figures = measure(arguments.mushroom)
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    figures = json.loads(RESULTS.read_text())
    publish(PAGE, "make bench-peers", page(figures))
    draw(figures)
    console.print(f"{RESULTS.name}, {PAGE.name} and {PICTURE.name} are written.")


if __name__ == "__main__":
    main()
