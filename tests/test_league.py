"""The league table: its statistics against scipy and hand calculations."""

import csv

import league
import numpy as np
import pytest
from publishing import publish
from scipy import stats

MARKS = (100, 250)


def runs(*populations):
    """Seeds from 100 on, with the same value for population and mean vector."""
    return {100 + place: np.stack([line, line], axis=1) for place, line in enumerate(np.array(populations))}


@pytest.fixture
def table():
    return {
        "easy": {"auto": runs([-2.0, -1.0], [-4.0, -1.0]), "vkd-cma": runs([-5.0, -1.5], [-6.0, -1.25])},
        "hard": {"auto": runs([-2.0, -1.0]), "vkd-cma": runs([-1.0, -3.0]), "ars": runs([-9.0, np.nan])},
    }


def test_the_interval_is_that_of_a_paired_t_test(rng):
    a, b = rng.standard_normal((2, 9))
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    mean, low, high = league.interval(a - b)
    np.testing.assert_allclose([mean, low, high], [(a - b).mean(), expected.low, expected.high])


def test_one_seed_decides_nothing(table):
    verdicts = {(each.column, each.rival, each.mark): each for each in league.differences(table, MARKS)}
    assert verdicts["hard", "vkd-cma", 100].mean == -1.0
    assert verdicts["hard", "vkd-cma", 100].verdict == "undecided"
    assert verdicts["easy", "vkd-cma", 100].mean == 2.5
    assert ("hard", "ars", 250) not in verdicts  # a run that did not go so far is not compared there


