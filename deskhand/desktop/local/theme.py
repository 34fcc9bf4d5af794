"""Desktop themes and the files of a fresh home.

Nothing blinks, fades or pops up, so an idle screen does not change. Applications are the distribution's own; only their
ordinary configuration files are written, as a user would.
"""

from __future__ import annotations

from dataclasses import dataclass

from deskhand.desktop.applications import catalog
from deskhand.errors import ConfigError

DOUBLE_CLICK_MS = 400
"""The usual value. Clicks of two ops at one position are spaced further apart (`XTestInput`)."""


@dataclass(frozen=True)
class Theme:
    """Colors are "rrggbb"."""

    name: str
    background: str = "c8d0d8"
    title: str = "3c5a78"
    title_text: str = "ffffff"
    inactive_title: str = "a8b0b8"
    inactive_text: str = "404040"
    dark: bool = False
    font: str = "DejaVu Sans"
    font_points: int = 9


THEMES = {
    theme.name: theme
    for theme in (
        Theme("plain"),
        Theme("dark", background="384048", title="1e2a36", inactive_title="505860", inactive_text="c0c0c0", dark=True),
        Theme("green", background="cfe0cf", title="2f6b3c", inactive_title="a3b8a6"),
        Theme("sand", background="e4dcc8", title="8a5a2b", inactive_title="c4b59c"),
    )
}


def get_theme(name: str) -> Theme:
    """Return the theme of this name. Raises `ConfigError` if it is not in `THEMES`."""
    if name not in THEMES:
        raise ConfigError(f"unknown theme {name!r}; use one of {', '.join(sorted(THEMES))}")
    return THEMES[name]


def home_files(theme: Theme) -> dict[str, str]:
    """Return the files of a fresh home by relative path."""
    font, clicks = f"{theme.font} {theme.font_points}", DOUBLE_CLICK_MS
    return {
        ".config/gtk-3.0/settings.ini": _GTK3.format(font=font, dark=int(theme.dark), double_click=clicks),
        ".gtkrc-2.0": _GTK2.format(font=font, double_click=clicks),
        ".config/openbox/rc.xml": _OPENBOX.format(
            font=theme.font, points=theme.font_points, double_click=clicks, rules=catalog.window_rules()
        ),
        ".themes/Deskhand/openbox-3/themerc": _OPENBOX_THEME.format(**vars(theme)),
        ".config/glib-2.0/settings/keyfile": _GSETTINGS,
        ".config/xfce4/terminal/terminalrc": _XFCE_TERMINAL,
        ".config/pcmanfm/default/pcmanfm.conf": _PCMANFM,
        ".config/libfm/libfm.conf": _LIBFM,
        ".config/user-dirs.dirs": _USER_DIRECTORIES,
        ".config/user-dirs.conf": "enabled=False\n",
        ".config/galculator/galculator.conf": "",
        ".dillo/dillorc": "",
        ".bashrc": "PS1='\\w\\$ '\nHISTFILE=\n",
        ".inputrc": "set bell-style none\n",
    }


def home_directories() -> tuple[str, ...]:
    return ("Desktop", "Documents", "Downloads")


def x_resources(theme: Theme) -> str:
    """Return the RESOURCE_MANAGER property of the root window; X toolkit programs read it at start."""
    background, foreground = ("#202020", "#e0e0e0") if theme.dark else ("#ffffff", "#000000")
    return _X_RESOURCES.format(
        points=theme.font_points, background=background, foreground=foreground, double_click=DOUBLE_CLICK_MS
    )


_X_RESOURCES = """XTerm*faceName: DejaVu Sans Mono
XTerm*faceSize: {points}
XTerm*cursorBlink: false
XTerm*locale: true
XTerm*utf8: 1
XTerm*multiClickTime: {double_click}
XTerm*background: {background}
XTerm*foreground: {foreground}
Xft.dpi: 96
Xft.antialias: 1
Xft.hinting: 1
Xft.hintstyle: hintfull
Xft.rgba: none
"""

_USER_DIRECTORIES = """XDG_DESKTOP_DIR="$HOME/Desktop"
XDG_DOCUMENTS_DIR="$HOME/Documents"
XDG_DOWNLOAD_DIR="$HOME/Downloads"
"""

_GTK3 = """[Settings]
gtk-theme-name=Adwaita
gtk-icon-theme-name=Adwaita
gtk-font-name={font}
gtk-application-prefer-dark-theme={dark}
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-double-click-time={double_click}
gtk-enable-event-sounds=0
gtk-enable-input-feedback-sounds=0
gtk-recent-files-max-age=0
gtk-primary-button-warps-slider=1
gtk-overlay-scrolling=0
gtk-dialogs-use-header=0
gtk-xft-antialias=1
gtk-xft-hinting=1
gtk-xft-hintstyle=hintfull
gtk-xft-rgba=none
gtk-xft-dpi=98304
"""

