"""Oracles of MiniWoB++ tasks. The page is only read: all changes are pointer and keyboard ops of the desktop.

A solution is a JavaScript array of functions, one per step; each returns `click(element, count)` or `type(text)`.
`asked` is the instruction, `quoted` its texts in quotation marks. What a solution types from the page it takes with
`read`, which fails if the screen does not show it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from deskhand.actions.ops import Click, Op, Point, Type, screen_px
from deskhand.errors import ConfigError
from deskhand.tasks.chromium import ChromiumSession

_LOOK = """(() => {
  const utterance = core.getUtterance();
  const asked = typeof utterance === 'string' ? utterance : utterance.utterance;
  const quoted = [...asked.matchAll(/"([^"]*)"/g)].map(found => found[1]);
  const all = selector => [...document.querySelectorAll(selector)];
  const one = selector => document.querySelector(selector);
  const words = element => element.textContent.replace(/\\s+/g, ' ').trim();
  const read = element => {
    const box = element.getBoundingClientRect();
    const shown = element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})
      && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
    if (!shown) throw new Error(`the screen does not show ${words(element)}`);
    return words(element);
  };
  const text = (selector, wanted) => all(selector).find(element => words(element) === wanted);
  const type = text => ({type: String(text)});
  const click = (element, count = 1) => {
    const box = element.getBoundingClientRect();
    const bounds = [box.left, box.top, box.right, box.bottom];
    const hits = (x, y) => {
      const top = document.elementFromPoint(x, y);
      return top === element || element.contains(top);
    };
    const spots = [[0.5, 0.5], [0.2, 0.5], [0.8, 0.5], [0.5, 0.2], [0.5, 0.8],
      [0.1, 0.1], [0.9, 0.9], [0.1, 0.9], [0.9, 0.1]];
    for (const [across, down] of spots) {
      const [x, y] = [box.left + box.width * across, box.top + box.height * down];
      if (hits(x, y)) return {click: [x * devicePixelRatio, y * devicePixelRatio], count, bounds};
    }
    return {
      click: [(box.left + box.width / 2) * devicePixelRatio, (box.top + box.height / 2) * devicePixelRatio],
      count,
      bounds,
    };
  };
  const filled = (selector, value) => [() => click(one(selector)), () => type(value())];
  const submit = () => click(one('#subbtn'));
  const choices = () => asked.match(/^Select (.*) and click Submit/)[1].split(', ');
  const boxes = () => all('label').filter(label => choices().includes(words(label)));
  const figures = () => all('#area_svg > *').map(element => {
    const sign = element.localName === 'text' ? words(element) : '';
    const shape = {circle: 'circle', rect: 'rectangle', polygon: 'triangle'}[element.localName];
    const height = sign ? parseFloat(element.getAttribute('font-size')) : element.getBBox().height;
    const type = sign ? (/\\d/.test(sign) ? 'digit' : 'letter') : 'shape';
    return {element, type, name: sign || shape, color: element.getAttribute('fill'), isLarge: height > 15};
  });
  const steps = %s;
  return %d < steps.length ? steps[%d]() : null;
})()"""

_BUTTON = "[() => click(text('#area button', quoted[0]))]"
_BOXES = "[...boxes().map(label => () => click(label.querySelector('input'))), submit]"
_COLLAPSIBLE = "[() => click(one('#area h3')), submit]"
_TYPED = "[...filled('#tt', () => quoted[0]), submit]"

STEPS: dict[str, str] = {
    "click-button": _BUTTON,
    "unicode-test": _BUTTON,
    "click-link": "[() => click(text('#area .alink', quoted[0]))]",
    "click-test": "[submit]",
    "click-test-2": "[submit]",
    "click-test-transfer": "[submit]",
    "click-button-sequence": "[submit, () => click(one('#subbtn2'))]",
    "click-dialog": "[() => click(one('.ui-dialog-titlebar-close'))]",
    "click-dialog-2": """[() => click(quoted[0] === 'x' ? one('.ui-dialog-titlebar-close')
        : text('.ui-dialog-buttonpane button', quoted[0]))]""",
    "click-checkboxes": _BOXES,
    "click-checkboxes-transfer": _BOXES,
    "click-checkboxes-large": _BOXES,
    "click-option": _BOXES,
    "click-tab": "[() => click(text('#area ul a', asked.match(/Tab #\\d/)[0]))]",
    "click-color": '[() => click(one(`.color[data-color="${asked.match(/the (\\w+) colored/)[1]}"]`))]',
    "click-collapsible": _COLLAPSIBLE,
    "click-collapsible-nodelay": _COLLAPSIBLE,
    "click-widget": '[() => click(one(`[data-type="${quoted[0]}"]`))]',
    "click-shades": """[...all('#area span').filter(span => span.dataset.color === asked.match(/of (\\w+) and/)[1])
        .map(span => () => click(span)), () => click(one('#submit'))]""",
    "click-shape": """[() => { const [, size, color, name] = asked.match(
        /^Click on a (?:(large|small) )?(?:(red|green|blue|aqua|black|magenta|yellow) )?(\\w+)$/);
        return click(figures().find(each => (!size || each.isLarge === (size === 'large'))
            && (!color || each.color === color) && ['item', each.name, each.type].includes(name)).element); }]""",
    "identify-shape": """[() => { const [{type, name}] = figures();
        return click(one(`#area-buttons [data-type=${type === 'shape' ? name : type}]`)); }]""",
    "highlight-text": "[() => click(one('#randomText'), 3), submit]",
    "grid-coordinate": "[() => click(document.getElementById(asked.match(/\\([^)]*\\)/)[0]))]",
    "enter-text": _TYPED,
    "enter-text-dynamic": _TYPED,
    "enter-text-2": """[...filled('#tt',
        () => asked.includes('lower') ? quoted[0].toLowerCase() : quoted[0].toUpperCase()), submit]""",
    "enter-password": "[...filled('#password', () => quoted[0]), ...filled('#verify', () => quoted[0]), submit]",
    "login-user": "[...filled('#username', () => quoted[0]), ...filled('#password', () => quoted[1]), submit]",
    "focus-text": "[() => click(one('#tt'))]",
    "focus-text-2": "[() => click(all('#area input')[parseInt(asked.match(/\\d/)[0]) - 1])]",
    "text-transform": "[...filled('#tt', () => read(one('#captcha'))), submit]",
    "find-word": """[...filled('#answer-input',
        () => read(one('#area p')).split(' ')[parseInt(asked.match(/\\d+/)[0]) - 1].replace(/[^A-Za-z]/g, '')),
        submit]""",
    "simple-arithmetic": """[...filled('#math-answer', () => {
        const [, left, sign, right] = read(one('#math-problem')).match(/(\\d+) (.) (\\d+)/);
        return {'+': +left + +right, '-': left - right, 'x': left * right}[sign]; }), submit]""",
    "simple-algebra": """[...filled('#math-answer', () => {
        const [, left, sign, right, sum] = read(one('#math-problem')).match(/(\\w+) (.) (\\w+) = (-?\\d+)/);
        if (sign === '+') return sum - (left === 'x' ? right : left);
        return left === 'x' ? +sum + +right : left - sum; }), submit]""",
    "visual-addition": """[...filled('#math-answer',
        () => all('#visual-1 > *').length + all('#visual-2 > *').length), submit]""",
    "odd-or-even": """[...all('.row').map(row => () => click(row.querySelector(
        parseInt(words(row.querySelector('.display-number'))) % 2 ? '.odd' : '.even'))),
        () => click(one('#submit'))]""",
    "use-spinner": """(() => { const wanted = parseInt(asked.match(/Select (-?\\d+)/)[1]);
        const button = wanted > 0 ? '.ui-spinner-up' : '.ui-spinner-down';
        return [...Array(Math.abs(wanted)).fill(() => click(one(button))), submit]; })()""",
    "read-table": """[...filled('#tt', () => { const key = asked.match(/value of (.*) into/)[1];
        return read(all('#tab tr').find(row => words(row.children[0]) === key).children[1]); }), submit]""",
}


async def solve(name: str, page: ChromiumSession, width: int, height: int) -> AsyncIterator[list[Op]]:
    """Yield the steps of a solution on a screen of `width` x `height`. Raises `ConfigError` for a task without one."""
    if name not in STEPS:
        raise ConfigError(f"MiniWoB++ task {name!r} has no oracle; tasks with one: {', '.join(sorted(STEPS))}")
    index = 0
    while (action := await page.evaluate(_LOOK % (STEPS[name], index, index))) is not None:
        yield [_op(action, width, height)]
        index += 1


async def first_click_box(name: str, page: ChromiumSession) -> list[float] | None:
    """Return (left, top, right, bottom) in pixels of what the solution clicks first; None without a solution."""
    action = await page.evaluate(_LOOK % (STEPS[name], 0, 0)) if name in STEPS else None
    return None if action is None else action.get("bounds")


def _op(action: Any, width: int, height: int) -> Op:
    if "type" in action:
        return Type(str(action["type"]))
    x, y = action["click"]
    if not (0 <= x < width and 0 <= y < height):
        raise ConfigError(f"click target {json.dumps(action)} is outside the screen of {width}x{height}")
    return Click(Point(x, y, screen_px(width, height)), count=action["count"])
