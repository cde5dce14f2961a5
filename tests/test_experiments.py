"""The paper's experiments: figures as data, runs that are done once, files that are the same every time."""

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import matplotlib.image
import numpy as np
import pytest
from pool_jobs import dies_once
from scipy import stats
from typer.testing import CliRunner

import klimb
from klimb import algorithms, cli
from klimb.experiments import contact, estimators, overview, plan, pool, run, store
from klimb.experiments import reproduce as experiment
from klimb.experiments.plan import figure_names, hash_of, load_figure, sweep_of
from klimb.experiments.sweep import ranked, sweep_figure
from klimb.report.figures import Curve, Panel, draw_curves, mean_and_interval
from klimb.tasks import make_task

TINY = """
title = "tiny"
task = "lqr"
options = { n_states = 2, n_effective = 1 }
std = 0.3
draws = 4
seeds = 3

[[variant]]
name = "reduced"
label = "reduced"
algorithm = "dr-creps"
batch = 8
epochs = 3
settings = { epsilon = 1, kappa = 3.0, n_effective = 2 }
[variant.sweep]
n_effective = { from = 1, to = 4, step = 1 }
damping = { values = [0.1, 1.0] }

[[variant]]
name = "diagonal"
label = "diagonal"
algorithm = "creps-pe"
batch = 8
epochs = 3
settings = { n_effective = 2, covariance = "diagonal" }

[[variant]]
name = "evolved"
label = "evolved"
algorithm = "nes"
batch = 12
epochs = 2
rollouts = 2
"""
BASELINES = """
[[variant]]
name = "deep"
label = "deep"
algorithm = "trpo"
batch = 8
epochs = 3

[[variant]]
name = "classic"
label = "classic"
algorithm = "l-bfgs"
batch = 8
epochs = 3
"""
needs_deep = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "stable_baselines3", "sb3_contrib")),
    reason="needs pip install 'klimb[deep]'",
)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def compared(tmp_path):
    path = tmp_path / "compared.toml"
    path.write_text(TINY + BASELINES)
    return path


def changed(path, old, new, name=None):
    """The figure with something else in its file."""
    text = path.read_text()
    assert old in text
    other = path.with_name(name or path.name)
    other.write_text(text.replace(old, new))
    return load_figure(str(other))


def do(figure, results, **wanted):
    """Reproduce a figure in this process: what came of it, and its file's bytes."""
    plans = [experiment.make_plan(figure, results, **wanted)]
    report, _ = experiment.reproduce(plans, results, workers=1)
    return report, store.results_path(results, figure.name).read_bytes()


def invoke(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words])


# figures as data


def test_all_figures_of_the_paper_are_there_and_can_be_read():
    tasks = ["lqr", "ship-steering", "air-hockey", "ball-stopping"]
    assert set(figure_names()) == {
        *("lqr-diag", "lqr-full", "precision-recall", *tasks[1:]),
        *(f"baselines-{task}" for task in tasks),
        *("ablation-reps", "ablation-creps"),
        *(f"random-{task}" for task in tasks),
        *("mi-estimators", "overview"),
    }
    for name in figure_names():
        figure = load_figure(name)
        assert figure.seeds == (1 if name == "overview" else 25)
        for variant in figure.variants:
            figure.resolve(variant)
            if variant.sweep:
                assert sweep_of(figure, variant)


@pytest.mark.parametrize("name", [name for name in figure_names() if "diag" not in name])
def test_full_covariance_figures_have_creps_with_a_small_batch(name):
    figure = load_figure(name)
    full = [variant for variant in figure.variants if variant.algorithm in ("dr-creps", "dr-reps")]
    small = [variant for variant in figure.variants if variant.name.startswith("creps-small-batch")]
    assert bool(full) == bool(small)
    for variant in small:
        reduced = [other for other in full if other.algorithm == "dr-creps"] or full
        assert variant.batch == reduced[0].batch


def test_variants_of_a_task_spend_about_the_same_number_of_episodes():
    for name in ("lqr-diag", "lqr-full", "ship-steering", "air-hockey", "ball-stopping"):
        spent = [variant.batch * variant.epochs for variant in load_figure(name).variants]
        assert max(spent) <= 1.06 * min(spent), name


