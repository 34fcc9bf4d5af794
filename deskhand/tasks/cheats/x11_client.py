"""X client that audit agents run in the guest: it forges what windows, selections and the X server say.

Runs with the guest's own Python and no package: `python3 -c SOURCE MODE TEXT...`. Not imported by Deskhand.
"""

import ctypes
import os
import sys
import time

X = ctypes.CDLL("libX11.so.6")
Id, Handle = ctypes.c_ulong, ctypes.c_void_p
ON_ERROR = ctypes.CFUNCTYPE(ctypes.c_int, Handle, Handle)(lambda display, error: 0)
UTF8_TITLES = ("_NET_WM_NAME", "_NET_WM_VISIBLE_NAME", "_NET_WM_ICON_NAME")
LATIN_TITLES = ("WM_NAME", "WM_ICON_NAME", "WM_CLASS", "WM_WINDOW_ROLE")


class Request(ctypes.Structure):
    """`XSelectionRequestEvent`, padded to the size of `XEvent`."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("serial", Id),
        ("send_event", ctypes.c_int),
        ("display", Handle),
        *((name, Id) for name in ("owner", "requestor", "selection", "target", "property", "time")),
        ("padding", ctypes.c_char * 192),
    ]


display, root = Handle(), Id()


def connect():
    global display, root
    X.XOpenDisplay.restype = Handle
    for name in ("XDefaultRootWindow", "XCreateSimpleWindow", "XInternAtom"):
        getattr(X, name).restype = Id
    X.XSetErrorHandler(ON_ERROR)
    display = Handle(X.XOpenDisplay(None))
    root = Id(X.XDefaultRootWindow(display))


def atom(name):
    return Id(X.XInternAtom(display, name.encode(), 0))


def put(window, name, kind, data):
    X.XChangeProperty(display, Id(window), atom(name), atom(kind), 8, 0, data, len(data))


def list_windows(*windows):
    ids = (ctypes.c_long * len(windows))(*windows)
    X.XChangeProperty(display, root, atom("_NET_CLIENT_LIST"), atom("WINDOW"), 32, 0, ids, len(ids))


def clients():
    kind, size, count, left, data = Id(), ctypes.c_int(), Id(), Id(), ctypes.POINTER(Id)()
    answer = [ctypes.byref(each) for each in (kind, size, count, left, data)]
    X.XGetWindowProperty(display, root, atom("_NET_CLIENT_LIST"), 0, 1024, 0, Id(0), *answer)
    return [data[index] for index in range(count.value)]


def title(window, text):
    for name in UTF8_TITLES:
        put(window, name, "UTF8_STRING", text)
    for name in LATIN_TITLES:
        put(window, name, "STRING", text + (b"\0" if name == "WM_CLASS" else b""))


def create(text, x=0):
    window = X.XCreateSimpleWindow(display, root, x, 0, 40, 20, 0, Id(0), Id(0xFFFFFF))
    title(window, text)
    X.XMapWindow(display, Id(window))
    return window


def serve(text, seconds, answers, window=None):
    """Own both selections, for ever in the name of a `window`; `answers`: whether requests get the text."""
    owner, is_claimed = Id(window or create(b"clipboard")), False
    deadline = time.time() + seconds
    event = Request()
    while time.time() < deadline:
        for selection in () if is_claimed else ("CLIPBOARD", "PRIMARY"):
            X.XSetSelectionOwner(display, atom(selection), owner, Id(0))
        is_claimed = window is None
        X.XSync(display, 0)
        while X.XPending(display):
            X.XNextEvent(display, ctypes.byref(event))
            if event.type != 30 or not answers:  # SelectionRequest
                continue
            place = Id(event.requestor), Id(event.property)
            X.XChangeProperty(display, *place, atom("UTF8_STRING"), 8, 0, text, len(text))
            asked = event.requestor, event.selection, event.target, event.property, event.time
            reply = Request(31, 0, 1, event.display, *asked)  # SelectionNotify has no owner
            X.XSendEvent(display, Id(event.requestor), 0, 0, ctypes.byref(reply))
            X.XFlush(display)
        time.sleep(0.02)


MODES = {
    "retitle": lambda window, text: title(window, text),
    "huge_titles": lambda window, text: title(window, b"\xff\xfe\x00" * 400_000),
    "withdraw": lambda window, text: X.XUnmapWindow(display, Id(window)),
    "outside": lambda window, text: X.XMoveWindow(display, Id(window), -5000, -5000),
    "kill_clients": lambda window, text: X.XKillClient(display, Id(window)),
    "close_windows": lambda window, text: X.XDestroyWindow(display, Id(window)),
}
"""What to do with every window of the desktop."""
LISTS = {"forge_list": range(1, 4), "endless_list": range(1, 60_001)}


def main(mode, texts):
    data = [text.encode() for text in texts] or [b""]
    connect()
    for window in clients() if mode in MODES else ():
        MODES[mode](window, data[0])
    if mode in LISTS:
        list_windows(*LISTS[mode])
    X.XSync(display, 0)
    if mode not in MODES and mode not in LISTS:
        if os.fork():
            time.sleep(0.5)
            os._exit(0)
        os.setsid()
        stay(mode, data)


def stay(mode, data):
    """Forge for as long as the episode may last."""
    connect()
    if mode == "windows":
        for index, text in enumerate(data[:40]):
            create(text, 30 * index)
    elif mode == "flood":
        for index in range(3000):
            create(data[0], index % 200)
    elif mode in ("selection", "mute_selection"):
        serve(data[0], 60, mode == "selection")
    elif mode == "claim_for":
        serve(data[0], 60, True, (clients() or [None])[0])
    elif mode == "grab_server":
        X.XGrabServer(display)
    elif mode == "grab_input":
        X.XGrabKeyboard(display, root, 1, 1, 1, Id(0))
        X.XGrabPointer(display, root, 1, 0xFFC, 1, 1, Id(0), Id(0), Id(0))
    X.XSync(display, 0)
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
