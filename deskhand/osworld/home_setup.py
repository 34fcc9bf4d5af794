"""Adapt a fresh local home to OSWorld's VM.

`google-chrome` starts Debian's Chromium with the profile where tasks and getters look for it, as a process named
`chrome`, by which tasks kill it. Ctrl+Alt+T opens a terminal. Only the guest's home is changed, and nothing that a task
requires is done.
"""

from __future__ import annotations

import posixpath

from deskhand.desktop.applications.browser import FLAGS
from deskhand.errors import InfrastructureError
from deskhand.server.guest import Guest

_CHROME = """\
#!/bin/sh
# Chromium by the name, with the profile and as the process that OSWorld's tasks know.
tools=$(dirname -- "$0")
real=/usr/lib/chromium/chromium
[ -x "$real" ] || real=$(command -v chromium) || {{ echo "chromium is not installed" >&2; exit 127; }}
[ -L "$tools/chrome" ] || ln -s "$real" "$tools/chrome"
exec "$tools/chrome" --user-data-dir="$HOME/.config/google-chrome" --start-maximized {flags} "$@"
"""
_PREPARE = """\
set -e
chmod 755 "$1/bin/google-chrome"
mkdir -p "$HOME/.config/google-chrome/Default"
cp -r "$HOME/.config/chromium/." "$HOME/.config/google-chrome/"
rc="$HOME/.config/openbox/rc.xml"
sed -i 's#<keyboard>#<keyboard><keybind key="C-A-t"><action name="Execute"><command>xfce4-terminal --disable-server</command>\
</action></keybind>#' "$rc"
openbox --reconfigure
"""  # noqa: E501


async def prepare_home(guest: Guest) -> None:
    """Adapt the home of `guest`. Raises `InfrastructureError`."""
    tools = await guest.tools()
    chrome = _CHROME.format(flags=" ".join(FLAGS))
    await guest.desktop.push(posixpath.join(tools, "bin", "google-chrome"), chrome.encode())
    result = await guest.desktop.run(["/bin/sh", "-c", _PREPARE, "sh", tools])
    if result.returncode != 0:
        raise InfrastructureError(
            f"cannot adapt the home to OSWorld: {result.stderr.decode(errors='replace').strip()[:300]}"
        )
