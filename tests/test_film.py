"""Films: which frames are shown, the files they go to, and `klimb replay` from end to end."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import klimb
from klimb.cli import app
from klimb.tasks.film import STILLS, Film, chosen_times, save_film


def grey_film(count=10, rate=20.0, height=32, width=48):
    """Frames that get brighter one by one."""
    shades = np.linspace(0, 250, count).astype(np.uint8)
    return Film((np.full((height, width, 3), shade) for shade in shades), count, rate)


@given(st.integers(0, 6000), st.sampled_from([10.0, 60.0, 240.0, 960.0]))
def test_a_film_shows_beginning_and_end_in_order_and_is_not_too_long(steps, step_rate):
    times, rate = chosen_times(steps, step_rate, 30.0)
    assert times[0] == 0
    assert times[-1] == steps
    assert (np.diff(times) > 0).all()
    assert len(times) <= 301
    assert 0 < rate <= 30.0


def test_a_film_of_a_short_episode_runs_in_real_time():
    times, rate = chosen_times(240, 240.0, 30.0)  # one second
    assert len(times) / rate == pytest.approx(1.0, abs=0.1)


def test_a_gif_holds_every_frame_and_rests_on_the_last(tmp_path):
    save_film(grey_film(), tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as picture:
        assert picture.n_frames == 10
        shades, durations = [], []
        for number in range(10):
            picture.seek(number)
            shades.append(np.asarray(picture.convert("L")).mean())
            durations.append(picture.info["duration"])
    assert (np.diff(shades) > 0).all()
    assert durations == [50] * 9 + [1000]


def test_an_mp4_holds_every_frame(tmp_path):
    import imageio_ffmpeg

    save_film(grey_film(height=33, width=47), tmp_path / "film.mp4")  # odd sides lose a row and a column
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "film.mp4"))
    assert count == 10
    assert seconds == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("count", "columns", "rows"), [(30, 3, 2), (4, 3, 2), (1, 1, 1)])
def test_a_strip_shows_stills_from_first_to_last(tmp_path, count, columns, rows):
    save_film(grey_film(count), tmp_path / "film.png")
    picture = np.asarray(Image.open(tmp_path / "film.png"))
    assert picture.shape == (rows * 36 - 4, columns * 52 - 4, 3)
    assert picture[0, 0, 0] == 0
    if count >= STILLS:
        assert picture[-1, -1, 0] == 250


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.gif, \.mp4 or \.png"):
        save_film(grey_film(), tmp_path / "film.avi")


def test_mp4_without_an_encoder_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ValueError, match=r"klimb\[video\]"):
        save_film(grey_film(), tmp_path / "film.mp4")


def test_the_ship_is_drawn_where_it_sails():
    task = klimb.make_task("ship-steering")
    film = task.film(np.zeros(450), width=200, height=300)
    frames = list(film.frames)
    assert len(frames) == film.count
    assert frames[0].shape == (200, 200, 3)
    # without steering it goes along the lower border, so the picture changes there and nowhere else
    changed = (frames[0] != frames[-1]).any(axis=2)
    assert changed[185:].any()
    assert not changed[:180].any()


@pytest.fixture
def saved(tmp_path):
    def save(task, **options):
        made = klimb.make_task(task, **options)
        path = tmp_path / "optimizer.npz"
        klimb.Optimizer(klimb.creps(), mean=np.zeros(made.n_parameters), std=1.0, seed=0).save(path)
        return path

    return save


def replay(*words):
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def test_replay_writes_the_ships_way(saved, tmp_path):
    result = replay("ship-steering", saved("ship-steering"), "-o", tmp_path / "way.gif")
    assert result.exit_code == 0, result.stderr
    assert "frames in" in result.stdout
    with Image.open(tmp_path / "way.gif") as picture:
        assert picture.n_frames > 5


def test_a_study_is_replayed_like_an_optimizer_of_its_mean(tmp_path):
    mean = np.random.default_rng(0).standard_normal(450)
    klimb.Study.create(tmp_path / "ship.db", klimb.creps(), mean=mean, std=1.0, seed=0).close()
    klimb.Optimizer(klimb.creps(), mean=mean, std=1.0, seed=0).save(tmp_path / "ship.npz")
    for name in ("ship.db", "ship.npz"):
        result = replay("ship-steering", tmp_path / name, "-o", tmp_path / f"{name}.png")
        assert result.exit_code == 0, result.stderr
    assert (tmp_path / "ship.db.png").read_bytes() == (tmp_path / "ship.npz.png").read_bytes()


def test_a_damaged_study_is_not_replayed(tmp_path):
    path = tmp_path / "ship.db"
    klimb.Study.create(path, klimb.creps(), mean=np.zeros(450), std=1.0, seed=0).close()
    path.write_bytes(path.read_bytes()[:5000])
    result = replay("ship-steering", path, "-o", tmp_path / "way.png")
    assert result.exit_code == 1
    assert "damaged" in result.stderr


@pytest.mark.parametrize(
    ("task", "file", "message"),
    [
        ("ship-steering", "way.avi", ".gif, .mp4 or .png"),
        ("lqr", "way.gif", "nothing to see of lqr"),
        ("ship-steerin", "way.gif", "did you mean 'ship-steering'"),
        ("ship-steering", "missing/way.gif", "missing"),
    ],
)
def test_a_wrong_replay_exits_2_and_says_why(saved, tmp_path, task, file, message):
    result = replay(task, saved("ship-steering"), "-o", tmp_path / file)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / file).exists()


def test_a_replay_of_another_tasks_parameters_exits_2(saved, tmp_path):
    result = replay("ship-steering", saved("lqr"), "-o", tmp_path / "way.gif")
    assert result.exit_code == 2
    assert "holds 100 parameters, but ship-steering has 450" in result.stderr
    assert replay("ship-steering", tmp_path / "none.npz", "-o", tmp_path / "way.gif").exit_code == 2


def klimb_replay(*words, **environment):
    """In a process of its own: MuJoCo takes its OpenGL when it is imported."""
    clean = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-c", "from klimb.cli import main; main()", "replay", *map(str, words)]
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, cwd=Path(words[-1]).parent
    )


@pytest.mark.parametrize("task", ["air-hockey", "ball-stopping"])
def test_replay_draws_the_robots(saved, tmp_path, task):
    output = tmp_path / "robot.png"
    done = klimb_replay(task, saved(task), "-o", output)
    if done.returncode == 1 and "apt-get install" in done.stderr and not os.environ.get("CI"):
        pytest.skip(f"no OpenGL here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(output))
    stills = picture.shape[0] // 2 - 4, picture.shape[1] // 3 - 4
    first, last = picture[: stills[0], : stills[1]], picture[-stills[0] :, -stills[1] :]
    assert first.std() > 20  # a scene, not a blank
    assert (first != last).any(axis=2).mean() > 0.005  # in which something moved


def test_without_opengl_a_replay_says_what_to_install(saved, tmp_path):
    done = klimb_replay("air-hockey", saved("air-hockey"), "-o", tmp_path / "robot.png", MUJOCO_GL="glfw")
    assert done.returncode == 1
    assert "apt-get install" in done.stderr
    assert "Traceback" not in done.stderr


def test_replay_draws_a_gymnasium_environment(saved, tmp_path):
    output = tmp_path / "swimmer.gif"
    task = "gymnasium:Swimmer-v5"
    done = klimb_replay(task, saved(task, horizon=20), "--option", "horizon=20", "-o", output)
    assert done.returncode == 0, done.stderr
    with Image.open(output) as picture:
        assert picture.n_frames == 20
