"""Studies under fire: killed, crowded, out of disk, damaged, and fed nonsense. All of it for real."""

import json
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import klimb
from klimb import cli

ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ENDINGS = ("", "-wal", "-shm")


def script(code, *words, **options):
    command = [sys.executable, "-W", "error", "-c", code, *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options
    )


def finished(process, timeout=180):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return out


def contents(path):
    """All that a study holds but for times, and how often an episode was handed out."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        return {
            table: connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()
            for table, columns in {
                "episodes": "episode, sample, iteration, position, repeat, origin, status, return, reason, "
                'bounds, seed, "update", extra, parameters, drawn',
                "updates": "number, episodes, n_used, n_failed, mean_return, best_return, kl, entropy, mean, "
                "std, effectiveness, selected",
                "state": "iteration, optimizer",
            }.items()
        }
    finally:
        connection.close()


# killed

KILLING = """
import os, random, signal, sys, time
import numpy as np
import klimb

directory, kills, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
EPISODES = 48
ALGORITHM = klimb.make_algorithm(name, **({"epsilon": 1.0, "kappa": 2.0} if name == "dr-creps" else {}))


class Task:
    n_parameters, optimum, initial_std = 6, None, 1.0

    def evaluate(self, theta, seed=0):
        noise = np.array([np.random.default_rng(int(number)).standard_normal() for number in seed])
        return np.where(noise > 1.5, np.nan, noise - np.square(np.asarray(theta) - 1.0).sum(axis=1))


def opened(path, kind):
    if os.path.exists(path):
        return klimb.Study(path)
    more = {"repeats": 2, "batch": 4} if kind == "robot" else {"batch": 8}
    if name != "dr-creps":
        more["outside"] = "clip"
    return klimb.Study.create(path, ALGORITHM, mean=np.zeros(6), std=1.0, low=-1.5, high=2.0, seed=1, **more)


def robot(study):  # one by one, as the program of a robot does
    while True:
        episode = study.ask(reissue_after=0)
        if episode.id > EPISODES:
            return
        value = Task().evaluate([episode.parameters], [episode.seed])[0]
        if np.isnan(value):
            study.fail(episode, "fell")
        else:
            study.tell(episode, value, extra={"noise": value})


def simulated(study):  # a batch at a time, as klimb run --study does
    study.run(Task(), episodes=EPISODES)


def to_the_end(path, kind):
    with opened(path, kind) as study:
        (robot if kind == "robot" else simulated)(study)


to_the_end(f"{directory}/warm.db", "simulated")  # imports what is needed
seconds = {}
for kind in ("robot", "simulated"):
    begin = time.perf_counter()
    to_the_end(f"{directory}/{kind}-reference.db", kind)
    seconds[kind] = time.perf_counter() - begin

chance = random.Random(0)
killed = 0
while killed < kills:
    kind = ("robot", "simulated")[killed % 2]
    path = f"{directory}/{kind}-{killed}.db"
    child = os.fork()
    if not child:
        to_the_end(path, kind)
        os._exit(0)
    time.sleep(chance.uniform(0, seconds[kind]))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        to_the_end(path, kind)
        killed += 1
    else:  # it was faster
        os.unlink(path)
print(killed)
"""


@pytest.mark.parametrize(("name", "kills"), [("dr-creps", 50), ("cma-es", 20), ("nelder-mead", 20)])
def test_killed_many_times_a_study_goes_on_as_if_nothing_had_happened(tmp_path, name, kills):
    assert finished(script(KILLING, tmp_path, kills, name)).strip() == str(kills)
    reference = {kind: contents(tmp_path / f"{kind}-reference.db") for kind in ("robot", "simulated")}
    assert len(reference["robot"]["updates"]) >= 5
    for number in range(kills):
        kind = ("robot", "simulated")[number % 2]
        assert contents(tmp_path / f"{kind}-{number}.db") == reference[kind]


def test_a_killed_command_resumes_to_the_same_file(tmp_path):
    """The same from the command line, with several kills of one run."""
    words = ["run", "sphere", "--option", "n_parameters=8", "--episodes", "1500", "--batch", "10", "--quiet"]
    code = "from klimb.cli import main; main()"
    finished(script(code, *words, "--study", tmp_path / "whole.db"))
    command, moments = [*words, "--study", tmp_path / "parts.db"], []
    for _ in range(4):
        process = script(code, *command)
        until = time.monotonic() + 60
        before = len(moments) and moments[-1]
        while process.poll() is None and time.monotonic() < until:
            moment = episodes_of(tmp_path / "parts.db")
            if moment > before + 150:
                break
            time.sleep(0.01)
        process.kill()
        process.communicate()
        moments.append(episodes_of(tmp_path / "parts.db"))
        command = ["study", "resume", tmp_path / "parts.db", "--quiet"]
    assert moments[0] < 1500
    assert moments == sorted(moments)
    finished(script(code, *command))
    assert contents(tmp_path / "parts.db") == contents(tmp_path / "whole.db")


def episodes_of(path):
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT count(*) FROM episodes").fetchone()[0]
    finally:
        connection.close()


# crowded

ROBOT = """
import json, sys
import numpy as np
import klimb

