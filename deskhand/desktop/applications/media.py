"""Pictures, films and pages. Invariant: nothing is asked of the network, and a missing sound device is no reason for a dialog."""

from __future__ import annotations

from deskhand.desktop.applications.profile import Profile

_GIMP = """(check-updates no)
(show-welcome-dialog no)
(show-tips no)
(save-session-info no)
(restore-monitor no)
"""

GIMP = Profile(
    name="gimp",
    summary="image editor",
    packages=("gimp",),
    argv=("gimp", "--no-splash"),
    window="gimp",
    files={f".config/GIMP/{version}/gimprc": _GIMP for version in ("2.10", "3.0")},
    desktop_entry="gimp.desktop",
    maximised="Gimp*",
    groups=("graphics",),
)

_VLC = """[qt]
qt-privacy-ask=0
qt-updates-notif=0
qt-recentplay=0
qt-system-tray=0
qt-video-autoresize=0
[core]
metadata-network-access=0
one-instance=0
playlist-enqueue=0
"""
_VLC_WINDOW = """[General]
FirstRun=0
IsFirstRun=0
"""

VLC = Profile(
    name="vlc",
    summary="media player",
    packages=("vlc-bin", "vlc-plugin-base", "vlc-plugin-qt", "vlc-plugin-video-output"),
    argv=("vlc",),
    window="vlc",
    files={".config/vlc/vlcrc": _VLC, ".config/vlc/vlc-qt-interface.conf": _VLC_WINDOW},
    mime_types=("video/mp4", "video/x-matroska", "video/webm", "audio/mpeg", "audio/ogg"),
    desktop_entry="vlc.desktop",
    maximised="vlc",
    groups=("media",),
)

EVINCE = Profile(
    name="evince",
    summary="document viewer",
    packages=("evince",),
    argv=("evince",),
    window="evince",
    mime_types=("application/pdf", "application/postscript"),
    desktop_entry="org.gnome.Evince.desktop",
    maximised="Evince",
    groups=("documents",),
)

GPICVIEW = Profile(
    name="images",
    summary="image viewer (gpicview)",
    packages=("gpicview",),
    argv=("gpicview",),
    window="gpicview",
    mime_types=("image/png", "image/jpeg", "image/gif", "image/bmp"),
    desktop_entry="gpicview.desktop",
    groups=("basic",),
)

PROFILES = (GPICVIEW, EVINCE, GIMP, VLC)
