"""Every block of code in README and docs/ runs and prints what it says; the site builds, for use offline.

Python blocks of a page share a namespace and a folder of their own, with the repository's examples in it. A
block with a title is a file. Lines of console blocks that start with klimb, python or bash are run; after
"$ " come commands and what they print, and "# exit code 2" says that one is meant to fail. A block of text is
what the block before it prints: words exactly, decimals to 2 % or the last digit, "..." anything. A comment
before a block changes this:

    <!-- shortened: --episodes 60 -->    adds this to klimb run and klimb study resume; films become small,
                                         and episodes of Gymnasium environments short
    <!-- not run: the reason -->
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import klimb
from klimb import algorithms, baselines, cli, effectiveness, policies, study, tasks, updates

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REGISTRIES = (algorithms.ALGORITHMS, effectiveness.MEASURES, policies.POLICIES, tasks.TASKS, updates.RULES)

# Reruns of the paper take hours, a page is served until Ctrl-C: that the command exists is all we check.
ENDLESS = ("klimb reproduce", "klimb sweep", "klimb claims", "klimb dashboard")

FENCE = re.compile(r'^```(?P<language>\w*)(?:.*title="(?P<title>[^"]+)")?')
REMARK = re.compile(r"^<!-- (?P<kind>shortened|not run): ?(?P<what>.*?) ?-->$")
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass
class Block:
    page: Path
    line: int
    language: str
    text: str
    title: str | None = None
    remark: tuple[str, str] | None = None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}, line {self.line}"


def blocks(page):
    """The fenced blocks of a page, and indented ones that begin with a klimb command."""
    lines = page.read_text().splitlines()
    remark, place = None, 0
    while place < len(lines):
        line, start = lines[place], place + 1
        place += 1
        if match := FENCE.match(line):
            end = lines.index("```", place)
            text = "\n".join(lines[place:end]) + "\n"
            yield Block(page, start, match["language"], text, match["title"], remark)
            place = end + 1
        elif line.startswith("    klimb ") and not lines[place - 2].strip():
            while place < len(lines) and lines[place].startswith("    "):
                place += 1
            text = "\n".join(line[4:] for line in lines[start - 1 : place])
            yield Block(page, start, "sh", text, None, remark)
        if match := REMARK.match(line):
            remark = match["kind"], match["what"]
        elif line.strip():
            remark = None


def commands(text):
    """Commands of a console block with what each should print, None where the block does not say."""
    text = text.replace("\\\n", " ")
    if not re.search(r"^\$ ", text, flags=re.MULTILINE):
        return [(line, None) for line in text.splitlines() if line.strip()]
    return [
        (command, "\n".join(output) if output else None)
        for command, *output in (
            part.splitlines() for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        )
    ]


def same(expected, printed):
    """Whether `printed` is what `expected` says."""
    pattern, numbers = "", []
    for piece in re.split(rf"(\.\.\.|\s+|{NUMBER.pattern})", expected.strip()):
        if piece == "...":
            pattern += ".*?"
        elif NUMBER.fullmatch(piece):
            pattern += f"({NUMBER.pattern})"
            numbers.append(piece)
        else:
            pattern += r"\s+" if piece.isspace() else re.escape(piece)
    match = re.fullmatch(pattern, printed.strip(), flags=re.DOTALL)
    return match is not None and all(map(near, numbers, match.groups()))


def near(expected, printed):
    if "." not in expected:
        return expected == printed
    a, b = (float(number.replace("−", "-")) for number in (expected, printed))
    last_digit = 10.0 ** -len(expected.partition(".")[2].partition("e")[0])
    return abs(a - b) <= max(0.02 * abs(a), 1.01 * last_digit)


def run_command(line, folder):
    """Exit code and output; klimb's commands run in this process, but for films: OpenGL is chosen once."""
    words = shlex.split(line, comments=True)
    if words[0] == "klimb" and words[1] != "replay":
        result = CliRunner().invoke(cli.app, words[1:])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output
    words[0] = {"python": sys.executable}.get(words[0], words[0])
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


def brief(line, extra):
    """What makes a command quick."""
    if line.startswith(("klimb run ", "klimb study resume ")):
        return f" {extra}" + " --option horizon=20" * ("gymnasium:" in line)
    return " --width 64 --height 48" if line.startswith("klimb replay ") else ""


def run_console(block, folder):
    """Run a console block and give what its last command printed."""
    kind, extra = block.remark or ("", "")
    printed = ""
    for line, expected in commands(block.text):
        if line.startswith(ENDLESS):
            line, expected = f"{' '.join(line.split()[:2])} --help", None
        if not line.startswith(("klimb ", "python ", "bash ")):
            continue
        meant = re.search(r"# exit code (\d+)", line)
        command = line.partition("  #")[0]
        if kind == "shortened":
            command += brief(line, extra)
        code, printed = run_command(command, folder)
        if code == 1 and "drawing needs OpenGL" in printed and not os.environ.get("CI"):
            continue
        assert code == (int(meant[1]) if meant else 0), f"{block}: {line}\n{printed}"
        if expected is not None and not kind:
            assert same(expected, printed), f"{block}: {line}\nprinted\n{printed}"
    return printed


