"""The page of `trueline view`, served within the test: judged at once and in this process, on a port of its own."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trueline.web import judging
from trueline.web.run_folders import folders_among
from trueline.web.serve import listen, server
from trueline.web.watched_run import Watching, watched_runs

TOKEN = "a-token-of-the-test"


class JudgeHere(judging.JudgeHere):
    """A judge that answers at once; ``holding`` keeps it from answering at all."""

    def __init__(self, *, holding: bool = False) -> None:
        self._holding = holding

    def _submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        return Future() if self._holding else super()._submit(work, *given)


class Served:
    """The page about some Runs, as long as the block runs."""

    def __init__(
        self, paths: Sequence[Path], *, ref: Path | None = None, judge: Any = None, host: str = "127.0.0.1"
    ) -> None:
        self._folders = folders_among(paths)
        of_ref = None if ref is None else str(ref)
        self.runs = watched_runs(list(map(str, paths)), of_ref, judge or JudgeHere(), self._folders)
        self._listening, self.address = listen(host, 0, TOKEN)
        self._server = server(self.runs, self.address)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)

    def __enter__(self) -> Self:
        for run in self.runs:  # the first judgement is there when the page is asked for
            run.look()
            run.look()
        self._watching = Watching(self.runs, self._folders)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        self._server.should_exit = True
        self._thread.join(30)
        self._listening.close()

    def url(self, state: str = "") -> str:
        """The address of the page in a state."""
        return f"{self.address.url}#{state}"

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str | None] | None = None,
        token: str | None = TOKEN,
    ) -> http.client.HTTPResponse:
        """The answer to one request; a header that is None is left out."""
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=60)
        sent = {"Host": f"{self.address.host}:{self.address.port}", **(headers or {})}
        if token is not None:
            sent = {"Authorization": f"Bearer {token}", **sent}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()

    def json(self, path: str) -> Any:
        """The document at a path, which must be there."""
        answer = self.ask(path, headers={"Accept": "application/json"})
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)
