"""An object store with the S3 protocol: a server process on loopback, and a door before it that can be made to fail."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import s3fs

BUCKET = "bucket"
HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")
"""Headers that are said anew on each side of the door."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ObjectStore:
    """The server, with an empty bucket. ``settings`` is the environment in which ``s3://bucket`` is there."""

    def __init__(self) -> None:
        self.port = free_port()
        words = [sys.executable, "-m", "moto.server", "-p", str(self.port)]
        self._server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.settings = {
            "AWS_ACCESS_KEY_ID": "one",
            "AWS_SECRET_ACCESS_KEY": "two",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }
        deadline = time.monotonic() + 120
        while True:
            try:
                self.files().mkdir(BUCKET)
                return
            except Exception:
                assert self._server.poll() is None, "the object store does not start"
                assert time.monotonic() < deadline, "the object store does not answer"
                time.sleep(0.2)

    def files(self) -> s3fs.S3FileSystem:
        """What the server itself has, past any door."""
        return s3fs.S3FileSystem(
            key="one",
            secret="two",
            endpoint_url=self.settings["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def stop(self) -> None:
        self._server.kill()
        self._server.wait()


class Door:
    """A proxy before an ``ObjectStore``. While ``closed`` it answers 503, as a store does that has too much to do;
    ``lost_bytes`` are missing at the end of what is uploaded.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.closed = False
        self.lost_bytes = 0
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, answer = door._answer(store, self.command, self.path, dict(self.headers), body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer if self.command != "HEAD" else b"")

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.settings = store.settings | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}"}
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(
        self, store: ObjectStore, command: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if self.closed:
            return 503, {"retry-after": "0"}, b""
        inner = http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)
        inner.request(command, path, body, {k: v for k, v in headers.items() if k.lower() not in HOP})
        found = inner.getresponse()
        answer = found.read()
        said = {name: value for name, value in found.getheaders() if name.lower() not in HOP}
        if command == "HEAD" and found.getheader("content-length"):
            said["content-length"] = found.getheader("content-length", "")
        inner.close()
        if command == "PUT" and found.status == 200 and self.lost_bytes:
            name = path.partition("?")[0].lstrip("/")
            files = store.files()
            files.pipe_file(name, files.cat_file(name)[: -self.lost_bytes])
        return found.status, said, answer

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
