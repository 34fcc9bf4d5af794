"""Reward of the bundle: the message is in the channel, and there is no other new one."""

import requests

with open("/tmp/task_web_sid") as file:
    sid = file.read().strip()
data = requests.get(f"__CUA_GYM_SLACK_URL__/go?sid={sid}", timeout=30).json()


def texts(state):
    return {name: [each["content"].strip() for each in found] for name, found in state["messages"].items() if found}


wanted = texts(data["initial_state"])
wanted["kitchen"].append("The kettle is repaired")
print("messages:", texts(data["current_state"]))
print("REWARD:", float(texts(data["current_state"]) == wanted))
