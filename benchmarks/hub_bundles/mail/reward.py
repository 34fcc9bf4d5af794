"""Reward of the bundle: the right message is starred, the newsletter is archived, and nothing else has changed."""

import requests

with open("/tmp/task_web_sid") as file:
    sid = file.read().strip()
data = requests.get(f"__CUA_GYM_GMAIL_URL__/go?sid={sid}", timeout=30).json()


def marks(state):
    return {mail["id"]: (mail["starred"], mail["folder"]) for mail in state["emails"]}


wanted = {**marks(data["initial_state"]), "m1": (True, "inbox"), "m3": (False, "all-mail")}
print("changed:", sorted(data["state_diff"]))
print("REWARD:", float(marks(data["current_state"]) == wanted))
