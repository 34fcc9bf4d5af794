"""Files: `/file`, `/setup/upload`, `/list_directory`, `/desktop_path`, `/setup/download_file`.

Invariant: a path is the guest's. Files of its home are read and written by the host without following a link out of it; all
others by the guest's own programs, which see no more than the guest does.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import posixpath
import re
from typing import Any
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from deskhand.errors import InfrastructureError
from deskhand.server.active_leases import ActiveLease
from deskhand.server.guest import GuestTimeout
from deskhand.server.osworld.request import crash, form_of, json_of

TREE_S = 30.0
DOWNLOAD_S = 900.0
_DOWNLOAD = """\
import os, shutil, sys, urllib.request
url, path = sys.argv[1:]
if not url.startswith(("http://", "https://")):
    sys.exit("only http and https addresses are fetched")
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
for left in (2, 1, 0):
    try:
        with urllib.request.urlopen(url, timeout=300) as reply, open(path, "wb") as file:
            shutil.copyfileobj(reply, file)
            asked = reply.headers.get("content-length")
        size = os.path.getsize(path)
        if asked and int(asked) != size:
            raise OSError(f"Download incomplete. Expected {asked} bytes, got {size} bytes")
        print(size)
        break
    except (OSError, ValueError) as error:
        if os.path.exists(path):
            os.unlink(path)
        if not left:
            sys.exit(str(error))
"""
_TREE = """\
import json, os, sys
def tree(folder, left):
    found = {"type": "directory", "name": os.path.basename(folder), "children": []}
    try:
        for entry in os.listdir(folder):
            path = os.path.join(folder, entry)
            below = os.path.isdir(path) and left
            found["children"].append(tree(path, left - 1) if below else {"type": "file", "name": entry})
    except OSError as error:
        return {"error": str(error)}
    return found
print(json.dumps(tree(sys.argv[1], 64)))
"""


async def file(held: ActiveLease, request: Request) -> Response:
    """`POST /file`: the bytes of `file_path`, as an attachment."""
    wanted = (await form_of(request)).get("file_path")
    if not isinstance(wanted, str):
        return JSONResponse({"error": "file_path is required"}, status_code=400)
    path = await held.guest.expand(wanted)
    try:
        data = await held.guest.read(path)
    except FileNotFoundError:
        return JSONResponse({"error": "File not found"}, status_code=404)
    except OSError as error:
        return JSONResponse({"error": f"Failed to serve file: {error}"}, status_code=500)
    return attachment(data, posixpath.basename(path))


def attachment(data: bytes, name: str) -> Response:
    """A file as the body of a reply."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    simple = re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None
    shown = name if simple else f"\"file\"; filename*=UTF-8''{quote(name, safe='')}"
    return Response(data, media_type=kind, headers={"content-disposition": f"attachment; filename={shown}"})


async def upload(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/upload`: writes `file_data` to `file_path`, with the folders above it."""
    form = await form_of(request)
    wanted, data = form.get("file_path"), form.get("file_data")
    if not isinstance(wanted, str) or not isinstance(data, UploadFile):
        return JSONResponse({"error": "file_path and file_data are required"}, status_code=400)
    path = await held.guest.expand(wanted)
    content = await data.read()
    try:
        await held.guest.write(path, content)
    except OSError as error:
        return JSONResponse({"error": f"Failed to upload file: {error}"}, status_code=500)
    return HTMLResponse(f"File Uploaded: {len(content)} bytes")


async def list_directory(held: ActiveLease, request: Request) -> Response:
    """`POST /list_directory`: a folder and all below it."""
    body = await json_of(request)
    if "path" not in body:
        return JSONResponse({"error": "Missing 'path' parameter"}, status_code=400)
    if not isinstance(body["path"], str):
        raise crash()
    path = await held.guest.real(body["path"])
    if not await held.guest.test("d", path):
        return JSONResponse({"error": "The provided path is not a directory"}, status_code=400)
    done = await held.desktop.run(["python3", "-I", "-S", "-c", _TREE, path], timeout_s=TREE_S)
    try:
        found: Any = json.loads(done.stdout)
    except ValueError:
        raise InfrastructureError(f"{path} could not be listed in the guest (return code {done.returncode})") from None
    return JSONResponse({"directory_tree": found})


async def desktop_path(held: ActiveLease, request: Request) -> Response:
    """`POST /desktop_path`: the folder of what lies on the desktop."""
    path = posixpath.join(await held.guest.home(), "Desktop")
    if not await held.guest.test("e", path):
        return JSONResponse({"error": "Unsupported operating system or desktop path not found"}, status_code=404)
    return JSONResponse({"desktop_path": path})


async def download_file(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/download_file`: the guest fetches it, over the guest's network, which is off unless the desktop allows it."""
    body = await json_of(request)
    url, path = body.get("url"), body.get("path")
    if not url or not path:
        return HTMLResponse("Path or URL not supplied!", status_code=400)
    if not isinstance(url, str) or not isinstance(path, str):
        raise crash()
    at = await held.guest.expand(path)
    error = "the time is up"
    with contextlib.suppress(GuestTimeout):
        done = await held.guest.run(["python3", "-I", "-S", "-c", _DOWNLOAD, url, at], timeout_s=DOWNLOAD_S)
        if done.returncode == 0:
            return HTMLResponse(f"File downloaded successfully: {int(done.output)} bytes")
        error = (done.error.strip().splitlines() or ["no message"])[-1]
    return HTMLResponse(f"Failed to download {url}. No retries left. Error: {error}", status_code=500)
