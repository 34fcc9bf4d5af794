"""How a conversation reads: ids and pixels of the checkpoints and pictures in a folder, by whatever transformers is
installed.

`python reading_probe.py CHECKPOINTS PICTURES OUT_FOLDER`; the test calls `reading` in its own process and in AReaL's.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def reading(checkpoint: Path, pictures: list[Path]) -> dict[str, Any]:
    """Ids of a conversation of two turns for each picture, and a hash of each picture's patches."""
    from deskhand.models.load import load_processors
    from deskhand.recorder.images import ImageCache
    from deskhand.recorder.messages import ImagePart, message
    from deskhand.recorder.renderer import ChatRenderer

    tokenizer, processor = load_processors(str(checkpoint))
    images, found = ImageCache(processor), []
    messages = [message("user", "Click the blue square.")]
    for path in pictures:
        image = images.add(path.read_bytes())
        patches = hashlib.sha256(np.asarray(image.pixel_values).tobytes()).hexdigest()
        checksum = image.checksum.value if image.checksum is not None else None
        found.append([image.sha256, list(image.grid_thw), image.tokens, checksum, patches])
        messages = [*messages, message("assistant", '{"op":"click","x":512,"y":300}')] if len(found) > 1 else messages
        messages.append(message("user", ["Grüße, 屏幕: ", ImagePart(image.sha256), "error: none"]))
    prompt = ChatRenderer(tokenizer).render(tuple(messages), images)
    spans = [[span.start, span.count, span.sha256] for span in prompt.spans]
    return {"ids": list(prompt.token_ids), "spans": spans, "images": found}


def main(checkpoints: Path, pictures: Path, out: Path) -> None:
    import transformers

    paths = sorted(pictures.glob("*.png"))
    found = {path.name: reading(path, paths) for path in sorted(checkpoints.iterdir())}
    (out / "found.json").write_text(json.dumps({"transformers": transformers.__version__, "found": found}))


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:]))