_GTK2 = """gtk-font-name="{font}"
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-double-click-time={double_click}
gtk-icon-theme-name="Adwaita"
"""

_GSETTINGS = """[org/gnome/desktop/interface]
toolkit-accessibility=true

[org/xfce/mousepad/preferences/window]
recent-menu-items=0
remember-size=false
remember-position=false
remember-state=false

[org/xfce/mousepad/preferences/file]
session-restore='never'
"""

_XFCE_TERMINAL = """[Configuration]
MiscAlwaysShowTabs=FALSE
MiscBell=FALSE
MiscBordersDefault=TRUE
MiscCursorBlinks=FALSE
MiscMenubarDefault=TRUE
MiscConfirmClose=FALSE
MiscShowUnsafePasteDialog=FALSE
FontName=DejaVu Sans Mono 9
"""

_PCMANFM = """[config]
bm_open_method=0
[volume]
mount_on_startup=0
mount_removable=0
autorun=0
[ui]
always_show_tabs=0
hide_close_btn=1
win_width=420
win_height=300
splitter_pos=100
media_in_new_tab=0
view_mode=icon
show_hidden=0
sort=name;ascending;
toolbar=navigation;
show_statusbar=1
pathbar_mode_buttons=0
"""

_LIBFM = """[config]
single_click=0
use_trash=1
confirm_del=1
confirm_trash=0
show_internal_volumes=0
[ui]
show_thumbnail=0
big_icon_size=32
small_icon_size=16
shadow_hidden=0
"""

_OPENBOX = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <resistance><strength>0</strength><screen_edge_strength>0</screen_edge_strength></resistance>
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse><focusLast>yes</focusLast><raiseOnFocus>no</raiseOnFocus></focus>
  <placement><policy>Smart</policy><center>yes</center></placement>
  <theme>
    <name>Deskhand</name><titleLayout>LIMC</titleLayout><keepBorder>yes</keepBorder><animateIconify>no</animateIconify>
    <font place="ActiveWindow"><name>{font}</name><size>{points}</size><weight>bold</weight><slant>normal</slant></font>
    <font place="InactiveWindow"><name>{font}</name><size>{points}</size><weight>normal</weight><slant>normal</slant></font>
    <font place="MenuItem"><name>{font}</name><size>{points}</size></font>
    <font place="MenuHeader"><name>{font}</name><size>{points}</size></font>
  </theme>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <resize><drawContents>yes</drawContents><popupShow>Never</popupShow></resize>
  <keyboard>
    <keybind key="A-F4"><action name="Close"/></keybind>
    <keybind key="A-Tab"><action name="NextWindow"><dialog>none</dialog><finalactions><action name="Focus"/><action name="Raise"/>
      <action name="Unshade"/></finalactions></action></keybind>
  </keyboard>
  <mouse>
    <dragThreshold>4</dragThreshold><doubleClickTime>{double_click}</doubleClickTime><screenEdgeWarpTime>0</screenEdgeWarpTime>
    <context name="Titlebar">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
      <mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
    </context>
    <context name="Top Left TLCorner Right TRCorner BLCorner BRCorner Bottom">
      <mousebind button="Left" action="Drag"><action name="Resize"/></mousebind>
    </context>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Middle" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Icon">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Iconify">
      <mousebind button="Left" action="Click"><action name="Iconify"/></mousebind>
    </context>
    <context name="Maximize">
      <mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind>
    </context>
    <context name="Close">
      <mousebind button="Left" action="Click"><action name="Close"/></mousebind>
    </context>
  </mouse>
  <applications>
    {rules}
  </applications>
</openbox_config>
"""  # noqa: E501

_OPENBOX_THEME = """border.width: 1
padding.width: 3
padding.height: 1
window.client.padding.width: 0
window.handle.width: 0
border.color: #{title}
window.active.border.color: #{title}
window.inactive.border.color: #{inactive_title}
window.active.title.bg: Flat Solid
window.active.title.bg.color: #{title}
window.inactive.title.bg: Flat Solid
window.inactive.title.bg.color: #{inactive_title}
window.*.label.bg: Parentrelative
window.active.label.text.color: #{title_text}
window.inactive.label.text.color: #{inactive_text}
window.*.button.*.bg: Parentrelative
window.active.button.*.image.color: #{title_text}
window.inactive.button.*.image.color: #{inactive_text}
menu.items.bg: Flat Solid
menu.items.bg.color: #ffffff
menu.items.text.color: #000000
menu.title.bg: Flat Solid
menu.title.bg.color: #{title}
menu.title.text.color: #{title_text}
osd.bg: Flat Solid
osd.bg.color: #ffffff
osd.label.bg: Parentrelative
osd.label.text.color: #000000
"""