def test_values_are_those_of_the_papers_table():
    variant = load_figure("air-hockey").variant("dr-creps-mi")
    assert (variant.batch, variant.epochs) == (50, 200)
    assert variant.settings == {
        "epsilon": 2.0,
        "kappa": 12.0,
        "n_effective": 30,
        "damping": 0.5,
        "effectiveness": "mutual-information",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("draws = 4", "drawz = 4", "unknown key 'drawz'.*did you mean 'draws'"),
        ("batch = 8", "bach = 8", "unknown key 'bach' in variant 'reduced'.*'batch'"),
        ("epsilon = 1,", "epsilom = 1,", "unknown key 'epsilom' in settings of .*'epsilon'"),
        ("n_states = 2", "n_state = 2", "unknown key 'n_state' in options of lqr.*'n_states'"),
        ('algorithm = "nes"', 'algorithm = "ness"', "unknown algorithm.*'nes'"),
        ("rollouts = 2", "rollouts = 5", "multiple of its rollouts"),
        ("batch = 12", "batch = 2", "must be at least 4"),
        ('name = "evolved"', 'name = "reduced"', "two variants"),
        ("draws = 4", "draws = 0", "draws must be a whole number"),
        ("from = 1, to", "start = 1, to", "unknown key 'start'"),
        ('label = "evolved"', 'label = "evolved"\ncolour = "dr-crep"', "unknown colour.*'dr-creps'"),
        ('title = "tiny"', 'title = "tiny', "figure '.*tiny.toml'"),
    ],
)
def test_a_figure_that_cannot_be_is_refused_with_the_nearest_name(tiny, old, new, message):
    with pytest.raises(ValueError, match=message):
        changed(tiny, old, new)


def test_sweeps_are_the_papers_ranges_without_their_end():
    figure = load_figure("lqr-full")
    grid = sweep_of(figure, figure.variant("dr-creps"))
    assert {variant.settings["n_effective"] for variant in grid} == set(range(5, 100, 5))
    assert sorted({variant.settings["damping"] for variant in grid}) == [
        0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9
    ]  # fmt: skip
    assert len({hash_of(figure.resolve(variant)) for variant in grid}) == len(grid) == 19 * 9


# identity of runs


def test_a_hash_depends_on_settings_and_on_nothing_else(tiny):
    figure = load_figure(str(tiny))
    hashes = [hash_of(figure.resolve(variant)) for variant in figure.variants]
    assert len(set(hashes)) == len(hashes)
    assert hashes[0] == hash_of(json.loads(plan.canonical(figure.resolve(figure.variants[0]))))
    for old, new, same in [
        ('label = "reduced"', 'label = "other"', True),
        ("epsilon = 1,", "epsilon = 1.0,", True),
        ("epsilon = 1, kappa = 3.0, n_effective = 2", "n_effective = 2, epsilon = 1, kappa = 3.0", True),
        ("n_effective = 2 }", 'n_effective = 2, covariance = "full" }', True),  # the default
        ("epsilon = 1,", "epsilon = 1.1,", False),
        ("draws = 4", "draws = 5", False),
        ("std = 0.3", "std = 0.4", False),
        ("n_effective = 1 }", "n_effective = 2 }", False),
    ]:
        other = changed(tiny, old, new, "other.toml")
        assert (hash_of(other.resolve(other.variants[0])) == hashes[0]) is same, new


def test_the_same_run_in_two_figures_is_done_once(tiny, tmp_path):
    first = load_figure(str(tiny))
    second = changed(tiny, 'label = "reduced"', 'label = "again"', "second.toml")
    plans = [experiment.make_plan(figure, tmp_path, 2) for figure in (first, second)]
    report, entries = experiment.reproduce(plans, tmp_path, workers=1)
    assert report.done == 2 * 3
    assert len(entries["tiny"]) == len(entries["second"]) == 6
    assert {entry.label for entry in entries["second"] if entry.variant == "reduced"} == {"again"}


# what a run records


def table(figure, name, seed=0):
    settings = figure.resolve(figure.variant(name))
    return store.Entry(name, name, hash_of(settings), run.perform(settings, seed))