told = {}
with klimb.Study(sys.argv[1]) as study:
    for _ in range(int(sys.argv[2])):
        episode = study.ask()
        told[episode.id] = -float(np.square(episode.parameters).sum())
        study.tell(episode, told[episode.id])
print(json.dumps(told))
"""


def test_four_robots_share_a_study_of_two_thousand_episodes(tmp_path):
    path = tmp_path / "four.db"
    klimb.Study.create(path, klimb.es(), mean=np.ones(5), std=1.0, batch=50, seed=0).close()
    robots = [script(ROBOT, path, 500) for _ in range(4)]
    told = [json.loads(finished(robot)) for robot in robots]
    numbers = sorted(int(number) for mine in told for number in mine)
    assert numbers == list(range(1, 2001)), "handed out once each"
    everything = {int(number): value for mine in told for number, value in mine.items()}
    found = contents(path)
    for number, _, iteration, position, *_, status, value, _, _, _, used, _, blob, _ in found["episodes"]:
        assert (status, value) == ("done", everything[number])
        assert value == -float(np.square(np.frombuffer(blob)).sum())
        assert used is not None or number > 1900
        assert iteration is not None
        assert position < 60
    assert len(found["updates"]) == 40
    assert sum(row[2] for row in found["updates"]) == 2000
    assert found["updates"][-1][4] > found["updates"][0][4], "and they learned"


# the disk is full


def test_a_full_disk_stops_a_study_and_room_lets_it_go_on(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        path = disk / "arm.db"
        klimb.Study.create(path, klimb.creps(), mean=np.zeros(20), std=1.0, batch=50, seed=0).close()
        with klimb.Study(path) as study:
            with pytest.raises(klimb.StudyError, match="disk is full"):
                fill(study, 10_000)
            told = study.status().done
            assert 20 < told < 10_000
        before = contents(path)
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
        for words in (["ask", path], ["tell", "--parameters", ",".join(["1"] * 20), "--return", "1", path]):
            result = CliRunner().invoke(cli.app, ["study", *map(str, words)])
            assert result.exit_code == 1
            assert "disk" in result.stderr
            assert contents(path) == before
        assert CliRunner().invoke(cli.app, ["study", "status", str(path)]).exit_code in (0, 1)
        result = CliRunner().invoke(cli.app, ["study", "export", str(path), str(disk / "all.csv")])
        assert result.exit_code == 1
        assert not (disk / "all.csv").exists()
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        with klimb.Study(path) as study:
            fill(study, 10, reissue_after=0)
            assert study.status().done == told + 10
        contents(path)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(study, count, **how):
    for _ in range(count):
        study.tell(study.ask(**how), float(count))
    return count


def test_a_limit_on_file_sizes_is_a_full_disk_too(tmp_path):
    path = tmp_path / "arm.db"
    klimb.Study.create(path, klimb.es(), mean=np.zeros(20_000), std=1.0, batch=50, seed=0).close()
    with klimb.Study(path) as study:
        study.ask()
    before, size = contents(path), path.stat().st_size

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    for words in (["ask", path], ["tell", path, "1", "--return", "1"]):
        process = script("from klimb.cli import main; main()", "study", *words, preexec_fn=limited)
        out, err = process.communicate(timeout=60)
        assert process.returncode == (1 if words[0] == "ask" else 0), out + err
        assert "Traceback" not in err
        if words[0] == "ask":
            assert "disk is full or failing" in err
            assert contents(path) == before
    assert path.stat().st_size == size
    with klimb.Study(path) as study:
        study.tell(study.ask(), 1.0)


def test_a_file_that_may_not_grow(tmp_path):
    with klimb.Study.create(tmp_path / "arm.db", klimb.es(), mean=np.zeros(900), std=1.0, seed=0) as study:
        fill(study, 3)
        (pages,) = study._file.one("PRAGMA page_count")
        study._file.all(f"PRAGMA max_page_count = {pages + 2}")
        before = study.status().done
        with pytest.raises(klimb.StudyError, match="the disk is full"):
            fill(study, 100)
        study._file.all("PRAGMA max_page_count = 100000")
        assert 3 <= before <= study.status().done < 103
        fill(study, 5, reissue_after=0)
    contents(tmp_path / "arm.db")


# read-only


STRANGER = """
import os, sys
from klimb import cli, Study
from typer.testing import CliRunner