def test_a_longer_run_takes_the_place_of_a_shorter_one(tmp_path):
    def lines(row, seed, *marks):
        return [(row, str(seed), str(mark), f"{-mark}", "0.5", "0.1") for mark in marks]

    for run in (lines("auto", 100, 100), lines("ars", 100, 100), lines("auto", 101, 100)):
        league.store(tmp_path / "new", "sphere", run)
    league.store(tmp_path / "new", "sphere", lines("auto", 100, *MARKS))
    found = league.read(tmp_path / "new", ["sphere"], ["auto", "ars"], MARKS)["sphere"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["sphere.csv"]
    assert len(league.stored(tmp_path / "new", "sphere")) == 4
    np.testing.assert_array_equal(found["auto"][100], [[-100, 0.5], [-250, 0.5]])
    np.testing.assert_array_equal(found["auto"][101], [[-100, 0.5], [np.nan, np.nan]])
    np.testing.assert_array_equal(found["ars"][100], [[-100, 0.5], [np.nan, np.nan]])


def test_leading_is_by_the_mean_over_seeds_at_every_mark(table):
    np.testing.assert_array_equal(league.leading(table["easy"]), [True, True])
    np.testing.assert_array_equal(league.leading(table["hard"]), [False, True])
    np.testing.assert_array_equal(league.leading(table["hard"], without=["vkd-cma"]), [True, True])
    table["easy"]["vkd-cma"][101][1, 1] = 0.0  # its mean vector alone is better
    np.testing.assert_array_equal(league.leading(table["easy"]), [True, True])
    np.testing.assert_array_equal(league.leading(table["easy"], "mean vector"), [True, False])


@pytest.mark.parametrize("seeds", [1, 3, 7, 11])
def test_rows_that_are_level_in_all_seeds_are_level_however_many_there_are(seeds):
    rows = {"auto": runs(*[[-0.1, -0.0014939]] * 6), "more": runs(*[[-0.1, -0.0014939]] * seeds)}
    np.testing.assert_array_equal(league.leading(rows), [True, True])
    rows = {"auto": rows["more"], "more": rows["auto"]}
    np.testing.assert_array_equal(league.leading(rows), [True, True])


def test_the_report_keeps_the_halves_apart_and_names_who_is_ahead(table):
    report = league.report(table, ["easy"], MARKS, kind=str.upper)
    first, second = report.split("### Tuned on: 1 columns")
    assert first.startswith("### Not tuned on: 1 columns")
    assert "at every mark in 0 of 1 columns that ran to the end, and at 50% of all marks" in first
    assert "| hard | 1 | −2 (vkd-cma −1) | −1 |" in first
    assert "| ars | 1 | 3.0 |  |" in first
    assert "| HARD | 1 | 0% / 0% | 100% / 100% |" in first
    assert "in 1 of 1 columns that ran to the end, and at 100% of all marks" in second


def test_a_column_that_did_not_run_to_the_end_counts_for_its_marks_only(table):
    table["short"] = {"auto": runs([-1.0, np.nan]), "vkd-cma": runs([-2.0, np.nan])}
    assert league.won(table) == "1 of 2 columns that ran to the end, and at 80% of all marks"


def test_ranks_are_those_where_all_rows_have_run(table):
    """Where the best has not run, the others are not taken for better than they are."""
    ranks = league.ranking(table, MARKS, [])
    assert "| auto | 2 | 1.5 | 1.0 |" in ranks  # second of hard after 100; after 250 easy alone counts
    assert "| vkd-cma | 2 | 1.5 | 2.0 |" in ranks
    assert "| ars | 1 | 3.0 |  |" in ranks


def test_a_rival_that_is_ahead_beyond_the_interval_is_named():
    table = {"column": {"auto": runs([-5.0], [-5.1], [-4.9]), "dr-creps": runs([-1.0], [-1.2], [-0.9])}}
    assert "behind dr-creps beyond the 95 % interval at some mark in 1 columns (column)." in league.report(
        table, [], [100], str
    )


def test_whom_any_search_is_ahead_of_beyond_the_interval_is_named_but_not_for_single_points():
    better, auto = runs([-1.0], [-1.2], [-0.9]), runs([-5.0], [-5.1], [-4.9])
    table = {
        "lost": {"auto": auto, "ars": better},
        "point": {"auto": auto, "nelder-mead": better},
        "short": {"auto": runs([np.nan], [np.nan]), "ars": better},
    }
    report = league.report(table, [], [100], str)
    assert "beyond the 95 % interval at some mark in 1 of 2 columns that ran to the end (lost)." in report


def test_a_profile_counts_targets_that_were_ever_reached(table, tmp_path):
    targets = np.array([1.0, 0.5, 0.1, 0.05])
    made = league.profiles(table, {"easy": (0.0, 10.0)}, ["auto", "vkd-cma", "ars"], targets)
    assert [line.row for line in made] == ["auto", "vkd-cma"]
    np.testing.assert_allclose(made[0].share, [0.5, 0.75])  # gaps of .2 and .4, then of .1
    np.testing.assert_allclose(made[1].share, [0.375, 0.5])  # .5 and .6, then .15 and .125
    gaps = {"easy": (0.0, 10.0), "hard": (0.0, 10.0)}
    assert league.profiles(table, gaps, ["vkd-cma", "ars"], targets) == []  # no column has both to the end
    table["hard"]["ars"][100][1] = -4.0
    both = league.profiles(table, gaps, ["vkd-cma", "ars"], targets)
    assert [line.row for line in both] == ["vkd-cma", "ars"]
    np.testing.assert_allclose(both[0].share, [0.75, 0.75])  # of the hard one alone, which both have run
    league.draw_profiles({"all": made, "none": []}, MARKS, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 1000


def test_standings_are_geometric_means_over_columns_that_all_have_run_to_the_end(table, tmp_path):
    table["other"] = {"auto": runs([-8.0, -4.0]), "vkd-cma": runs([-1.0, -1.0])}
    gaps = {"easy": (0.0, 10.0), "hard": (0.0, 1.0), "other": (1.0, 1.0)}
    table["hard"]["vkd-cma"] = runs([-1.0, np.nan])
    standing = auto, vkd = league.standings(table, gaps, ["auto", "vkd-cma"])
    assert (auto.row, vkd.row) == ("auto", "vkd-cma")
    np.testing.assert_allclose(auto.gap, [np.sqrt(0.3 * 9.0), np.sqrt(0.1 * 5.0)])
    np.testing.assert_allclose(vkd.gap, [np.sqrt(0.55 * 2.0), np.sqrt(0.1375 * 2.0)])
    lines = league.left_over(standing, MARKS).splitlines()
    assert lines[-2:] == ["| vkd-cma | 1 | 0.52 |", "| auto | 1.6 | 0.71 |"]
    league.draw_standings({"kind": standing, "none": []}, MARKS, *MARKS, tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 1000


def test_the_frontier_has_those_that_none_surpasses_twice():
    assert league.frontier([(4, 1), (1, 3), (2, 2), (2, 2.5), (3, 2)]) == [1, 2, 0]


def test_runs_and_differences_are_written_and_read(table, tmp_path):
    (tmp_path / "easy.csv").write_text(
        "row,seed,mark,population,mean,ms\nauto,100,250,-1.5,-1.25,0.9\nars,100,100,-3,-2,0.1\n"
    )
    read = league.read(tmp_path, ["easy", "hard"], ["auto"], MARKS)
    assert list(read) == ["easy"]
    assert list(read["easy"]) == ["auto"]
    np.testing.assert_array_equal(read["easy"]["auto"][100], [[np.nan, np.nan], [-1.5, -1.25]])
    level = league.levelled(read, {"easy": -1.4})
    np.testing.assert_array_equal(level["easy"]["auto"][100], [[np.nan, np.nan], [-1.5, -1.4]])
    league.write_differences(table, MARKS, tmp_path / "differences.csv")
    with (tmp_path / "differences.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5
    assert lines[0]["verdict"] == "undecided"
    assert float(lines[0]["mean"]) == 2.5


def test_names_at_the_ends_of_lines_do_not_overlap(rng):
    heights = np.sort(rng.uniform(0, 0.3, 14))
    moved = league.apart(heights, 0.035)
    assert np.diff(moved).min() >= 0.035 - 1e-12
    np.testing.assert_allclose(moved.mean(), heights.mean())  # as much up as down
    np.testing.assert_allclose(league.apart(np.array([0.1, 0.2, 0.9]), 0.035), [0.1, 0.2, 0.9])


def test_a_page_keeps_what_is_around_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n<!-- made by make b: begin -->\nold\n<!-- made by make b: end -->\nafter\n")
    publish(page, "make b", "new")
    publish(page, "make b", "newer")
    assert page.read_text() == (
        "# A\n<!-- made by make b: begin -->\n\nnewer\n\n<!-- made by make b: end -->\nafter\n"
    )
    before = page.read_text()
    with pytest.raises(ValueError, match="no place for this: <!-- made by make c: begin"):
        publish(page, "make c", "new")
    assert page.read_text() == before
