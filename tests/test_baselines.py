"""Baselines that search for parameters: checked against pycma, scipy and the published formulas."""

import warnings
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.optimize

import klimb
from klimb.algorithms import BASELINES
from klimb.baselines import Baseline, load
from klimb.baselines.classic import SQRT_EPS
from klimb.baselines.random_search import Directions
from klimb.baselines.statistics import Statistics

needs_cma = pytest.mark.skipif(find_spec("cma") is None, reason="needs pip install 'klimb[peers]'")
CMA = ["cma-es", "sep-cma", "vkd-cma"]
SEARCHES = [
    *(pytest.param(name, marks=needs_cma) for name in CMA),
    *("cr-fm-nes", "nelder-mead", "l-bfgs", "random-search", "ars"),
]


def rosenbrock(theta):
    return -float(scipy.optimize.rosen(theta))


def start(name, n=6, batch=10, seed=3, std=0.5, **settings):
    return klimb.make_algorithm(name, **settings).start(mean=np.zeros(n), std=std, batch=batch, seed=seed)


def advance(learner, f, exchanges, count=10**6):
    for _ in range(exchanges):
        theta = learner.ask(count)
        learner.tell(theta, [f(row) for row in theta])


# against pycma


def pycma_options(name):
    from cma.restricted_gaussian_sampler import GaussVkDSampler

    return {"cma-es": {}, "sep-cma": {"CMA_diagonal": True}, "vkd-cma": GaussVkDSampler.extend_cma_options()}[
        name
    ]


@needs_cma
@pytest.mark.parametrize("name", CMA)
@pytest.mark.parametrize("std", [0.5, np.linspace(0.1, 2.0, 8)], ids=["one std", "many"])
def test_cma_runs_as_pycma_alone_does_bit_for_bit(name, std):
    import cma

    learner = start(name, n=8, batch=12, seed=11, std=std)
    stds = {} if np.ndim(std) == 0 else {"CMA_stds": std}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = np.random.get_state()  # noqa: NPY002  (pycma alone uses the global generator)
        options = {"seed": 11, "popsize": 12, "verbose": -9, **stds, **pycma_options(name)}
        alone = cma.CMAEvolutionStrategy(8 * [0.0], std if np.ndim(std) == 0 else 1.0, options)
        for _ in range(60):
            population = alone.ask()
            theta = learner.ask(12)
            assert np.array_equal(theta, population)
            returns = [rosenbrock(row) for row in theta]
            alone.tell(population, [-value for value in returns])
            learner.tell(theta, returns)
            assert np.array_equal(learner.mean, alone.mean)
        np.random.set_state(before)  # noqa: NPY002


@needs_cma
def test_cma_takes_pycmas_population_and_leaves_the_global_generator_alone():
    import cma

    for n in (2, 10, 100, 450):
        usual = klimb.make_algorithm("cma-es").usual_batch(n)
        assert usual == cma.CMAEvolutionStrategy(n * [0.0], 1.0, {"verbose": -9, "seed": np.nan}).popsize
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    advance(start("vkd-cma"), rosenbrock, 20)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@needs_cma
@pytest.mark.parametrize("name", CMA)
def test_draws_of_cma_have_its_covariance_and_leave_no_trace(name):
    learner, other = start(name, std=np.linspace(0.5, 3, 6)), start(name, std=np.linspace(0.5, 3, 6))
    advance(learner, rosenbrock, 30)
    advance(other, rosenbrock, 30)
    drawn = learner.sample(np.random.default_rng(0), 20_000)
    assert np.allclose(drawn.mean(axis=0), learner.mean, atol=0.05)
    (pycmas,) = learner._proposal.draw.args
    assert np.allclose(drawn.std(axis=0), pycmas.stds, rtol=0.05)
    advance(learner, rosenbrock, 5)
    advance(other, rosenbrock, 5)
    assert np.array_equal(learner.mean, other.mean)


@needs_cma
@pytest.mark.parametrize("name", CMA)
def test_cma_goes_on_where_pycma_would_stop(name):
    result = klimb.maximize(
        klimb.make_task("sphere"),
        klimb.make_algorithm(name),
        mean=np.zeros(10),
        std=1.0,
        episodes=6000,
        batch=10,
    )
    assert result.episodes == 6000
    assert result.best_return > -1e-20
    flat = klimb.maximize(
        lambda theta: 0.0, klimb.make_algorithm(name), mean=np.zeros(5), std=1.0, episodes=1000, batch=10
    )
    assert np.isfinite(flat.mean).all()


# against scipy


