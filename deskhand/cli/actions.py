"""The commands `deskhand actions ...`. Invariant: a reply that is not understood, and a case that is read otherwise than it should
be, are exit code 2."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from deskhand.errors import AgentError, ConfigError, ParseError

WRONG = 2

actions_app = App(name="actions", help="The languages of actions that models speak.")


@actions_app.command
def check(names: list[str] | None = None, /, *, folder: Path | None = None) -> None:
    """Read the conformance corpus; exits with 2 when a case is read otherwise than it should be.

    Parameters
    ----------
    names
        Dialects; all if none is named.
    folder
        Where the corpus is, a file DIALECT.jsonl for each; that of the package if it is left out.
    """
    from deskhand.actions import conformance, formats

    wrong: list[str] = []
    total = emitted = 0
    print(f"{'dialect':20} {'cases':>6} {'emitted':>8} {'wrong':>6}")
    for name in names or formats.available_formats():
        formats.get(name)
        cases = conformance.load_cases(name, folder)
        found = [text for text in map(conformance.mismatch, cases) if text is not None]
        ours = sum(case.emitted for case in cases)
        print(f"{name:20} {len(cases):6} {ours:8} {len(found):6}")
        wrong += found
        total, emitted = total + len(cases), emitted + ours
    print(f"{'all':20} {total:6} {emitted:8} {len(wrong):6}")
    if not total:
        raise ConfigError(f"{folder or 'the corpus'}: there are no cases; a file <dialect>.jsonl holds one a line")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        raise SystemExit(WRONG)


@actions_app.command
def explain(
    *,
    dialect: str,
    screen: Annotated[str, Parameter(help="Size of the screen in pixels, WxH.")] = "1920x1080",
    image: Annotated[
        str | None, Parameter(help="Size of the image that the model sees, WxH; the screen's if left out.")
    ] = None,
) -> None:
    """Read a reply from standard input; print its ops and a sketch of where they land.

    Parameters
    ----------
    dialect
        The language of the reply.
    """
    from deskhand.actions import formats
    from deskhand.actions.ascii_preview import ascii_preview
    from deskhand.actions.formats.base import ScreenView

    width, height = _size("--screen", screen)
    view = ScreenView(width, height, *_size("--image", image or screen))
    known = formats.get(dialect)
    text = sys.stdin.read()
    try:
        print(ascii_preview(known.parse(text, view), width, height))
    except ParseError as error:
        start, end = error.span
        print(f"not understood: {error.reason}\n\n{_pointed(text, start, end)}", file=sys.stderr)
        raise SystemExit(WRONG) from None
    except AgentError as error:
        raise ConfigError(f"standard input: {error}") from None


@actions_app.command
def table() -> None:
    """Print which dialect carries which op, as Markdown."""
    from deskhand.actions.support_table import support_table as made

    print(made())


def _size(option: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if found is None:
        raise ConfigError(f"{option} {text}: write a size as WIDTHxHEIGHT, for instance {option} 1920x1080")
    return int(found[1]), int(found[2])


def _pointed(text: str, start: int, end: int) -> str:
    """The line in which the span begins, with marks under it."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", start)
    stop = len(text) if stop < 0 else stop
    return f"{text[begin:stop]}\n{' ' * (start - begin)}{'^' * max(1, min(end, stop) - start)}"
