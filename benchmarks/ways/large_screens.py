"""Ways to do the families of `basics` on the wide screen: pictures, pages, folders and shells."""

from __future__ import annotations

from benchmarks.ways.office import answer_of
from benchmarks.ways.person import Act, Ways, click, gone, label, menu, rest, scroll, told, types, wait
from deskhand.tasks.suites.basics import terminal_files
from deskhand.tasks.task import Task

HOME = "/home/user"
COLORS_PX, INVERT_PX, DESATURATE_PX, DESATURATE_ITEM_PX = (277, 12), (298, 285), (298, 416), (520, 440)
CROP_TO_CONTENT_PX = (235, 340)
"""Menus and items of GIMP in its window; its menus have no accessibility tree, and items share their letters."""


def at_menu(x: float, y: float) -> Act:
    """Click at a menu or an item of GIMP."""
    return click("gimp", x, y)


def exports(task: Task, edit: list[Act], other: list[Act] | None = None) -> Ways:
    """Ways to export a picture that `edit`, or `other`, changes."""
    (name,) = told(task, r"export it as (\S+) to")
    options: list[Act] = [wait("Export Image as PNG")]
    return {
        "by the menu, exported by ctrl+E": [
            *edit,
            "ctrl+e",
            wait("Export Image"),
            "ctrl+a",
            types(name),
            "Return",
            *options,
            "Return",
            rest,
        ],
        "by the menu, exported by the File menu": [
            *edit,
            "alt+f x",
            wait("Export Image"),
            "ctrl+a",
            types(f"{HOME}/Documents/{name}"),
            "Return",
            *options,
            "Return",
            rest,
        ],
        "another way, exported by the mouse": [
            *(other or edit),
            "ctrl+shift+e",
            wait("Export Image"),
            "ctrl+a",
            types(name),
            click("Export Image", -50, -20),
            *options,
            click("Export Image as PNG", -50, -20),
            rest,
        ],
    }


def picture_flip(task: Task) -> Ways:
    key = "h" if "left to right" in task.instruction else "v"
    return exports(task, ["alt+i t", key, rest], ["alt+l t", key, rest])


def picture_turn(task: Task) -> Ways:
    key = "c" if "to the right" in task.instruction else "w"
    return exports(task, ["alt+i t", key, rest])


def picture_invert(task: Task) -> Ways:
    return exports(task, ["alt+c", at_menu(*INVERT_PX), rest], [at_menu(*COLORS_PX), *["Down"] * 11, "Return", rest])


def picture_scale(task: Task) -> Ways:
    width, height = told(task, r"a width of (\d+) and a height of (\d+)")
    opened: list[Act] = ["alt+i s", wait("Scale Image")]
    both: list[Act] = [*opened, "ctrl+a", types(f"{width}\t"), "ctrl+a", types(f"{height}\t")]
    return exports(task, [*both, "alt+s", gone("Scale Image")], [*opened, "ctrl+a", types(f"{width}\t"), "alt+s", rest])


def picture_crop(task: Task) -> Ways:
    return exports(task, ["alt+i", at_menu(*CROP_TO_CONTENT_PX), rest], [*["alt+i"], *["Up"] * 8, "Return", rest])


def picture_gray(task: Task) -> Ways:
    desaturate = [at_menu(*place) for place in (COLORS_PX, DESATURATE_PX, DESATURATE_ITEM_PX)]
    return exports(task, ["alt+i m g", rest], [*desaturate, wait("Desaturate"), "alt+o", gone("Desaturate"), rest])


def folder_make(task: Task) -> Ways:
    (name,) = told(task, r"a new folder (\w+) in")
    (inside,) = told(task, r"in the folder (\w+),")
    dialog = "Creating New Folder"
    named: list[Act] = [wait(dialog), "ctrl+a", types(name)]
    menus: dict[str, list[Act]] = {
        "the File menu": ["alt+f", "Down Down Right", "Return"],
        "the context menu": [click(inside, 0.8, 0.8, button="right"), "Down Right", "Return"],
    }
    by_mouse: list[Act] = ["ctrl+shift+n", *named, click(dialog, -50, -28), rest]
    return {way: [*acts, *named, "Return", rest] for way, acts in menus.items()} | {"OK by the mouse": by_mouse}


def shell(task: Task, *commands: str) -> Ways:
    there = click("xfce4-terminal", 0.5, 0.5)
    return {command: [there, types(f"{command}\n"), rest] for command in commands}


def shell_sort(task: Task) -> Ways:
    (name,) = told(task, r"into (\S+), sorted")
    ends = (f"sort words.txt | uniq > {name}", f"cat words.txt | sort -u | tee {name}")
    return shell(task, *ends, f"awk '!s[$0]++' words.txt | sort -o {name}", f"sort -u -o {name} words.txt")


