"""What pages are told of studies, the report, and who may ask the server for what."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

import klimb
from klimb import cli
from klimb.dashboard import data, folder, report, server
from klimb.dashboard.data import CURVE, Follower, Room, shared_room

KINDS = {"number": "<u4", "value": "<f8", "effectiveness": "u1", "marked": "u1", "mean": "<f4", "std": "<f4"}


def score(theta):
    return float(-np.sum((theta[:3] - 0.5) ** 2))


def make_study(path, *, episodes=60, seed=0, n=6, batch=10, algorithm=None, **settings):
    algorithm = algorithm or klimb.dr_creps(epsilon=1.0, kappa=2.0, n_effective=2, covariance="diagonal")
    made = klimb.Study.create(path, algorithm, mean=np.zeros(n), std=1.0, batch=batch, seed=seed, **settings)
    with made as study:
        if episodes >= batch:
            study.run(score, episodes=episodes)  # whole batches, which is quicker
        advance(study, episodes - study.status().done)
    return path


def advance(study, episodes, fails=()):
    for _ in range(episodes):
        episode = study.ask()
        if episode.id in fails:
            study.fail(episode, f"reason {episode.id}")
        else:
            study.tell(episode, score(episode.parameters))


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def merge(page, told):
    """What the page's script makes of an answer."""
    if told["epoch"] != page.get("epoch"):
        page.clear()
    page["epoch"], page["changes"] = told["epoch"], told["changes"]
    if "summary" not in told:
        return page
    for name in ("settings", "summary", "pending", "failures", "notes", "recent"):
        if name in told:
            page[name] = told[name]
    rows = len(page["settings"]["names"])
    for name in ("number", "value"):
        key, start = f"points {name}", told["points"]["from"]
        fresh = unpacked(told["points"][name], KINDS[name])
        page[key] = np.concatenate([page.get(key, np.empty(0))[:start], fresh])
    for name in ("number", *CURVE):
        key, start = f"curve {name}", told["curve"]["from"]
        fresh = unpacked(told["curve"][name], "<f8")
        page[key] = np.concatenate([page.get(key, np.empty(0))[:start], fresh])
    for name in ("episodes", "value"):
        page[f"mean policy {name}"] = unpacked(told["mean_policy"][name], "<f8")
    start = told["columns"]["from"]
    for name in ("number", "top", "measured"):
        key = f"columns {name}"
        page[key] = np.concatenate([page.get(key, np.empty(0))[:start], told["columns"][name]])
    for name in ("effectiveness", "marked", "mean", "std"):
        key = f"columns {name}"
        fresh = unpacked(told["columns"][name], KINDS[name]).reshape(-1, rows)
        page[key] = np.concatenate([page.get(key, np.empty((0, rows)))[:start], fresh])
    return page


def look(follower, page):
    follower.refresh()
    seen = (len(page.get("points number", ())), page["summary"]["updates"]) if "summary" in page else (0, 0)
    return merge(page, follower.data(page.get("epoch", ""), *seen, page.get("changes", -1)))


def everything(path, room=None):
    return look(Follower(path, "s", room or Room()), {})


# numbers


def test_a_page_is_told_what_the_status_says(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=0)
    with klimb.Study(path) as study:
        advance(study, 75, fails=(3, 40))
        study.ask_many(2)
        status = study.status()
    page = everything(path)
    told = page["summary"]
    for name in ("done", "failed", "settled", "updates", "best_return", "best_episode"):
        assert told[name] == getattr(status, name), name
    assert told["pending"] == 2
    assert [one["episode"] for one in page["pending"]] == [one.episode for one in status.pending]
    assert [(one["episode"], one["reason"]) for one in page["failures"]] == status.failures
    for name in ("episodes", "mean_return", "best_return", "kl", "entropy", "n_failed"):
        np.testing.assert_array_equal(page[f"curve {name}"], status.curve[name])
    np.testing.assert_allclose(unpacked(page["recent"], "<f4"), status.effectiveness, rtol=1e-6)
    np.testing.assert_allclose(page["columns mean"][-1], status.mean, rtol=1e-6)
    np.testing.assert_allclose(page["columns std"][-1], status.std, rtol=1e-6)
    failed = page["points number"][np.isnan(page["points value"])]
    assert failed.tolist() == [3, 40]


