"""Set-up of a bundle in CUA-Gym's format: two channels with a message each in the hub application slack_mock."""

import os
import subprocess
import uuid

import requests

BASE = "__CUA_GYM_SLACK_URL__"
MEMBERS = ["user_1", "user_2"]


def user(number, name):
    return {
        "userId": f"user_{number}",
        "fullName": name,
        "displayName": name.split()[0],
        "email": f"user{number}@example.com",
        "avatar": "",
        "status": "online",
        "statusMessage": "",
        "statusEmoji": "",
        "timeZone": "Europe/Berlin",
    }


def channel(name):
    return {
        "channelId": name,
        "name": name,
        "description": "",
        "topic": "",
        "isPrivate": False,
        "isStarred": False,
        "members": MEMBERS,
        "createdBy": "user_1",
        "createdAt": "2026-05-01T09:00:00Z",
        "pinnedMessages": [],
        "unreadCount": 0,
    }


def message(number, text):
    return {
        "messageId": f"msg_{number}",
        "senderId": "user_2",
        "content": text,
        "timestamp": "2026-05-01T10:00:00Z",
        "threadId": None,
        "reactions": [],
        "attachments": [],
        "isEdited": False,
    }


sid = str(uuid.uuid4())
with open("/tmp/task_web_sid", "w") as file:
    file.write(sid)
people = [user(1, "Ada Brown"), user(2, "Ben Cole")]
state = {
    "currentUser": people[0],
    "workspace": {"workspaceId": "ws_1", "workspaceName": "Workshop", "icon": ""},
    "users": people,
    "channels": [channel("general"), channel("kitchen")],
    "messages": {"general": [message(1, "Good morning")], "kitchen": [message(2, "Who can repair the kettle?")]},
    "threads": {},
    "dms": [],
    "bookmarkedMessages": [],
    "callHistory": [],
    "invitations": [],
    "notifications": [],
}
reply = requests.post(f"{BASE}/post?sid={sid}", json={"action": "set", "state": state}, timeout=30)
assert reply.status_code == 200, reply.text
subprocess.Popen(["google-chrome", f"{BASE}/?sid={sid}"], env={**os.environ, "DISPLAY": ":0"})
