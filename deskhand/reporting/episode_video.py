"""An episode as an animated GIF or MP4: each screen with its action drawn on it, and what the judge found at the end.

Used by `deskhand export --episode`; start with `write_video`. Screenshots may show what should not be shared: they are
not scrubbed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.reporting.episode_view import episode_data
from deskhand.reporting.select_episodes import find_episode
from deskhand.rollout.run_writer import load_result
from deskhand.server.mp4 import VideoFrame, encode_mp4
from deskhand.store.run import Run

SUFFIXES = (".gif", ".mp4")
END_S = 3.0
"""How long the end is shown."""
MIN_WIDTH, MAX_WIDTH = 480, 1280
"""Small screens are enlarged by a whole factor, large ones are reduced."""
JPEG_QUALITY = 85
COLORS = 128
"""Colors of a frame of a GIF."""
_INK, _PAPER, _HALO = (24, 24, 24), (246, 246, 244), (255, 255, 255)
_MARK = {"success": (22, 138, 76), "failure": (200, 52, 44), "errored": (176, 122, 10)}
_ACTION = (216, 40, 96)
_LINES = 2
"""Lines of text below a screen."""


def write_video(run: Run, name: str, path: Path, *, step_s: float = 1.0) -> Path:
    """Write the episode with this id, or the only one whose id begins so, and return the path.

    Raises `ConfigError` for an unknown episode, another suffix than `SUFFIXES`, or a file that exists or cannot be
    written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out {path}: with --episode it must end in {' or '.join(SUFFIXES)}")
    if path.exists():
        raise ConfigError(f"--out {path}: exists; use another file")
    rows = [row for row in run.episodes() if run.has_record(row.id)]
    data = episode_data(load_result(run, find_episode(rows, name)), "", run)
    frames = draw_frames(run, data)
    times = [step_s] * (len(frames) - 1) + [max(END_S, step_s)]
    content = _gif(frames, times) if path.suffix.lower() == ".gif" else _mp4(frames, times)
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another path") from error
    return path


def draw_frames(run: Run, episode: dict[str, Any]) -> list[Image.Image]:
    """Return the frames, all of one size: one per step, and the end. `episode`: from `episode_view.episode_data`."""
    steps = episode["steps"]
    screens = [_screen(run, step["frame"]) for step in steps] + [_screen(run, episode["last_frame"])]
    width, height = (max(screen.size[side] for screen in screens) for side in (0, 1))
    scale = _scale(width)
    size = max(12, round(width * scale / 48))
    font = ImageFont.load_default(size)
    frames = []
    for number, screen in enumerate(screens):
        step = steps[number] if number < len(steps) else None
        wide, high = (max(1, round(side * scale)) for side in screen.size)
        large = screen.resize((wide, high), _resampling(scale))
        canvas = Image.new("RGB", (round(width * scale), round(height * scale) + _LINES * (size + 8) + 8), _PAPER)
        canvas.paste(large, (0, 0))
        draw = ImageDraw.Draw(canvas)
        for mark in step["marks"] if step else ():
            _draw_mark(draw, [((x + 0.5) * scale, (y + 0.5) * scale) for x, y in mark["points"]], size)
        color = _INK if step else _MARK[episode["outcome"]]
        head = f"{number + 1}/{len(steps)}  {_action(step)}" if step else f"{episode['outcome']}: {_reason(episode)}"
        for line, text in enumerate((episode["instruction"], head)):
            top = round(height * scale) + 8 + line * (size + 8)
            draw.text((8, top), _fitting(text, font, canvas.width - 16), fill=color if line else _INK, font=font)
        frames.append(canvas)
    return frames


def _screen(run: Run, sha256: str) -> Image.Image:
    try:
        return Image.fromarray(run.frames.rgb(sha256))
    except (InfrastructureError, ValueError):  # it was never shown, or is missing
        return Image.new("RGB", (320, 200), (128, 128, 128))


def _scale(width: int) -> float:
    return MAX_WIDTH / width if width > MAX_WIDTH else max(1, round(MIN_WIDTH / width))


def _resampling(scale: float) -> Image.Resampling:
    return Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST


def _draw_mark(draw: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], size: int) -> None:
    """Draw a path, and a circle with a point at its end."""
    for color, more in ((_HALO, 3), (_ACTION, 0)):
        if len(points) > 1:
            draw.line(points, fill=color, width=3 + more)
        x, y = points[-1]
        draw.ellipse((x - size, y - size, x + size, y + size), outline=color, width=3 + more)
    draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=_ACTION, outline=_HALO)


def _action(step: dict[str, Any]) -> str:
    return (step["error"] and f"error: {step['error']}") or "; ".join(step["actions"]) or step["text"]


def _reason(episode: dict[str, Any]) -> str:
    failed = next((found for found in episode["findings"] if found["value"] < 1), None)
    if failed is None:
        return episode["cause"]
    expected = f", expected {failed['expected']}" if failed["expected"] else ""
    return f"{failed['clause']}: read {failed['read']}{expected}"


def _fitting(text: str, font: Any, width: float) -> str:
    """Return as much of a text as one line holds."""
    plain = " ".join("".join(each if each.isprintable() else " " for each in text).split())[:400]
    if font.getlength(plain) <= width:
        return plain
    while plain and font.getlength(plain + "...") > width:
        plain = plain[:-1]
    return plain + "..."


def _gif(frames: Sequence[Image.Image], times: Sequence[float]) -> bytes:
    reduced = [frame.quantize(COLORS, dither=Image.Dither.NONE) for frame in frames]
    buffer = io.BytesIO()
    durations = [round(1000 * seconds) for seconds in times]
    reduced[0].save(buffer, "GIF", save_all=True, append_images=reduced[1:], duration=durations, loop=0, disposal=1)
    return buffer.getvalue()


def _mp4(frames: Sequence[Image.Image], times: Sequence[float]) -> bytes:
    encoded, start_s = [], 0.0
    for frame, seconds in zip(frames, times, strict=True):
        buffer = io.BytesIO()
        frame.save(buffer, "JPEG", quality=JPEG_QUALITY)
        encoded.append(VideoFrame(start_s, buffer.getvalue()))
        start_s += seconds
    return encode_mp4(encoded, start_s, *frames[0].size)