def test_a_run_has_a_row_per_epoch_and_counts_only_what_is_learned_from(tiny):
    figure = load_figure(str(tiny))
    entry = table(figure, "reduced")
    assert entry.column("epoch") == ["0", "1", "2", "3"]
    assert entry.column("episodes") == ["0", "8", "16", "24"]
    for name in ("belief_return", "mean_policy_return", "entropy"):
        assert np.isfinite(entry.numbers(name)).all(), name
    for name in ("batch_return", "kl", "effective_sample_size"):
        assert np.isfinite(entry.numbers(name)[1:]).all(), name
    assert (entry.numbers("kl")[1:] <= 1.0 + 1e-6).all()
    assert entry.numbers("n_failed")[1:].sum() == entry.numbers("failed_update")[1:].sum() == 0
    assert table(figure, "evolved").column("episodes") == ["0", "12", "24"]


def test_evaluation_does_not_touch_the_search(tiny):
    few = table(load_figure(str(tiny)), "reduced")
    many = table(changed(tiny, "draws = 4", "draws = 50"), "reduced")
    for name in ("batch_return", "kl", "entropy", "selected", "mean_policy_return"):
        assert few.column(name) == many.column(name)
    assert few.column("belief_return") != many.column("belief_return")


def test_a_run_is_what_the_optimizer_does(tiny):
    figure = load_figure(str(tiny))
    entry = table(figure, "reduced", seed=5)
    task = make_task("lqr", n_states=2, n_effective=1)
    optimizer = klimb.Optimizer(
        klimb.dr_creps(epsilon=1.0, kappa=3.0, n_effective=2), mean=np.zeros(4), std=0.3, seed=5
    )
    for epoch in (1, 2, 3):
        theta = optimizer.ask(8)
        info = optimizer.tell(theta, task.evaluate(theta))
        assert entry.column("kl")[epoch] == f"{info.kl:.8g}"
        assert int(entry.column("selected")[epoch], 16) == sum(1 << int(j) for j in info.selected)


def test_a_baseline_is_run_as_maximize_runs_it_and_judged_beside(compared):
    figure = load_figure(str(compared))
    entry = table(figure, "classic", seed=2)
    task = make_task("lqr", n_states=2, n_effective=1)
    spent = []
    for epochs in (1, 2, 3):
        result = klimb.maximize(
            task, klimb.make_algorithm("l-bfgs"), mean=np.zeros(4), std=0.3, episodes=8 * epochs, batch=8
        )
        spent.append(str(result.episodes))
        (expected,) = task.evaluate(result.mean[None])
        assert entry.numbers("mean_policy_return")[epochs] == pytest.approx(expected, rel=1e-7)
    assert entry.column("episodes")[1:] == spent
    assert entry.column("belief_return") == entry.column("mean_policy_return")  # it has no distribution
    assert set(entry.column("kl")) == {""}


def test_a_baseline_that_has_come_to_its_end_spends_no_more(compared):
    size = 'algorithm = "l-bfgs"\nbatch = {}\nepochs = {}'
    shorter, longer = size.format(8, 3), size.format(50, 200)
    entry = table(changed(compared, shorter, longer), "classic")
    assert entry.column("episodes")[:2] == ["0", "50"]
    assert len(entry.table.rows) == 3
    assert 50 < entry.numbers("episodes")[-1] < 100
    assert entry.numbers("mean_policy_return")[-1] == pytest.approx(-0.25614449, rel=1e-6)


@needs_deep
def test_one_who_acts_is_judged_by_episodes_of_its_own(compared):
    figure = load_figure(str(compared))
    entry = table(figure, "deep")
    assert entry.column("episodes") == ["0", "8", "16", "24"]
    assert np.isfinite(entry.numbers("mean_policy_return")).all()
    assert np.isfinite(entry.numbers("batch_return")[1:]).all()
    more = table(changed(compared, "draws = 4", "draws = 50"), "deep")
    assert entry.column("batch_return") == more.column("batch_return")
    assert entry.column("belief_return") != more.column("belief_return")