def test_the_mean_policy_is_shown_where_it_was_run_also_when_that_comes_later(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=20)
    task, follower, page = klimb.tasks.task_from_function(score, 6), Follower(path, "s"), {}
    assert look(follower, page)["mean policy value"].size == 0
    expected = []
    with klimb.Study(path) as study:
        for episodes in (30, 40):
            study.judge_mean(task)
            study.judge_mean(task)  # once is enough
            expected.append(score(study.optimizer.mean))
            assert look(follower, page)["mean policy value"].tolist() == expected
            study.run(score, episodes=episodes)
            assert look(follower, page)["mean policy episodes"].tolist() == [20, 30][: len(expected)]
        assert study.status().done == 40


def test_of_very_many_judgements_some_are_sent_and_the_latest(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "MOST_JUDGEMENTS", 4)
    path = make_study(tmp_path / "arm.db", episodes=0)
    task = klimb.tasks.task_from_function(score, 6)
    with klimb.Study(path) as study:
        for episodes in range(10, 100, 10):
            study.run(score, episodes=episodes)
            study.judge_mean(task)
    assert everything(path)["mean policy episodes"].tolist() == [30, 60, 90]


def test_the_best_of_repeated_episodes_is_that_of_the_status(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=23, batch=4, repeats=3)
    with klimb.Study(path) as study:
        status = study.status()
    told = everything(path)["summary"]
    assert (told["best_return"], told["best_episode"]) == (status.best_return, status.best_episode)


def test_the_heat_map_marks_what_was_selected(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=100)
    page = everything(path)
    rows = sqlite3.connect(path).execute("SELECT effectiveness, selected FROM updates ORDER BY number")
    for column, (effectiveness, selected) in enumerate(rows):
        chosen = np.flatnonzero(page["columns marked"][column])
        assert chosen.tolist() == np.frombuffer(selected, "<i8").tolist()
        shown = page["columns top"][column] * np.square(page["columns effectiveness"][column] / 255)
        np.testing.assert_allclose(shown, np.frombuffer(effectiveness), atol=0.005 * shown.max())


def test_of_turned_directions_as_many_parameters_are_marked_as_were_selected(tmp_path):
    algorithm = klimb.dr_creps(epsilon=1.0, kappa=2.0, n_effective=2)
    page = everything(make_study(tmp_path / "arm.db", episodes=100, algorithm=algorithm))
    assert (page["columns marked"] == 255).sum(axis=1).tolist() == [2] * 10
    strongest = np.argsort(-page["columns effectiveness"], axis=1, kind="stable")[:, :2]
    for marked, places in zip(page["columns marked"], strongest, strict=True):
        assert set(np.flatnonzero(marked)) == set(places)


def test_updates_that_share_a_column_are_averaged(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=1000)
    page = everything(path, Room(columns=16))
    assert page["columns number"].tolist() == [*range(8, 97, 8), 100]
    rows = sqlite3.connect(path).execute("SELECT effectiveness, mean FROM updates ORDER BY number").fetchall()
    measured = np.array([np.frombuffer(row[0]) for row in rows])
    shown = page["columns top"][:, None] * np.square(page["columns effectiveness"] / 255)
    np.testing.assert_allclose(shown[2], measured[16:24].mean(axis=0), atol=0.005)
    np.testing.assert_allclose(shown[-1], measured[96:].mean(axis=0), atol=0.005)
    np.testing.assert_allclose(page["columns mean"][2], np.frombuffer(rows[23][1]), rtol=1e-6)


