"""Reward of the bundle: the page has the new title, the right to-do is done, and the others are as they were."""

import json
import urllib.request

with open("/tmp/task_web_sid") as file:
    sid = file.read().strip()
with urllib.request.urlopen(f"__CUA_GYM_NOTION_URL__/go?sid={sid}", timeout=30) as reply:
    state = json.loads(reply.read())["current_state"]
page = state["pages"]["p1"]
blocks = [state["blocks"][name] for name in page["blockIds"]]
done = [(block["content"], bool(block["properties"].get("checked"))) for block in blocks]
wanted = [("Book the room", True), ("Book the bus", False), ("Send the invitations", False)]
print("title:", page["title"], "to-dos:", done)
print("REWARD:", 0.5 * (page["title"] == "Team offsite in May") + 0.5 * (done == wanted))