def test_without_its_extra_a_variant_is_left_out_and_what_it_needs_is_named(compared, tmp_path, monkeypatch):
    monkeypatch.setitem(algorithms.EXTRAS, "deep", ("no_such_module",))
    command = ("reproduce", compared, "--seeds", 1, "--results", tmp_path / "some", "--no-draw")
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert "left out: deep needs no_such_module: pip install 'klimb[deep]'" in " ".join(result.stderr.split())
    names = {entry.variant for entry in store.read_results(tmp_path / "some" / "compared.csv.gz")}
    assert names == {"reduced", "diagonal", "evolved", "classic"}


def test_precision_and_recall_count_the_parameters_that_matter(tiny):
    figure = load_figure(str(tiny))
    entry = table(figure, "diagonal")
    effective = set(make_task("lqr", n_states=2, n_effective=1).effective_parameters.tolist())
    for bits, precision, recall in zip(
        entry.column("selected")[1:], entry.numbers("precision")[1:], entry.numbers("recall")[1:], strict=True
    ):
        chosen = {j for j in range(4) if int(bits, 16) >> j & 1}
        assert precision == len(chosen & effective) / 2
        assert recall == len(chosen & effective)
    # with a full covariance the coordinates are no parameters
    assert set(table(figure, "reduced").column("precision")) == {""}


def test_an_update_that_is_no_distribution_ends_the_run_and_is_counted(tiny, monkeypatch):
    def lose(self, theta, returns):
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(klimb.Optimizer, "tell", lose)
    entry = table(load_figure(str(tiny)), "reduced")
    assert entry.column("failed_update") == ["", "1"]


def test_failed_episodes_are_counted_and_too_few_good_ones_wait(tiny, monkeypatch):
    task = make_task("lqr", n_states=2, n_effective=1)
    original, calls = type(task).evaluate, []

    def evaluate(self, theta, seed=0):
        returns = original(self, theta, seed)
        calls.append(len(theta))
        if len(theta) == 8 and calls.count(8) == 1:
            returns[1:] = np.nan
        return returns

    monkeypatch.setattr(type(task), "evaluate", evaluate)
    entry = table(load_figure(str(tiny)), "reduced")
    assert entry.column("n_failed") == ["", "7", "0", "0"]
    assert entry.column("kl")[1] == ""
    assert entry.column("kl")[2] != ""


def test_contact_with_the_ball_is_what_the_game_says():
    from klimb.tasks.ball_stopping import GOING, BallStoppingEpisode

    task = make_task("ball-stopping")
    theta = np.random.default_rng(0).standard_normal((6, task.n_parameters))
    touched = []
    for weights in theta:
        game = BallStoppingEpisode(task)
        for action in task.policy.trajectory(weights[None])[0]:
            game.step(action)
            if game.touched or game.outcome != GOING:
                break
        touched.append(game.touched)
    assert 0 < sum(touched) < 6
    assert contact.rate(task, theta, np.zeros(6, dtype=np.uint64)) == np.mean(touched)
    assert contact.rate(make_task("lqr"), np.zeros((1, 100)), np.zeros(1, dtype=np.uint64)) is None


# files


