"""`deskhand view`: runs in the browser, finished or while they train."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from pathlib import Path

from deskhand.errors import ConfigError


def view(run_dirs: list[Path], /, *, port: int = 0) -> None:
    """Show runs in a web page on this machine, until Ctrl-C: curves, tasks, episodes, groups, comparison.

    The page follows runs that are being written. Nothing is changed. Only the printed URL, with its token, opens it.

    Parameters
    ----------
    run_dirs
        Run directories; several can be compared.
    port
        Port of the page on 127.0.0.1; 0 selects a free one.
    """
    from deskhand.reporting.run_view import open_run
    from deskhand.reporting.viewer.app import serve_viewer

    if not run_dirs:
        raise ConfigError("view: pass at least one run directory")
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(folder)) for folder in run_dirs]
        asyncio.run(serve_viewer(runs, port, secrets.token_urlsafe(24)))
