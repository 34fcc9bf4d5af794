"""`Profile`: everything Deskhand knows about an application.

Started on a fresh home, an application shows its main window and nothing else: no greeting, license, recovery, update
or tip. Its configuration files are in `local/home_files/`.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

GUEST_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"


@dataclass(frozen=True)
class Profile:
    """`argv` starts it with an empty document; a document path may be appended.

    `window` is a substring of the WM_CLASS of its main window.
    """

    name: str
    summary: str
    packages: tuple[str, ...]
    """Debian packages, installed without recommended packages."""
    argv: tuple[str, ...]
    window: str
    environment: Mapping[str, str] = field(default_factory=dict)
    plain_wrappers: Mapping[str, str] = field(default_factory=dict)
    """Shell scripts by name that replace its programs at the plain isolation level, where it would not start."""
    mime_types: tuple[str, ...] = ()
    """Types that a double click in the file manager opens with it."""
    desktop_entry: str = ""
    """File name in /usr/share/applications."""
    maximized: str = ""
    """Class of windows that open maximized."""
    bare: str = ""
    """Class of windows without a title bar."""
    repeat_gap_s: float = 0.0
    """It ignores a key that is pressed again sooner after it has read the first press."""
    component: str = ""
    """Pattern of the file that makes a program shared with other applications, or split into plugins, open this one."""
    package_source: str = ""
    """How to add the source of its packages, if they are not in Debian."""
    groups: tuple[str, ...] = ()
    """Group names accepted by `deskhand desktop install`."""

    @property
    def installed(self) -> bool:
        """Whether its program is in the guests' PATH and, where it has one, its component exists."""
        has_program = shutil.which(self.argv[0], path=GUEST_PATH) is not None
        return has_program and (not self.component or bool(glob.glob(self.component)))
