"""Parser of drawings (ODG files) of guests, run by `subprocess_call` in a subprocess; used by `basics`' `office_files`.

The file format is OpenDocument 1.3, part 3: a page is a `draw:page`, and what is on it are its child elements.
"""

from __future__ import annotations

import re
import zipfile
from typing import Any
from xml.etree import ElementTree

from deskhand.tasks.document_readers import archive_entries, parsing

_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
NAMESPACES = {
    "office": f"{_OASIS}office:1.0",
    "draw": f"{_OASIS}drawing:1.0",
    "style": f"{_OASIS}style:1.0",
    "svg": f"{_OASIS}svg-compatible:1.0",
    "text": f"{_OASIS}text:1.0",
    "fo": f"{_OASIS}xsl-fo-compatible:1.0",
    "meta": f"{_OASIS}meta:1.0",
}
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 0.1 / 2.54, "pt": 1 / 72}
"""Units of length."""
_LAYOUT = ("forms", "notes", "layer-set", "animations")
"""Children of a page that are not drawn on it."""
_STYLES = ".//style:style[@style:family='graphic']"
Styles = dict[str, ElementTree.Element]


def drawing_facts(data: bytes) -> dict[str, Any]:
    """Return the fields of `office_files.Drawing`. Raises `InvalidDocument`."""
    with parsing("drawing"), zipfile.ZipFile(archive_entries(data)) as archive:
        content, styles = (ElementTree.fromstring(archive.read(f"{name}.xml")) for name in ("content", "styles"))
        generator = ElementTree.fromstring(archive.read("meta.xml")).find(".//meta:generator", NAMESPACES)
        every = [each for root in (styles, content) for each in root.iterfind(_STYLES, NAMESPACES)]
        named: Styles = {each.get(_name("style:name"), ""): each for each in every}
        pages = [
            (
                page.get(_name("draw:name"), ""),
                [_shape(each, named) for each in page if each.tag.rpartition("}")[2] not in _LAYOUT],
            )
            for page in content.iterfind(".//draw:page", NAMESPACES)
        ]
    return {"pages": pages, "application": _text(generator).partition("/")[0]}


def _name(name: str) -> str:
    """Return the name of a tag or an attribute, such as "draw:name", with its namespace in full."""
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


def _text(element: ElementTree.Element | None) -> str:
    return "" if element is None else "".join(element.itertext())


def _shape(element: ElementTree.Element, styles: Styles) -> dict[str, Any]:
    box = [_inches(element.get(_name(f"svg:{side}"), "")) for side in ("x", "y", "width", "height")]
    return {
        "kind": element.tag.rpartition("}")[2],
        "text": "\n".join(_text(each) for each in element.iterfind(".//text:p", NAMESPACES)),
        "fill": _fill(element.get(_name("draw:style-name"), ""), styles),
        "box": box,
    }


def _fill(name: str, styles: Styles) -> str:
    """Return the color of a style, "#rrggbb", or how else it fills; what it lacks comes from its parents."""
    found: dict[str, str] = {}
    for _ in range(len(styles)):
        if name not in styles:
            break
        for each in styles[name].iterfind("style:graphic-properties", NAMESPACES):
            found = dict(each.attrib) | found
        name = styles[name].get(_name("style:parent-style-name"), "")
    kind = found.get(_name("draw:fill"), "solid")
    return found.get(_name("draw:fill-color"), "").lower() if kind == "solid" else kind


def _inches(length: str) -> float | None:
    """Return a length to 0.01 inches, or None."""
    found = re.fullmatch(r"(-?[\d.]{1,12})(cm|mm|in|pt)", length)
    return round(float(found[1]) * INCHES[found[2]], 2) if found else None
