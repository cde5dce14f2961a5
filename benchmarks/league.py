"""What the league table says: runs read from their files, compared mark by mark, as Markdown and a picture.

`samples.py` makes the runs and calls `report`. A value is the mean over seeds; rows are compared by paired
differences, seed by seed, with a 95 % interval of Student's t. A run is measured in two ways, by its
population and by its mean vector; tables are of the population where they do not say otherwise.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from klimb._validation import FloatArray
from klimb.report.figures import mean_and_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = dict[int, FloatArray]
"""Seed -> population and mean vector at every mark, (marks, 2); NaN where a run did not go so far."""
Table = dict[str, dict[str, Runs]]
"""Column -> row -> runs."""

HEADER = ("row", "seed", "mark", "population", "mean", "ms")  # of a column's file
MEASURES = ("population", "mean vector")
RIVALS = ("vkd-cma", "dr-creps")  # auto must not be behind these
POINTS = ("nelder-mead", "random-search")  # these have no search distribution: their population is one point


def read(folder: Path, columns: Sequence[str], rows: Collection[str], marks: Sequence[int]) -> Table:
    """Runs of these columns and rows, as far as there are any."""
    table: Table = {}
    for column in columns:
        found: dict[str, Runs] = {}
        for line in stored(folder, column):
            if line["row"] in rows:
                runs = found.setdefault(line["row"], {})
                run = runs.setdefault(int(line["seed"]), np.full((len(marks), 2), np.nan))
                run[marks.index(int(line["mark"]))] = float(line["population"]), float(line["mean"])
        if found:
            table[column] = found
    return table


def stored(folder: Path, column: str) -> list[dict[str, str]]:
    """Lines of a column so far."""
    path = folder / f"{column}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def store(folder: Path, column: str, lines: Sequence[Sequence[str]]) -> None:
    """Add the lines of a run; they take the place of an earlier one of its row and seed."""
    folder.mkdir(parents=True, exist_ok=True)
    row, seed = lines[0][:2]
    others = [line.values() for line in stored(folder, column) if (line["row"], line["seed"]) != (row, seed)]
    part = folder / f"{column}.part"
    with part.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *others, *lines])
    part.replace(folder / f"{column}.csv")


def levelled(table: Table, ceilings: Mapping[str, float]) -> Table:
    """The table with what is above the ceiling of its column put there: that is as good as the optimum."""
    return {
        column: {
            row: {seed: np.minimum(run, ceilings.get(column, math.inf)) for seed, run in runs.items()}
            for row, runs in rows.items()
        }
        for column, rows in table.items()
    }


def averages(runs: Runs, measure: str = "population") -> FloatArray:
    """Mean over seeds, (marks,); NaN where a seed is missing."""
    values = np.array([run[:, MEASURES.index(measure)] for run in runs.values()])
    mean: FloatArray = values[0] + (values - values[0]).mean(axis=0)  # of equal values, exactly their value
    return mean


class Difference(NamedTuple):
    """Auto less a rival at a mark: mean over common seeds, ends of its interval, and how many seeds."""

    column: str
    rival: str
    mark: int
    mean: float
    low: float
    high: float
    seeds: int

    @property
    def verdict(self) -> str:
        """What the interval says; with less than two seeds there is none."""
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "undecided"


def differences(table: Table, marks: Sequence[int]) -> Iterator[Difference]:
    """All of auto's."""
    for column, rows in table.items():
        for rival in rows:
            common = sorted(rows.get("auto", {}).keys() & rows[rival].keys())
            if rival == "auto" or not common:
                continue
            pairs = np.array([rows["auto"][seed][:, 0] - rows[rival][seed][:, 0] for seed in common])
            for mark, pair in zip(marks, pairs.T, strict=True):
                if np.isfinite(pair).all():
                    yield Difference(column, rival, mark, *interval(pair), pair.size)


