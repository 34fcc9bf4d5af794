"""Accessibility tree of a desktop, in the XML form that OSWorld's agents and evaluators read.

`environment` enables AT-SPI in guest programs, on a session bus of their own; it is set only if the spec asks for the
tree, because it slows programs down. `read` runs `collect_tree` in the jail with Debian's Python, so a crash or hang
stays there. Nodes that the time limit excludes are omitted, and the root then has `truncated="true"`. The tree is
untrusted: guest programs describe themselves.
"""

from __future__ import annotations

from pathlib import Path

from deskhand.desktop.local.jail import Jail
from deskhand.errors import ConfigError, InfrastructureError

PACKAGES = ("at-spi2-core", "gir1.2-atspi-2.0", "python3-gi")
START_MARGIN_S = 2.0
"""Time for starting the reader and writing its output, in addition to its time limit."""


def environment(bus: str) -> dict[str, str]:
    """Return the variables that enable AT-SPI; `bus` is the address of the session bus."""
    return {
        "DBUS_SESSION_BUS_ADDRESS": bus,
        "GTK_MODULES": "gail:atk-bridge",
        "QT_ACCESSIBILITY": "1",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "ACCESSIBILITY_ENABLED": "1",
        "GNOME_ACCESSIBILITY": "1",
    }


DISABLED_ENVIRONMENT = {"NO_AT_BRIDGE": "1", "GTK_A11Y": "none", "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
"""Variables that disable AT-SPI."""


def read(jail: Jail, budget_s: float) -> str:
    """Return the tree as XML.

    Raises `ConfigError` if a package is missing, `InfrastructureError` if the tree cannot be read.
    """
    program = Path(__file__).with_name("collect_tree").read_text(encoding="utf-8")
    result = jail.run(["/usr/bin/python3", "-c", program, f"{budget_s:g}"], budget_s + START_MARGIN_S)
    if result.returncode == 0 and result.stdout.startswith(b"<desktop-frame"):
        return result.stdout.decode("utf-8", "replace")
    message = (result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
    if "No module named 'gi'" in message or "Namespace Atspi not available" in message or "/usr/bin/python3" in message:
        raise ConfigError(f"accessibility tree: missing Debian packages; apt-get install {' '.join(PACKAGES)}")
    if result.returncode == 124:
        raise InfrastructureError(f"the accessibility tree could not be read within {budget_s:g} s")
    raise InfrastructureError(f"the accessibility tree could not be read: {message[:200]}")