def shell_pack(task: Task) -> Ways:
    (kind,) = told(task, r"pack all (\.\w+) files")
    find = f"find . -name '*{kind}' | tar -czf packed.tar.gz -T -"
    two = f"tar -cf packed.tar *{kind} && gzip packed.tar"
    return shell(task, f"tar czf packed.tar.gz ./*{kind}", find, two, f"tar cvfz packed.tar.gz *{kind}")


def shell_collect(task: Task) -> Ways:
    (kind,) = told(task, r"move every (\.\w+) file")
    loop = f"mkdir All; for f in */*{kind}; do mv $f All; done"
    find = f"mkdir All; find . -name '*{kind}' -not -path './All/*' -exec mv {{}} All \\;"
    places = "; ".join(f"mv {place}/*{kind} All" for place in terminal_files.PLACES)
    return shell(task, loop, find, f"mkdir All; {places}")


def page_download(task: Task) -> Ways:
    (town,) = told(task, r"the file of (\w+),")
    index = task.metadata["towns"].index(town)
    return {
        "by the mouse": [label("link", "get", index), rest],
        "back by shift+tab": [*["Tab"] * (index + 2), "shift+Tab", "Return", rest],
        "after scrolling": [scroll(2), scroll(-3), label("link", "get", index), rest],
    }


def page_form(task: Task) -> Ways:
    name, town, number, gift = told(task, r"for (\w+) in (\w+): number (\d+), (a gift|no gift)")
    fields: dict[str, list[Act]] = {
        "name": [label("entry", "Name"), types(name)],
        "number": [label("entry", "Number"), types(number)],
        "town": [label("combo-box", "Town"), types(town), "Return"],
        "gift": [label("check-box", ".*gift")] if gift == "a gift" else [],
    }
    send = label("push-button", "Send")
    in_order = [act for acts in fields.values() for act in acts]
    backwards = [act for acts in reversed(fields.values()) for act in acts]
    by_arrows: list[Act] = [label("combo-box", "Town"), "Escape", types(town)]
    return {
        "by the mouse": [*in_order, send, rest],
        "in another order": [*backwards, send, rest],
        "Send by the keyboard": [*in_order, label("push-button", "Send", button="right"), "Escape", send, rest],
        "the town by its letter": [*fields["gift"], *by_arrows, *fields["name"], *fields["number"], send, rest],
    }


def page_bookmark(task: Task) -> Ways:
    (topic,) = told(task, r"page about (\w+) and")
    link = label("link", topic.capitalize())
    return {
        "by the mouse, ctrl+D, Enter": [link, rest, "ctrl+d", rest, "Return", rest],
        "the star": [link, rest, label("push-button|toggle-button", "Bookmark this tab.*"), rest],
        "the star, then Done": [
            link,
            rest,
            label("push-button|toggle-button", "Bookmark this tab.*"),
            rest,
            label("push-button", "Done"),
            rest,
        ],
    }


def page_save(task: Task) -> Ways:
    (name,) = told(task, r"page as (\S+) in")
    dialog: list[Act] = [wait("Save"), rest, "ctrl+a", types(name)]
    return {
        "the whole path": ["ctrl+s", *dialog[:-1], types(f"{HOME}/Downloads/{name}"), "alt+s", rest],
        "the letter of Save": ["ctrl+s", *dialog, "alt+s", rest],
        "Enter on Save": ["ctrl+s", *dialog, "shift+Tab", "Return", rest],
        "the context menu": [
            click("chromium", 0.5, 0.7, button="right"),
            *menu("Save as.*"),
            *dialog,
            click("Save", -48, -26),
            rest,
        ],
    }


def page_look_up(task: Task) -> Ways:
    price = answer_of(task, "Downloads/answer.txt").split()[0]
    entry, send = label("entry", "Price"), label("push-button", "Send")
    return {
        "by the mouse": [scroll(10), scroll(-20), entry, types(price), send, rest],
        "sent by Enter in the field": [entry, types(price), "Tab Return", rest],
        "sent by space": ["Tab", types(price), "Tab space", rest],
    }


WAYS = {
    "picture_flip": picture_flip,
    "picture_turn": picture_turn,
    "picture_invert": picture_invert,
    "picture_scale": picture_scale,
    "picture_crop": picture_crop,
    "picture_gray": picture_gray,
    "folder_make": folder_make,
    "shell_sort": shell_sort,
    "shell_pack": shell_pack,
    "shell_collect": shell_collect,
    "page_download": page_download,
    "page_form": page_form,
    "page_bookmark": page_bookmark,
    "page_save": page_save,
    "page_look_up": page_look_up,
}