def test_killed_and_started_again_gives_the_same_file(tiny, tmp_path, monkeypatch):
    figure = load_figure(str(tiny))
    _, expected = do(figure, tmp_path / "whole")
    real, done = run.perform, []

    def interrupted(settings, seed):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(seed)
        return real(settings, seed)

    monkeypatch.setattr(experiment, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        do(figure, tmp_path / "parts")
    assert not store.results_path(tmp_path / "parts", "tiny").exists()
    monkeypatch.setattr(experiment, "perform", real)
    report, content = do(figure, tmp_path / "parts")
    assert (report.known, report.done) == (4, 5)
    assert content == expected


def test_what_is_done_is_never_run_again(tiny, tmp_path, monkeypatch):
    figure = load_figure(str(tiny))
    _, expected = do(figure, tmp_path)
    monkeypatch.setattr(experiment, "perform", pytest.fail)
    assert do(figure, tmp_path)[1] == expected
    for path in (tmp_path / ".runs").iterdir():  # the results file alone is enough
        path.unlink()
    assert do(figure, tmp_path)[1] == expected
    assert do(figure, tmp_path, seeds=1)[1] == expected  # and nothing is thrown away
    # nor by another figure with the same runs
    other = changed(tiny, 'title = "tiny"', 'title = "other"', "other.toml")
    assert do(other, tmp_path)[0].done == 0


def test_only_and_skip_choose_variants_and_keep_the_others(tiny, tmp_path):
    figure = load_figure(str(tiny))
    assert do(figure, tmp_path, seeds=1, only=["reduced"])[0].done == 1
    assert do(figure, tmp_path, seeds=1, skip=["evolved"])[0].done == 1
    found = {entry.variant for entry in store.read_results(tmp_path / "tiny.csv.gz")}
    assert found == {"reduced", "diagonal"}


def test_a_results_file_is_tidy_and_complete(tiny, tmp_path):
    figure = load_figure(str(tiny))
    _, content = do(figure, tmp_path, seeds=1)
    lines = gzip.decompress(content).decode().splitlines()
    header = lines[0].split(",")
    assert header[:4] == ["figure", "variant", "label", "seed"]
    assert header[-3:] == ["settings", "hash", "klimb"]
    assert len(lines) == 1 + 4 + 4 + 3
    assert lines[1:] == sorted(lines[1:], key=lambda line: line.split(",")[1])
    for entry in store.read_results(tmp_path / "tiny.csv.gz"):
        assert entry.table.version == klimb.__version__
        assert entry.table.settings["options"]["horizon"] == 50  # also what was not said


def test_results_from_other_settings_are_refused_and_the_setting_is_named(tiny, tmp_path):
    do(load_figure(str(tiny)), tmp_path, seeds=1)
    other = changed(tiny, "kappa = 3.0", "kappa = 4.0")
    with pytest.raises(ValueError, match=r"reduced has settings.kappa = 3.0 there and 4.0 here"):
        do(other, tmp_path)
    other = changed(tiny, 'name = "diagonal"', 'name = "straight"')
    with pytest.raises(ValueError, match="a variant 'diagonal' that tiny does not have"):
        do(other, tmp_path)


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[:-30],
        lambda content: b"",
        lambda content: b"not a gzip file",
        lambda content: gzip.compress(b"a,b\n1,2\n"),
        lambda content: gzip.compress(gzip.decompress(content)[:-40]),
        lambda content: gzip.compress(gzip.decompress(content).replace(b'""epochs"":3', b'""epochs"":4')),
    ],
    ids=["cut", "empty", "other", "columns", "last row", "settings"],
)
def test_a_damaged_results_file_is_said_to_be(tiny, tmp_path, harm):
    figure = load_figure(str(tiny))
    do(figure, tmp_path, seeds=1)
    path = tmp_path / "tiny.csv.gz"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(store.DamagedError, match=r"damaged.*Move it away"):
        do(figure, tmp_path, seeds=1)


def test_a_damaged_run_is_said_to_be_and_done_again(tiny, tmp_path):
    figure = load_figure(str(tiny))
    _, expected = do(figure, tmp_path, seeds=1)
    (tmp_path / "tiny.csv.gz").unlink()
    runs = sorted((tmp_path / ".runs").iterdir())
    runs[0].write_text(runs[0].read_text()[:-20])
    runs[1].write_text(runs[2].read_text())
    said = []

    class Watcher(experiment.Watcher):
        def say(self, message):
            said.append(message)

    report, _ = experiment.reproduce([experiment.make_plan(figure, tmp_path, 1)], tmp_path, 1, Watcher())
    assert report.done == 2
    assert sum("damaged" in message for message in said) == 2
    assert (tmp_path / "tiny.csv.gz").read_bytes() == expected


# worker processes


def test_a_worker_that_dies_is_replaced_and_its_job_done_once_more(tmp_path):
    outcomes = list(pool.do_all(dies_once, [(str(tmp_path), number) for number in range(6)], 2))
    results = {outcome.job[1]: outcome for outcome in outcomes}
    assert [results[number].result for number in (0, 1, 4, 5)] == [0, 10, 40, 50]
    assert "SIGKILL" in results[2].trouble
    assert "2 times" in results[2].trouble
    assert "RuntimeError" in results[3].trouble
    assert "no such luck" in results[3].trouble


def test_two_workers_give_the_same_file_as_one_and_failures_are_reported(tiny, tmp_path):
    figure = load_figure(str(tiny))
    _, expected = do(figure, tmp_path / "one", seeds=2)
    result = invoke("reproduce", tiny, "--seeds", 2, "--workers", 2, "--results", tmp_path / "two")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "two" / "tiny.csv.gz").read_bytes() == expected


