"""Set-up of a bundle in CUA-Gym's format: four messages in the hub application gmail_mock."""

import os
import subprocess
import uuid

import requests

BASE = "__CUA_GYM_GMAIL_URL__"
PEOPLE = {"Ada Brown": "ada@example.com", "Ben Cole": "ben@example.com", "Garden Weekly": "news@example.com"}
MESSAGES = [
    ("m1", "Ada Brown", "Train tickets for Friday", "The tickets are ready at the counter."),
    ("m2", "Ada Brown", "Lunch on Monday", "Shall we meet at noon?"),
    ("m3", "Garden Weekly", "Newsletter: ten shade plants", "Plants that need little light."),
    ("m4", "Ben Cole", "Train tickets: refund", "The refund takes a week."),
]


def message(number, name, subject, body):
    return {
        "id": number,
        "threadId": f"t-{number}",
        "from": {"name": name, "email": PEOPLE[name]},
        "to": [{"name": "Demo User", "email": "demo@example.com"}],
        "cc": [],
        "bcc": [],
        "subject": subject,
        "body": body,
        "snippet": body,
        "timestamp": f"2026-05-0{number[1]}T09:00:00Z",
        "read": True,
        "starred": False,
        "important": False,
        "labels": [],
        "category": "primary",
        "folder": "inbox",
        "attachments": [],
    }


sid = str(uuid.uuid4())
with open("/tmp/task_web_sid", "w") as file:
    file.write(sid)
state = {"emails": [message(*each) for each in MESSAGES]}
reply = requests.post(f"{BASE}/post?sid={sid}", json={"action": "set", "state": state}, timeout=30)
assert reply.status_code == 200, reply.text
subprocess.Popen(["google-chrome", f"{BASE}/?sid={sid}"], env={**os.environ, "DISPLAY": ":0"})
