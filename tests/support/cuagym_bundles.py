"""Stand-ins for CUA-Gym's task bundles and for a built application of CUA-Gym-Hub, in their formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SETUP = """
import os, subprocess, uuid
import requests

BASE = '__CUA_GYM_TODO_LIST_URL__'
sid = str(uuid.uuid4())
with open('/tmp/task_web_sid', 'w') as file:
    file.write(sid)
state = {'items': [{'title': 'Water the plants', 'done': False}, {'title': 'Call Ada', 'done': False}]}
reply = requests.post(f'{BASE}/post?sid={sid}', json={'action': 'set', 'state': state}, timeout=30)
assert reply.status_code == 200, reply.text
assert requests.get(f'{BASE}/go?sid={sid}', timeout=10).json()['initial_state'] == state
subprocess.Popen(['google-chrome', f'{BASE}/?sid={sid}'], env={**os.environ, 'DISPLAY': ':0'})
"""
REWARD = """
import json, urllib.request

with open('/tmp/task_web_sid') as file:
    sid = file.read().strip()
with urllib.request.urlopen('https://cua-gym-todo-list.xlang.ai/go?sid=' + sid, timeout=30) as reply:
    data = json.loads(reply.read())
assert data['initial_state']['items'][0]['done'] is False
first, second = data['current_state']['items']
print('changed:', sorted(data['state_diff']))
print('REWARD:', float(first['done'] and not second['done']))
"""
NEMO_SETUP = """
import requests

items = [{'title': 'Water the plants', 'done': False}, {'title': 'Call Ada', 'done': False}]
sent = {'action': 'set', 'state': {'items': items}}
requests.post('__CUA_GYM_TODO_LIST_URL__/post?sid=__CUA_GYM_SID__', json=sent, timeout=30).raise_for_status()
"""
NEMO_REWARD = """
import requests

sid = "__CUA_GYM_SID__"
data = requests.get(f'__CUA_GYM_TODO_LIST_URL__/go?sid={sid}', timeout=30).json()
first, second = data['current_state']['items']
print('REWARD:', float(first['done'] and not second['done']))
"""
GOAL = [{"title": "Water the plants", "done": True}, {"title": "Call Ada", "done": False}]
PAGE = "<!doctype html><title>Todo</title><body><ul></ul><script type=module src=/assets/app.js></script>"
SCRIPT = """
const sid = new URLSearchParams(location.search).get('sid');
const initial_state = {items: [{title: 'Water the plants', done: false}, {title: 'Call Ada', done: false}]};
const state = (await (await fetch(`/state?sid=${sid}`)).json()).stored_state ?? structuredClone(initial_state);
for (const item of state.items) {
  const button = document.createElement('button');
  button.textContent = item.title;
  button.onclick = () => {
    item.done = true;
    setTimeout(() => fetch(`/post?sid=${sid}`, {method: 'POST', headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({action: 'set_current', state, initial_state})}), 800);
  };
  document.querySelector('ul').append(button);
}
document.body.append(new Image());
document.body.lastChild.src = 'http://outside.test/pixel.png';
"""
"""Shows a button for each item of the stored state or of its own, stores what is pressed after a while, and asks for
an image from outside."""


def write_bundle(
    folder: Path, name: str, setup: str = SETUP, reward: str = REWARD, suffix: str = ".py", **keys: Any
) -> None:
    bundle = folder / name
    bundle.mkdir(parents=True)
    task = {"id": name, "instruction": "Tick off watering the plants.", "app_type": "todo_list_mock", **keys}
    (bundle / "task.json").write_text(json.dumps(task))
    (bundle / f"initial_setup{suffix}").write_text(setup)
    (bundle / "reward.py").write_text(reward)


def write_nemo_bundle(
    folder: Path, name: str, setup: str | None = NEMO_SETUP, reward: str = NEMO_REWARD, **keys: Any
) -> None:
    """A bundle of schema version 2, whose own reward program is for another harness."""
    write_bundle(folder, name, "", "def score(evidence): ...", schema_version=2)
    programs = {"bundle_id": name, "app_dir": "todo_list_mock", "initial_setup": setup, "eval_reward_code": reward}
    payload = {"task_id": name, "intent": "Tick off watering the plants.", "cuagym": {**programs, **keys}}
    (folder / name / "nemo_task.json").write_text(json.dumps({"task_payload": payload}))


def write_hub(folder: Path) -> None:
    dist = folder / "hub" / "websites" / "todo_list_mock" / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text(PAGE)
    (dist / "assets" / "app.js").write_text(SCRIPT)
