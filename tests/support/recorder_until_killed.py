"""A recorder that journals to the folder named on its command line and prints the id of each call when its reply has
left; it plays episodes until it is killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from recording import ScriptedEngine, image_part
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore


async def main(folder: SessionStore) -> None:
    processor = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )
    images = ImageCache(processor, fetch=folder.image, on_new=folder.save_image)
    renderer = ChatRenderer(build_tokenizer(["Click the button."], merges=20))
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=folder.write_call, on_reward=folder.write_reward)
    admin = "admin-key-of-the-tests"

    async def play(name: str) -> None:
        headers, talk = {"authorization": f"Bearer {recorder.open_session(name)}"}, list[dict]()
        for turn in range(10**6):
            talk.append({"role": "user", "content": [image_part(turn % 50)]})
            answer = await http.post(
                "/v1/chat/completions", json={"messages": talk[-11:], "max_tokens": 8}, headers=headers
            )
            talk.append(answer.json()["choices"][0]["message"])
            call_id = answer.json()["id"]
            if turn % 3 == 0:
                await http.post(f"/sessions/{name}/rewards", json={"reward": turn, "call_id": call_id}, headers=headers)
            print(json.dumps([name, call_id, turn if turn % 3 == 0 else None]), flush=True)

    async with in_process_client(create_app(recorder, admin, folder=folder)) as http:
        await asyncio.gather(*(play(f"episode {index}") for index in range(3)))


if __name__ == "__main__":
    asyncio.run(main(SessionStore(Path(sys.argv[1]))))