warm, words = sys.argv[1], sys.argv[2:]
create = ["create", warm + "2", "--parameters", "2", "--std", "1"]
for some in (["ask", warm, "--json"], ["status", warm, "--json"], create):  # imports what is needed
    CliRunner().invoke(cli.app, ["study", *some])
if os.getuid() == 0:  # who may do anything; be nobody instead
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.argv = ["klimb", "study", *words]
cli.main()
"""


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_study_can_be_looked_at_but_not_changed(what):
    with tempfile.TemporaryDirectory() as top:
        place = Path(top) / "place"
        place.mkdir()
        for path in (place / "arm.db", Path(top) / "warm.db"):
            with klimb.Study.create(path, klimb.creps(), mean=np.zeros(3), std=1.0, batch=4, seed=0) as study:
                fill(study, 9)
        path = place / "arm.db"
        Path(top).chmod(0o755)
        path.chmod(0o444 if what == "file" else 0o666)
        place.chmod(0o777 if what == "file" else 0o555)
        before = path.read_bytes()

        def stranger(*words):
            process = script(STRANGER, Path(top) / "warm.db", *words)
            out, err = process.communicate(timeout=60)
            assert "Traceback" not in err, err
            return process.returncode, out, err

        for words in (["ask", path], ["tell", path, "1", "--return", "2"], ["retry", path, "1"]):
            code, _, err = stranger(*words)
            assert code == 2, err
            assert "is read-only" in err
        code, out, err = stranger("status", path, "--json")
        assert code == 0, err
        assert json.loads(out)["done"] == 9
        code, _, err = stranger("create", place / "new.db", "--parameters", "2", "--std", "1")
        assert (code, "cannot be written" in err) == ((2, True) if what == "directory" else (0, False)), err
        assert path.read_bytes() == before
        place.chmod(0o755)


# nonsense

CASES = 2000
WORDS = [
    *(
        "",
        "-",
        "--",
        "0",
        "1",
        "2",
        "7",
        "-1",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "9" * 40,
        "x",
        "ü",
        "\ud800",
    ),
    *(
        "1,2,3",
        "1,,2",
        ",",
        "a,b,c",
        "hip,knee,ankle",
        "@",
        "@/dev/null",
        "@/",
        "10m",
        "0s",
        "-5m",
        "{}",
        "[1]",
    ),
    *(
        '{"x": 1}',
        '{"x": NaN}',
        "{" * 5000,
        "out.csv",
        "out.jsonl",
        "out.parquet",
        "out.xlsx",
        "/",
        ".",
        "None",
    ),
    *(
        "--json",
        "--return",
        "--failed",
        "--parameters",
        "--extra",
        "--study",
        "--reissue-after",
        "--older-than",
    ),
    *("--reason", "--top", "--names", "--std", "--low", "--high", "--mean", "--batch", "--repeats", "--seed"),
    *(
        "--algorithm",
        "--set",
        "--outside",
        "clip",
        "creps",
        "epsilon=0",
        "epsilon=x",
        "--help",
        "-r",
        "--episodes",
    ),
]
COMMANDS = ["create", "ask", "tell", "fail", "retry", "import", "export", "status", "resume"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """The bytes of a study with a bit of everything, and a table that goes with it."""
    directory = tmp_path_factory.mktemp("pristine")
    path = directory / "arm.db"
    names = ["hip", "knee", "ankle"]
    algorithm = klimb.dr_creps()
    with klimb.Study.create(
        path, algorithm, mean=np.zeros(3), std=1.0, names=names, low=-2, high=2, batch=4, repeats=2, seed=0
    ) as study:
        fill(study, 21)
        study.fail(study.ask(), "fell")
        study.ask_many(3)
        study.insert([0.1, 0.2, 0.3], 3.0, extra={"who": "Ada"})
        study.export(directory / "old.csv")
    return path.read_bytes(), (directory / "old.csv").read_bytes()


@pytest.fixture
def sandbox(tmp_path, pristine):
    """A place for thousands of small files: in memory if there is such a place."""
    memory = Path("/dev/shm")
    place = tmp_path
    if os.access(memory, os.W_OK):
        place = memory / f"klimb-{os.getpid()}"
        place.mkdir()
    here = Path.cwd()
    os.chdir(place)
    yield place
    os.chdir(here)
    if place != tmp_path:
        shutil.rmtree(place)


def attempt(place, words, study):
    """Run a command on a study; it must end in an orderly way, and an error must change nothing."""
    path = place / "arm.db"
    for file in place.iterdir():
        if file.is_file():
            file.unlink()
    path.write_bytes(study[0])
    (place / "old.csv").write_bytes(study[1])
    result = CliRunner().invoke(cli.app, ["study", *words])
    told = f"{words}\n{result.output}\n{result.exc_info}"
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    assert result.exit_code in (0, 1, 2), told
    assert "Traceback" not in result.output, told
    if result.exit_code:
        assert result.stderr.strip(), told
        assert path.read_bytes() == study[0], told
        assert not list(place.glob("*.part*")), told
    return result.exit_code


def test_a_thousand_odd_command_lines(sandbox, pristine):
    chance, codes = random.Random(1), []
    for _ in range(CASES // 2):
        file = chance.choices(["arm.db", "new.db", "old.csv", "/", ""], [12, 3, 1, 1, 1])[0]
        words = [chance.choice(COMMANDS), file]
        if words[0] == "import" and chance.random() < 0.5:
            words.append("old.csv")
        words += [chance.choice(WORDS) for _ in range(chance.randrange(7))]
        codes.append(attempt(sandbox, words, pristine))
    assert {0, 2} <= set(codes)


def test_a_thousand_damaged_files(sandbox, pristine):
    chance, codes = random.Random(2), []
    good = [
        *(["ask", "arm.db"], ["ask", "arm.db", "--reissue-after", "0", "--json"], ["status", "arm.db"]),
        *(["tell", "arm.db", "23", "--return", "1.5"], ["tell", "arm.db", "24", "--failed", "x"]),
        *(["status", "arm.db", "--json"], ["export", "arm.db", "out.csv"], ["export", "arm.db", "out.jsonl"]),
        *(
            ["fail", "arm.db", "--older-than", "0"],
            ["retry", "arm.db", "22"],
            ["import", "arm.db", "old.csv"],
        ),
        *(["tell", "arm.db", "--parameters", "1,1,1", "--return", "0"], ["resume", "arm.db"]),
    ]
    for _ in range(CASES // 2):
        codes.append(attempt(sandbox, chance.choice(good), (damage(chance, pristine[0]), pristine[1])))
    assert set(codes) == {0, 1, 2}
    assert codes.count(1) > 100


def damage(chance, data):
    """A file with a fault: cut off, overwritten in places, pages swapped, or with something else in it."""
    broken = bytearray(data)
    kind = chance.randrange(7)
    if kind == 0:
        return bytes(broken[: chance.randrange(len(broken))])
    if kind == 1:
        return bytes(broken[: 4096 * chance.randrange(len(broken) // 4096)])
    if kind == 2:
        for _ in range(chance.choice([1, 10, 1000])):
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    elif kind == 3:
        start = chance.randrange(len(broken))
        length = chance.choice([1, 16, 512, 4096])
        broken[start : start + length] = chance.randbytes(len(broken[start : start + length]))
    elif kind == 4:
        a, b = (4096 * chance.randrange(len(broken) // 4096) for _ in range(2))
        broken[a : a + 4096], broken[b : b + 4096] = broken[b : b + 4096], broken[a : a + 4096]
    elif kind == 5:
        start = 4096 * chance.randrange(len(broken) // 4096)
        broken[start : start + 4096] = bytes(4096)
    else:
        words = [
            b"hip",
            b"pending",
            b"resample",
            b"creps",
            b"klimb-optimizer",
            b"PK\x03\x04",
            b"NUMPY",
            b"CREATE",
        ]
        word = chance.choice(words)
        place = bytes(broken).find(word)
        broken[place : place + len(word)] = chance.randbytes(len(word))
    return bytes(broken)


def test_a_single_flipped_bit_in_the_optimizer_is_noticed(tmp_path, pristine):
    (tmp_path / "arm.db").write_bytes(pristine[0])
    connection = sqlite3.connect(tmp_path / "arm.db")
    (blob,) = connection.execute("SELECT optimizer FROM state").fetchone()
    noticed = 0
    for place in range(0, len(blob), 97):
        broken = bytearray(blob)
        broken[place] ^= 16
        with connection:
            connection.execute("UPDATE state SET optimizer = ?", (bytes(broken),))
        with klimb.Study(tmp_path / "arm.db") as study:
            try:
                assert study.optimizer.to_bytes() == blob, "harmless, or else noticed"
            except klimb.StudyError:
                noticed += 1
    connection.close()
    assert noticed > len(blob) / 97 / 2


# as fast with ten thousand episodes as with none


def test_ask_and_tell_do_not_slow_down_with_the_number_of_episodes(tmp_path):
    studies = {}
    for name, episodes in (("empty", 0), ("full", 10_000)):
        algorithm = klimb.dr_creps()
        study = klimb.Study.create(
            tmp_path / f"{name}.db", algorithm, mean=np.zeros(140), std=1.0, batch=50, seed=0
        )
        if episodes:
            study.run(lambda theta: -float(np.square(theta - 1).sum()), episodes=episodes)
            assert study.status().done == 10_000
        studies[name] = study
    asks, tells = {"empty": [], "full": []}, {"empty": [], "full": []}
    for _ in range(40):  # in turns, so that both see the same disk
        for name, study in studies.items():
            begin = time.process_time()
            episode = study.ask()
            middle = time.process_time()
            study.tell(episode, 1.0)
            asks[name].append(middle - begin)
            tells[name].append(time.process_time() - middle)
    for study in studies.values():
        study.close()
    assert statistics.median(asks["full"]) < 3 * statistics.median(asks["empty"])
    assert statistics.median(tells["full"]) < 3 * statistics.median(tells["empty"])


# one sync per tell

SYNCING = """
import os, sys
import numpy as np
import klimb

