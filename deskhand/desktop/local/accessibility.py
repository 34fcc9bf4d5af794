"""The accessibility tree of a desktop, in the XML form that OSWorld's agents and evaluators read.

Invariant: asking takes no longer than it may. The whole tree is guest-trusted: it is what programs say of themselves.

The programs tell AT-SPI over a bus of their own, which is there only when the template asks for it, since telling makes them
slower. The tree is read by a program inside the box (`collect_tree`, run by Debian's own Python); when it dies or does not end,
nothing else does. Nodes that the time was too short for are left out, and the root says `truncated="true"`.
"""

from __future__ import annotations

import functools
from importlib import resources

from deskhand.desktop.local.jail import Jail
from deskhand.errors import ConfigError, InfrastructureError

PACKAGES = ("at-spi2-core", "gir1.2-atspi-2.0", "python3-gi")
MARGIN_S = 2.0
"""What the reader has to start and to write beside its time for looking."""


def environment(bus: str) -> dict[str, str]:
    """What makes programs tell of themselves; `bus` is the address of their session bus."""
    return {
        "DBUS_SESSION_BUS_ADDRESS": bus,
        "GTK_MODULES": "gail:atk-bridge",
        "QT_ACCESSIBILITY": "1",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "ACCESSIBILITY_ENABLED": "1",
        "GNOME_ACCESSIBILITY": "1",
    }


SILENT = {"NO_AT_BRIDGE": "1", "GTK_A11Y": "none", "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
"""What keeps programs from telling anybody."""


@functools.cache
def _program() -> str:
    return resources.files("deskhand.desktop.local").joinpath("collect_tree").read_text(encoding="utf-8")


def read(box: Jail, budget_s: float) -> str:
    """The tree as XML. Raises `ConfigError` when a package is missing, `InfrastructureError` when there is no tree to be had."""
    done = box.run(["/usr/bin/python3", "-c", _program(), f"{budget_s:g}"], budget_s + MARGIN_S)
    if done.returncode == 0 and done.stdout.startswith(b"<desktop-frame"):
        return done.stdout.decode("utf-8", "replace")
    complaint = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
    if (
        "No module named 'gi'" in complaint
        or "Namespace Atspi not available" in complaint
        or "/usr/bin/python3" in complaint
    ):
        raise ConfigError(f"the accessibility tree needs Debian's {', '.join(PACKAGES)}; as root: apt-get install them")
    if done.returncode == 124:
        raise InfrastructureError(f"the accessibility tree could not be read within {budget_s:g} s")
    raise InfrastructureError(f"the accessibility tree could not be read: {complaint[:200]}")
