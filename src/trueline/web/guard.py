"""Who is answered: whoever has the token, calls this machine by a name of its own, and comes from no other site.

A page of another site may make a browser send requests here; it cannot know the token, and what it sends has its
origin on it. A name that is made to point here (DNS rebinding) is in the header ``Host``: addresses and this machine's
own names are answered, no other name is.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_App = Callable[[Scope, _Receive, _Send], Awaitable[None]]

MIN_TOKEN = 16
"""Characters of a token that someone chose."""
OPEN = ("/assets/", "/favicon.ico")
"""Answered without a token: what is the same for everyone, and comes with the package."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""On every answer: nothing may be loaded from elsewhere, and no other site may show or read this one."""


@dataclass(frozen=True)
class Guard:
    """Refuses a request before anything sees it: 421 for a foreign host, 403 for a foreign origin or a wrong token."""

    app: _App
    token: str
    host: str

    async def __call__(self, scope: Scope, receive: _Receive, send: _Send) -> None:
        """An ASGI application (https://asgi.readthedocs.io/en/latest/specs/www.html)."""
        if scope["type"] != "http":
            return  # there are no web sockets
        # Before the application: a foreign page must not even learn which paths exist.
        refused = self._refused(scope)
        if refused is not None:
            await _refuse(send, *refused)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_encoded(HEADERS)]
            await send(message)

        await self.app(scope, receive, send_guarded)

    def _refused(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self.is_own(host):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                f"This server is not called '{host}'. Use the address that it printed.",
            )
        if (origin := headers.get("origin")) is not None and urlsplit(origin).netloc != host:
            return HTTPStatus.FORBIDDEN, "Requests from other sites are not answered."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return HTTPStatus.FORBIDDEN, "Requests from other sites are not answered."
        if scope["path"].startswith(OPEN) or secrets.compare_digest(_sent_token(scope, headers), self.token.encode()):
            return None
        return HTTPStatus.FORBIDDEN, "The token is missing or wrong. Use the address that `trueline view` printed."

    def is_own(self, host: str) -> bool:
        """True if a header ``Host`` (name or address, and maybe a port) may mean this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self.host):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not is_local(self.host) and name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return address.is_loopback or not is_local(self.host)


def is_local(host: str) -> bool:
    """True if only this machine can reach a server at ``host``."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _sent_token(scope: Scope, headers: dict[str, str]) -> bytes:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        token = next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("token", [])), "")
    return token.encode()


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _refuse(send: _Send, status: HTTPStatus, sentence: str) -> None:
    headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    await send({"type": "http.response.start", "status": int(status), "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": sentence.encode()})