with klimb.Study.create(sys.argv[1], klimb.creps(), mean=np.zeros(140), std=1.0, batch=20, seed=0) as study:
    for number in range(130):  # six updates, and the log is brought in several times
        episode = study.ask()
        os.access("/klimb/tell", os.F_OK)
        study.tell(episode, -float(np.square(episode.parameters).sum()))
        os.access("/klimb/told", os.F_OK)
"""


def test_a_tell_costs_one_sync_of_the_disk(tmp_path):
    strace = shutil.which("strace")
    log = tmp_path / "calls"
    calls = "fsync,fdatasync,sync_file_range,msync,access,faccessat,faccessat2"
    command = [strace or "strace", "-f", "-o", log, "-e", f"trace={calls}"]
    if strace is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace is not there, or not allowed")
    words = [*command, sys.executable, "-c", SYNCING, tmp_path / "arm.db"]
    subprocess.run(words, check=True, env=ENVIRONMENT, timeout=120)
    counts, telling, others = [], False, 0
    for line in log.read_text().splitlines():
        if "/klimb/tell" in line:
            telling = True
            counts.append(0)
        elif "/klimb/told" in line:
            telling = False
        elif any(f" {name}(" in line for name in ("fsync", "fdatasync", "sync_file_range", "msync")):
            counts[-1:] = [counts[-1] + telling] if counts else []
            others += not telling
    assert counts == [1] * 130
    assert others > 130, "the asks sync, and now and then bring in the log"
