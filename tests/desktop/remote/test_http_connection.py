"""Certificates and proxies: each mistake has a message of its own, and this machine is never reached through one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import openai
import pytest
from certificates import self_signed, signed
from patience import limit

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.remote import retrying_client
from deskhand.desktop.remote.http_connection import proxy_of, request_failure
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.engines.http_engine.endpoint import EndpointUnreachable, HttpEndpoint, RequestRejected
from deskhand.errors import ConfigError, InfrastructureError

QUICK = RemoteTimeouts(connect_s=5, read_s=5, max_attempts=3, initial_backoff_s=0.001)
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch):
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    retrying_client._reached.clear()  # ports are used again


@asynccontextmanager
async def listening(
    answer: bytes = OK, certificate: tuple[Path, Path] | None = None, port: int = 0
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that sends `answer` to every request; its port, and the first lines of what it was asked."""
    asked: list[bytes] = []
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            asked.append(await reader.readline())
            while (await reader.readline()).strip():
                pass
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


async def get(url: str) -> httpx2.Response:
    client = RetryingClient(url, timeouts=QUICK)
    try:
        return await client.send("GET", "/x", repeatable=True)
    finally:
        await client.close()


Case = tuple[dict[str, str], bool, str, str]


@pytest.mark.parametrize(
    ("made", "is_trusted", "host", "message"),
    [
        ({}, False, "localhost", "self-signed; set SSL_CERT_FILE"),
        ({"end": "20200102"}, True, "localhost", "has expired; renew it"),
        ({"begin": "20980101"}, True, "localhost", "not valid yet; check the clock"),
        ({"names": "DNS:other.example"}, True, "localhost", "for another host name"),
        ({"names": "DNS:localhost"}, True, "127.0.0.1", "for another address"),
    ],
)
async def test_every_mistake_in_a_certificate_has_its_message(monkeypatch, tmp_path, made, is_trusted, host, message):
    certificate = self_signed(tmp_path / "server", **made)
    trusted = certificate if is_trusted else self_signed(tmp_path / "other", "DNS:unrelated.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted[0]))
    async with listening(certificate=certificate) as (port, asked):
        with pytest.raises(ConfigError, match=message):
            await get(f"https://{host}:{port}")
        assert asked == [], "nothing was sent"


async def test_a_certificate_that_was_right_is_an_outage_when_it_is_wrong(monkeypatch, tmp_path):
    """A run of hours does not end because a certificate expires or a proxy interferes for a moment."""
    right, wrong = self_signed(tmp_path / "right"), self_signed(tmp_path / "wrong", "DNS:other.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(right[0]))
    async with listening(certificate=right) as (port, _):
        url = f"https://localhost:{port}"
        first = RetryingClient(url, timeouts=QUICK)
        assert (await first.send("GET", "/x", repeatable=True)).status_code == 200
    async with listening(certificate=wrong, port=port):
        for client in (first, RetryingClient(url, timeouts=QUICK)):  # of an earlier lease, and of a later one
            with pytest.raises(InfrastructureError, match="certificate"):
                await client.send("GET", "/x", repeatable=True)
            await client.close()


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        *((f"http://{host}/", True) for host in ("localhost", "a.localhost.", "127.8.8.8", "[::1]", "0.0.0.0:80")),
        ("http://[::ffff:127.0.0.1]/", True),
        *((f"http://{host}/", False) for host in ("localhost.example", "127.0.0.1.example", "[fe80::1%25eth0]", "a_b")),
    ],
)
def test_this_machine_has_many_names(url, is_here):
    found = proxy_of(url, {"http_proxy": "http://proxy.example:3128"})
    assert (found is None) == is_here


@pytest.mark.parametrize("url", ["http://[", "http://a:b", "ftp://a", "", "http://a:99999"])
def test_odd_addresses_are_one_line(url):
    with pytest.raises(ConfigError, match="expected http"):
        proxy_of(url, {"http_proxy": "http://proxy.example:3128"})


@pytest.mark.parametrize(
    ("sends_authority", "message"), [(False, "authority is unknown; set SSL_CERT_FILE"), (True, "not trusted; set SSL")]
)
async def test_an_unknown_authority_has_its_message(monkeypatch, tmp_path, sends_authority, message):
    certificate = signed(tmp_path / "server", sends_authority=sends_authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(self_signed(tmp_path / "other", "DNS:unrelated.example")[0]))
    async with listening(certificate=certificate) as (port, asked):
        with pytest.raises(ConfigError, match=message):
            await get(f"https://localhost:{port}")
        assert asked == []


async def test_a_model_endpoint_with_a_wrong_certificate_has_the_same_message(monkeypatch, tmp_path):
    certificate = self_signed(tmp_path / "server")
    async with listening(certificate=certificate) as (port, _):
        url = f"https://localhost:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.OpenAIError) as caught:
                await client.models.list()
        assert "the certificate is self-signed; set SSL_CERT_FILE" in request_failure(caught.value)
        for trusts in (False, True):
            if trusts:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
            endpoint = HttpEndpoint(url)
            reason = "answered 200: not JSON" if trusts else "the certificate is self-signed; set SSL_CERT_FILE"
            with pytest.raises((EndpointUnreachable, RequestRejected), match=reason):
                await endpoint.get("/models", timeout_s=limit(5))
            await endpoint.close()


