// Requests to the viewer's server. The tokens come from the printed URL and stay in the storage of this origin.
"use strict";

const KEY = "deskhand-token";
const CONTROL = "deskhand-control"; // token for taking over, if the printed URL had one
const MAX_IMAGES = 300;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keepToken(token) {
  localStorage.setItem(KEY, token);
}

export function keepControl(token) {
  localStorage.setItem(CONTROL, token);
}

export function hasControl() {
  return Boolean(localStorage.getItem(CONTROL));
}

// `method` POST changes something and sends the token for that; `takeover` is the key of a takeover.
async function request(path, parameters = {}, { method = "GET", body = null, takeover = null } = {}) {
  const url = new URL(`/api${path}`, location.origin);
  for (const [name, value] of Object.entries(parameters))
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  const headers = { Authorization: `Bearer ${localStorage.getItem(KEY) || ""}` };
  if (method !== "GET") headers["X-Control-Token"] = localStorage.getItem(CONTROL) || "";
  if (takeover) headers["X-Takeover-Key"] = takeover;
  let response;
  try {
    response = await fetch(url, { method, headers, body: body === null ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, "the viewer's server does not answer; is deskhand view still running?");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new ApiError(response.status, said.error || `the server answered ${response.status}`);
}

export async function get(path, parameters) {
  return (await request(path, parameters)).json();
}

export async function post(path, body = null, takeover = null) {
  const response = await request(path, {}, { method: "POST", body, takeover });
  return response.status === 204 ? null : response.json();
}

// A line of JSON, then its images: `{ ...head, blobs }`.
export async function getFramed(path, parameters, takeover = null) {
  const buffer = await (await request(path, parameters, { takeover })).arrayBuffer();
  const end = new Uint8Array(buffer).indexOf(10);
  const head = JSON.parse(new TextDecoder().decode(buffer.slice(0, end)));
  let start = end + 1;
  head.blobs = head.images.map((length) => {
    start += length;
    return new Blob([buffer.slice(start - length, start)], { type: "image/jpeg" });
  });
  return head;
}

// Shows a blob in an image and frees the one that it showed before.
export function showBlob(image, blob) {
  const before = image.src;
  image.src = URL.createObjectURL(blob);
  if (before.startsWith("blob:")) URL.revokeObjectURL(before);
}

const images = new Map(); // path -> promise of an object URL, least recently used first

function imageUrl(path, parameters) {
  const key = JSON.stringify([path, parameters]);
  const known = images.get(key);
  if (known) {
    images.delete(key);
    images.set(key, known);
    return known;
  }
  const loading = request(path, parameters)
    .then((response) => response.blob())
    .then((blob) => URL.createObjectURL(blob));
  images.set(key, loading);
  loading.catch(() => images.delete(key));
  if (images.size > MAX_IMAGES) {
    const [oldest, url] = images.entries().next().value;
    images.delete(oldest);
    url.then(
      (text) => URL.revokeObjectURL(text),
      () => {},
    );
  }
  return loading;
}

const waiting = new WeakMap(); // image -> what loads it
const nearView = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      nearView.unobserve(target);
      waiting.get(target)();
    }
  },
  { rootMargin: "400px" },
);

// A screenshot of a run, loaded at once, or with `lazy` when it comes near the view. Empty if the file is missing.
export function frameImage(run, sha256, { width = null, alt = "", lazy = false } = {}) {
  const image = document.createElement("img");
  image.alt = alt;
  image.draggable = false;
  const load = () =>
    imageUrl(`/runs/${run}/frames/${sha256}`, width ? { width } : {}).then(
      (url) => {
        image.src = url;
      },
      (error) => {
        image.alt = error.message;
        image.classList.add("missing");
      },
    );
  waiting.set(image, load);
  if (lazy) nearView.observe(image);
  else load();
  return image;
}
