"""Server of the recipe, run by a Python with pyautogui: `python server.py`; prints its port, stops when stdin closes.

`POST /execute {"command": [...]}` runs a process; `GET /screenshot` takes a PNG with Pillow's ImageGrab (as pyautogui
does), or with scrot for `?scrot`. This is OSWorld's server without overhead: no framework, no debug mode, no pointer
overlay, persistent connections.
"""

import http.server
import io
import json
import os
import subprocess
import sys
import threading

from PIL import ImageGrab


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = subprocess.run(asked["command"], capture_output=True, text=True, timeout=120, check=False)
        answer = {"status": "success", "output": done.stdout, "error": done.stderr, "returncode": done.returncode}
        self._answer("application/json", json.dumps(answer).encode())

    def do_GET(self) -> None:
        if self.path.endswith("?scrot"):
            png = subprocess.run(["scrot", "-"], capture_output=True, check=True).stdout
        else:
            buffer = io.BytesIO()
            ImageGrab.grab(xdisplay=os.environ["DISPLAY"]).save(buffer, "PNG")
            png = buffer.getvalue()
        self._answer("image/png", png)

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        return


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
