// Mouse and keyboard of a person on a live screen, as events for the server: whole clicks, drags, texts and chords.
"use strict";

const CLICK_MS = 260; // a click waits this long, since it may be the first half of a double click
const TEXT_MS = 700; // characters typed within this time are one text
const DRAG_PX = 4;
const NAMES = {
  Enter: "enter", Backspace: "backspace", Tab: "tab", Escape: "esc", Delete: "delete", ArrowLeft: "left",
  ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end", PageUp: "pageup",
  PageDown: "pagedown", Insert: "insert",
};
const HELD = [["ctrlKey", "ctrl"], ["altKey", "alt"], ["metaKey", "win"]];

// `screen` gets the events, `image` shows the desktop, `live()` has `holds` and `size`, `act` sends one event.
export function personInput(screen, image, live, act) {
  let pressed = null;
  let clicks = null; // { timer, event } of a click that may become a double click
  let typed = "";
  let typing = null;
  let turned = { dx: 0, dy: 0, timer: null };

  function sendText() {
    clearTimeout(typing);
    const text = typed;
    typed = "";
    if (text) act({ kind: "type", text });
  }

  function sendClick() {
    if (!clicks) return;
    clearTimeout(clicks.timer);
    const { event } = clicks;
    clicks = null;
    act(event);
  }

  function before() {
    sendText();
    sendClick();
  }

  function position(event) {
    const box = image.getBoundingClientRect();
    const [width, height] = live().size;
    const clip = (value, size, extent) => Math.max(0, Math.min(size - 1, Math.floor((value * size) / extent)));
    return [
      clip(event.clientX - box.left, width, box.width),
      clip(event.clientY - box.top, height, box.height),
    ];
  }

  screen.addEventListener("mousedown", (event) => {
    if (!live().holds) return;
    event.preventDefault();
    screen.focus();
    pressed = position(event);
  });
  screen.addEventListener("mouseup", (event) => {
    if (!pressed || !live().holds) return;
    const [from, at] = [pressed, position(event)];
    pressed = null;
    sendText();
    if (Math.hypot(at[0] - from[0], at[1] - from[1]) > DRAG_PX && event.button === 0) {
      sendClick();
      act({ kind: "drag", from, at });
      return;
    }
    const count = Math.min(event.detail || 1, 3);
    if (clicks && (count === 1 || clicks.event.button !== event.button)) sendClick();
    if (clicks) clearTimeout(clicks.timer);
    clicks = { event: { kind: "click", at, button: event.button, count }, timer: setTimeout(sendClick, CLICK_MS) };
  });
  screen.addEventListener("contextmenu", (event) => {
    if (live().holds) event.preventDefault();
  });
  screen.addEventListener(
    "wheel",
    (event) => {
      if (!live().holds) return;
      event.preventDefault();
      before();
      clearTimeout(turned.timer);
      turned = {
        dx: turned.dx + Math.sign(event.deltaX),
        dy: turned.dy + Math.sign(event.deltaY),
        timer: setTimeout(() => {
          const { dx, dy } = turned;
          turned = { dx: 0, dy: 0, timer: null };
          act({ kind: "scroll", at: position(event), dx, dy });
        }, CLICK_MS),
      };
    },
    { passive: false },
  );
  screen.addEventListener("keydown", (event) => {
    if (!live().holds) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape" && event.shiftKey) {
      sendText();
      screen.blur();
      return;
    }
    if (["Control", "Shift", "Alt", "Meta"].includes(event.key)) return;
    const held = HELD.filter(([property]) => event[property]).map(([, name]) => name);
    const name = NAMES[event.key] || (/^F\d+$/.test(event.key) ? event.key.toLowerCase() : null);
    if (!name && !held.length && [...event.key].length === 1) {
      sendClick();
      typed += event.key;
      clearTimeout(typing);
      typing = setTimeout(sendText, TEXT_MS);
      return;
    }
    before();
    if (event.shiftKey) held.push("shift");
    if (name || event.key.length === 1) act({ kind: "key", keys: [...held, name || event.key.toLowerCase()] });
  });
  screen.addEventListener("blur", sendText);
}
