"""The server: on which port it listens, what its address is, and that it ends when it is told to."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from threading import Thread
from types import TracebackType
from typing import Self

import uvicorn

from trueline.schema.errors import InputError
from trueline.schema.text.words import counted
from trueline.web.application import application
from trueline.web.guard import MIN_TOKEN, Guard, is_local
from trueline.web.judging import Judge
from trueline.web.run_folders import folders_among
from trueline.web.watched_run import WatchedRun, Watching, watched_runs

PORT = 8642
_PORTS_TRIED = 100


@dataclass(frozen=True)
class Address:
    """The address of the page. ``busy_port`` was asked for and in use; ``port`` is the next free one."""

    host: str
    port: int
    token: str
    busy_port: int | None = None

    @property
    def url(self) -> str:
        """What a browser opens."""
        name = "localhost" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/?token={self.token}"


def serve(
    paths: Sequence[str],
    *,
    ref: str | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    ready: Callable[[Address], object],
) -> None:
    """Show the Runs at ``paths`` until a signal ends it; ``ready`` is called once the address answers. Raises
    ``RunError`` where one is no Run, ``InputError`` for a host or a token that cannot be.
    """
    required = require_token(host, token)
    judge = Judge()
    try:
        folders = folders_among(paths)
        runs = watched_runs(paths, ref, judge, folders)
        listening, address = listen(host, port, required)
        watching = Watching(runs, folders)
        try:
            ready(address)
            server(runs, address).run(sockets=[listening])
        finally:
            watching.close()
            listening.close()
    finally:
        judge.close()


class Page:
    """The page, served by a thread of this process until it is closed, or the process ends. In a notebook it shows
    itself as a link; ``with`` closes it.
    """

    def __init__(self, paths: Sequence[str], *, ref: str | None, host: str, port: int, token: str | None) -> None:
        required = require_token(host, token)
        self._judge = Judge()
        with ExitStack() as undone:
            undone.callback(self._judge.close)
            folders = folders_among(paths)
            runs = watched_runs(paths, ref, self._judge, folders)
            self._listening, self._address = listen(host, port, required)
            undone.pop_all()
        self._watching = Watching(runs, folders)
        self._server = server(runs, self._address)
        self._thread = Thread(target=self._server.run, args=([self._listening],), name="trueline-page", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """What a browser opens; the token in it is the key to the page."""
        return self._address.url

    def close(self) -> None:
        """Serve no more, and end the process that judges. Closing twice is closing once."""
        self._server.should_exit = True
        self._thread.join(10)
        self._watching.close()
        self._judge.close()
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Trueline page at {self.url}"

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.url)}" target="_blank" rel="noreferrer">Trueline: open the page</a>'


def server(runs: Sequence[WatchedRun], address: Address) -> uvicorn.Server:
    """The server of ``runs``, not yet started; it logs nothing, as every address has the token in it."""
    guarded = Guard(application(runs), address.token, address.host)
    config = uvicorn.Config(
        guarded,
        access_log=False,
        log_level="critical",
        timeout_graceful_shutdown=1,
        server_header=False,
        lifespan="off",
    )
    return uvicorn.Server(config)


def require_token(host: str, token: str | None) -> str:
    """The token: one's own, which another host than this machine needs, or a new one. Raises ``InputError``."""
    if token is None and not is_local(host):
        raise InputError(
            f"'--host {host}' lets other machines reach the page, so it needs a token of your own. "
            f"Set TRUELINE_VIEW_TOKEN to {MIN_TOKEN} or more characters."
        )
    subject = "TRUELINE_VIEW_TOKEN" if token == os.environ.get("TRUELINE_VIEW_TOKEN") else "The token"
    if token is not None and len(token) < MIN_TOKEN:
        raise InputError(f"{subject} has {counted(len(token), 'character')}; it needs {MIN_TOKEN} or more.")
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
        raise InputError(
            f"{subject} has a space or a letter that an address cannot hold; it needs {MIN_TOKEN} or more plain "
            "letters, digits and signs."
        )
    return token or secrets.token_urlsafe(24)


def listen(host: str, port: int, token: str) -> tuple[socket.socket, Address]:
    """A socket that listens at ``port``, or the next that is free. Raises ``InputError`` where that cannot be."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError) as error:
        raise InputError(f"'{host}' is no address of this machine: {error}. Leave out --host.") from None
    for candidate in range(port, min(port + _PORTS_TRIED, 65536)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, candidate))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if candidate == port and error.errno not in _IN_USE:
                raise InputError(
                    f"The page cannot listen at {host}:{port}: {error.strerror}. Pass another --port."
                ) from None
            continue
        actual_port = listening.getsockname()[1]
        return listening, Address(host, actual_port, token, busy_port=port if port and actual_port != port else None)
    raise InputError(f"Ports {port} to {port + _PORTS_TRIED - 1} of {host} are all in use. Pass another --port.")


_IN_USE = {errno.EADDRINUSE, errno.EACCES}
"""After these the next port is tried: in use, or kept for others."""
