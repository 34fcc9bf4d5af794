"""LibreOffice profiles: save in Microsoft formats without prompts, never offer recovery.

The keys are those of LibreOffice's configuration registry; user settings are stored in `registrymodifications.xcu`.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from deskhand.desktop.applications.profile import Profile

_FUTURE_VERSION = "99.0"
"""Version whose release notes the user has seen."""
_FUTURE_DAY = str(2**31)
"""Day (since 1970) on which the request for help was last shown."""
_UPDATE_CHECK = "org.openoffice.Office.Jobs/Jobs/org.openoffice.Office.Jobs:Job['UpdateCheck']/Arguments"
_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("org.openoffice.Office.Common/Misc", "FirstRun", "false"),
    ("org.openoffice.Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("org.openoffice.Office.Common/Misc", "ShowDonation", "false"),
    ("org.openoffice.Office.Common/Misc", "CollectUsageInformation", "false"),
    ("org.openoffice.Office.Common/Misc", "PerformFileExtCheck", "false"),
    ("org.openoffice.Office.Common/Save/Document", "WarnAlienFormat", "false"),
    ("org.openoffice.Office.Common/Save/Document", "AutoSave", "false"),
    ("org.openoffice.Office.Recovery/AutoSave", "Enabled", "false"),
    ("org.openoffice.Office.Recovery/RecoveryInfo", "Enabled", "false"),
    ("org.openoffice.Office.Impress/Misc/NewDoc", "AutoPilot", "false"),
    (_UPDATE_CHECK, "AutoCheckEnabled", "false"),
    ("org.openoffice.Setup/Office", "ooSetupInstCompleted", "true"),
    ("org.openoffice.Setup/Product", "ooSetupLastVersion", _FUTURE_VERSION),
    ("org.openoffice.Setup/Product", "LastTimeGetInvolvedShown", _FUTURE_DAY),
    ("org.openoffice.Setup/Product", "LastTimeDonateShown", _FUTURE_DAY),
)
_FACTORY = "org.openoffice.Setup/Office/Factories/org.openoffice.Setup:Factory['{}']"
_SAVED_AS = (
    ("com.sun.star.sheet.SpreadsheetDocument", "Calc MS Excel 2007 XML"),
    ("com.sun.star.text.TextDocument", "MS Word 2007 XML"),
    ("com.sun.star.presentation.PresentationDocument", "Impress MS PowerPoint 2007 XML"),
)


def registry() -> str:
    """Return the text of `registrymodifications.xcu`."""
    settings = [*_SETTINGS, *((_FACTORY.format(kind), "ooSetupFactoryDefaultFilter", name) for kind, name in _SAVED_AS)]
    items = "\n".join(
        f"<item oor:path={quoteattr('/' + path)}>"
        f'<prop oor:name={quoteattr(name)} oor:op="fuse"><value>{escape(value)}</value></prop></item>'
        for path, name, value in settings
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema" '
        f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">\n{items}\n</oor:items>\n'
    )


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
while :; do
    /usr/lib/libreoffice/program/soffice.bin "$@"
    code=$?
    [ $code = 79 ] || [ $code = 81 ] || exit $code
done
"""
"""Wrapper for the plain level; exit codes 79 and 81 request a restart.

LibreOffice's launcher insists on a socket in /tmp or /var/tmp. The program itself uses another folder if the
permissions deny both, but waits forever if only Landlock does. Its instances then find each other over D-Bus, as in
Flatpak, on a bus of their own.
"""
_PLAIN = {"soffice": _WITHOUT_TMP, "libreoffice": _WITHOUT_TMP}

_FILES = {".config/libreoffice/4/user/registrymodifications.xcu": registry()}
_SHARED = ("libreoffice-gtk3", "fonts-liberation")
_OPEN_XML = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"


def _office(name: str, summary: str, kind: str, *mime_types: str) -> Profile:
    return Profile(
        name=name,
        summary=f"{summary} (LibreOffice {name.title()})",
        packages=(f"libreoffice-{name}", *_SHARED),
        argv=("soffice", "--norestore", "--nologo", f"--{name}"),
        component=f"/usr/lib/libreoffice/program/s{name}",
        window=f"libreoffice-{name}",
        files=_FILES,
        plain_wrappers=_PLAIN,
        environment={"SAL_USE_VCLPLUGIN": "gtk3"},
        mime_types=(f"{_OPEN_XML}.{kind}", *mime_types),
        desktop_entry=f"libreoffice-{name}.desktop",
        maximized="libreoffice*",
        groups=("office", "libreoffice"),
    )


PROFILES = (
    _office(
        "calc",
        "spreadsheet",
        "spreadsheetml.sheet",
        f"{_OPEN_DOCUMENT}.spreadsheet",
        "application/vnd.ms-excel",
        "text/csv",
    ),
    _office("writer", "word processor", "wordprocessingml.document", f"{_OPEN_DOCUMENT}.text", "application/msword"),
    _office(
        "impress",
        "presentations",
        "presentationml.presentation",
        f"{_OPEN_DOCUMENT}.presentation",
        "application/vnd.ms-powerpoint",
    ),
)
