"""Certificates of servers in tests, as OpenSSL's own program makes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_CONFIG = """
[ca]
default_ca = own
[own]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = {names}
"""


def self_signed(
    folder: Path, names: str = "DNS:localhost,IP:127.0.0.1", *, begin: str = "20200101", end: str = "20990101"
) -> tuple[Path, Path]:
    """A certificate for `names` that nobody else trusts, valid from `begin` to `end`, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder.mkdir(exist_ok=True)
    chain, private, request, config = (folder / name for name in ("chain.pem", "private.pem", "request.pem", "config"))
    config.write_text(_CONFIG.format(folder=folder, names=names))
    (folder / "index").write_text("")
    (folder / "serial").write_text("01\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(private)]
    _openssl("req", "-new", *key, "-subj", "/CN=localhost", "-out", str(request))
    times = ["-startdate", f"{begin}000000Z", "-enddate", f"{end}000000Z"]
    signing = ["-selfsign", "-keyfile", str(private), "-in", str(request), "-out", str(chain), "-batch", "-notext"]
    _openssl("ca", "-config", str(config), *signing, *times)
    return chain, private


def signed(folder: Path, *, sends_authority: bool) -> tuple[Path, Path]:
    """A certificate for localhost of an authority that nobody trusts, with or without the authority's own, and its
    key."""
    authority, authority_key = self_signed(folder, "DNS:authority.example")
    leaf, request, private, names = (folder / name for name in ("leaf.pem", "leaf.csr", "leaf.key", "names"))
    names.write_text("subjectAltName=DNS:localhost\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(private)]
    _openssl("req", "-new", *key, "-subj", "/CN=leaf", "-out", str(request))
    by = ["-CA", str(authority), "-CAkey", str(authority_key), "-CAcreateserial", "-extfile", str(names)]
    _openssl("x509", "-req", "-in", str(request), *by, "-days", "3650", "-out", str(leaf))
    if sends_authority:
        leaf.write_text(leaf.read_text() + authority.read_text())
    return leaf, private


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
