"""Deskhand's endpoint over an instant engine: `python -m benchmarks.peers.deskhand_endpoint PORT DIR KIND`.

KIND is `bytes` or `values` (how the engine takes the patches of new images: `synthetic_screens.Form`) or `blind` (it
takes none). Calls and images are written to DIR; the admin key is read from standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn

from benchmarks.synthetic_screens import Endpoint, Form, forever
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.server import create_app
from deskhand.recorder.session_store import SessionStore


def main(port: int, folder: Path, kind: str, admin_key: str) -> None:
    forms: dict[str, Form | None] = {"bytes": "bytes", "values": "values", "blind": None}
    bench, files = Endpoint(form=forms[kind]), SessionStore(folder)
    images = ImageCache(bench.processor, fetch=files.image, on_new=files.save_image, prepared_bytes=512 << 20)
    recorder = Recorder(bench.renderer, bench.engine, images, on_call=files.write_call, on_reward=files.write_reward)
    with bench.engine.playing(forever()):
        uvicorn.run(
            create_app(recorder, admin_key, folder=files),
            host="127.0.0.1",
            port=port,
            log_level="warning",
            access_log=False,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.stdin.readline().strip())