@pytest.mark.parametrize("room", [Room(), Room(points=40, updates=10, columns=8)], ids=["wide", "narrow"])
def test_looking_now_and_then_shows_what_looking_once_shows(tmp_path, rng, room):
    path = make_study(tmp_path / "arm.db", episodes=0, batch=5)
    follower, page, transfers = Follower(path, "s", room), {}, []
    with klimb.Study(path) as study:
        for _ in range(25):
            waiting = study.ask_many(int(rng.integers(1, 12)))
            look(follower, page)
            for episode in rng.permutation(waiting):
                if rng.random() < 0.9:  # the others stay pending for good
                    study.tell(episode, score(episode.parameters))
            before = page.get("epoch")
            look(follower, page)
            transfers.append(before == page["epoch"])
    whole = everything(path, room)
    assert sum(transfers) > 12, "most looks add to what was there"
    order = np.argsort(page["points number"])
    np.testing.assert_array_equal(page["points number"][order], whole["points number"])
    np.testing.assert_array_equal(page["points value"][order], whole["points value"])
    assert page["points number"].size <= room.points
    for name in whole.keys() - {"epoch", "changes", "points number", "points value", "summary", "settings"}:
        np.testing.assert_array_equal(page[name], whole[name], err_msg=name)
    assert page["summary"] == whole["summary"] | {"changed": page["summary"]["changed"]}


def test_points_that_were_thinned_meanwhile_are_told_again(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=20)
    room = Room(points=40)
    follower = Follower(path, "s", room)
    page = look(follower, {})
    with klimb.Study(path) as study:
        advance(study, 25)
    page = look(follower, page)
    assert page["points number"].tolist() == list(range(2, 46, 2))


def test_nothing_new_is_told_in_a_few_bytes(tmp_path):
    follower = Follower(make_study(tmp_path / "arm.db"), "s")
    page = look(follower, {})
    follower.refresh()
    again = follower.data(page["epoch"], 60, 6, page["changes"])
    assert set(again) == {"epoch", "changes", "now"}


def test_an_untouched_file_is_not_read_again(tmp_path, monkeypatch):
    path = make_study(tmp_path / "arm.db")
    os.utime(path, (1e9, 1e9))
    follower = Follower(path, "s")
    look(follower, {})
    monkeypatch.setattr(data, "File", lambda path: pytest.fail("it was opened"))
    follower.refresh()


def test_a_file_written_just_now_is_read_even_if_its_time_stamp_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "UNSETTLED", 3600.0)  # a busy computer is slow
    path = make_study(tmp_path / "arm.db")
    follower = Follower(path, "s")
    page = look(follower, {})
    before = path.stat()
    with klimb.Study(path) as study:
        advance(study, 1)
    content = path.read_bytes()
    assert len(content) == before.st_size, "nothing but the time stamp can tell"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    follower.refresh()
    assert look(follower, page)["summary"]["done"] == 61


def test_a_file_in_the_place_of_another_is_a_new_study(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=40)
    follower = Follower(path, "s")
    page = look(follower, {})
    other = make_study(tmp_path / "other.db", episodes=20, n=4)
    os.replace(other, path)
    page = look(follower, page)
    assert page["summary"]["done"] == 20
    assert len(page["settings"]["names"]) == 4


def test_a_learner_without_divergence_and_effectiveness_is_shown(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=30)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    for name in ("kl", "entropy"):
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (f"{name} REAL NOT NULL", f"{name} REAL")
        )
    connection.commit()
    connection.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE updates SET kl = NULL, entropy = NULL, effectiveness = NULL, selected = NULL")
    connection.commit()
    connection.close()
    page = everything(path)
    assert np.isnan(page["curve kl"]).all()
    assert page["recent"] is None
    assert not page["columns measured"].any()
    assert page["summary"]["mean_return"] < 0


def test_of_very_many_parameters_those_that_matter_most_are_shown(tmp_path):
    path = make_study(tmp_path / "wide.db", episodes=20, n=2000)
    page = everything(path)
    with klimb.Study(path) as study:
        measured = study.status().effectiveness
    assert len(page["settings"]["names"]) == data.MOST_ROWS
    hidden = np.setdiff1d(np.arange(2000), page["settings"]["place"])
    assert measured[hidden].max() <= np.float32(measured[page["settings"]["place"]].min())
    assert any("512 of 2,000 parameters" in note for note in page["notes"])