def test_a_run_that_fails_is_reported_and_the_others_go_on(tiny, tmp_path, monkeypatch):
    real = run.perform

    def fragile(settings, seed):
        if settings["algorithm"] == "nes" and seed == 1:
            raise RuntimeError("the simulator broke")
        return real(settings, seed)

    monkeypatch.setattr(experiment, "perform", fragile)
    result = invoke("reproduce", tiny, "--seeds", 2, "--workers", 1, "--results", tmp_path)
    assert result.exit_code == 1
    assert "evolved of tiny, seed 1: RuntimeError" in result.stderr
    assert len(store.read_results(tmp_path / "tiny.csv.gz")) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tiny, tmp_path):
    long = tiny.with_name("long.toml")
    long.write_text(TINY.replace("epochs = 3", "epochs = 150").replace("seeds = 3", "seeds = 4"))
    words = ["reproduce", str(long), "--results", str(tmp_path), "--no-draw", "--workers"]
    command = [sys.executable, "-c", "from klimb.cli import main; main()", *words, "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begin = time.monotonic()
    while not list((tmp_path / ".runs").glob("*.json")) and time.monotonic() < begin + 60:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "stopped by Ctrl-C" in errors
    assert "Traceback" not in errors
    kept = len(list((tmp_path / ".runs").glob("*.json")))
    assert 1 <= kept < 12
    result = invoke(*words, 1)
    assert result.exit_code == 0, result.output
    assert f"{12 - kept} runs done, {kept} were done before" in result.stdout


# command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "lqr-fulll"], "unknown figure 'lqr-fulll': did you mean 'lqr-full'?"),
        (["reproduce", "lqr-full", "--only", "dr-crep"], "unknown variant of lqr-full 'dr-crep'.*'dr-creps'"),
        (["sweep", "lqr-full", "dr-crep"], "unknown variant of lqr-full 'dr-crep': did you mean 'dr-creps'"),
        (["sweep", "lqr-diag", "pro"], "no sweep for 'pro' of lqr-diag; it has one for: creps-pe"),
        (["reproduce", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_wrong_words_get_the_nearest_name_and_exit_code_2(words, message, tmp_path):
    result = invoke(*words, "--results", tmp_path)
    assert result.exit_code == 2
    assert re.search(message, result.stderr), result.stderr


def test_results_that_cannot_be_written_are_refused_before_a_run(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("reproduce", tiny, "--results", tmp_path / "file" / "below")
    assert result.exit_code == 2
    assert "nothing can be written" in result.stderr


def test_figures_are_listed():
    result = invoke("list", "figures", "--json")
    names = [entry["name"] for entry in json.loads(result.stdout)]
    assert names == figure_names()
    assert names[:2] == ["lqr-diag", "lqr-full"]


def test_a_sweep_is_kept_like_a_figure_and_ranked(tiny, tmp_path):
    words = ["sweep", tiny, "reduced", "--seeds", 2, "--workers", 1, "--results", tmp_path, "--json"]
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    scores = json.loads(result.stdout.splitlines()[-1])
    assert len(scores) == 6
    ends = [score["end"] for score in scores]
    assert ends == sorted(ends, reverse=True)
    assert {score["seeds"] for score in scores} == {2}
    figure = load_figure(str(tiny))
    grid = sweep_figure(figure, figure.variant("reduced"))
    entries = store.read_results(tmp_path / "sweep-tiny-reduced.csv.gz")
    assert [score.name for score in ranked(grid, entries)] == [score["name"] for score in scores]
    assert "n_effective=" in invoke(*words[:-1]).stdout


# the two figures that are no searches


def test_the_analytic_mutual_information_is_that_of_the_entropies():
    settings = {**estimators.PROBLEM, "sizes": [10, 2000]}
    records = estimators.compare(settings, seed=3)
    rng = np.random.default_rng(3)
    A = rng.uniform(0.5, 2.0) * rng.choice([-1.0, 1.0])
    spread = rng.uniform(0.5, 1.5)
    joint = np.array([[1.0, A], [A, A**2 + spread**2]])
    entropies = [stats.multivariate_normal(cov=cov).entropy() for cov in (1.0, A**2 + spread**2, joint)]
    right = entropies[0] + entropies[1] - entropies[2]
    assert [record["analytic"] for record in records] == pytest.approx([right] * len(records))
    for record in records:
        if record["samples"] == 2000 and record["estimator"] != "histogram":
            assert record["estimate"] == pytest.approx(right, abs=0.1)


def test_the_overview_shows_a_real_update():
    settings = overview.PROBLEM
    shown = {}
    for record in overview.matrices(settings, 0):
        shown.setdefault(record["matrix"], {})[record["row"], record["column"]] = record["value"]
    matrices = {
        name: np.array([entries[key] for key in sorted(entries)]).reshape(-1, max(entries)[1] + 1)
        for name, entries in shown.items()
    }
    chosen = matrices["selected"][0].astype(int)
    others = np.setdiff1d(np.arange(16), chosen)
    substituted = matrices["substituted"]
    assert np.allclose(substituted[np.ix_(chosen, others)], 0, atol=1e-12)
    assert np.allclose(
        substituted[np.ix_(others, others)], matrices["local"][np.ix_(others, others)], atol=1e-12
    )
    # what the optimizer draws next has the sampling covariance
    search = klimb.dr_creps(epsilon=1.0, kappa=3.0, n_effective=6, damping=0.1)
    task = make_task("lqr", n_states=4, n_effective=2)
    optimizer = klimb.Optimizer(search, mean=np.zeros(16), std=0.3, seed=0)
    for _ in range(settings["updates"]):
        theta = optimizer.ask(settings["batch"])
        optimizer.tell(theta, task.evaluate(theta))
    drawn = np.cov(optimizer.ask(20_000).T)
    assert np.abs(drawn - matrices["sampling covariance"]).max() < 0.05 * np.diag(drawn).max()


# pictures


def test_pictures_are_drawn_small_and_the_same_every_time(tiny, tmp_path):
    words = ["--seeds", 2, "--workers", 1, "--results", tmp_path, "--quiet"]
    for name in ("first", "second"):
        assert invoke("reproduce", tiny, *words, "--figures", tmp_path / name).exit_code == 0
    for ending in ("png", "svg"):
        first, second = (tmp_path / name / f"tiny.{ending}" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size < 500_000
    picture = matplotlib.image.imread(tmp_path / "first" / "tiny.png")
    assert picture.std() > 0.02
    text = (tmp_path / "first" / "tiny.svg").read_text()
    for word in ("optimum", "reduced", "2 seeds", "episodes"):
        assert word in text


def test_pictures_of_the_other_kinds_are_drawn(tmp_path):
    words = ["--seeds", 2, "--workers", 1, "--results", tmp_path]
    result = invoke("reproduce", "mi-estimators", "overview", *words)
    assert result.exit_code == 0, result.output
    for name in ("mi-estimators", "overview"):
        picture = matplotlib.image.imread(tmp_path / "figures" / f"{name}.png")
        assert picture.std() > 0.02


def test_panels_bands_and_missing_values_are_drawn(tmp_path):
    episodes = np.arange(5.0)
    values = -(10.0 ** np.linspace(2, -1, 5)) + np.zeros((3, 1)) + np.arange(3)[:, None]
    values[0, 2] = np.nan
    curve = Curve("one", "dr-creps", "solid", episodes, values)
    share = Curve("one", "dr-creps", "solid", episodes, np.abs(values) / 200)
    panels = [
        Panel("a", "return", [curve], 3.0),
        Panel("b", "return", [curve]),
        Panel("", "s", [share], None, True),
    ]
    draw_curves(panels, [tmp_path / "panels.svg"], title="panels")
    assert (tmp_path / "panels.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match="no runs to draw"):
        draw_curves([Panel("", "return", [])], [tmp_path / "none.png"])


def test_the_interval_is_students(rng):
    values = rng.standard_normal((7, 3))
    mean, half = mean_and_interval(values)
    for place in range(3):
        low, high = stats.t.interval(0.95, 6, values[:, place].mean(), stats.sem(values[:, place]))
        assert (mean[place] - half[place], mean[place] + half[place]) == pytest.approx((low, high))
