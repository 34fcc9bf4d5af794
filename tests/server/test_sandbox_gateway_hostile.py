"""Clients of a gateway that mean harm, and keys that must not be seen."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
import structlog
from patience import limit
from server_client import OWNER_KEY, bearer, painted_server, upstream
from test_sandbox_gateway import TOKEN, create, gateway, gateway_client
from test_server_hostile import raw

from deskhand.cli.serve import parse_tokens
from deskhand.errors import ConfigError
from deskhand.server.api_keys import MAX_FILE_BYTES, read_private_file
from deskhand.server.process import ServerConfig, serve_app
from deskhand.server.request_limits import RequestLimits
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer


async def test_slow_large_and_malformed_requests_are_refused_and_reach_no_desktop():
    bounds = RequestLimits(head_s=0.3, body_s=0.3, body_bytes=20_000, upload_bytes=20_000)
    async with painted_server() as (running, made):
        server = SandboxGatewayServer([upstream(running)], {TOKEN: None}, limits=bounds)
        async with serve_app(server.app(), ServerConfig(port=0, limits=bounds)) as (port, _):
            address = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=address, headers=bearer(TOKEN), timeout=limit(10)) as http:
                sandbox = (await http.post("/v1/sandboxes", json={})).json()
                one = f"/v1/sandboxes/{sandbox['id']}"
                assert await raw(port, b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nx-slow: ") == b""
                head = (
                    f"POST {one}/exec HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 90\r\n"
                    f"\r\n{{"
                )
                assert (await raw(port, head.encode())).startswith(b"HTTP/1.1 408")
                assert (await http.post(f"{one}/exec", content=b"x" * 30_000)).status_code == 413
                assert (await http.put(f"{one}/files?path=a", content=b"x" * 200_000)).status_code == 413
                bodies = [b"{", b"[]", b"\xff", b"[" * 5000, b'{"ttl_s": "long"}', b'{"ttl_s": 1e99}']
                for body in (*bodies, b'{"width": true}', b'{"x": 1}'):
                    assert (await http.post("/v1/sandboxes", content=body)).status_code == 400, body
                for body in (b"{", b"[]", b'{"argv": "ls", "timeout_s": 1}', b'{"argv": [1], "timeout_s": 1}'):
                    assert (await http.post(f"{one}/exec", content=body)).status_code == 400, body
                assert (await http.get("/v1/sandboxes/..%2f..%2fleases")).status_code in (401, 404, 410)
                assert (await http.post(f"{one}/exec", json={"argv": ["id"], "timeout_s": 1})).status_code == 200
        await server.close()
    assert [argv for desktop in made for argv in desktop.ran] == [["id"]], "only what was well formed was run"


async def test_no_token_or_key_stands_in_a_log_an_answer_or_an_address(capsys):
    structlog.reset_defaults()
    async with gateway(1) as (address, _, _), gateway_client(address) as client:
        sandbox = await create(client)
        async with httpx2.AsyncClient(base_url=address) as http:
            for headers in (bearer(TOKEN), bearer(sandbox.key), bearer("a-wrong-token-of-tests")):
                for path in ("", f"/{sandbox.id}", f"/{sandbox.id}/ports/5000/nothing"):
                    text = (await http.get(f"/v1/sandboxes{path}", headers=headers)).text
                    assert not any(secret in text for secret in (TOKEN, sandbox.key, OWNER_KEY))
        assert TOKEN not in client.port(sandbox, 5000).url
        await client.delete(sandbox)
    said = capsys.readouterr()
    assert "sandboxes.created" in said.out
    for secret in (TOKEN, sandbox.key, OWNER_KEY, "a-wrong-token-of-tests"):
        assert secret not in said.out + said.err


def test_a_tokens_file_is_private_complete_and_its_errors_name_no_token(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("# ours\na-token-of-sixteen-letters 4\nanother-token-of-sixteen\n")
    with pytest.raises(ConfigError, match="chmod"):
        read_private_file(file)
    file.chmod(0o600)
    tokens = {"a-token-of-sixteen-letters": 4, "another-token-of-sixteen": None}
    assert parse_tokens(read_private_file(file), "f") == tokens
    for text in ("", "short", "a-token-of-sixteen-letters many", "a-token-of-sixteen-letters 4 5"):
        with pytest.raises(ConfigError) as refused:
            parse_tokens(text, "f")
        assert "sixteen" not in str(refused.value)
    many = [f"a-token-of-the-tests-{number:040}" for number in range(2000)]
    file.write_text("\n".join(many))
    assert list(parse_tokens(read_private_file(file), "f")) == many
    file.write_text("x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_private_file(file)


async def test_representations_of_a_gateway_contain_no_keys():
    async with gateway(1) as (address, server, _), gateway_client(address) as client:
        shown = repr(UpstreamServer("http://a", OWNER_KEY)) + repr(server)
        key = (await create(client)).key
        shown += repr(server._sandboxes)
        lease_key = next(iter(server._sandboxes.values())).lease.key
        assert not any(secret in shown for secret in (TOKEN, OWNER_KEY, key, lease_key))


async def test_wrong_tokens_create_nothing():
    async with gateway(1) as (address, server, made), httpx2.AsyncClient(base_url=address) as http:

        async def guess(number: int) -> int:
            return (await http.post("/v1/sandboxes", headers=bearer(f"{TOKEN}{number}"))).status_code

        assert set(await asyncio.gather(*(guess(number) for number in range(200)))) == {401}
        assert server._sandboxes == {}
        assert not any(desktop.actions or desktop.ran for desktop in made)
