"""Profiles of image, document and media applications: no network access, no dialog for a missing sound device."""

from __future__ import annotations

from deskhand.desktop.applications.profile import Profile

_GIMP = """(check-updates no)
(show-welcome-dialog no)
(show-tips no)
(save-session-info no)
(restore-monitor no)
"""
_GIMP_WINDOW = """(session-info "toplevel"
    (factory-entry "gimp-single-image-window")
    (position 0 0)
    (size 1200 640)
    (open-on-exit)
    (aux-info
        (left-docks-width "190")
        (right-docks-width "220")
        (maximized "yes"))
    (gimp-toolbox
        (side left)
        (book
            (current-page 0)
            (dockable "gimp-tool-options"
                (tab-style automatic))))
    (gimp-dock
        (side right)
        (book
            (current-page 0)
            (dockable "gimp-layer-list"
                (tab-style automatic))
            (dockable "gimp-channel-list"
                (tab-style automatic))
            (dockable "gimp-vectors-list"
                (tab-style automatic)))))
(hide-docks no)
(single-window-mode yes)
(show-tabs yes)
(tabs-position top)
"""
"""GIMP ignores the window manager; its default layout puts half of the window off a small screen."""
_GIMP_FILES = {"gimprc": _GIMP, "sessionrc": _GIMP_WINDOW}

GIMP = Profile(
    name="gimp",
    summary="image editor",
    packages=("gimp",),
    argv=("gimp", "--no-splash"),
    window="gimp",
    files={f".config/GIMP/{version}/{name}": text for version in ("2.10", "3.0") for name, text in _GIMP_FILES.items()},
    desktop_entry="gimp.desktop",
    maximized="Gimp*",
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
extraintf=http
http-host=127.0.0.1
http-port=8080
[lua]
http-password=password
"""
"""OSWorld's tasks query playback through the web interface in the guest's network, with this password."""
_VLC_WINDOW = """[General]
FirstRun=0
IsFirstRun=0
"""

VLC = Profile(
    name="vlc",
    summary="media player",
    packages=("vlc-bin", "vlc-plugin-base", "vlc-plugin-qt", "vlc-plugin-video-output"),
    argv=("vlc",),
    component="/usr/lib/*/vlc/plugins/gui/libqt_plugin.so",  # without it, `vlc` has no window
    window="vlc",
    files={".config/vlc/vlcrc": _VLC, ".config/vlc/vlc-qt-interface.conf": _VLC_WINDOW},
    mime_types=("video/mp4", "video/x-matroska", "video/webm", "audio/mpeg", "audio/ogg"),
    desktop_entry="vlc.desktop",
    maximized="vlc",
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
    maximized="Evince",
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