def interval(pair: FloatArray) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % interval, which one seed leaves open."""
    (mean,), (half,) = mean_and_interval(pair[:, None])
    reach = float(half) if pair.size > 1 else math.inf
    return float(mean), float(mean) - reach, float(mean) + reach


def report(table: Table, tuned: Collection[str], marks: Sequence[int], kind: Callable[[str], str]) -> str:
    """Markdown: for either half, how often auto leads, ranks, verdicts; then every kind and every column."""
    parts = []
    for half, members in (
        ("Not tuned on", [column for column in table if column not in tuned]),
        ("Tuned on", [column for column in table if column in tuned]),
    ):
        chosen = {column: table[column] for column in members if "auto" in table[column]}
        if chosen:
            told = list(differences(chosen, marks))
            parts += [
                f"### {half}: {len(chosen)} columns",
                summary(chosen, told),
                ranking(chosen, marks, told),
                kinds_of(chosen, marks, kind),
                columns_of(chosen, marks),
            ]
    return "\n\n".join(parts)


def summary(table: Table, told: Sequence[Difference]) -> str:
    """How often auto leads, and whom it is behind."""
    worse = [each for each in told if each.verdict == "behind"]
    behind = {rival: sorted({each.column for each in worse if each.rival == rival}) for rival in RIVALS}
    whole = {column for column, rows in table.items() if np.isfinite(leading(rows)).all()}
    lost = sorted({each.column for each in worse if each.rival not in POINTS} & whole)
    return " ".join(
        [
            f"By the mean over seeds, auto is ahead of every other row at every mark in {won(table)}.",
            f"Without the rows that are a single point ({', '.join(POINTS)}): {won(table, POINTS)}.",
            "Of these others, one or more are ahead of it beyond the 95 % interval at some mark in "
            f"{len(lost)} of {len(whole)} columns that ran to the end"
            + (f" ({', '.join(lost)})." if lost else "."),
            f"By the mean vector instead of the population: {won(table, measure='mean vector')}.",
            *(
                f"It is behind {rival} beyond the 95 % interval at some mark in {len(names)} columns"
                + (f" ({', '.join(names)})." if names else ".")
                for rival, names in behind.items()
            ),
        ]
    )


def won(table: Table, without: Collection[str] = (), measure: str = "population") -> str:
    """In how many columns auto leads at every mark, and at how many marks."""
    leads = [leading(rows, measure, without) for rows in table.values()]
    marks = np.concatenate([lead[np.isfinite(lead)] for lead in leads])
    whole = [lead for lead in leads if np.isfinite(lead).all()]
    columns = sum(int(lead.all()) for lead in whole)
    return f"{columns} of {len(whole)} columns that ran to the end, and at {marks.mean():.0%} of all marks"


def ranking(table: Table, marks: Sequence[int], told: Sequence[Difference]) -> str:
    """Mean ranks, where all rows have run, and what the intervals say."""
    places: dict[str, list[FloatArray]] = {}
    for rows in table.values():
        means = np.array([averages(runs) for runs in rows.values()])
        rank = np.array([(means > mean).sum(axis=0) + 1.0 for mean in means])
        for row, place in zip(rows, np.where(np.isfinite(means).all(axis=0), rank, np.nan), strict=True):
            places.setdefault(row, []).append(place)
    ranks = {row: column_means(np.array(place)) for row, place in places.items()}
    body = []
    for row in sorted(ranks, key=lambda row: float(np.nanmean(ranks[row]))):
        verdicts = [each.verdict for each in told if each.rival == row]
        counts = [str(verdicts.count(kind)) if verdicts else "" for kind in ("ahead", "undecided", "behind")]
        body.append([row, str(len(places[row])), *(number(rank, ".1f") for rank in ranks[row]), *counts])
    return markdown(
        ["mean rank after", "columns", *map(str, marks), "auto ahead", "undecided", "auto behind"], body
    )


def kinds_of(table: Table, marks: Sequence[int], kind: Callable[[str], str]) -> str:
    """Per kind of column: the share of columns where auto leads, by population without points / by mean."""
    groups: dict[str, list[str]] = {}
    for column in table:
        groups.setdefault(kind(column), []).append(column)
    body = []
    for name, members in groups.items():
        population = column_means(np.array([leading(table[column], without=POINTS) for column in members]))
        mean = column_means(np.array([leading(table[column], "mean vector") for column in members]))
        cells = [f"{number(a, '.0%')} / {number(b, '.0%')}" for a, b in zip(population, mean, strict=True)]
        body.append([name, str(len(members)), *cells])
    return markdown(["auto leads in, population / mean vector", "columns", *map(str, marks)], body)


def leading(
    rows: Mapping[str, Runs], measure: str = "population", without: Collection[str] = ()
) -> FloatArray:
    """1 where auto is ahead of all or level with the best, else 0, (marks,); NaN where it did not run."""
    own = averages(rows["auto"], measure)
    others = [averages(runs, measure) for row, runs in rows.items() if row not in ("auto", *without)]
    best = np.fmax.reduce(others) if others else np.full_like(own, np.nan)
    return np.where(np.isfinite(own), ~(best > own), np.nan)


def columns_of(table: Table, marks: Sequence[int]) -> str:
    """Per column: what auto has at every mark and, where another row is ahead, which one and what it has."""
    body = []
    for column, rows in table.items():
        means = {row: averages(runs) for row, runs in rows.items()}
        cells = []
        for place in range(len(marks)):
            known = {row: mean[place] for row, mean in means.items() if np.isfinite(mean[place])}
            best = max(known, key=lambda row: known[row], default="")
            cell = number(known.get("auto", math.nan), ".3g")
            if "auto" in known and known[best] > known["auto"]:
                cell += f" ({best} {number(known[best], '.3g')})"
            cells.append(cell)
        body.append([column, str(len(rows["auto"])), *cells])
    return markdown(["column", "seeds", *map(str, marks)], body)


def column_means(values: FloatArray) -> FloatArray:
    """Means over the first axis of what there is."""
    there = np.isfinite(values)
    count = there.sum(axis=0)
    mean: FloatArray = np.where(
        count, np.where(there, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan
    )
    return mean


def number(value: float, form: str) -> str:
    """A number, or nothing if it is none."""
    return format(value, form).replace("-", "−") if math.isfinite(value) else ""


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *body])


def write_differences(table: Table, marks: Sequence[int], path: Path) -> None:
    """Every paired difference with its interval, as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Difference._fields, "verdict"])
        for each in differences(table, marks):
            cells = [f"{value:.6g}" for value in (each.mean, each.low, each.high)]
            writer.writerow([each.column, each.rival, each.mark, *cells, each.seeds, each.verdict])


