"""Keys: who reaches a desktop, and where keys appear."""

from __future__ import annotations

import base64

import httpx2
import pytest
from server_client import OWNER_KEY, bearer, bridge, leased

from deskhand.errors import ConfigError
from deskhand.server.api_keys import check_binding, key_from_headers, load_admin_key


def basic(key: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"anybody:{key}".encode()).decode()}


async def test_a_lease_opens_to_its_own_key_and_the_admin_key():
    async with bridge(2) as running, leased(running) as one, leased(running) as other:
        address = one.osworld + "/platform"
        door = f"http://127.0.0.1:{one.lease['port']}/platform"
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}") as http:
            for good in (bearer(one.lease["key"]), bearer(OWNER_KEY), basic(one.lease["key"])):
                for target in (address, door):
                    assert (await http.get(target, headers=good)).text == "Linux"
            wrong = [{}, bearer("x"), bearer(other.lease["key"]), basic(other.lease["key"]), basic(""), bearer("é")]
            wrong += [{"authorization": text} for text in ("Bearer", "Basic ???", "Digest a=b", one.lease["key"])]
            for headers in wrong:
                for target in (address, door):
                    reply = await http.get(target, headers=[(name, value.encode()) for name, value in headers.items()])
                    assert reply.status_code == 401, headers
                    assert reply.json() == {"error": "missing or invalid key; send Authorization: Bearer <key>"}
            for headers in (bearer(one.lease["key"]), {}):
                assert (await http.post("/leases", json={}, headers=headers)).status_code == 401
                assert (await http.get("/leases", headers=headers)).status_code == 401
            lease = f"/leases/{one.lease['lease']}"
            assert (await http.delete(lease, headers=bearer(other.lease["key"]))).status_code == 401
            assert (await http.post(lease + "/renew", headers=bearer(one.lease["key"]))).status_code == 200


async def test_a_released_lease_opens_nothing():
    async with bridge() as running, leased(running) as client:
        await client.http.delete(f"/leases/{client.lease['lease']}")
        for headers, status in (({}, 410), (bearer(OWNER_KEY), 410), (bearer("guess"), 401)):
            gone = await client.get("/screenshot", headers=headers)
            assert gone.status_code == status
            assert status == 401 or "POST /leases" in gone.json()["error"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desktop.example", ""])
def test_binding_beyond_loopback_needs_a_key(host):
    with pytest.raises(ConfigError, match="not a loopback"):
        check_binding(host, None)
    check_binding(host, "a key")


def test_loopback_needs_no_key():
    for host in ("127.0.0.1", "127.3.4.5", "::1", "localhost"):
        check_binding(host, None)


def test_the_admin_key_is_read_from_a_private_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("  0123456789abcdef\n")
    file.chmod(0o600)
    assert load_admin_key(file, {}) == "0123456789abcdef"
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_admin_key(file, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_admin_key(tmp_path / "absent", {})
    for short in ("", "short", "sixteen letters and a space"):
        with pytest.raises(ConfigError, match="at least 16") as error:
            load_admin_key(None, {"DESKHAND_SERVER_API_KEY": short})
        assert not short or short not in str(error.value)
    assert load_admin_key(None, {}) is None


def test_a_key_is_read_from_the_authorization_header():
    assert key_from_headers({"authorization": "bearer  a b"}) == "a b"
    assert key_from_headers({"authorization": "Basic !"}) == ""
    assert key_from_headers({}) == ""
