"""What the league table says: runs read from their files, compared mark by mark, as Markdown and a picture.

`samples.py` makes the runs and calls `report`. A value is the mean over seeds; rows are compared by paired
differences, seed by seed, with a 95 % interval of Student's t.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray
from klimb.report.figures import mean_and_interval

Runs = dict[int, FloatArray]
"""Seed -> population and mean vector at every mark, (marks, 2); NaN where a run did not go so far."""
Table = dict[str, dict[str, Runs]]
"""Column -> row -> runs."""

RIVALS = ("vkd-cma", "dr-creps")  # auto must not be behind these


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


def averages(runs: Runs) -> FloatArray:
    """Mean of the population over seeds, (marks,); NaN where a seed is missing."""
    mean: FloatArray = np.mean([run[:, 0] for run in runs.values()], axis=0)
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


def report(table: Table, tuned: Collection[str], marks: Sequence[int]) -> str:
    """Markdown: for either half, how often auto leads, ranks, verdicts; then every column."""
    parts = []
    for half, members in (
        ("Not tuned on", [column for column in table if column not in tuned]),
        ("Tuned on", [column for column in table if column in tuned]),
    ):
        chosen = {column: table[column] for column in members if "auto" in table[column]}
        if chosen:
            parts += [
                f"### {half}: {len(chosen)} columns",
                *summary(chosen, marks),
                columns_of(chosen, marks),
            ]
    return "\n\n".join(parts)


def summary(table: Table, marks: Sequence[int]) -> list[str]:
    """How often auto leads, the mean ranks, and what the intervals say."""
    leads = {column: leading(rows) for column, rows in table.items()}
    won = sum(bool(lead.all()) for lead in leads.values())
    share = np.concatenate(list(leads.values())).mean()
    told = list(differences(table, marks))
    behind = {
        rival: sorted({each.column for each in told if each.rival == rival and each.verdict == "behind"})
        for rival in RIVALS
    }
    lines = [
        f"By the mean over seeds, auto is ahead of every other row at every mark in {won} of {len(table)} "
        f"columns, and at {share:.0%} of all marks. "
        + " ".join(
            f"It is behind {rival} beyond the 95 % interval at some mark in {len(names)} columns"
            + (f" ({', '.join(names)})." if names else ".")
            for rival, names in behind.items()
        )
    ]
    places: dict[str, list[FloatArray]] = {}
    for rows in table.values():
        means = np.array([averages(runs) for runs in rows.values()])
        rank = np.array([(means > mean).sum(axis=0) + 1.0 for mean in means])
        for row, place in zip(rows, np.where(np.isfinite(means), rank, np.nan), strict=True):
            places.setdefault(row, []).append(place)
    ranks = {row: column_means(np.array(place)) for row, place in places.items()}
    body = []
    for row in sorted(ranks, key=lambda row: float(np.nanmean(ranks[row]))):
        verdicts = [each.verdict for each in told if each.rival == row]
        counts = [str(verdicts.count(kind)) if verdicts else "" for kind in ("ahead", "undecided", "behind")]
        body.append([row, str(len(places[row])), *(number(rank, ".1f") for rank in ranks[row]), *counts])
    lines.append(
        markdown(
            ["mean rank after", "columns", *map(str, marks), "auto ahead", "undecided", "auto behind"], body
        )
    )
    return lines


def leading(rows: Mapping[str, Runs]) -> NDArray[np.bool_]:
    """Whether auto is ahead of all others or level with the best, at every mark that it reached."""
    own = averages(rows["auto"])
    others = [averages(runs) for row, runs in rows.items() if row != "auto"]
    best = np.fmax.reduce(others) if others else np.full_like(own, np.nan)
    lead: NDArray[np.bool_] = ~(best > own)
    return lead[np.isfinite(own)]


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


def profiles(
    table: Table, gaps: Mapping[str, tuple[float, float]], rows: Sequence[str], targets: FloatArray
) -> list[Profile]:
    """Shares of (column, seed, target) that the mean vector has reached.

    `gaps` has, for columns with a known optimum, the optimum and what the first mean falls short of it; a
    target is a share of that.
    """
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
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {half: lines for half, lines in halves.items() if lines}
    rows = sorted({line.row for lines in shown.values() for line in lines})
    colours = {row: plt.get_cmap("tab20")(index % 20) for index, row in enumerate(rows)}
    figure, panels = plt.subplots(1, len(shown), figsize=(5.2 * len(shown), 4.2), sharey=True, squeeze=False)
    for axes, (half, lines) in zip(panels[0], shown.items(), strict=True):
        ends: list[float] = []
        for line in sorted(lines, key=lambda line: line.share[-1]):
            style: dict[str, Any] = {"color": colours[line.row], "lw": 2.6 if line.row == "auto" else 1.3}
            axes.plot(marks, line.share, marker="o", ms=3, **style)
            end = max(line.share[-1], ends[-1] + 0.035) if ends else line.share[-1]
            ends.append(end)
            weight = "bold" if line.row == "auto" else "normal"
            axes.annotate(
                line.row,
                (marks[-1] * 1.08, end),
                color=colours[line.row],
                fontsize=7,
                va="center",
                weight=weight,
            )
        axes.set(xscale="log", xlabel="episodes", title=half, ylim=(0, 1), xlim=(marks[0], marks[-1] * 3))
        axes.set_xticks(marks, [f"{mark:,}" for mark in marks], fontsize=7)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0][0].set_ylabel("share of targets reached")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