@pytest.mark.parametrize(
    ("names", "joints"),
    [
        (["hip[0]", "hip[1]", "knee[0]", "knee[1]"], ["hip", "knee"]),
        (["hip[1]", "hip[2]", "knee[1]", "knee[2]"], ["hip", "knee"]),
        (["hip[0]", "knee[0]", "hip[1]", "knee[1]"], None),
        (["hip[0]", "hip[1]", "knee[0]"], None),
        (["hip[0]", "hip[1]"], None),
        (["hip", "knee"], None),
    ],
)
def test_names_tell_joints_and_time(tmp_path, names, joints):
    make_study(tmp_path / "arm.db", episodes=0, n=len(names), names=names)
    grid = everything(tmp_path / "arm.db")["settings"]["grid"]
    assert grid == (None if joints is None else {"joints": joints, "bases": 2})


@pytest.mark.parametrize(
    ("task", "n", "joints"), [("ball-stopping", 140, 7), ("air-hockey", 90, 3), ("lqr", 100, 0)]
)
def test_a_simulated_robot_tells_joints_and_time(tmp_path, task, n, joints):
    make_study(tmp_path / "arm.db", episodes=0, n=n, run={"task": task, "options": {}})
    grid = everything(tmp_path / "arm.db")["settings"]["grid"]
    assert (0 if grid is None else len(grid["joints"])) == joints


# folders


def test_studies_are_found_by_what_they_are_not_by_their_names(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    make_study(tmp_path / "deep" / "er" / "odd.name", episodes=0)
    make_study(tmp_path / ".hidden" / "a.db", episodes=0)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    (tmp_path / "text.db").write_text("no study")
    os.mkfifo(tmp_path / "pipe.db")
    assert list(folder.find_studies(tmp_path)) == ["deep/er/odd.name"]


def test_a_damaged_study_does_not_hide_the_others(tmp_path):
    make_study(tmp_path / "good.db")
    broken = make_study(tmp_path / "broken.db")
    content = broken.read_bytes()
    broken.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    lines = {line["key"]: line for line in folder.Folder(tmp_path).overview()["studies"]}
    assert lines["good.db"]["done"] == 60
    assert "damaged" in lines["broken.db"]["error"]


def test_seeds_make_a_group_with_a_confidence_interval(tmp_path):
    for seed in range(4):
        make_study(tmp_path / f"a{seed}.db", seed=seed)
    make_study(tmp_path / "b.db", algorithm=klimb.creps(epsilon=1.0, kappa=2.0), episodes=40)
    make_study(tmp_path / "c.db", algorithm=klimb.creps(epsilon=0.5, kappa=2.0))
    groups = {group["label"]: group for group in folder.Folder(tmp_path).overview()["groups"]}
    assert set(groups) == {"dr-creps", "creps, epsilon 1.0", "creps, epsilon 0.5"}
    seeds = groups["dr-creps"]
    assert seeds["studies"] == [f"a{seed}.db" for seed in range(4)]
    curves = []
    for seed in range(4):
        with klimb.Study(tmp_path / f"a{seed}.db") as study:
            curves.append(study.status().curve["mean_return"])
    interval = scipy.stats.t.interval(0.95, 3, np.mean(curves, axis=0), scipy.stats.sem(curves, axis=0))
    np.testing.assert_allclose([seeds["low"], seeds["high"]], interval)
    assert groups["creps, epsilon 1.0"]["episodes"] == [10, 20, 30, 40]


def test_runs_of_different_length_meet_where_both_have_been(tmp_path):
    make_study(tmp_path / "a.db", seed=0, episodes=60)
    make_study(tmp_path / "b.db", seed=1, episodes=30)
    (group,) = folder.Folder(tmp_path).overview()["groups"]
    with klimb.Study(tmp_path / "a.db") as study:
        curve = study.status().curve["mean_return"]
    np.testing.assert_array_equal(group["mean"][3:], curve[3:])


def test_films_beside_a_study_bear_its_name(tmp_path):
    study = make_study(tmp_path / "arm.db", episodes=0)
    for name in ("arm.gif", "arm-best.MP4", "arm_2.png", "armada.gif", "arm.svg", "leg.gif", "arm.npz"):
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in folder.films(study)] == ["arm-best.MP4", "arm.gif", "arm_2.png"]


