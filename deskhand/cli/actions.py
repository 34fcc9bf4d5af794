"""`deskhand actions`: action formats and their conformance corpus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from deskhand.cli.common import USER_ERROR, parse_size
from deskhand.cli.output import Json, print_json
from deskhand.errors import AgentError, ConfigError, ParseError

actions_app = App(name="actions", help="Action formats of computer-use models.")


@actions_app.command
def conformance(names: list[str] | None = None, /, *, folder: Path | None = None, as_json: Json = False) -> None:
    """Parse the conformance corpus. Exits with 2 if a case differs.

    Parameters
    ----------
    names
        Action formats (default: all).
    folder
        Corpus folder with one file FORMAT.jsonl each (default: the bundled corpus).
    """
    from deskhand.actions import conformance as corpus
    from deskhand.actions import formats

    mismatches: list[str] = []
    rows: list[tuple[str, int, int, int]] = []
    for name in names or formats.available_formats():
        formats.get(name)
        cases = corpus.load_cases(name, folder)
        found = [text for text in map(corpus.mismatch, cases) if text is not None]
        rows.append((name, len(cases), sum(case.emitted for case in cases), len(found)))
        mismatches += found
    if as_json:
        print_json([dict(zip(("format", "cases", "emitted", "wrong"), row, strict=True)) for row in rows])
    else:
        print(f"{'format':20} {'cases':>6} {'emitted':>8} {'wrong':>6}")
        totals = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows), sum(row[3] for row in rows))
        for name, total, emitted, wrong in (*rows, totals):
            print(f"{name:20} {total:6} {emitted:8} {wrong:6}")
    if not any(row[1] for row in rows):
        raise ConfigError(
            f"{folder or 'the corpus'}: contains no cases; add a file FORMAT.jsonl with one case per line"
        )
    if mismatches:
        print("\n".join(mismatches), file=sys.stderr)
        raise SystemExit(USER_ERROR)


@actions_app.command
def explain(
    *, action_format: Annotated[str, Parameter(name="--format")], screen: str = "1920x1080", image: str | None = None
) -> None:
    """Parse a reply from standard input; print its ops and where they land on the screen.

    Parameters
    ----------
    action_format
        Action format of the reply.
    screen
        Screen size, WIDTHxHEIGHT.
    image
        Image size that the model receives (default: the screen size).
    """
    from deskhand.actions import formats
    from deskhand.actions.ascii_preview import ascii_preview
    from deskhand.actions.formats.base import ScreenView

    width, height = parse_size("--screen", screen)
    view = ScreenView(width, height, *parse_size("--image", image or screen))
    parser = formats.get(action_format)
    text = sys.stdin.read()
    try:
        print(ascii_preview(parser.parse(text, view), width, height))
    except ParseError as error:
        start, end = error.span
        print(f"cannot parse the reply: {error.reason}\n\n{_marked_line(text, start, end)}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except AgentError as error:
        raise ConfigError(f"standard input: {error}") from None


@actions_app.command
def support(*, as_json: Json = False) -> None:
    """Print which format supports which op, as a Markdown table."""
    from deskhand.actions.support_table import support_data, support_table

    if as_json:
        print_json(support_data())
    else:
        print(support_table())


def _marked_line(text: str, start: int, end: int) -> str:
    """The line with the start of the span, and marks under the span."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", start)
    stop = len(text) if stop < 0 else stop
    return f"{text[begin:stop]}\n{' ' * (start - begin)}{'^' * max(1, min(end, stop) - start)}"
