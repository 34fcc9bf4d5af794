"""`deskhand doctor`: check this machine or a remote desktop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from deskhand.cli.common import USER_ERROR
from deskhand.cli.output import Json, print_json

if TYPE_CHECKING:
    from deskhand.doctor.check_machine import ProbeResult


def doctor(
    *,
    desktop: str | None = None,
    api_key_env: str = "DESKHAND_SERVER_API_KEY",
    evaluate: str | None = None,
    as_json: Json = False,
) -> None:
    """Check this machine, or a remote desktop. Exits with 2 if a required check fails.

    Parameters
    ----------
    desktop
        URL of a desktop server, a sandbox gateway, or a machine with OSWorld's or WAA's server, to check layer by
        layer.
    api_key_env
        Environment variable with its API key.
    evaluate
        URL of WAA's evaluate server, to check as well.
    """
    from deskhand.doctor.check_machine import check_machine

    if desktop is None:
        print_results(check_machine(), as_json=as_json)
        return
    import asyncio

    from deskhand.doctor.check_desktop import check_desktop

    results = asyncio.run(check_desktop(desktop, os.environ.get(api_key_env), evaluate_url=evaluate))
    print_results(results, as_json=as_json)


def print_results(results: list[ProbeResult], *, as_json: bool = False) -> None:
    """Print the results of a doctor; exit with 2 if a required check failed."""
    from deskhand.doctor.check_machine import format_results

    if as_json:
        print_json(results)
    else:
        print("\n".join(format_results(results)))
    if any(result.needed and not result.ok for result in results):
        raise SystemExit(USER_ERROR)
