"""Families `picture_*`: images in GIMP. The exported file is judged pixel by pixel; the original must be unchanged."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import document_readers
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import list_folder, read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, press
from deskhand.tasks.suites.basics.scenario import THEMES, Oracle, clause, milestone, scenario_family
from deskhand.tasks.task import ExampleEndStates, FileContents, Milestone, Task

FOLDER = "Documents"
NAMES = ("house", "flag", "map", "sign", "window", "garden", "stage", "tower")
RESULTS = ("result", "copy", "final", "other", "new", "second")
MAX_PIXELS = 1_000_000
COMMANDS = (
    "Flip image horizontally",
    "Flip image vertically",
    "Rotate the image 90 degrees to the right",
    "Rotate the image 90 degrees to the left",
    "Invert the components (except alpha) perceptually",
    "Scale Image",
    "Crop the image to the extents of its content",
    "Convert the image to grayscale",
)
"""Names by which GIMP's search finds what oracles use."""
CHANNEL_TOLERANCE = 2
"""Maximum difference of a channel (0 to 255) in exact work."""


class PictureScenario(HdScenario):
    """One open picture without symmetry."""

    applications = ("gimp",)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.source = f"{rng.choice(NAMES)}.png"
        self.result = f"{rng.choice(RESULTS)}.png"
        self.size = (rng.randrange(160, 400, 8), rng.randrange(120, 300, 8))
        self.theme = rng.choice(THEMES)
        self.picture = self._draw()

    def _draw(self) -> Image.Image:
        rng, (width, height) = self.rng, self.size
        picture = Image.new("RGB", self.size, self._color())
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, 0, width // 3, height // 4), fill=self._color())
        draw.polygon([(width // 2, 4), (width - 6, height // 2), (width // 2, height // 3)], fill=self._color())
        for _ in range(4):
            x, y = rng.randrange(width - 40), rng.randrange(height - 40)
            draw.ellipse((x, y, x + rng.randint(12, 38), y + rng.randint(12, 38)), fill=self._color())
        return picture

    def _color(self) -> tuple[int, int, int]:
        first, second, third = (self.rng.randrange(8) * 30 + 20 for _ in range(3))
        return first, second, third

    def png(self) -> bytes:
        return _png(self.picture)

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(f"{FOLDER}/{self.source}", await asyncio.to_thread(self.png))
        await desktop.launch(["gimp", "--no-splash", f"{FOLDER}/{self.source}"])
        await desktop.wait_window(self.source.split(".")[0], timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_still(desktop, 1.0, 30.0)

    def exact_task(
        self, what: str, name: str, wanted: Callable[[Image.Image], Image.Image], *milestones: Milestone
    ) -> Task:
        """Return a task that GIMP's command `name` solves. `wanted` turns the original into the exact result."""
        return self.edit_task(
            what,
            command(name),
            lambda picture: [same_pixels(picture, wanted(self.picture))],
            lambda: wanted(self.picture),
            *milestones,
        )

    async def exported_picture(self, desktop: StageableDesktop) -> Image.Image | None:
        return await open_picture(await read_file(desktop, f"{FOLDER}/{self.result}"))

    def has_size(self, weight: float, name: str, holds: Callable[[int, int], bool]) -> Milestone:
        """Return a milestone of the exported picture's width and height."""

        async def holds_now(desktop: StageableDesktop) -> bool:
            picture = await self.exported_picture(desktop)
            return picture is not None and holds(*picture.size)

        return milestone(name, weight, holds_now)

    def edit_task(
        self,
        what: str,
        steps: Oracle,
        findings: Callable[[Image.Image | None], list[Finding]],
        right: Callable[[], Image.Image],
        *milestones: Milestone,
        **wrong: Callable[[], Image.Image],
    ) -> Task:
        """Return a task. `what` is the first part of the instruction, `findings(picture)` are the clauses for the
        result, `right` returns a correct result, and each of `wrong` one that is nearly right.
        """

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            picture = await self.exported_picture(desktop)
            original = await read_file(desktop, f"{FOLDER}/{self.source}")
            names = await list_folder(desktop, FOLDER)
            return [
                clause("the files of the folder", names, sorted([self.source, self.result])),
                Finding("the original is as it was", float(original == self.png()), "its bytes", "the same bytes"),
                *await asyncio.to_thread(findings, picture),
            ]

        async def and_export(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            async for ops in steps(desktop):
                yield ops
            yield press("ctrl+shift+e")
            await hd_screen.wait_shown(desktop, "Export Image")
            yield [*press("ctrl+a"), Type(self.result)]
            yield press("enter")
            await hd_screen.wait_shown(desktop, "Export Image as PNG")
            yield press("enter")

        def end_states() -> ExampleEndStates:
            source, result, picture = f"{FOLDER}/{self.source}", f"{FOLDER}/{self.result}", right()
            original, done = self.png(), _png(picture)
            negatives: dict[str, FileContents] = {
                "as it was": {source: original, result: original},
                "a row is missing": {
                    source: original,
                    result: _png(picture.crop((0, 0, picture.width, picture.height - 1))),
                },
                "its colors are inverted": {source: original, result: _png(ImageOps.invert(picture))},
                "the original has changed": {source: done + b"\0", result: done},
                "two results": {source: original, result: done, f"{FOLDER}/again.png": done},
            }
            for mistake, draw in wrong.items():
                negatives[mistake.replace("_", " ")] = {source: original, result: _png(draw())}
            return ExampleEndStates(negatives, {source: original, result: done})

        return self.build_task(
            f"{what} and export it as {self.result} to the same folder; leave {self.source} as it is",
            max_steps=16,
            clauses=clauses,
            oracle=hd_screen.until_written(f"{FOLDER}/{self.result}", and_export),
            settle_grace_s=2.0,
            oracle_knows=COMMANDS,
            example_end_states=end_states,
            milestones=(self.has_size(0.1, "a picture was exported", lambda wide, high: True), *milestones),
        )


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


async def open_picture(data: bytes | None) -> Image.Image | None:
    """Return a picture as RGB; None if it is invalid or has too many pixels."""
    if not data:
        return None
    try:
        width, height, pixels = await read_in_subprocess(document_readers.rgb_pixels, data, MAX_PIXELS)
    except InvalidDocument:
        return None
    return Image.frombytes("RGB", (width, height), base64.b64decode(pixels))


def same_pixels(picture: Image.Image | None, wanted: Image.Image) -> Finding:
    """Return the clause that size and colors match, all pixels within the tolerance."""
    expected = f"{wanted.size[0]}x{wanted.size[1]} pixels as expected"
    if picture is None or picture.size != wanted.size:
        return Finding("the picture", 0.0, f"{'no picture' if picture is None else picture.size}", expected)
    off = np.abs(np.asarray(picture, np.int16) - np.asarray(wanted, np.int16)).max(axis=2) > CHANNEL_TOLERANCE
    return Finding("the picture", float(not off.any()), f"{off.mean():.4f} of its pixels differ", expected)


def brightness(pixels: np.ndarray) -> list[np.ndarray]:
    """Return the brightness of each of an image's pixels (height, width, 3; 0 to 255) in the ways that GIMP has."""
    colors = pixels.reshape(-1, 3) / 255
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    light = np.where(luminance <= 0.0031308, 12.92 * luminance, 1.055 * luminance ** (1 / 2.4) - 0.055)
    luma = [colors @ np.array(weights) for weights in ((0.299, 0.587, 0.114), (0.2126, 0.7152, 0.0722))]
    lightness = (colors.max(axis=1) + colors.min(axis=1)) / 2
    return [light, *luma, lightness, colors.mean(axis=1), colors.max(axis=1), colors.min(axis=1), *colors.T]


def command(words: str) -> Oracle:
    """Return the steps of GIMP's search for a command by its name."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("/")
        await hd_screen.wait_shown(desktop, "Search Actions")
        yield [Type(words)]
        await hd_screen.wait_still(desktop, 0.4)
        yield press("enter")
        await hd_screen.wait_closed(desktop, "Search Actions")
        await hd_screen.wait_still(desktop, 0.3)

    return steps


@scenario_family(
    PictureScenario,
    "picture_flip",
    "easy",
    "mirror a picture and export it",
    abilities=("edit a picture", "use menus and dialogs", "work in several steps"),
)
def flip(scenario: PictureScenario) -> Task:
    across = scenario.rng.random() < 0.5
    name = "Flip image horizontally" if across else "Flip image vertically"
    how = Image.Transpose.FLIP_LEFT_RIGHT if across else Image.Transpose.FLIP_TOP_BOTTOM
    what = "Mirror the picture left to right" if across else "Mirror the picture top to bottom"
    return scenario.exact_task(what, name, lambda picture: picture.transpose(how))


@scenario_family(
    PictureScenario,
    "picture_turn",
    "medium",
    "rotate a picture by 90 degrees and export it",
    abilities=("edit a picture", "use menus and dialogs", "work in several steps"),
)
def turn(scenario: PictureScenario) -> Task:
    right = scenario.rng.random() < 0.5
    how = Image.Transpose.ROTATE_270 if right else Image.Transpose.ROTATE_90
    name = f"Rotate the image 90 degrees to the {'right' if right else 'left'}"
    what = f"Rotate the picture 90 degrees {'to the right' if right else 'to the left'}"
    return scenario.exact_task(what, name, lambda picture: picture.transpose(how))


@scenario_family(
    PictureScenario,
    "picture_invert",
    "medium",
    "invert the colors of a picture and export it",
    abilities=("edit a picture", "use menus and dialogs", "work in several steps"),
)
def invert(scenario: PictureScenario) -> Task:
    name = "Invert the components (except alpha) perceptually"
    return scenario.exact_task(
        "Invert the colors of the picture", name, lambda picture: Image.fromarray(255 - np.asarray(picture))
    )


@scenario_family(
    PictureScenario,
    "picture_scale",
    "hard",
    "scale a picture to a given size and export it",
    abilities=("edit a picture", "use menus and dialogs", "work in several steps"),
)
def scale(scenario: PictureScenario) -> Task:
    width, height = scenario.size[0] // 2, scenario.size[1] // 2

    def half() -> Image.Image:
        return scenario.picture.resize((width, height), Image.Resampling.BOX)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in command("Scale Image")(desktop):
            yield ops
        await hd_screen.wait_shown(desktop, "Scale Image")
        yield [*press("ctrl+a"), Type(f"{width}\t")]
        yield press("alt+s")
        await hd_screen.wait_closed(desktop, "Scale Image")

    def findings(picture: Image.Image | None) -> list[Finding]:
        if picture is None or picture.size != (width, height):
            return [clause("the size", picture and picture.size, (width, height))]
        off = np.abs(np.asarray(picture, np.int16) - np.asarray(half(), np.int16)).mean()
        return [Finding("it shows the same", float(off < 6), f"mean difference {off:.2f}", "below 6")]

    text = f"Scale the picture to a width of {width} and a height of {height} pixels"
    name = "it has the width or the height asked for"
    size = scenario.has_size(0.2, name, lambda wide, high: wide == width or high == height)
    return scenario.edit_task(text, steps, findings, half, size)


@scenario_family(
    PictureScenario,
    "picture_crop",
    "hard",
    "crop a picture to what it shows and export it",
    abilities=("edit a picture", "use menus and dialogs", "work in several steps"),
)
def crop(scenario: PictureScenario) -> Task:
    inner = scenario.picture
    left, top, right, bottom = (scenario.rng.randrange(12, 60) for _ in range(4))
    margin = scenario.rng.choice([(255, 255, 255), (0, 0, 0), (5, 60, 120)])
    whole = Image.new("RGB", (inner.width + left + right, inner.height + top + bottom), margin)
    whole.paste(inner, (left, top))
    scenario.picture = whole
    name = "Crop the image to the extents of its content"
    smaller = scenario.has_size(
        0.1, "it is smaller than it was", lambda wide, high: (wide, high) != whole.size and wide <= whole.width
    )
    what = "Crop the picture so that the margin of one color is gone"
    return scenario.exact_task(what, name, lambda _: inner, smaller)


@scenario_family(
    PictureScenario,
    "picture_gray",
    "medium",
    "convert a picture to grayscale and export it",
    abilities=("edit a picture", "use menus and dialogs", "work in several steps"),
)
def grayscale(scenario: PictureScenario) -> Task:
    def findings(picture: Image.Image | None) -> list[Finding]:
        if picture is None or picture.size != scenario.size:
            return [clause("the size", picture and picture.size, scenario.size)]
        pixels, before = np.asarray(picture, np.int16), np.asarray(scenario.picture, np.int16)
        spread = int((pixels.max(axis=2) - pixels.min(axis=2)).max())
        light = pixels.mean(axis=2).ravel()
        # each way to weigh the channels is right, and two of them may give grays that do not correlate
        alike = [np.corrcoef(light, each)[0, 1] for each in brightness(before) if light.std() > 0 and each.std() > 0]
        correlation = float(max(alike, default=0.0))
        low, high = before.min(axis=2) - CHANNEL_TOLERANCE, before.max(axis=2) + CHANNEL_TOLERANCE
        out = float(((pixels.min(axis=2) < low) | (pixels.max(axis=2) > high)).mean())
        shades = "each within the range of its pixel's channels, as every way to weigh them gives"
        most = f"channels differ by at most {CHANNEL_TOLERANCE}"
        return [
            Finding("no pixel has a color", float(spread <= CHANNEL_TOLERANCE), f"differ by up to {spread}", most),
            Finding("it has shades", float(out == 0), f"{out:.4f} of its pixels do not", shades),
            Finding("it shows the same", float(correlation > 0.95), f"brightness: {correlation:.2f}", "more than 0.95"),
        ]

    return scenario.edit_task(
        "Convert the picture to grayscale",
        command("Convert the image to grayscale"),
        findings,
        lambda: scenario.picture.convert("L"),
        black_and_white=lambda: scenario.picture.convert("1", dither=Image.Dither.NONE),
    )
