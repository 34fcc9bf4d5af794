"""Questions about where the elements of a MiniWoB++ page are, for the supervised warm start.

Used by the suite as `Task.grounding_targets`. Each page asks for every element that it shows, by the element's text or
its place among the text fields. What to do with them is left to demonstrations and rewards: a page asks for the first
click of its own instruction only if it shows no such element. The page is only read.
"""

from __future__ import annotations

from deskhand.tasks.chromium import ChromiumSession
from deskhand.tasks.suites.miniwob.solutions import first_click_box
from deskhand.tasks.task import Rect

_ELEMENTS = """(() => {
  const found = [];
  const shown = element => {
    const box = element.getBoundingClientRect();
    if (box.width < 4 || box.height < 4 || box.left < 0 || box.top < 0) return null;
    if (box.right > innerWidth || box.bottom > innerHeight) return null;
    if (!element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) return null;
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return top && (top === element || element.contains(top)) ? box : null;
  };
  const add = (kind, name, element) => {
    const box = shown(element), text = String(name).replace(/\\s+/g, ' ').trim();
    if (box && text && text.length <= 30) found.push([kind, text, box.left, box.top, box.right, box.bottom]);
  };
  const all = selector => [...document.querySelectorAll(`#wrap ${selector}, .ui-dialog ${selector}`)];
  for (const element of all('button')) add('button', element.title || element.textContent, element);
  for (const element of all('input[type=button], input[type=submit]')) add('button', element.value, element);
  for (const element of all('.alink, a')) add('link', element.textContent, element);
  for (const label of all('label')) {
    const box = label.querySelector('input');
    if (box) add('choice', label.textContent, box);
  }
  for (const element of all('h3')) add('section', element.textContent, element);
  for (const element of all('.color')) add('color', element.dataset.color || '', element);
  all('input[type=text], input[type=password], input:not([type]), textarea')
    .forEach((element, index) => add('field', index + 1, element));
  return found;
})()"""

_ASKED = {
    "button": ('Click on the "{}" button.', "Click button {}."),
    "link": ('Click on the link "{}".',),
    "choice": ("Select {}.",),
    "section": ('Click on the section "{}".',),
    "color": ("Click on the {} colored box.",),
    "field": ("Focus into text field {}.",),
}


async def grounding_targets(name: str, page: ChromiumSession, instruction: str) -> list[tuple[str, Rect]]:
    """Return (question, box in pixels) of the elements with a text of their own, or else of the first click."""
    found: list[tuple[str, Rect]] = []
    elements = await page.evaluate(_ELEMENTS)
    names = [(kind, text) for kind, text, *_ in elements]
    for kind, text, *box in elements:
        if names.count((kind, text)) == 1:
            found += [(asked.format(text), _rect(box)) for asked in _ASKED[kind]]
    if not found and (first := await first_click_box(name, page)) is not None:
        found.append((instruction, _rect(first)))
    return found


def _rect(box: list[float]) -> Rect:
    left, top, right, bottom = (round(value) for value in box)
    return Rect(left, top, right, bottom)
