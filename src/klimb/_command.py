"""What the files of the command line share: words in, numbers and JSON out, the end of a failed command."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import typer


def assignments(option: str, words: list[str] | None) -> dict[str, Any]:
    """Names and values of a repeated NAME=VALUE option."""
    pairs: dict[str, Any] = {}
    for word in words or []:
        name, sign, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not (sign and name):
            raise ValueError(
                f"{option} must have the form NAME=VALUE, such as epsilon=2.0, but {word!r} came."
            )
        if name in pairs:
            raise ValueError(f"{option} {name} was given twice.")
        pairs[name] = to_value(value.strip())
    return pairs


def to_value(word: str) -> Any:
    """A word as a whole number, a number, True, False, None or else itself."""
    words = {"true": True, "false": False, "none": None}
    if word.lower() in words:
        return words[word.lower()]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def to_word(value: Any) -> str:
    """The inverse of :func:`to_value`."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def number(value: float) -> str:
    """Five digits, enough to tell two runs apart."""
    return f"{value:.5g}"


def strict_json(value: Any) -> str:
    """JSON in one line, null where a number is not finite."""

    def strict(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strict(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [strict(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(strict(value), allow_nan=False, ensure_ascii=False)


def fail(message: str, code: int) -> NoReturn:
    """Leave with a plain sentence on stderr."""
    typer.echo(f"klimb: {message}", err=True)
    raise typer.Exit(code)
