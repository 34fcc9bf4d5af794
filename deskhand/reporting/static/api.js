// Requests to the viewer's server. The token comes from the printed URL and stays in the storage of this origin.
"use strict";

const KEY = "deskhand-token";
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

async function request(path, parameters = {}) {
  const url = new URL(`/api${path}`, location.origin);
  for (const [name, value] of Object.entries(parameters))
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  let response;
  try {
    response = await fetch(url, { headers: { Authorization: `Bearer ${localStorage.getItem(KEY) || ""}` } });
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