@pytest.fixture
def clean(tmp_path):
    """Registries as they were, and no modules of the page left."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_the_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    names, printed, compared = {"__name__": "__main__"}, "", False
    for block in blocks(page):
        if block.remark is not None and block.remark[0] == "not run":
            printed, compared = "", False
        elif block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, str(block), "exec"), names)
            printed, compared = out.getvalue(), True
        elif block.language in ("sh", "bash", "console"):
            printed, compared = run_console(block, tmp_path), block.remark is None
        elif block.language == "text":
            assert not compared or same(block.text, printed), f"{block}: printed\n{printed}"
        else:
            pytest.fail(f"{block}: say what the block is: python, sh, console or text")


def test_few_blocks_are_not_run_and_these_say_why():
    spared = [block for page in PAGES for block in blocks(page) if block.remark is not None]
    for block in spared:
        print(f"{block}: {block.remark[0]}, {block.remark[1]}")
    assert sum(block.remark[0] == "not run" for block in spared) <= 3
    assert sum(block.remark[0] == "shortened" for block in spared) <= 12


@pytest.mark.parametrize(
    ("expected", "printed", "answer"),
    [
        ("mean 0.50 of 20", "mean 0.51  of\n20\n", True),
        ("mean 0.50 of 20", "mean 0.60 of 20", False),
        ("mean 0.50 of 20", "mean 0.50 of 21", False),
        ("mean 0.50", "mean -0.50", False),
        ("mean 0.50", "median 0.50", False),
        ("a ... z", "a b\nc z", True),
        ("a ... z", "a b c", False),
        ("a", "a b", False),
        ("−3.2e-05", "-3.2e-05", True),
        ("", "something", False),
    ],
)
def test_comparison_knows_right_from_wrong(expected, printed, answer):
    assert same(expected, printed) is answer


def test_blocks_are_found_with_their_remarks(tmp_path):
    text = "\n\n".join(
        [
            "```python\n1\n```",
            "<!-- not run: it is dear -->\n```sh\nklimb a\n```",
            '```python title="a.py"\n2\n```',
            "<!-- shortened: --episodes 2 -->",
            "    klimb run b\n    klimb c",
            "    not a command",
        ]
    )
    page = tmp_path / "page.md"
    page.write_text(text)
    found = [(block.language, block.text.strip(), block.title, block.remark) for block in blocks(page)]
    assert found == [
        ("python", "1", None, None),
        ("sh", "klimb a", None, ("not run", "it is dear")),
        ("python", "2", "a.py", None),
        ("sh", "klimb run b\nklimb c", None, ("shortened", "--episodes 2")),
    ]
    assert commands("$ klimb a\nb\nc\n$ klimb d\n") == [("klimb a", "b\nc"), ("klimb d", None)]


class Page(HTMLParser):
    """What a page loads from elsewhere, the places in it, and its words."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors, self.classes = [], [], set(), set()
        self.text, self.formulas = "", 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.formulas += tag == "math"
        self.anchors.add(attributes.get("id"))
        self.classes.update((attributes.get("class") or "").split())
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        source = attributes.get("href") if tag == "link" else attributes.get("src")
        if source and tag in ("link", "script", "img", "iframe", "source", "video"):
            self.loads.append(source)

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All pages by address, from a build in which every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {str(path.relative_to(folder)): Page(path) for path in folder.rglob("*.html")}


def test_site_loads_nothing_from_elsewhere_and_shows_formulas(site):
    for name, page in site.items():
        assert not [source for source in page.loads if re.match("(https?:)?//", source)], name
        assert not re.search(r":(class|func|meth|data|mod):", page.text), name
        assert "arithmatex" not in page.classes, name
    assert all(page.formulas for name, page in site.items() if re.match("algorithms/(?!index)", name))


def test_links_within_the_site_lead_somewhere(site):
    for name, page in site.items():
        for link in page.links:
            if re.match(r"\w+:", link) or name == "404.html":
                continue
            target, _, place = link.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            assert path in site or path == ".", f"{name}: {link}"
            assert not place or place in site[path].anchors | {"__skip"}, f"{name}: {link}"


def test_reference_has_all_that_klimb_offers(site):
    there = set().union(*(page.anchors for name, page in site.items() if name.startswith("api/")))
    offered = [f"klimb.{name}" for name in klimb.__all__ if name != "more"]
    offered += ["klimb.algorithms.more"]  # klimb.more is a module, too
    offered += [f"klimb.policies.{name}" for name in policies.__all__ if name != "POLICIES"]
    offered += [f"klimb.baselines.{name}" for name in baselines.__all__]
    offered += [f"klimb.study.{name}" for name in study.__all__ if name not in klimb.__all__]
    offered += [
        f"klimb.tasks.{name}" for name in tasks.__all__ if name not in klimb.__all__ and name[1].islower()
    ]
    assert not set(offered) - there


def test_every_algorithm_has_its_page_or_place(site):
    for name in algorithms.ALGORITHMS:
        page = "algorithms/pe.html" if name.endswith("-pe") else f"algorithms/{name}.html"
        assert f"--algorithm {name}" in re.sub(r"\s+", " ", site[page].text), name
