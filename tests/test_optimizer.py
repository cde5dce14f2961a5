"""Optimizer and maximize: conformance of every algorithm, bad input, files."""

import copy
import json
import os
import platform
import subprocess
import sys
import zipfile
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import klimb
from klimb.algorithms import ALGORITHMS, make_algorithm
from klimb.effectiveness import MEASURES


def sphere(theta):
    return -np.square(theta - 0.3).sum(1)


def snapshot(optimizer):
    """Everything an optimizer carries, for comparison to the bit."""
    state = optimizer._state
    belief = (state.belief.mean, state.belief.variances, state.belief.mixed, state.belief.rotation)
    arrays = (*belief, *state.memory, *(() if state.exploration is None else (state.exploration,)))
    return optimizer._asked, state.iteration, optimizer.seed, [array.tolist() for array in arrays]


RUNS_ON_ANY_PROCESSOR = """
import numpy as np, klimb
task = klimb.make_task("lqr")
for name, batch in (
    ("creps", 30), ("dr-creps", 30), ("creps-pe", 30), ("more", 150), ("auto", 8)
):
    algorithm = klimb.make_algorithm(name)
    result = klimb.maximize(task, algorithm, mean=np.zeros(100), std=0.3, episodes=600, batch=batch, seed=0)
    print(name, *result.mean[:5], result.curve["mean_return"][-1])
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="processors are named for x86-64")
def test_runs_are_the_same_on_all_kinds_of_processors():
    # OpenBLAS has code for each kind, which rounds in its own way; it takes the one named here
    printed = []
    for kind in ("Haswell", "Nehalem", "Prescott"):
        environment = os.environ | {"OPENBLAS_CORETYPE": kind}
        command = [sys.executable, "-c", RUNS_ON_ANY_PROCESSOR]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        printed.append([line.split() for line in done.stdout.splitlines()])
    first, *others = printed
    assert len(first) == 5
    for other, (name, *values) in ((other, line) for other in others for line in first):
        there = next(line[1:] for line in other if line[0] == name)
        np.testing.assert_allclose(np.float64(there), np.float64(values), rtol=1e-4, atol=1e-6, err_msg=name)


def own_measure(local, returns, rng):
    return np.square(local).sum(0)


SIZES = {"cem": {"n_elite": 12}}


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize(
    ("name", "effectiveness"),
    [
        ("auto", None),
        *product([name for name in ALGORITHMS if name != "auto"], [*MEASURES, own_measure, None]),
    ],
)
def test_every_algorithm_learns_with_every_effectiveness(name, effectiveness, covariance):
    settings = dict(SIZES.get(name, {}), covariance=covariance)
    if effectiveness is not None:
        settings |= {"effectiveness": effectiveness, "n_effective": 4}
    optimizer = klimb.Optimizer(make_algorithm(name, **settings), mean=np.zeros(6), std=0.5, seed=1)
    start = sphere(optimizer.ask(1000)).mean()
    for iteration in range(8):
        theta = optimizer.ask(24)
        returns = sphere(theta)
        before = theta.copy(), returns.copy()
        old = optimizer.belief
        info = optimizer.tell(theta, returns)
        np.testing.assert_array_equal(theta, before[0])
        np.testing.assert_array_equal(returns, before[1])
        assert theta.shape == (24, 6)
        assert theta.dtype == np.float64
        assert optimizer.iteration == iteration + 1
        other_way = name in ("auto", "more")
        divergence = optimizer.belief.kl(old) if other_way else old.kl(optimizer.belief)
        assert info.kl == pytest.approx(divergence, rel=1e-9, abs=1e-9)
        assert info.entropy_drop == pytest.approx(old.entropy - optimizer.entropy, abs=1e-9)
        assert (info.n_used, info.n_failed, info.informative) == (24, 0, True)
        kept = 24 * iteration if name == "auto" else 0
        assert 1 <= info.effective_sample_size <= kept + 24 + 1e-9
        assert optimizer.belief.variances.min() > 0
        np.testing.assert_array_equal(optimizer.covariance, optimizer.covariance.T)
        if effectiveness is not None:
            assert info.effectiveness.shape == (6,)
        if covariance == "diagonal":
            assert optimizer.belief.mixed.size == 0
    assert sphere(optimizer.mean[None])[0] > start


@pytest.mark.parametrize("name", ["creps", "more", "dr-creps", "creps-pe"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@given(seed=st.integers(0, 10**6))
def test_the_bounds_hold_over_whole_runs(name, covariance, seed):
    rng = np.random.default_rng(seed)
    epsilon, kappa = float(rng.uniform(0.05, 3)), float(rng.uniform(0.05, 3))
    algorithm = make_algorithm(name, epsilon=epsilon, kappa=kappa, covariance=covariance)
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(8), std=10.0 ** rng.uniform(-2, 2, 8), seed=seed)
    for _ in range(4):
        info = optimizer.tell(theta := optimizer.ask(7), sphere(theta) * 10.0 ** rng.uniform(-9, 9))
        assert info.kl <= epsilon + 1e-9
        assert info.entropy_drop <= kappa + 1e-9


def test_an_epsilon_above_log_n_is_visible_in_the_effective_sample_size():
    optimizer = klimb.Optimizer(klimb.creps(4.7, 17.0), mean=np.zeros(4), std=1.0, seed=0)
    theta = optimizer.ask(50)
    info = optimizer.tell(theta, sphere(theta))
    assert info.effective_sample_size == 1.0
    assert info.temperature == 0.0
    assert info.kl == pytest.approx(4.7, abs=1e-8)


def test_failed_episodes_are_left_out():
    theta = np.random.default_rng(0).standard_normal((12, 3))
    returns = sphere(theta)
    broken = returns.copy()
    broken[[2, 5]] = np.nan, -np.inf
    good = np.isfinite(broken)
    a = klimb.Optimizer(klimb.creps(1.0, 1.0), mean=np.zeros(3), std=1.0, seed=0)
    b = copy.deepcopy(a)
    info = a.tell(theta, broken)
    b.tell(theta[good], returns[good])
    assert (info.n_used, info.n_failed) == (10, 2)
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.covariance, b.covariance)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_returns_carry_no_information(name):
    optimizer = klimb.Optimizer(make_algorithm(name), mean=np.zeros(3), std=1.0, seed=0)
    info = optimizer.tell(optimizer.ask(30), np.full(30, 7.0))
    assert not info.informative
    assert info.kl == info.entropy_drop == 0
    np.testing.assert_array_equal(optimizer.mean, np.zeros(3))
    np.testing.assert_array_equal(optimizer.covariance, np.eye(3))


def test_old_data_warm_starts_a_search(rng):
    old = rng.uniform(-2, 2, (200, 5))
    optimizer = klimb.Optimizer(klimb.reps(1.0), mean=np.zeros(5), std=2.0, seed=0)
    optimizer.tell(old, sphere(old))
    assert sphere(optimizer.mean[None])[0] > sphere(old).max()


GOOD = np.random.default_rng(5).standard_normal((6, 4))
BAD_TELLS = {
    "one vector": (GOOD[0], [1.0], "shape"),
    "too few parameters": (GOOD[:, :3], np.arange(6.0), r"\(N, 4\)"),
    "too few returns": (GOOD, np.arange(5.0), "one number per row"),
    "a column of returns": (GOOD, np.zeros((6, 1)), "one number per row"),
    "NaN parameter": (np.where(np.eye(6, 4) > 0, np.nan, GOOD), np.arange(6.0), r"theta\[0, 0\]"),
    "infinite parameter": (np.where(np.eye(6, 4) > 0, np.inf, GOOD), np.arange(6.0), "finite"),
    "huge parameter": (np.where(np.eye(6, 4) > 0, 1e200, GOOD), np.arange(6.0), "below"),
    "far parameter": (GOOD * 1e60, np.arange(6.0), "standard deviations"),
    "+infinity": (GOOD, [0, 1, np.inf, 3, 4, 5], r"returns\[2\] is \+infinity"),
    "one good episode": (GOOD, [0, *[np.nan] * 5], "at least 2 good episodes"),
    "no episode": (np.empty((0, 4)), [], "at least 2 good episodes"),
    "words": (GOOD, ["a"] * 6, "numbers"),
    "words for parameters": ([["a"] * 4] * 6, np.arange(6.0), "numbers"),
    "ragged": ([[1.0, 2.0], [1.0]], [1.0, 2.0], "numbers"),
}


@pytest.mark.parametrize("case", BAD_TELLS)
@pytest.mark.parametrize("name", ["dr-creps", "nes", "more"])
def test_a_bad_tell_says_why_and_changes_nothing(name, case):
    theta, returns, message = BAD_TELLS[case]
    optimizer = klimb.Optimizer(make_algorithm(name), mean=np.zeros(4), std=1.0, seed=0)
    optimizer.tell(optimizer.ask(10), np.arange(10.0))
    optimizer.ask(3)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.tell(theta, returns)
    assert snapshot(optimizer) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: klimb.creps(epsilon=0), "epsilon must be a number above 0"),
        (lambda: klimb.creps(epsilon=float("nan")), "epsilon"),
        (lambda: klimb.creps(epsilon=float("inf")), "epsilon must be finite"),
        (lambda: klimb.creps(kappa=-1), "kappa"),
        (lambda: klimb.creps(epsilon=True), "epsilon"),
        (lambda: klimb.creps(reduce="maybe"), "reduce must be True or False"),
        (lambda: klimb.more(epsilon="much"), "epsilon"),
        (lambda: klimb.rwr(beta=0), "beta"),
        (lambda: klimb.cem(n_elite=1), "n_elite"),
        (lambda: klimb.nes(learning_rate=-0.1), "learning_rate"),
        (lambda: klimb.dr_creps(damping=0), r"damping must lie in \(0, 1\]"),
        (lambda: klimb.dr_creps(damping=1.5), "damping"),
        (lambda: klimb.dr_creps(n_effective=0), "n_effective"),
        (lambda: klimb.dr_creps(n_effective=2.5), "n_effective"),
        (lambda: klimb.creps(covariance="ful"), "'full', 'diagonal'"),
        (lambda: klimb.creps(effectiveness="pearsons"), "did you mean 'pearson'"),
        (lambda: klimb.creps(dampling=0.5), "did you mean 'damping'"),
        (lambda: klimb.dr_creps(dampling=0.5), "damp"),
        (lambda: klimb.pro(effectiveness=None), "effectiveness"),
        (lambda: make_algorithm("dr-crep"), "did you mean 'dr-creps'"),
        (lambda: make_algorithm("creps", epsilom=1), "did you mean 'epsilon'"),
    ],
)
def test_a_bad_setting_says_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": np.zeros(3), "std": 1.0, "algorithm": "dr-creps"}, "recipe"),
        ({"mean": np.zeros(3)}, "exactly one"),
        ({"mean": np.zeros(3), "std": 1.0, "covariance": np.eye(3)}, "exactly one"),
        ({"mean": np.zeros((3, 1)), "std": 1.0}, "mean must be a vector"),
        ({"mean": [0.0, np.nan], "std": 1.0}, r"mean\[1\]"),
        ({"mean": [], "std": 1.0}, "mean"),
        ({"mean": np.zeros(3), "std": 0.0}, "std"),
        ({"mean": np.zeros(3), "covariance": np.eye(2)}, "covariance"),
        ({"mean": np.zeros(3), "std": 1.0, "seed": -1}, "seed"),
        ({"mean": np.zeros(3), "std": 1.0, "seed": 0.5}, "seed"),
        ({"mean": np.zeros(3), "std": 1.0, "algorithm": klimb.dr_creps(n_effective=4)}, "1 to .* 3"),
        ({"mean": np.zeros(100_000), "std": 1.0}, "80 GB"),
    ],
)
def test_a_bad_start_says_why(arguments, message):
    arguments = {"algorithm": klimb.creps(), **arguments}
    with pytest.raises(ValueError, match=message):
        klimb.Optimizer(**arguments)


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True])
def test_a_bad_ask_says_why(count):
    with pytest.raises(ValueError, match="count"):
        klimb.Optimizer(klimb.creps(), mean=np.zeros(3), std=1.0).ask(count)


@pytest.mark.parametrize("bad", [np.zeros(3), np.full(4, np.nan), "x"])
def test_a_bad_measure_of_the_users_own_says_why(bad):
    algorithm = klimb.dr_creps(effectiveness=lambda local, returns, rng: bad)
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(4), std=1.0, seed=0)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="effectiveness must"):
        optimizer.tell(GOOD, np.arange(6.0))
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("reuse", [0, 40])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_saved_optimizer_goes_on_to_the_bit(name, reuse, tmp_path):
    optimizer = klimb.Optimizer(make_algorithm(name, reuse=reuse), mean=np.zeros(5), std=0.5)
    for _ in range(3):
        theta = optimizer.ask(30)
        optimizer.tell(theta, sphere(theta))
    optimizer.ask(7)
    optimizer.save(tmp_path / "state")
    loaded = klimb.Optimizer.load(tmp_path / "state")
    assert loaded.algorithm == optimizer.algorithm
    assert snapshot(loaded) == snapshot(optimizer)
    for _ in range(2):
        a, b = optimizer.ask(30), loaded.ask(30)
        np.testing.assert_array_equal(a, b)
        optimizer.tell(a, sphere(a))
        loaded.tell(b, sphere(b))
    assert snapshot(loaded) == snapshot(optimizer)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_measure_of_the_users_own_is_handed_back_on_load(tmp_path):
    algorithm = klimb.dr_creps(effectiveness=own_measure)
    klimb.Optimizer(algorithm, mean=np.zeros(5), std=0.5).save(tmp_path / "state.npz")
    with pytest.raises(ValueError, match=r"own_measure.*load\(path, effectiveness=\.\.\.\)"):
        klimb.Optimizer.load(tmp_path / "state.npz")
    loaded = klimb.Optimizer.load(tmp_path / "state.npz", effectiveness=own_measure)
    assert loaded.algorithm.effectiveness is own_measure


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state"
    optimizer = klimb.Optimizer(klimb.creps(), mean=np.zeros(5), std=0.5, seed=0)
    optimizer.save(path)
    before = path.read_bytes()

    def full_disk(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="space"):
        optimizer.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_files_that_are_no_optimizers_are_refused(tmp_path):
    path = tmp_path / "state"
    with pytest.raises(FileNotFoundError):
        klimb.Optimizer.load(path)
    for content in (b"", b"hello", b"PK\x03\x04 damaged"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a file that"):
            klimb.Optimizer.load(path)
    with path.open("wb") as file:
        np.savez(file, other=np.zeros(3))
    with pytest.raises(ValueError, match="not a file that"):
        klimb.Optimizer.load(path)
    klimb.Optimizer(klimb.creps(), mean=np.zeros(5), std=0.5).save(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="not a file that"):
            klimb.Optimizer.load(path)


def rewrite_header(path, change):
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    change(header)
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)


def test_a_newer_format_asks_for_an_upgrade(tmp_path):
    path = tmp_path / "state"
    klimb.Optimizer(klimb.creps(), mean=np.zeros(5), std=0.5).save(path)
    rewrite_header(path, lambda header: header.update(version=99))
    with pytest.raises(ValueError, match="newer klimb"):
        klimb.Optimizer.load(path)
    rewrite_header(path, lambda header: header.update(version=1, seed=header.pop("iteration")))
    with pytest.raises(ValueError, match="damaged"):
        klimb.Optimizer.load(path)


def test_the_first_format_which_knew_no_reuse_is_read(tmp_path):
    path = tmp_path / "state"
    optimizer = klimb.Optimizer(klimb.creps(), mean=np.zeros(5), std=0.5, seed=0)
    optimizer.save(path)

    def age(header):
        header["version"] = 1
        del header["algorithm"]["reuse"]

    rewrite_header(path, age)
    assert klimb.Optimizer.load(path).algorithm == optimizer.algorithm


def test_saved_files_hold_no_pickle(tmp_path):
    path = tmp_path / "state"
    optimizer = klimb.Optimizer(klimb.nes(0.1), mean=np.zeros(5), std=0.5, seed=0)
    optimizer.tell(GOOD @ np.ones((4, 5)), np.arange(6.0))
    optimizer.save(path)
    with zipfile.ZipFile(path) as file:
        assert all(name.endswith(".npy") for name in file.namelist())
        assert not any(b"pickle" in file.read(name) or b"|O" in file.read(name) for name in file.namelist())


def test_maximize_finds_the_maximum_and_reports_the_way():
    seen = []
    result = klimb.maximize(
        lambda x: -float(np.square(x - 0.3).sum()),
        klimb.creps(1.0, 2.0),
        mean=np.zeros(4),
        std=0.5,
        episodes=1005,
        batch=20,
        seed=0,
        callback=lambda progress: seen.append(progress.episodes),
    )
    np.testing.assert_allclose(result.mean, 0.3, atol=0.01)
    assert result.best_return == pytest.approx(-np.square(result.best_parameters - 0.3).sum())
    assert result.curve["episodes"].tolist() == seen == [*range(20, 1001, 20)]
    assert (np.diff(result.curve["best_return"]) >= 0).all()
    assert result.curve["mean_return"][-1] > result.curve["mean_return"][0]
    assert result.optimizer.iteration == len(seen)


def test_maximize_stops_when_the_callback_says_so_and_survives_failures():
    def f(x):
        return np.nan if x[0] > 0.6 else -float(np.square(x).sum())

    result = klimb.maximize(
        f, klimb.reps(1.0), mean=np.zeros(3), std=0.5, episodes=10_000, batch=50, seed=0,
        callback=lambda progress: progress.episodes >= 200,
    )  # fmt: skip
    assert result.curve["episodes"][-1] == 200
    assert result.curve["n_failed"][0] > 0
    assert np.isfinite(result.best_return)


def test_maximize_carries_over_batches_with_too_few_good_episodes():
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return np.nan if calls <= 19 else -float(np.square(x).sum())

    result = klimb.maximize(f, klimb.reps(1.0), mean=np.zeros(3), std=0.5, episodes=60, batch=10, seed=0)
    assert result.curve["episodes"].tolist() == [30, 40, 50, 60]
    assert result.curve["n_failed"].tolist() == [19, 0, 0, 0]
    assert (result.episodes, result.n_failed) == (60, 19)
    with pytest.raises(RuntimeError, match="only 0 of 40 episodes were good"):
        klimb.maximize(lambda x: np.nan, klimb.reps(), mean=np.zeros(3), std=0.5, episodes=40, batch=10)


def test_maximize_takes_a_task_and_repeats_with_its_seed():
    task = klimb.make_task("lqr", start="random")
    runs = [
        klimb.maximize(task, klimb.dr_creps(), mean=np.zeros(100), std=0.3, episodes=300, batch=50, seed=seed)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0].curve, runs[1].curve)
    assert runs[0].curve["mean_return"][-1] != runs[2].curve["mean_return"][-1]


def test_cem_says_how_many_episodes_it_needs_before_any_is_spent():
    with pytest.raises(ValueError, match="batch must be a whole number of at least 25"):
        klimb.maximize(sphere, klimb.cem(25), mean=np.zeros(3), std=1.0, episodes=500, batch=20)
    optimizer = klimb.Optimizer(klimb.cem(25), mean=np.zeros(3), std=1.0)
    with pytest.raises(ValueError, match="cem needs at least 25 good episodes, but 10 of 10 are"):
        optimizer.tell(optimizer.ask(10), np.arange(10.0))


@pytest.mark.parametrize("budget", [{"episodes": 1}, {"episodes": 100, "batch": 1}, {"episodes": 10.5}])
def test_maximize_refuses_a_budget_that_buys_no_update(budget):
    with pytest.raises(ValueError, match=r"episodes|batch"):
        klimb.maximize(sphere, klimb.creps(), mean=np.zeros(3), std=1.0, **budget)


def test_results_do_not_depend_on_the_number_of_blas_threads():
    code = (
        "import hashlib, numpy as np, klimb\n"
        "o = klimb.Optimizer(klimb.creps(2.0, 5.0), mean=np.zeros(300), std=1.0, seed=0)\n"
        "for _ in range(2):\n"
        "    theta = o.ask(40)\n"
        "    o.tell(theta, -np.square(theta - 1).sum(1))\n"
        "print(hashlib.sha256(o.ask(5).tobytes()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how memory is kept is the C library's affair")
def test_an_update_does_not_ask_the_system_for_memory_again():
    code = (
        "import resource, numpy as np, klimb\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "o = klimb.Optimizer(mean=np.zeros(100), std=1.0, seed=0)\n"
        "def update(count):\n"
        "    for _ in range(count):\n"
        "        theta = o.ask(8)\n"
        "        o.tell(theta, -np.square(theta - 1).sum(1))\n"
        "update(40)\n"
        "before = faults()\n"
        "update(20)\n"
        "print((faults() - before) / 20)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 50  # pages per update; some 700 where memory goes back each time