@pytest.mark.parametrize("adaptive", [False, True])
def test_nelder_mead_is_scipys(adaptive):
    std = np.array([0.5, 1.0, 2.0])
    tried = []

    def cost(z):
        tried.append(std * z)
        return -rosenbrock(std * z)

    simplex = np.vstack([np.zeros(3), np.eye(3)])
    options = {"initial_simplex": simplex, "xatol": 1e-6, "fatol": 1e-6, "adaptive": adaptive}
    whole = scipy.optimize.minimize(cost, np.zeros(3), method="Nelder-Mead", options=options)
    algorithm = klimb.make_algorithm("nelder-mead", tolerance=1e-6, adaptive=adaptive)
    seen = []
    result = klimb.maximize(
        lambda theta: seen.append(theta) or rosenbrock(theta),
        algorithm,
        mean=np.zeros(3),
        std=std,
        episodes=5000,
    )
    assert np.array_equal(seen, tried)
    assert np.array_equal(result.mean, std * whole.x)
    assert result.episodes == whole.nfev < 5000  # it ended by itself
    assert result.optimizer.ended


def test_l_bfgs_is_scipys_and_a_gradient_costs_n_plus_1_episodes():
    def cost(x):
        differences = [-rosenbrock(x + SQRT_EPS * e) + rosenbrock(x) for e in np.eye(5)]
        return -rosenbrock(x), np.array(differences) / SQRT_EPS

    whole = scipy.optimize.minimize(cost, np.zeros(5), jac=True, method="L-BFGS-B", options={"ftol": 2.2e-9})
    result = klimb.maximize(
        rosenbrock, klimb.make_algorithm("l-bfgs"), mean=np.zeros(5), std=1.0, episodes=5000
    )
    assert np.array_equal(result.mean, whole.x)
    assert result.episodes == 6 * whole.nfev
    assert np.allclose(result.mean, 1.0, atol=1e-3)


def test_thread_of_scipy_ends_with_its_learner():
    import threading

    learner = start("nelder-mead")
    advance(learner, rosenbrock, 5)
    assert any(thread.name == "klimb-scipy" for thread in threading.enumerate())
    del learner
    assert not any(thread.name == "klimb-scipy" for thread in threading.enumerate())


# against the published formulas


def test_ars_step_is_the_published_one():
    rng = np.random.default_rng(5)
    M, noise, rate, b = rng.standard_normal(4), 0.1, 0.05, 3
    learner = klimb.make_algorithm("ars", noise=noise, learning_rate=rate, n_top=b).start(
        mean=M, std=1.0, batch=10, seed=0
    )
    theta = learner.ask(10)
    returns = np.array([rosenbrock(row) for row in theta])
    learner.tell(theta, returns)
    # step by step, as in Algorithm 1 of Mania et al.
    deltas = (theta[0::2] - M) / noise
    rewards = sorted(
        ((max(plus, minus), plus, minus, k) for k, (plus, minus) in enumerate(returns.reshape(5, 2))),
        reverse=True,
    )[:b]
    sigma = np.std([reward[i] for reward in rewards for i in (1, 2)])
    expected = M + rate / (b * sigma) * sum((plus - minus) * deltas[k] for _, plus, minus, k in rewards)
    assert np.allclose(theta[1::2], M - noise * deltas)
    assert np.allclose(learner.mean, expected)


@pytest.mark.parametrize(("noise", "width"), [(None, [0.5, 2.0]), (0.1, [0.04, 0.16])])
def test_ars_draws_what_it_tries(noise, width):
    learner = klimb.make_algorithm("ars", noise=noise).start(
        mean=np.array([3.0, -3.0]), std=np.array([0.5, 2.0]), batch=2000, seed=0
    )
    advance(learner, lambda theta: -float(theta @ theta), 3)
    for drawn in (learner.sample(np.random.default_rng(0), 2000), learner.ask(2000)):
        assert np.allclose(drawn.mean(axis=0), learner.mean, atol=0.2)
        assert np.allclose(drawn.std(axis=0), width, rtol=0.1)


def test_ars_leaves_pairs_with_a_failed_episode_out():
    directions = Directions(np.eye(3), 1.0, 3)
    step = directions.step(np.array([1.0, 0.0, np.nan, 5.0, 2.0, 3.0]))
    assert step[1] == 0
    assert step[0] > 0 > step[2]
    assert not directions.step(np.full(6, np.nan)).any()
    assert not directions.step(np.ones(6)).any()


