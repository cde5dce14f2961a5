"""Every example runs; the README keeps its promises (that its code runs is up to test_docs.py)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(code_or_path, directory):
    command = [sys.executable, "-W", "error", *code_or_path]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints_something(path, tmp_path):
    done = run([str(path)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_what_it_shows(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 70
    assert lines[0].startswith('"""')


def test_save_and_resume_example_gives_the_same_run(tmp_path):
    printed = run([str(ROOT / "examples" / "save_and_resume.py")], tmp_path).stdout
    assert printed.count("True") == 2
    assert "False" not in printed


def test_readme_shows_ask_and_tell_early():
    assert len(BLOCKS) >= 3
    assert "optimizer.ask" in BLOCKS[0]
    assert README[: README.index("optimizer.ask")].count("\n") < 40


def test_ask_and_tell_of_the_readme_keeps_its_promise():
    names = {}
    exec(BLOCKS[0].replace("optimizer.save", "str"), names)
    assert abs(names["optimizer"].mean[[4, 30, 77]] - 0.5).max() < 0.1


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
