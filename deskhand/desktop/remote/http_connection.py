"""HTTP connections to remote desktops: trust store, proxies, and what a failure to connect means.

Used by `retrying_client`, the sandbox gateway and `deskhand doctor`. Invariant: this machine is never reached through a
proxy, and a message about a connection names the proxy that it went through.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from deskhand.errors import ConfigError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_CERTIFICATE_ERRORS = {
    9: "the certificate is not valid yet; check the clock of this machine",
    10: "the certificate has expired; renew it, or check the clock of this machine",
    18: "the certificate is self-signed; set SSL_CERT_FILE to the certificate",
    19: "the certificate's authority is not trusted; set SSL_CERT_FILE to its CA bundle",
    20: "the certificate's authority is unknown; set SSL_CERT_FILE to its CA bundle",
    21: "the server does not send the certificate of its authority; install the whole chain on the server, or set "
    "SSL_CERT_FILE to it",
    23: "the certificate was revoked; install a new one on the server",
    62: "the certificate is for another host name; use a name that it contains",
    64: "the certificate is for another address; use a name or address that it contains",
}
"""By OpenSSL's code (X509_V_ERR)."""
_TLS_ERRORS = (
    (("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"),
     "the port does not speak TLS; use http://, or the server's TLS port"),
    (("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"),
     "client and server have no TLS version in common; update the server"),
    (("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "ALERT_UNKNOWN_CA"),
     "the server requires a client certificate, which is not supported; allow access without one"),
    (("UNRECOGNIZED_NAME",), "the server has no certificate for this host name; check the name"),
)  # fmt: skip
"""Parts of OpenSSL's reasons for a failed handshake, and what they mean."""


@dataclass(frozen=True)
class ProxySetting:
    """A proxy from the environment variable `variable`. `str` has no credentials."""

    variable: str
    url: str = field(repr=False)

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"


def is_this_machine(host: str) -> bool:
    """Return whether a name or address, as in a URL, is this machine's. Anything but an address is a name."""
    host = host.strip("[]").lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def proxy_of(url: str, environment: Mapping[str, str] = os.environ) -> ProxySetting | None:
    """Return the proxy for a URL by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in upper or lower case.

    Raises `ConfigError`, which names the variable.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise ConfigError("URL: expected http://host:port or https://host:port; correct it") from None
    if is_this_machine(host) or _is_exempt(
        host, port, environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    ):
        return None
    names = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in names if environment.get(name, "").strip()), None)
    if variable is None:
        return None
    value = environment[variable].strip()
    proxy = ProxySetting(variable, value if "://" in value else f"http://{value}")
    try:
        found = urlsplit(proxy.url)
        is_valid = found.scheme in ("http", "https", "socks5", "socks5h") and found.hostname and found.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{variable}: expected http://host:port; correct it, or unset it")
    return proxy


def _is_exempt(host: str, port: int, no_proxy: str) -> bool:
    """Entries are `*`, addresses, networks such as 10.0.0.0/8, and names, which include their subdomains."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for entry in re.split(r"[,\s]+", no_proxy.lower()):
        if entry == "*":
            return True
        try:
            network = ipaddress.ip_network(re.sub(r"[\[\]]", "", entry), strict=False)
        except ValueError:
            name, _, only_port = entry.removeprefix("*").partition(":")
            name = name.strip(".")
            is_named = bool(name) and (host == name or host.endswith(f".{name}"))
            if is_named and only_port in ("", str(port)):
                return True
        else:
            if address is not None and address in network:
                return True
    return False


@functools.cache
def _ssl_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Cached per trust store: reading one blocks the event loop. Raises `ConfigError`."""
    variable, path = ("SSL_CERT_FILE", file) if file else ("SSL_CERT_DIR", folder)
    if file and not os.path.isfile(file):
        raise ConfigError(f"SSL_CERT_FILE: {file} is not a file; set it to a CA bundle, or unset it")
    if not file and folder and not os.path.isdir(folder):
        raise ConfigError(f"SSL_CERT_DIR: {folder} is not a directory; set it to one with CA certificates, or unset it")
    try:
        return httpx2.create_ssl_context()
    except ssl.SSLError:
        raise ConfigError(
            f"{variable}: {path} contains no CA certificate in PEM format; correct it, or unset it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{variable}: {path}: {error.strerror}; check its permissions") from None


def open_http(base_url: str, transport: httpx2.AsyncBaseTransport | None = None, **settings: Any) -> httpx2.AsyncClient:
    """Return a client for requests to `base_url` only. Raises `ConfigError` if trust store or proxy cannot be used."""
    context, proxy = _context_of(base_url), None
    if transport is None and (setting := proxy_of(base_url)) is not None:
        proxy = _open_proxy(setting)
    try:
        return httpx2.AsyncClient(
            base_url=base_url, transport=transport, verify=context, trust_env=False, proxy=proxy, **settings
        )
    except ImportError:
        raise ConfigError("socks5 proxy: needs the Python package socksio; install it, or use an http proxy") from None


def connection_settings(base_url: str) -> dict[str, Any]:
    """Return what `open_http` sets, for a client of another library (openai 2 uses httpx). Raises `ConfigError`."""
    setting = proxy_of(base_url)
    return {"verify": _context_of(base_url), "trust_env": False, "proxy": setting.url if setting else None}


def _open_proxy(setting: ProxySetting) -> httpx2.Proxy:
    try:
        context = _context_of(setting.url) if setting.url.startswith("https:") else None
        return httpx2.Proxy(setting.url, ssl_context=context)
    except (ValueError, httpx2.InvalidURL):
        raise ConfigError(f"{setting.variable}: expected http://host:port; correct it, or unset it") from None


def _context_of(url: str) -> ssl.SSLContext:
    if url.startswith("https:"):
        return _ssl_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _without_authorities()


@functools.cache
def _without_authorities() -> ssl.SSLContext:
    """For connections without TLS: has no authorities, and costs no time."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def connection_failure(error: BaseException, base_url: str) -> str:
    """Return what a transport error means, with the proxy if one was used."""
    reason = tls_mistake(error) or f"{type(error).__name__} {error}".strip()
    proxy = proxy_of(base_url)
    if proxy is None:
        return reason
    return f"{reason}; through the proxy {proxy} ({proxy.variable}; NO_PROXY lists hosts that need none)"


def tls_mistake(error: BaseException) -> str | None:
    """Return what is wrong with a certificate or a TLS setting, None for errors that may pass."""
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            known = _CERTIFICATE_ERRORS.get(each.verify_code)
            return f"{known} (OpenSSL: {each.verify_message})" if known else f"certificate: {each.verify_message}"
        if isinstance(each, ssl.SSLError):
            reason = str(each.reason or "")
            known = next((text for parts, text in _TLS_ERRORS if any(part in reason for part in parts)), None)
            if known is not None:
                return f"{known} (OpenSSL: {reason.replace('_', ' ').lower()})"
    return None


def request_failure(error: BaseException) -> str:
    """Return what an error of any HTTP client means, in one line: a mistake in a certificate, or itself with its cause.

    The `openai` client's own text is "Connection error."
    """
    parts = [" ".join(str(each).split())[:300] for each in (error, error.__cause__) if each is not None]
    return tls_mistake(error) or ": ".join(filter(None, parts)) or type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
