"""What a guest program does to a site of the suite `web` without the browser; run inside the guest by Python.

`argv`: a JSON list of [path, form fields], the forms that do the task. It sends them, a state of its own to addresses
that test servers have for that, and guesses of the entry address, with invented cookies and the headers of a browser.
Prints one line for each request that was not refused. Imports nothing of Deskhand.
"""

import http.client
import json
import socket
import sys
import urllib.parse

DOORS = ("/post?sid=1", "/state", "/go?sid=1", "/reset", "/api/state", "/__state__", "/control", "/enter/", "/enter/1")
HEADERS = (
    {},
    {"Cookie": "site=1"},
    {"Cookie": "site=", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "document", "Sec-Fetch-User": "?1"},
)


def send(port, method, path, body, headers):
    """Print the request unless it is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request(method, path, body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return
    finally:
        connection.close()
    if status not in (403, 404, 405):
        print(f"{method} {path}: {status}")


def listening_ports():
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return sorted({int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"})


def main():
    forms = json.loads(sys.argv[1])
    state = json.dumps({"state": {"mail": {"messages": []}}, "do": "write", "site": 1})
    for port in listening_ports():
        for headers in HEADERS:
            for path, fields in forms:
                typed = {"Content-Type": "application/x-www-form-urlencoded", **headers}
                send(port, "POST", path, urllib.parse.urlencode(fields), typed)
            for path in DOORS:
                for method in ("GET", "POST", "PUT"):
                    send(port, method, path, state, {"Content-Type": "application/json", **headers})
        for data in (b"\x10\x00\x00\x00" + state.encode(), b"GET / HTTP/1.1\r\n" * 50, b"POST / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 3) as raw:
                raw.sendall(data)


if __name__ == "__main__":
    main()