# the report


def embedded(text):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found, parse_constant=pytest.fail)


def test_a_report_holds_what_the_server_would_say(tmp_path):
    path = make_study(tmp_path / "arm.db")
    (tmp_path / "arm.gif").write_bytes(b"GIF89a")
    made = report.write_report(path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert made == {"studies": 1, "bytes": len(text.encode())}
    told = embedded(text)
    page, whole = merge({}, told["studies"]["arm.db"]), everything(path)
    for name in whole.keys() - {"epoch", "summary"}:
        np.testing.assert_array_equal(page[name], whole[name], err_msg=name)
    (film,) = told["studies"]["arm.db"]["films"]
    assert base64.b64decode(film["source"].partition(",")[2]) == b"GIF89a"


def test_a_report_asks_the_network_for_nothing_and_stays_small(tmp_path):
    report.write_report(make_study(tmp_path / "arm.db", episodes=0), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text.partition("<script>")[0])
    assert "http://" not in text
    assert "https://" not in text
    assert len(text) < 100_000


def test_many_studies_share_the_room_of_a_report(tmp_path):
    assert shared_room(1) == Room()
    alone, among = shared_room(1), shared_room(25)
    assert among.points <= alone.points / 25 + 400
    assert among.columns < alone.columns / 10


def test_markup_cannot_leave_the_data_of_a_report(tmp_path):
    evil = "</script><script>alert(1)</script><!--"
    make_study(tmp_path / "arm.db", episodes=0, n=2, names=[evil, "b"], run={"task": evil})
    report.write_report(tmp_path / "arm.db", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert evil not in text
    assert embedded(text)["studies"]["arm.db"]["settings"]["names"][0] == evil


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["missing.db", "-o", "r.html"], 2, "there is nothing at missing.db"),
        ([".", "-o", "r.html"], 2, "has no studies in it"),
        (["text.db", "-o", "r.html"], 2, "is not a study"),
        (["arm.db", "-o", "r.pdf"], 2, "must end in .html"),
        (["arm.db", "-o", "there.html"], 2, "is a directory"),
        (["arm.db", "-o", "no/r.html"], 2, "No such file or directory"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused_in_words(tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("no study")
    (tmp_path / "there.html").mkdir()
    if words[0] == "arm.db":
        make_study(tmp_path / "arm.db", episodes=0)
    done = CliRunner().invoke(cli.app, ["report", *words])
    assert done.exit_code == code
    assert message in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_the_report_command_says_what_it_made(tmp_path):
    make_study(tmp_path / "arm.db")
    words = ["report", str(tmp_path / "arm.db"), "-o", str(tmp_path / "report.html")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("1 study in ")
    told = json.loads(CliRunner().invoke(cli.app, [*words, "--json"]).stdout)
    assert told["bytes"] == (tmp_path / "report.html").stat().st_size


# the server


@contextmanager
def serving(path, host="127.0.0.1", token=None):
    """The port of a server that shows a path."""
    waiting = server.listen(host, 0)
    made = server.make_server(folder.Folder(path), host, token)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [waiting]})
    thread.start()
    try:
        yield waiting.getsockname()[1]
    finally:
        made.should_exit = True
        thread.join()
        waiting.close()


def ask(port, path, method="GET", body=None, **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        if body is not None:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def tell(port, told, **headers):
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content_Type": "application/json"} | headers
    code, _, text = ask(port, "/api/tell?study=arm.db", "POST", body, **headers)
    return code, json.loads(text)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """A study with pending episodes, and the port of its server."""
    path = make_study(tmp_path_factory.mktemp("arm") / "arm.db", episodes=0)
    with klimb.Study(path) as study:
        study.ask_many(30)
    with serving(path) as port:
        yield path, port


def standing(path):
    with klimb.Study(path) as study:
        status = study.status()
    return status.done, status.failed


def test_the_page_and_its_data_are_served(arm):
    _, port = arm
    for path, kind in (
        ("/", "text/html"),
        ("/page/page.js", "text/javascript"),
        ("/page/page.css", "text/css"),
    ):
        code, headers, text = ask(port, path)
        assert code == 200
        assert headers["content-type"].startswith(kind)
        assert text
    code, headers, text = ask(port, "/api/study?study=arm.db")
    assert code == 200
    assert json.loads(text)["settings"]["names"] == [f"p{j}" for j in range(6)]


def test_every_answer_forbids_foreign_scripts_and_frames(arm):
    _, port = arm
    for path in ("/", "/page/plots.js", "/api/studies", "/api/study?study=no", "/nowhere"):
        _, headers, _ = ask(port, path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/..%2fserver.py", "/page/page.html", "/page/x"])
def test_no_other_file_is_served(arm, path):
    assert ask(arm[1], path)[0] == 404


@pytest.mark.parametrize("study", ["", "..%2Farm.db", "%2Fetc%2Fpasswd", "no.db"])
def test_no_other_study_is_shown(arm, study):
    code, _, text = ask(arm[1], f"/api/study?study={study}")
    assert code == 404
    assert "there is no such study" in json.loads(text)["error"]


@pytest.mark.parametrize("film", ["arm.db", "..%2Farm.db", "%2Fetc%2Fpasswd", ""])
def test_films_are_pictures_beside_the_study_only(arm, film):
    assert ask(arm[1], f"/api/film?study=arm.db&name={film}")[0] == 404


def test_a_film_is_served(arm):
    path, port = arm
    path.with_name("arm-walk.gif").write_bytes(b"GIF89a")
    code, headers, body = ask(port, "/api/film?study=arm.db&name=arm-walk.gif")
    assert (code, headers["content-type"], body) == (200, "image/gif", b"GIF89a")
    path.with_name("arm-walk.gif").unlink()


@pytest.mark.parametrize("place", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1"])
def test_a_name_that_is_not_ours_is_refused(arm, place):
    code, _, text = ask(arm[1], "/api/study?study=arm.db", Host=place)
    assert code == 421
    assert "settings" not in text.decode()


@pytest.mark.parametrize("place", ["127.0.0.1", "localhost:99", "LOCALHOST", "[::1]:8000", "192.168.0.7:80"])
def test_addresses_and_names_of_this_computer_are_ours(arm, place):
    assert ask(arm[1], "/api/studies", Host=place)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": ""},
    ],
)
def test_another_site_cannot_tell_an_episode(arm, headers):
    path, port = arm
    before = standing(path)
    code, said = tell(port, {"episode": 1, "return": 9.0}, **headers)
    assert code == 403
    assert "own page" in said["error"]
    assert standing(path) == before


def test_nor_one_that_sends_no_origin_or_no_json(arm):
    path, port = arm
    before = standing(path)
    body = b'{"episode": 1, "return": 9.0}'
    assert ask(port, "/api/tell?study=arm.db", "POST", body, Content_Type="application/json")[0] == 403
    assert tell(port, body, Content_Type="text/plain")[0] == 415
    assert standing(path) == before


def test_an_episode_is_told_as_the_command_line_tells_it(tmp_path):
    told = []
    for name, through_the_page in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        path = make_study(tmp_path / name / "arm.db", episodes=0, batch=4)
        with serving(path) as port, klimb.Study(path) as study:
            for episode in study.ask_many(4):
                failed = episode.id == 2
                if through_the_page:
                    value = {"failed": "motor fault"} if failed else {"return": score(episode.parameters)}
                    code, said = tell(port, {"episode": episode.id, **value})
                    assert code == 200
                    assert f"Episode {episode.id} is stored" in said["message"]
                    assert ("update 1 from 3 samples" in said["message"]) == (episode.id == 4)
                else:
                    words = ["--failed", "motor fault"] if failed else ["--return", score(episode.parameters)]
                    done = CliRunner().invoke(
                        cli.app, ["study", "tell", str(path), str(episode.id), *map(str, words)]
                    )
                    assert done.exit_code == 0
            told.append(
                (study.optimizer.mean.tolist(), study.status().failures, study.ask().parameters.tolist())
            )
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"episode": 99, "return": 1.0}, "has no episode 99"),
        ({"episode": 0, "return": 1.0}, "whole number"),
        ({"episode": "1", "return": 1.0}, "whole number"),
        ({"episode": 1, "return": "fast"}, "finite number"),
        (b'{"episode": 1, "return": NaN}', "finite number"),
        (b'{"episode": 1, "return": 1e999}', "finite number"),
        ({"episode": 1}, "either its return or why it failed"),
        ({"episode": 1, "return": 1.0, "failed": "x"}, "either its return or why it failed"),
        ({"return": 1.0}, "say which episode"),
        ([1, 2], "say which episode"),
        (b"{", "say which episode"),
        (b"\xff\xfe", "say which episode"),
        (b"[" * 10_000, "say which episode"),
    ],
)
def test_what_cannot_be_told_is_refused_in_words_and_changes_nothing(arm, told, message):
    path, port = arm
    before = standing(path)
    code, said = tell(port, told)
    assert code == 400
    assert message in said["error"]
    assert standing(path) == before