class Profile(NamedTuple):
    """A row of a data profile: the share of targets reached after every mark, (marks,)."""

    row: str
    share: FloatArray


def complete(
    table: Table, gaps: Mapping[str, tuple[float, float]], rows: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """The columns that all of the rows have run to the last mark, as far as they have run at all."""
    present = {row for column in gaps for row in table[column]} & set(rows)
    ended = {
        column: {row for row, runs in table[column].items() if np.isfinite(averages(runs, "mean vector")[-1])}
        for column in gaps
    }
    return {column: gap for column, gap in gaps.items() if present <= ended[column]}


def profiles(
    table: Table, gaps: Mapping[str, tuple[float, float]], rows: Sequence[str], targets: FloatArray
) -> list[Profile]:
    """Shares of (column, seed, target) that the mean vector has reached.

    `gaps` has, for columns with a known optimum, the optimum and what the first mean falls short of it; a
    target is a share of that. Columns that not all of the rows have run to the last mark are left out.
    """
    gaps = complete(table, gaps, rows)
    made = []
    for row in rows:
        reached = []
        for column, (optimum, first) in gaps.items():
            for run in table[column].get(row, {}).values():
                gap = np.fmin.accumulate(optimum - run[:, 1]) / first
                reached.append((gap[:, None] <= targets).mean(axis=1))
        if reached:
            made.append(Profile(row, np.mean(reached, axis=0)))
    return made


def draw_profiles(halves: Mapping[str, Sequence[Profile]], marks: Sequence[int], path: Path) -> None:
    """Data profiles as COCO draws them, a panel per half; names stand at the ends of the lines."""
    from matplotlib import colormaps

    shown = {half: lines for half, lines in halves.items() if lines}
    rows = sorted({line.row for lines in shown.values() for line in lines})
    colours = {row: colormaps["tab20"](index % 20) for index, row in enumerate(rows)} | {"auto": "black"}
    figure = side_by_side(len(shown), sharey=True)
    for axes, (half, lines) in zip(figure.axes, shown.items(), strict=True):
        lines = sorted(lines, key=lambda line: line.share[-1])
        for line, end in zip(lines, apart(np.array([line.share[-1] for line in lines])), strict=True):
            style: dict[str, Any] = {"color": colours[line.row], "lw": 2.6 if line.row == "auto" else 1.3}
            axes.plot(marks, line.share, marker="o", ms=3, **style)
            axes.annotate(
                line.row,
                (marks[-1] * 1.08, end),
                color=colours[line.row],
                fontsize=7,
                va="center",
                weight="bold" if line.row == "auto" else "normal",
            )
        axes.set(xscale="log", xlabel="episodes", title=half, ylim=(0, 1), xlim=(marks[0], marks[-1] * 3))
        axes.set_xticks(marks, [f"{mark:,}" for mark in marks], fontsize=7)
        axes.minorticks_off()
    save(figure, "share of targets reached", path)


class Standing(NamedTuple):
    """What is left of the first gap to the optimum at every mark, (marks,).

    It is that of the population, as the geometric mean over columns.
    """

    row: str
    gap: FloatArray


def standings(table: Table, gaps: Mapping[str, tuple[float, float]], rows: Sequence[str]) -> list[Standing]:
    """Where rows stand on the columns that all of them have run to the end; `gaps` as for profiles."""
    gaps = complete(table, gaps, rows)
    made = []
    for row in rows:
        found = [
            np.log((optimum - averages(table[column][row])) / first)
            for column, (optimum, first) in gaps.items()
            if row in table[column]
        ]
        if found:
            made.append(Standing(row, np.exp(np.mean(found, axis=0))))
    return made


def left_over(standing: Sequence[Standing], marks: Sequence[int]) -> str:
    """What is left of the first gap, the least in the end first."""
    ordered = sorted(standing, key=lambda each: each.gap[-1])
    body = [[each.row, *(number(value, ".2g") for value in each.gap)] for each in ordered]
    return markdown(["left after", *map(str, marks)], body)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of those than which no other is smaller in both coordinates, the smallest in the first first."""
    best: list[int] = []
    for place in sorted(range(len(points)), key=points.__getitem__):
        if not best or points[place][1] < points[best[-1]][1]:
            best.append(place)
    return best


def draw_standings(
    panels: Mapping[str, Sequence[Standing]], marks: Sequence[int], early: int, late: int, path: Path
) -> None:
    """Late against early marks, a panel per kind of columns; a line goes along the frontier."""
    places = marks.index(early), marks.index(late)
    shown = {kind: standing for kind, standing in panels.items() if standing}
    figure = side_by_side(len(shown))
    for axes, (kind, standing) in zip(figure.axes, shown.items(), strict=True):
        standing = sorted(standing, key=lambda each: each.gap[places[1]])
        points = [(each.gap[places[0]], each.gap[places[1]]) for each in standing]
        best = [points[place] for place in frontier(points)]
        axes.plot(*zip(*best, strict=True), color="0.7", lw=6, alpha=0.5, zorder=0)
        axes.set(xscale="log", yscale="log", title=kind, xlabel=f"left after {early:,} episodes")
        axes.margins(0.15)
        styles: list[dict[str, Any]] = [
            {"color": "black", "weight": "bold"} if each.row == "auto" else {"color": "tab:blue"}
            for each in standing
        ]
        for point, style in zip(points, styles, strict=True):
            axes.plot(*point, "o", color=style["color"], ms=7 if "weight" in style else 4)
        low, high = np.log(axes.get_ylim())
        ends = apart((np.log([end for _, end in points]) - low) / (high - low), 0.05)
        for each, point, end, style in zip(standing, points, ends, styles, strict=True):
            axes.annotate(
                each.row,
                point,
                (1.04, end),
                textcoords="axes fraction",
                fontsize=7,
                va="center",
                arrowprops={"arrowstyle": "-", "color": "0.8", "lw": 0.6, "shrinkB": 3},
                annotation_clip=False,
                **style,
            )
    save(figure, f"left after {late:,} episodes", path)


def side_by_side(count: int, **settings: Any) -> Figure:
    """A figure of so many panels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure: Figure = plt.subplots(1, count, figsize=(5.2 * count, 4.2), **settings)[0]
    return figure


def save(figure: Figure, height: str, path: Path) -> None:
    """Write the figure, in the manner of them all, `height` being what the first panel's ordinate is."""
    import matplotlib.pyplot as plt

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel(height)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def apart(heights: FloatArray, least: float = 0.035) -> FloatArray:
    """Ascending heights moved as little as needed to lie `least` apart."""
    steps = least * np.arange(heights.size)
    moved: FloatArray = isotonic_regression(heights - steps).x + steps
    return moved
