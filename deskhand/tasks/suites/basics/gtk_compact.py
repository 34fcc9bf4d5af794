"""GTK theme with small widgets, for screens below 640 px. Used by the zenity and calculator families."""

from __future__ import annotations

from deskhand.desktop.base import StageableDesktop

DIALOG_BUTTON_PX = 50
FONT_PX = 10

GTK_CSS = f"""
* {{
  font-size: {FONT_PX}px;
  -GtkButtonBox-child-min-width: {DIALOG_BUTTON_PX};
  -GtkButtonBox-child-min-height: 18;
  -GtkDialog-content-area-border: 0;
  -GtkDialog-action-area-border: 2;
}}
button {{ padding: 1px 2px; min-height: 0; min-width: 0; margin: 0; }}
entry, textview {{ min-height: 0; padding: 0; }}
menubar menuitem, menubar > menuitem {{ padding: 0 3px; min-height: 0; }}
dialog box, messagedialog box {{ margin: 0; padding: 0; }}
"""


async def use_compact_theme(desktop: StageableDesktop) -> None:
    """Write the style sheet into the guest's home; programs that start later use it."""
    await desktop.push(".config/gtk-3.0/gtk.css", GTK_CSS.encode())
