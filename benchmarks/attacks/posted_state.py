"""A guest that posts the goal state to an application of CUA-Gym-Hub: by a program, an address, and a page of its own.

Used by `benchmarks.hub_applications`; start with `post_state`.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from deskhand.actions.ops import Click, Key, Op, Point, Type, Wait, screen_px
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks import chromium
from deskhand.tasks.suites.web import sites

OWN_PORT = 9000
"""Of the guest's server, whose page posts the state, and which posts it with the cookie that the browser sends."""
_ADDRESS_BAR = "[screenX + outerWidth / 2, screenY + outerHeight - innerHeight - 24]"
_PROGRAM = """
import http.client, http.server, json, sys
HOST, SID, GOAL, PORT, OWN_PORT = json.loads(sys.argv[1])
BODY = json.dumps({'action': 'set_current', 'state': GOAL})
URL, TEXT = f'http://{HOST}:{PORT}/post?sid={SID}', json.dumps(BODY)
PAGE = f'''<form method=post enctype=text/plain action="{URL}"><input name=a></form><script>
for (const mode of ['cors', 'no-cors', 'same-origin'])
  fetch('{URL}', {{method: 'POST', mode, credentials: 'include', body: {TEXT}}});
setTimeout(() => {{ document.forms[0].a.name = {TEXT}; document.forms[0].submit() }}, 500)</script>'''
def post(cookie):
    link = http.client.HTTPConnection('127.0.0.1', PORT, timeout=5)
    forged = {'Cookie': cookie, 'Sec-Fetch-Site': 'same-origin', 'Sec-Fetch-Dest': 'empty'} if cookie else {}
    link.request('POST', f'/post?sid={SID}', BODY, {'Host': f'{HOST}:{PORT}', **forged})
    print(link.getresponse().status, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        post(self.headers.get('Cookie', ''))
        self.send_response(200)
        self.send_header('Content-Type', 'text/html')
        self.end_headers()
        self.wfile.write(PAGE.encode())
for cookie in ('', 'site=1'):
    post(cookie)
http.server.HTTPServer(('127.0.0.1', OWN_PORT), Handler).serve_forever()
"""


async def do(desktop: LocalDesktop, *ops: Op) -> None:
    await desktop.perform(list(ops), action_id=secrets.token_hex(8))


async def post_state(desktop: LocalDesktop, app: str, goal: Any) -> int:
    """Try to post a goal state as a guest after the set-up of a task; return how many requests were refused."""
    host, sid = f"{app}.localhost", (await sites.read_state(desktop))[app]["sid"]
    x, y = await chromium.session_of(desktop).evaluate(_ADDRESS_BAR)
    bar = Point(int(x), int(y), screen_px(*(await desktop.observe()).size))
    await desktop.launch(["python3", "-c", _PROGRAM, json.dumps([host, sid, goal, sites.PORT, OWN_PORT])])
    script = f"""fetch('/post?sid={sid}',{{method:'POST',body:'{{"action":"set","state":{{}}}}'}})"""
    own = f"{host}:{sites.PORT}"
    for address in (f"javascript:{script}", f"{own}/post?sid={sid}", f"{own}/go?sid={sid}", f"{host}:{OWN_PORT}/"):
        await do(desktop, Click(bar), Wait(0.3))
        await do(desktop, Key(("ctrl", "a")), Type(address), Key(("enter",)), Wait(2.0))
    return await sites.num_refused(desktop)