def test_an_episode_is_told_once(arm):
    _, port = arm
    assert tell(port, {"episode": 7, "return": -1.5})[0] == 200
    code, said = tell(port, {"episode": 7, "return": 2.0})
    assert code == 400
    assert "was told before, with the return -1.5" in said["error"]


def test_too_much_is_not_read(arm):
    assert tell(arm[1], b" " * (server.LARGEST_BODY + 1))[0] == 413


@pytest.mark.parametrize(
    "query", ["points=x&updates=1", "points=-5&updates=-5&epoch=a", "points=9e9", "changes=0"]
)
def test_an_odd_question_gets_everything(arm, query):
    code, _, text = ask(arm[1], f"/api/study?study=arm.db&{query}")
    assert code == 200
    assert "settings" in json.loads(text)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer ", 401),
        ("Basic secret-secret-secret", 401),
        ("Bearer \xe9", 401),
        ("Bearer secret-secret-secret", 200),
    ],
)
def test_a_token_opens_all_there_is_and_nothing_else_does(tmp_path, header, code):
    path = make_study(tmp_path / "arm.db", episodes=0)
    with klimb.Study(path) as study:
        study.ask()
    (tmp_path / "arm.gif").write_bytes(b"GIF89a")
    headers = {} if header is None else {"Authorization": header}
    with serving(path, token="secret-secret-secret") as port:
        for question in ("/api/studies", "/api/study?study=arm.db", "/api/film?study=arm.db&name=arm.gif"):
            assert ask(port, question, **headers)[0] == code
        assert ask(port, "/")[0] == 200, "the page itself holds nothing"
        assert tell(port, {"episode": 1, "return": 1.0}, **headers)[0] == code
    assert standing(path) == ((1, 0) if code == 200 else (0, 0))


