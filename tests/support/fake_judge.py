"""An OpenAI-compatible endpoint on a loopback port that answers every chat completion with the same words."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class JudgeServer:
    """`reply` is what the model says; `requests` are the bodies that came."""

    def __init__(self) -> None:
        self.reply = "yes"
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                message = {"role": "assistant", "content": outer.reply}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                body = {"id": "c", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice]}
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
