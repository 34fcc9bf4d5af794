"""`deskhand view`: runs and recordings in the browser, finished or while they are written."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from deskhand.cli.common import Flag
from deskhand.errors import ConfigError


def view(folders: list[Path], /, *, port: int = 0, takeover: Annotated[bool, Flag] = False) -> None:
    """Show runs in a web page on this machine, until Ctrl-C: curves, tasks, episodes, groups, desktops at work.

    The page follows runs that are being written. Nothing is changed. Only the printed URL, with its token, opens it.

    Parameters
    ----------
    folders
        Run directories, or output directories of deskhand record; several runs can be compared.
    port
        Port of the page on 127.0.0.1; 0 selects a free one.
    takeover
        Also print a URL whose page can take over the mouse and keyboard of a live desktop.
    """
    import asyncio

    from deskhand.recipes.recorded_data import is_recording
    from deskhand.reporting.run_view import open_run
    from deskhand.reporting.viewer.app import serve_viewer

    if not folders:
        raise ConfigError("view: pass at least one run directory")
    control = secrets.token_urlsafe(24) if takeover else None
    with ExitStack() as stack:
        sources = [folder if is_recording(folder) else stack.enter_context(open_run(folder)) for folder in folders]
        asyncio.run(serve_viewer(sources, port, secrets.token_urlsafe(24), control=control))