def test_a_page_can_read_while_another_process_writes(tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=0, batch=5)
    code = (
        "import sys, klimb\n"
        "with klimb.Study(sys.argv[1]) as study:\n"
        "    for _ in range(100):\n"
        "        episode = study.ask(); study.tell(episode, -float(sum(episode.parameters**2)))\n"
    )
    page = {}
    with serving(path) as port:
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        looks = 0
        while writer.poll() is None or looks < 3:
            seen = (
                f"&points={len(page['points number'])}&updates={page['summary']['updates']}" if page else ""
            )
            epoch = f"&epoch={page['epoch']}" if page else ""
            answer, _, text = ask(port, f"/api/study?study=arm.db{epoch}{seen}")
            assert answer == 200
            merge(page, json.loads(text))
            looks += 1
            time.sleep(0.02)
    assert writer.wait() == 0
    whole = everything(path)
    order = np.argsort(page["points number"])
    np.testing.assert_array_equal(page["points value"][order], whole["points value"])
    for name in ("curve mean_return", "columns mean", "columns effectiveness"):
        np.testing.assert_array_equal(page[name], whole[name], err_msg=name)


# the command


def test_the_command_serves_until_ctrl_c(tmp_path):
    path = make_study(tmp_path / "arm.db")
    command = [sys.executable, "-W", "error", "-c", "from klimb.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "dashboard", str(path), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/$", line)[1])
        assert ask(port, "/api/study?study=arm.db")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def shown(monkeypatch):
    """What the command would serve: folder, host and token."""
    seen = []

    class Server:
        def run(self, sockets):
            pass

    def make_server(*told):
        seen.append(told)
        return Server()

    monkeypatch.setattr(server, "make_server", make_server)
    return seen


