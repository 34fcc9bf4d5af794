"""HTTP calls to a server: replies or errors that name it, proxy settings, and keys that stay in headers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fake_sglang import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from deskhand.engines.http_engine.endpoint import EndpointUnreachable, HttpEndpoint, RequestRejected
from deskhand.errors import ConfigError, InfrastructureError


async def echo(request: Request) -> Response:
    return JSONResponse(
        {
            "host": request.headers["host"],
            "key": request.headers.get("authorization"),
            "query": str(request.query_params),
        }
    )


async def absolute(request: Request, error: Exception) -> Response:
    """A proxy is asked by whole addresses, which no route matches."""
    return await echo(request)


async def slow(request: Request) -> Response:
    await asyncio.sleep(3)
    return Response()


ROUTES = [
    Route("/echo", echo),
    Route("/slow", slow),
    Route("/empty", lambda request: Response(), methods=["POST"]),
    Route("/html", lambda request: PlainTextResponse("<html>" + "x" * 900)),
    Route("/detail", lambda request: JSONResponse({"detail": "no\n room"}, status_code=507)),
    Route("/error", lambda request: JSONResponse({"error": {"message": "too long", "code": 400}}, status_code=400)),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with listening(Starlette(routes=ROUTES, exception_handlers={404: absolute})) as url:
        yield url


async def test_a_proxy_is_used_for_other_machines_only(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server)
    monkeypatch.setenv("HTTP_PROXY", server)
    away = HttpEndpoint("http://elsewhere.invalid")
    assert (await away.get("/echo", timeout_s=5))["host"] == "elsewhere.invalid", "the proxy was asked"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    here = HttpEndpoint(server)
    assert (await here.get("/echo", timeout_s=5))["host"] == server.removeprefix("http://")
    for endpoint in (away, here):
        await endpoint.close()


async def test_hosts_without_a_proxy_and_a_broken_one_are_told_apart(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server)
    monkeypatch.setenv("no_proxy", "elsewhere.invalid")
    exempt = HttpEndpoint("http://elsewhere.invalid")
    with pytest.raises(EndpointUnreachable, match=r"cannot be reached: ConnectError [^;]*$"):
        await exempt.get("/echo", timeout_s=5)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    behind = HttpEndpoint("http://other.invalid")
    with pytest.raises(EndpointUnreachable, match=r"through the proxy http://127.0.0.1:9 \(http_proxy; NO_PROXY"):
        await behind.get("/echo", timeout_s=5)
    for endpoint in (exempt, behind):
        await endpoint.close()
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with pytest.raises(ConfigError, match="SSL_CERT_FILE: /nonexistent is not a file"):
        HttpEndpoint("https://elsewhere.invalid")


async def test_errors_name_the_url_and_contain_the_servers_message(server: str) -> None:
    endpoint = HttpEndpoint(server, api_key="sk-secret")
    assert (await endpoint.get("/echo", timeout_s=5, query={"a": "1"}))["query"] == "a=1"
    assert (await endpoint.get("/echo", timeout_s=5))["key"] == "Bearer sk-secret"
    assert await endpoint.post("/empty", timeout_s=5) is None
    for path, status, said in (
        ("/detail", 507, "no room"),
        ("/error", 400, "too long"),
        ("/html", 200, "not JSON: <html>"),
    ):
        with pytest.raises(RequestRejected) as caught:
            await endpoint.get(path, timeout_s=5)
        assert caught.value.status == status
        assert f"{server}{path} answered {status}: {said}" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 500
    await endpoint.close()


async def test_a_silent_or_missing_server_is_an_error_in_time(server: str) -> None:
    endpoint = HttpEndpoint(server)
    with pytest.raises(EndpointUnreachable, match=r"/slow did not answer within 0\.3 s"):
        await endpoint.get("/slow", timeout_s=0.3)
    nobody = HttpEndpoint("http://127.0.0.1:9")
    with pytest.raises(EndpointUnreachable, match=r"http://127\.0\.0\.1:9/x cannot be reached"):
        await nobody.post("/x", {}, timeout_s=5)
    await endpoint.close()
    with pytest.raises(InfrastructureError, match="has been stopped"):
        await endpoint.get("/echo", timeout_s=5)
    await nobody.close()
