"""LibreOffice profiles."""

from __future__ import annotations

from deskhand.desktop.applications.profile import Profile

_WITHOUT_TMP = """#!/bin/sh
export SAL_ENABLE_FILE_LOCKING=1
if [ -w /tmp ] || [ -w /var/tmp ]; then
    case $DBUS_SESSION_BUS_ADDRESS in unix:*) ;; *)
        bus=$XDG_RUNTIME_DIR/office-bus
        [ -S "$bus" ] || dbus-daemon --session --fork --nopidfile --address="unix:path=$bus" || exit
        export DBUS_SESSION_BUS_ADDRESS="unix:path=$bus" ;;
    esac
    export LIBO_FLATPAK=1
fi
first=
[ -d "$HOME/.config/libreoffice/4/user/uno_packages" ] || first=yes
while :; do
    /usr/lib/libreoffice/program/soffice.bin "$@"
    code=$?
    case $first$code in 79 | 81 | yes79 | yes81 | yes134) first= ;; *) exit $code ;; esac
done
"""
"""Wrapper for the plain level; exit codes 79 and 81 request a restart. With a new profile LibreOffice always requests
one, before it shows a window; if that first process aborts (134), it is restarted too, once.

LibreOffice's launcher insists on a socket in /tmp or /var/tmp. The program itself uses another folder if the
permissions deny both, but waits forever if only Landlock does. Its instances then find each other over D-Bus, as in
Flatpak, on a bus of their own.
"""
_PLAIN = {"soffice": _WITHOUT_TMP, "libreoffice": _WITHOUT_TMP}

_SHARED = ("libreoffice-gtk3", "fonts-liberation")
_OPEN_XML = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"


def _office(name: str, summary: str, *mime_types: str, needs: tuple[str, ...] = ()) -> Profile:
    return Profile(
        name=name,
        summary=f"{summary} (LibreOffice {name.title()})",
        packages=(f"libreoffice-{name}", *needs, *_SHARED),
        argv=("soffice", "--norestore", "--nologo", f"--{name}"),
        component=f"/usr/lib/libreoffice/program/s{name}",
        window=f"libreoffice-{name}",
        plain_wrappers=_PLAIN,
        environment={"SAL_USE_VCLPLUGIN": "gtk3"},
        mime_types=mime_types,
        desktop_entry=f"libreoffice-{name}.desktop",
        maximized="libreoffice*",
        groups=("office", "libreoffice"),
    )


PROFILES = (
    _office(
        "calc",
        "spreadsheet",
        f"{_OPEN_XML}.spreadsheetml.sheet",
        f"{_OPEN_DOCUMENT}.spreadsheet",
        "application/vnd.ms-excel",
        "text/csv",
    ),
    _office(
        "writer",
        "word processor",
        f"{_OPEN_XML}.wordprocessingml.document",
        f"{_OPEN_DOCUMENT}.text",
        "application/msword",
    ),
    _office(
        "impress",
        "presentations",
        f"{_OPEN_XML}.presentationml.presentation",
        f"{_OPEN_DOCUMENT}.presentation",
        "application/vnd.ms-powerpoint",
    ),
    # It aborts at the start without a panel of its sidebar, which Debian 12 has in Impress's package.
    _office("draw", "drawings", f"{_OPEN_DOCUMENT}.graphics", needs=("libreoffice-impress",)),
)