def dashboard(*words, **environment):
    return CliRunner().invoke(cli.app, ["dashboard", *map(str, words), "--port", "0"], env=environment)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_this_computer_needs_no_token(tmp_path, shown, host):
    done = dashboard(make_study(tmp_path / "arm.db", episodes=0), "--host", host)
    assert done.exit_code == 0, done.stderr
    assert shown[0][1:] == (host, None)
    assert "token" not in done.stdout


def test_other_computers_need_a_token_which_is_made_up(tmp_path, shown):
    path = make_study(tmp_path / "arm.db", episodes=0)
    tokens = []
    for _ in range(2):
        done = dashboard(path, "--host", "0.0.0.0")
        assert done.exit_code == 0, done.stderr
        (token,) = re.findall(rf"http://{re.escape(socket.gethostname())}:\d+/#token=(\S+)", done.stdout)
        tokens.append(token)
    assert [told[2] for told in shown] == tokens
    assert tokens[0] != tokens[1]
    assert min(map(len, tokens)) >= 32


def test_a_token_can_be_given(tmp_path, shown):
    path = make_study(tmp_path / "arm.db", episodes=0)
    assert dashboard(path, "--token", "sixteen-letters-1").exit_code == 0
    assert dashboard(path, "--host", "0.0.0.0", KLIMB_TOKEN="sixteen-letters-2").exit_code == 0
    assert [told[2] for told in shown] == ["sixteen-letters-1", "sixteen-letters-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.db"], "there is nothing at missing.db"),
        (["text.db"], "is not a study"),
        (["arm.db", "--token", "short"], "at least 16"),
        (["arm.db", "--host", "no such host"], "--host must be an address"),
        (["arm.db", "--host", "203.0.113.7"], "cannot be listened on"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(tmp_path, monkeypatch, shown, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("no study")
    make_study(tmp_path / "arm.db", episodes=0)
    done = dashboard(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not shown


def test_a_port_in_use_is_named(tmp_path, shown):
    path = make_study(tmp_path / "arm.db", episodes=0)
    with server.listen("127.0.0.1", 0) as busy:
        words = ["dashboard", str(path), "--port", str(busy.getsockname()[1])]
        done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 2
    assert "choose another with --port" in done.stderr


def test_a_missing_extra_is_named_with_its_command(tmp_path, monkeypatch):
    path = make_study(tmp_path / "arm.db", episodes=0)
    monkeypatch.delitem(sys.modules, "klimb.dashboard.server")
    monkeypatch.delattr("klimb.dashboard.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = dashboard(path)
    assert done.exit_code == 2
    assert "pip install 'klimb[dashboard]'" in done.stderr


def test_an_address_can_be_opened_as_it_is_written():
    with server.listen("127.0.0.1", 0) as waiting:
        port = waiting.getsockname()[1]
        assert server.url_of(waiting, "127.0.0.1", None) == f"http://127.0.0.1:{port}/"
        assert server.url_of(waiting, "::1", "a b") == f"http://[::1]:{port}/#token=a%20b"