def test_running_statistics_are_those_of_all_at_once():
    rng = np.random.default_rng(0)
    values = rng.normal(100.0, [1e-3, 1.0, 50.0], (500, 3))
    statistics = Statistics(3)
    assert (statistics.deviation == 1).all()
    for part in np.split(values, [1, 2, 100, 100, 333]):
        statistics.add(part)
    assert np.allclose(statistics.mean, values.mean(axis=0), rtol=1e-12)
    assert np.allclose(statistics.deviation, values.std(axis=0, ddof=1), rtol=1e-9)


def test_random_search_keeps_the_best_of_the_start_distribution():
    seen = []
    result = klimb.maximize(
        lambda theta: seen.append(theta) or rosenbrock(theta),
        klimb.make_algorithm("random-search"),
        mean=[1.0, 2.0, 3.0],
        std=[0.1, 1.0, 2.0],
        episodes=3000,
    )
    assert np.array_equal(result.mean, max(seen, key=rosenbrock))
    assert np.allclose(np.mean(seen, axis=0), [1, 2, 3], atol=0.15)
    assert np.allclose(np.std(seen, axis=0), [0.1, 1, 2], rtol=0.05)


# how good


@pytest.mark.parametrize(
    ("name", "settings", "batch", "episodes"),
    [
        ("nes", {}, 100, 5000),
        ("es", {}, 100, 6500),  # of its mean: the covariance stays as it is
        ("cem", {"n_elite": 50}, 200, 5000),  # 25 of 50, as in the paper, shrink before they arrive
        ("nelder-mead", {}, 50, 600),
        ("l-bfgs", {}, 50, 50),
        *(pytest.param(name, {}, 10, 1300, marks=needs_cma) for name in CMA),
        ("cr-fm-nes", {}, 10, 800),
        ("ars", {}, 32, 9000),
    ],
)
def test_mean_reaches_a_millionth_on_the_sphere(name, settings, batch, episodes):
    task = klimb.make_task("sphere")
    for seed in range(3):
        algorithm = klimb.make_algorithm(name, **settings)
        result = klimb.maximize(
            task, algorithm, mean=np.zeros(10), std=1.0, episodes=episodes, batch=batch, seed=seed
        )
        assert task.evaluate(result.mean[None])[0] > -1e-6
        assert result.episodes <= episodes


# ask and tell


@pytest.mark.parametrize("name", SEARCHES)
def test_asked_in_pieces_and_told_in_any_order_is_the_same(name):
    at_once, in_pieces = start(name), start(name)
    rng = np.random.default_rng(0)
    for _ in range(12):
        theta = at_once.ask(100)
        at_once.tell(theta, [rosenbrock(row) for row in theta])
        pieces = []
        while len(piece := in_pieces.ask(3)):
            pieces.append(piece)
        asked = np.concatenate(pieces)
        assert np.array_equal(asked, theta)
        for rows in np.array_split(rng.permutation(len(asked)), min(3, len(asked))):
            in_pieces.tell(asked[rows], [rosenbrock(row) for row in asked[rows]])
    assert np.array_equal(at_once.mean, in_pieces.mean)
    assert at_once.iteration == in_pieces.iteration == 12


@pytest.mark.parametrize("name", SEARCHES)
def test_saved_and_loaded_goes_on_bit_for_bit(name, tmp_path):
    settings = {"ars": {"n_top": 2}, "nelder-mead": {"adaptive": True}}.get(name, {})
    learner = start(name, **settings)
    advance(learner, rosenbrock, 7)
    learner.save(tmp_path / "x.npz")
    loaded = load(tmp_path / "x.npz")
    assert loaded.iteration == 7
    for _ in range(5):
        theta = learner.ask(100)
        assert np.array_equal(theta, loaded.ask(100))
        for each in (learner, loaded):
            each.tell(theta, [rosenbrock(row) for row in theta])
    assert np.array_equal(learner.mean, loaded.mean)


def test_file_of_something_else_is_refused(tmp_path):
    klimb.Optimizer(klimb.creps(), mean=[0.0], std=1.0).save(tmp_path / "x.npz")
    with pytest.raises(ValueError, match="not a file that a baseline saved"):
        load(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "y.npz")


@pytest.mark.parametrize("name", SEARCHES)
def test_failed_episodes_do_no_harm(name):
    rng = np.random.default_rng(1)

    def sometimes(theta):
        return np.nan if rng.random() < 0.2 else -float(np.sum((theta - 1) ** 2))

    result = klimb.maximize(
        sometimes, klimb.make_algorithm(name), mean=np.zeros(4), std=0.5, episodes=600, batch=10, seed=0
    )
    assert 0 < result.n_failed < result.episodes
    assert result.curve["n_failed"].sum() == result.n_failed
    assert result.best_return > -3.9
    assert np.isfinite(result.mean).all()


