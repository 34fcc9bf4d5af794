"""Set-up of a bundle in CUA-Gym's format: a page with three to-dos in the hub application notion_mock."""

import os
import subprocess
import uuid

import requests

BASE = "__CUA_GYM_NOTION_URL__"
CREATED = "2026-05-01T09:00:00.000Z"
TODOS = {"b1": "Book the room", "b2": "Book the bus", "b3": "Send the invitations"}


def page(name, title, blocks):
    return {
        "id": name,
        "title": title,
        "icon": "",
        "cover": None,
        "parentId": None,
        "blockIds": blocks,
        "favorite": False,
        "createdDate": CREATED,
        "lastEditedDate": CREATED,
        "properties": {},
    }


def todo(name, text):
    return {
        "id": name,
        "type": "todo",
        "content": text,
        "createdDate": CREATED,
        "lastEditedDate": CREATED,
        "properties": {"checked": False},
    }


sid = str(uuid.uuid4())
with open("/tmp/task_web_sid", "w") as file:
    file.write(sid)
state = {
    "pages": {"p1": page("p1", "Team offsite", list(TODOS)), "p2": page("p2", "Reading list", [])},
    "blocks": {name: todo(name, text) for name, text in TODOS.items()},
    "trash": [],
    "comments": {},
    "notifications": [],
    "pageOrder": ["p1", "p2"],
}
reply = requests.post(f"{BASE}/post?sid={sid}", json={"action": "set", "state": state}, timeout=30)
assert reply.status_code == 200, reply.text
subprocess.Popen(["google-chrome", f"{BASE}/page/p1?sid={sid}"], env={**os.environ, "DISPLAY": ":0"})
