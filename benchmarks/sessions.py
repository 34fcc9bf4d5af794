"""Many sessions at once: `python -m benchmarks.sessions [--full]`.

200 sessions (20 without --full) of 20 turns each are played at once through the endpoint, with journals on disk, over an engine
that answers at once, in three waves. Judged: every reply is in its session's files afterwards and nothing else is; and the
process's memory after the last wave is at most a tenth above that after the first.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synthetic_screens import Endpoint, body, forever, screenshot, turn
from benchmarks.thresholds import Bars, parser_of, print_head
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore

TURNS, KEPT, WAVES = 20, 4, 3
SCREEN = (160, 120)
ADMIN = "admin-key-of-the-soak"


def memory_mb() -> float:
    """Resident memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def wave(bench: Endpoint, folder: SessionStore, number: int, sessions: int) -> int:
    """Play one wave; returns how many replies are not in their session's files."""
    images = ImageCache(bench.processor, fetch=folder.image, on_new=folder.save_image, prepared_bytes=32 << 20)
    recorder = Recorder(bench.renderer, bench.engine, images, on_call=folder.write_call, on_reward=folder.write_reward)
    lost = 0

    async def play(session: int) -> int:
        name, talk, said = f"{number}/{session}", list[dict[str, Any]](), list[str]()
        headers = {"authorization": f"Bearer {recorder.open_session(name)}"}
        for index in range(TURNS):
            talk.append(turn(screenshot(np.random.default_rng([number, session, index]), *SCREEN)))
            if len(talk) > 2 * KEPT:
                talk = talk[-KEPT - (1 - KEPT % 2) :]
            answer = await http.post("/v1/chat/completions", content=body(talk), headers=headers)
            said.append(answer.json()["id"])
            talk.append(answer.json()["choices"][0]["message"])
        await http.post(f"/sessions/{name}/end", json={}, headers={"authorization": f"Bearer {ADMIN}"})
        graph, _ = await asyncio.to_thread(folder.read, name)
        return sum(one not in graph for one in said) + abs(len(graph.calls) - TURNS)

    async with in_process_client(create_app(recorder, ADMIN, folder=folder)) as http:
        with bench.engine.playing(forever()):
            lost = sum(await asyncio.gather(*(play(session) for session in range(sessions))))
    recorder.close()
    return lost


def soak(sessions: int, bars: Bars) -> None:
    """Play the waves and judge them."""
    bench, levels = Endpoint(), []
    with tempfile.TemporaryDirectory() as name:
        folder = SessionStore(Path(name), durable=False)
        for number in range(WAVES):
            started = time.perf_counter()
            lost = asyncio.run(wave(bench, folder, number, sessions))
            took = time.perf_counter() - started
            levels.append(memory_mb())
            figure = f"{lost} lost of {sessions * TURNS} calls in {took:.1f} s, {sessions * TURNS / took:.0f} calls/s"
            bars.check(f"wave {number + 1}", lost == 0, figure, "none lost")
        files = [path for path in (Path(name) / "images").rglob("*") if path.is_file()]
        print(f"{len(files)} images on disk, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB")
    grown = levels[-1] / levels[0]
    figure = f"{', '.join(f'{level:.0f}' for level in levels)} MB after each wave"
    bars.check("memory", grown <= 1.1, figure, "the last at most 1.1 times the first")


def main() -> None:
    options, bars = parser_of(__doc__, "200 sessions at once").parse_args(), Bars()
    sessions = {"smoke": 2, "small": 20, "full": 200}[options.size]
    print_head()
    print(f"{WAVES} waves of {sessions} sessions of {TURNS} turns")
    soak(sessions, bars)
    bars.finish()


if __name__ == "__main__":
    main()
