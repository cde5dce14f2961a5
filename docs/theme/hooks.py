"""What the site needs beyond MkDocs: files outside docs/ as pages, MathML, references in docstrings."""

from __future__ import annotations

import ast
import html
import os
import posixpath
import re
from pathlib import Path
from typing import Any

import ziamath.fonts
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Few systems have a font with what formulas need; ziamath ships one.
FONT = Path(ziamath.fonts.__file__).with_name("STIXTwoMath-Regular.ttf")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

#: Files outside docs/ and the pages that stand for them: links that work in the repository work here too.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples": "examples.md",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in EXAMPLES},
}
SOURCES = {page: place for place, page in PAGES.items() if page != "index.md"}

LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
ROLE = re.compile(r":(?:class|func|meth|mod|data):<code>~?([\w.]+)</code>")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from files outside docs/, and the font of the formulas."""
    files.append(File.generated(config, f"theme/{FONT.name}", abs_src_path=str(FONT)))
    for page, place in SOURCES.items():
        path = ROOT / place
        text = path.read_text() if path.suffix == ".md" else _example(path) if path.is_file() else _examples()
        files.append(File.generated(config, page, content=text))
    return files


def _example(path: Path) -> str:
    code = f'```python title="examples/{path.name}"\n{path.read_text()}```\n'
    return f"---\nhide: [toc]\n---\n\n# {path.name}\n\n{code}"


def _examples() -> str:
    lines = ["# Examples", "", "Each shows one idea and runs in seconds: `python examples/ask_tell.py`.", ""]
    for path in EXAMPLES:
        about = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
        lines.append(f"- [{path.name}](examples/{path.stem}.md): {about}")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to files outside docs/ to their pages."""
    here = page.file.src_uri
    place = SOURCES.get(here, f"docs/{here}")

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), match[1]))
        if target.startswith("docs/"):
            target = target.removeprefix("docs/")
        elif target in PAGES:
            target = PAGES[target]
        else:
            return match[0]
        return f"]({os.path.relpath(target, posixpath.dirname(here) or '.')}{match[2]})"

    return LINK.sub(lead, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Turn formulas into MathML, and what docstrings refer to into links."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        latex = html.unescape(match[2].strip())[2:-2].strip()
        made = convert(latex, display=display)
        if "\\" in made:
            raise PluginError(f"{page.file.src_uri}: a formula that cannot become MathML: {latex}")
        return f'<div class="formula">{made}</div>' if display == "block" else made

    def reference(match: re.Match[str]) -> str:
        name = match[1].rpartition(".")[2]
        return f'<autoref identifier="{match[1]}" optional><code>{name}</code></autoref>'

    return ROLE.sub(reference, FORMULA.sub(formula, content))