@pytest.mark.parametrize("name", SEARCHES)
def test_run_without_any_good_episode_raises(name):
    with pytest.raises(RuntimeError, match="nothing to learn from"):
        klimb.maximize(
            lambda theta: np.nan, klimb.make_algorithm(name), mean=np.zeros(3), std=1.0, episodes=40, batch=10
        )


@pytest.mark.parametrize("name", SEARCHES)
def test_budget_is_kept_and_the_curve_counts_episodes(name):
    count = []
    result = klimb.maximize(
        lambda theta: count.append(1) or rosenbrock(theta),
        klimb.make_algorithm(name),
        mean=np.zeros(7),
        std=0.5,
        episodes=105,
        batch=10,
    )
    assert len(count) == result.episodes == 100
    assert result.curve["episodes"].tolist() == list(range(10, 101, 10))
    assert (np.diff(result.curve["best_return"]) >= 0).all()
    assert np.isnan(result.curve["entropy"]).all()


@pytest.mark.parametrize("name", SEARCHES)
def test_same_seed_is_the_same_run(name):
    run = partial(klimb.maximize, rosenbrock, mean=np.zeros(5), std=0.5, episodes=100, batch=10)
    runs = [run(klimb.make_algorithm(name), seed=seed).best_return for seed in (1, 1, 2**70)]
    assert runs[0] == runs[1]
    if name not in ("nelder-mead", "l-bfgs"):  # which draw nothing
        assert runs[0] != runs[2]


# what cannot be


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        pytest.param("cma-es", {"batch": 3}, "at least 4, but 3 came; nelder-mead", marks=needs_cma),
        pytest.param("vkd-cma", {"n": 1}, "at least 2 parameters", marks=needs_cma),
        ("cr-fm-nes", {"n": 1}, "at least 2 parameters; nelder-mead"),
        ("cr-fm-nes", {"batch": 7}, "must be even, but 7 came"),
        ("cr-fm-nes", {"batch": 2}, "at least 4, but 2 came; nelder-mead"),
        ("cr-fm-nes", {"sigma": 1}, "unknown setting 'sigma'"),
        ("ars", {"batch": 7}, "must be even"),
        ("ars", {"n_top": 6}, "n_top must be at most the number of directions, 5"),
        ("ars", {"version": "v3"}, "version must be one of"),
        ("ars", {"noise": -1}, "noise must be a number above 0"),
        ("nelder-mead", {"tolerance": 0}, "tolerance must be a number above 0"),
        ("l-bfgs", {"stepp": 1}, "did you mean 'step'?"),
        ("l-bfgs", {"std": -1.0}, "std must"),
        ("random-search", {"seed": -1}, "seed must be a whole number"),
    ],
)
def test_wrong_settings_are_refused_before_any_episode(name, options, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        start(name, **options)


def test_episodes_that_were_not_asked_for_are_refused():
    learner = start("random-search")
    theta = learner.ask(4)
    for wrong in (theta + 1, learner._proposal.theta[4:5], np.vstack([theta[:1], theta[:1]])):
        with pytest.raises(ValueError, match="not what random-search asked for"):
            learner.tell(wrong, np.zeros(len(wrong)))
    with pytest.raises(ValueError, match="one number per row"):
        learner.tell(theta, [1.0])
    with pytest.raises(ValueError, match="infinity"):
        learner.tell(theta, [np.inf, 0, 0, 0])
    learner.tell(theta, np.zeros(4))


def test_baseline_does_not_start_from_a_covariance():
    with pytest.raises(ValueError, match="starts from std"):
        klimb.maximize(
            rosenbrock, klimb.make_algorithm("l-bfgs"), mean=np.zeros(2), covariance=np.eye(2), episodes=10
        )


def test_missing_extra_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(klimb.algorithms, "EXTRAS", {"peers": ("no_such_module",), "deep": ()})
    with pytest.raises(ImportError, match=r"needs no_such_module: pip install 'klimb\[peers\]'"):
        klimb.make_algorithm("cma-es")


def test_every_baseline_has_a_summary_settings_and_a_reference():
    for name, entry in BASELINES.items():
        assert entry.summary
        assert entry.reference
        made = None if entry.missing else klimb.make_algorithm(name, **entry.settings)
        assert made is None or made.name == name
        assert made is None or entry.batch is not None or isinstance(made, Baseline)
