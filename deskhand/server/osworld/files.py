"""OSWorld routes for files: `/file`, `/setup/upload`, `/list_directory`, `/desktop_path`, `/setup/download_file`.

Files of the guest's home are accessed by the host without following links out of it; other files by guest programs,
with the guest's permissions.
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

TREE_TIMEOUT_S = 30.0
DOWNLOAD_TIMEOUT_S = 900.0
_DOWNLOAD = """\
import os, shutil, sys, urllib.request
url, path = sys.argv[1:]
if not url.startswith(("http://", "https://")):
    sys.exit("only http and https URLs are supported")
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


async def file(lease: ActiveLease, request: Request) -> Response:
    """`POST /file`: return the bytes of `file_path` as an attachment."""
    wanted = (await form_of(request)).get("file_path")
    if not isinstance(wanted, str):
        return JSONResponse({"error": "file_path is required"}, status_code=400)
    path = await lease.guest.expand(wanted)
    try:
        data = await lease.guest.read(path)
    except FileNotFoundError:
        return JSONResponse({"error": "File not found"}, status_code=404)
    except OSError as error:
        return JSONResponse({"error": f"Failed to serve file: {error}"}, status_code=500)
    return attachment(data, posixpath.basename(path))


def attachment(data: bytes, name: str) -> Response:
    """Return a file as a reply."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    is_simple = re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None
    filename = name if is_simple else f"\"file\"; filename*=UTF-8''{quote(name, safe='')}"
    return Response(data, media_type=kind, headers={"content-disposition": f"attachment; filename={filename}"})


async def upload(lease: ActiveLease, request: Request) -> Response:
    """`POST /setup/upload`: write `file_data` to `file_path` and create parent directories."""
    form = await form_of(request)
    wanted, data = form.get("file_path"), form.get("file_data")
    if not isinstance(wanted, str) or not isinstance(data, UploadFile):
        return JSONResponse({"error": "file_path and file_data are required"}, status_code=400)
    path = await lease.guest.expand(wanted)
    content = await data.read()
    try:
        await lease.guest.write(path, content)
    except OSError as error:
        return JSONResponse({"error": f"Failed to upload file: {error}"}, status_code=500)
    return HTMLResponse(f"File Uploaded: {len(content)} bytes")


async def list_directory(lease: ActiveLease, request: Request) -> Response:
    """`POST /list_directory`: return a directory tree."""
    body = await json_of(request)
    if "path" not in body:
        return JSONResponse({"error": "Missing 'path' parameter"}, status_code=400)
    if not isinstance(body["path"], str):
        raise crash()
    path = await lease.guest.map_home(body["path"])
    if not await lease.guest.test("d", path):
        return JSONResponse({"error": "The provided path is not a directory"}, status_code=400)
    done = await lease.desktop.run(["python3", "-I", "-S", "-c", _TREE, path], timeout_s=TREE_TIMEOUT_S)
    try:
        found: Any = json.loads(done.stdout)
    except ValueError:
        raise InfrastructureError(f"{path}: cannot be listed in the guest (return code {done.returncode})") from None
    return JSONResponse({"directory_tree": found})


async def desktop_path(lease: ActiveLease, request: Request) -> Response:
    """`POST /desktop_path`: return the guest's Desktop directory."""
    path = posixpath.join(await lease.guest.home(), "Desktop")
    if not await lease.guest.test("e", path):
        return JSONResponse({"error": "Unsupported operating system or desktop path not found"}, status_code=404)
    return JSONResponse({"desktop_path": path})


async def download_file(lease: ActiveLease, request: Request) -> Response:
    """`POST /setup/download_file`: the guest downloads a file over its own network, which is off by default."""
    body = await json_of(request)
    url, path = body.get("url"), body.get("path")
    if not url or not path:
        return HTMLResponse("Path or URL not supplied!", status_code=400)
    if not isinstance(url, str) or not isinstance(path, str):
        raise crash()
    at = await lease.guest.expand(path)
    error = "timed out"
    with contextlib.suppress(GuestTimeout):
        done = await lease.guest.run(["python3", "-I", "-S", "-c", _DOWNLOAD, url, at], timeout_s=DOWNLOAD_TIMEOUT_S)
        if done.returncode == 0:
            return HTMLResponse(f"File downloaded successfully: {int(done.output)} bytes")
        error = (done.error.strip().splitlines() or ["no message"])[-1]
    return HTMLResponse(f"Failed to download {url}. No retries left. Error: {error}", status_code=500)
