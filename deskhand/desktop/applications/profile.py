"""What there is to know about an application. Invariant: started on a fresh home, an application shows its main window and nothing
else: no greeting, no licence, no recovery, no update, no tip.

A profile only sets what a user could set in the application's own configuration files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

GUEST_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"


@dataclass(frozen=True)
class Profile:
    """`argv` starts it with an empty document; the path of a document may be appended.

    `window` is a substring of the WM_CLASS of its main window. `files` are its files in a fresh home, by path relative to it.
    """

    name: str
    summary: str
    packages: tuple[str, ...]
    """Debian packages, installed without what they recommend."""
    argv: tuple[str, ...]
    window: str
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, str] = field(default_factory=dict)
    """Shell scripts by name that stand in for its programs at the plain level, where the walls are in the way of its own start."""
    mime_types: tuple[str, ...] = ()
    """What a double click in the file manager opens with it."""
    desktop_entry: str = ""
    """Name of its file in /usr/share/applications."""
    maximised: str = ""
    """Class of its windows that open as large as the screen."""
    groups: tuple[str, ...] = ()
    """Other names for it and its like, as `deskhand desktop install` understands them."""

    @property
    def installed(self) -> bool:
        """Whether its program is in the PATH of the guests."""
        return shutil.which(self.argv[0], path=GUEST_PATH) is not None