async def test_a_trusted_certificate_is_accepted(monkeypatch, tmp_path):
    certificate = self_signed(tmp_path / "server")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    async with listening(certificate=certificate) as (port, _):
        assert (await get(f"https://localhost:{port}")).text == "ok"


async def test_a_port_without_tls_is_named_as_such():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        with pytest.raises(ConfigError, match="does not speak TLS; use http://"):
            await get(f"https://localhost:{server.sockets[0].getsockname()[1]}")


async def test_a_server_with_a_wrong_certificate_is_asked_once(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(self_signed(tmp_path / "other")[0]))
    context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []
    context.load_cert_chain(*self_signed(tmp_path / "server"))
    context.sni_callback = lambda connection, name, own: names.append(name)
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context) as server:
        with pytest.raises(ConfigError, match="self-signed"):
            await get(f"https://localhost:{server.sockets[0].getsockname()[1]}")
    assert names == ["localhost"]


def _no_file(folder: Path) -> tuple[str, str]:
    return "SSL_CERT_FILE", str(folder / "none.pem")


def _no_certificate(folder: Path) -> tuple[str, str]:
    (folder / "empty.pem").write_text("no certificate")
    return "SSL_CERT_FILE", str(folder / "empty.pem")


def _directory_as_file(folder: Path) -> tuple[str, str]:
    return "SSL_CERT_FILE", str(folder)


def _no_directory(folder: Path) -> tuple[str, str]:
    return "SSL_CERT_DIR", str(folder / "none")


@pytest.mark.parametrize("variable", [_no_file, _no_certificate, _directory_as_file, _no_directory])
async def test_a_wrong_trust_store_is_a_configuration_error_that_names_it(
    monkeypatch, tmp_path, variable: Callable[[Path], tuple[str, str]]
):
    name, value = variable(tmp_path)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}: {value}"):
        await get("https://127.0.0.1:1")
    async with listening() as (port, _):
        assert (await get(f"http://127.0.0.1:{port}")).text == "ok", "it does not matter without TLS"


ENVIRONMENT = {
    "HTTPS_PROXY": "http://user:secret@proxy.example:3128",
    "http_proxy": "other.example:8080",
    "NO_PROXY": "10.0.0.0/8, .internal.example,*.vendor.example,exact.example:8443 [fd00::]/8 192.168.1.7",
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://desktops.example", "http://proxy.example:3128"),
        ("http://desktops.example", "http://other.example:8080"),
        ("https://internal.example", None),
        ("https://a.internal.example", None),
        ("https://notinternal.example", "http://proxy.example:3128"),
        ("https://a.vendor.example:8443", None),
        ("https://exact.example:8443", None),
        ("https://exact.example", "http://proxy.example:3128"),
        ("https://10.20.30.40:8443", None),
        ("https://11.20.30.40", "http://proxy.example:3128"),
        ("https://[fd00::5]", None),
        ("http://192.168.1.7:5000", None),
        ("http://192.168.1.70:5000", "http://other.example:8080"),
        ("http://127.0.0.1:8700", None),
        ("http://127.8.9.1:8700", None),
        ("https://localhost:8700", None),
        ("https://desk.localhost", None),
        ("http://[::1]:8700", None),
        ("http://0.0.0.0:8700", None),
    ],
)
def test_the_proxy_of_a_url_follows_the_environment(url: str, expected: str | None):
    found = proxy_of(url, ENVIRONMENT)
    assert (None if found is None else str(found)) == expected
    assert "secret" not in f"{found} {found!r}"


def test_a_proxy_that_is_no_url_is_a_configuration_error():
    for value in ("ftp://proxy.example", "http://", "http://proxy.example:port"):
        with pytest.raises(ConfigError, match="HTTPS_PROXY"):
            proxy_of("https://desktops.example", {"HTTPS_PROXY": value})
    assert proxy_of("https://desktops.example", {"HTTPS_PROXY": "http://p.example", "NO_PROXY": "a, *"}) is None


async def test_this_machine_is_reached_without_the_proxy(monkeypatch):
    async with listening() as (port, asked), listening(OK) as (proxy_port, proxied):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy_port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy_port}")
        assert (await get(f"http://127.0.0.1:{port}")).text == "ok"
        assert len(asked) == 1
        assert proxied == []
        assert (await get("http://desktops.invalid")).text == "ok"
        assert proxied == [b"GET http://desktops.invalid/x HTTP/1.1\r\n"]


async def test_errors_name_the_proxy_without_its_password(monkeypatch):
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
    async with listening(refusal) as (port, asked):
        address = f"127.0.0.1:{port}"
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{address}")
        with pytest.raises(
            InfrastructureError, match=f"through the proxy http://{address} \\(HTTPS_PROXY; NO_PROXY"
        ) as told:
            await get("https://desktops.invalid")
        assert "407" in str(told.value)
        assert "secret" not in str(told.value)
        assert len(asked) == QUICK.max_attempts
    monkeypatch.setenv("HTTP_PROXY", f"http://{address}")
    with pytest.raises(InfrastructureError, match=f"through the proxy http://{address}"):
        await get("http://desktops.invalid")
