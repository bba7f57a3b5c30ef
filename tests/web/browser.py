"""A headless Chromium that a test can drive, over the DevTools protocol on a pair of pipes: no port, no package.

The protocol: https://chromedevtools.github.io/devtools-protocol/; messages on the pipes end with a NUL byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

TIMEOUT_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def chromium_path() -> str | None:
    """The first Chromium or Chrome on the PATH."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


NEEDS_BROWSER = pytest.mark.skipif(chromium_path() is None, reason="no Chromium or Chrome is on the PATH")
"""Of tests that look at a page."""


class BrowserPage:
    """One page of a Chromium of its own; ``errors`` and ``requests`` collect what happened since it was opened."""

    def __init__(self, url: str, *, width: int, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        executable = chromium_path()
        if executable is None:
            raise FileNotFoundError(f"None of {', '.join(_NAMES)} is on the PATH.")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._sent = 0
        self._unread = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._profile = tempfile.TemporaryDirectory(prefix="trueline-chromium-", ignore_cleanup_errors=True)
        self._process, self._to, self._from = _start(executable, self._profile.name)
        try:
            self._session = self._attach()
            self._prepare(url, width=width, height=height, dark=dark, scripts=scripts)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser that this page started, and no other."""
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._profile.cleanup()

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to CSS pixels of the viewport and let two frames pass."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, key: str) -> None:
        """Press a key by its DOM name, such as ``Tab`` or ``ArrowLeft``."""
        code = {"Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Save the viewport, or the whole page, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full, **self._clip(full))
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools call on this page and its result."""
        return self._call(method, parameters, self._session)

    def _clip(self, full: bool) -> dict[str, Any]:
        if not full:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _attach(self) -> str:
        target = self._call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        return self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)["sessionId"]

    def _prepare(self, url: str, *, width: int, height: int, dark: bool, scripts: bool) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        self.call("Page.navigate", url=url)
        end_s = time.monotonic() + TIMEOUT_S
        while not self._loaded:
            self._receive(end_s)

    def _call(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._sent += 1
        number = self._sent
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end_s = time.monotonic() + TIMEOUT_S
        while number not in self._answers:
            self._receive(end_s)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, end_s: float) -> None:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end_s - time.monotonic()))
            read = os.read(self._from, 1 << 16) if ready else b""
            if not read:
                raise TimeoutError(f"Chromium gave no answer within {TIMEOUT_S:.0f} s, or it ended.")
            self._unread += read
        text, _, self._unread = self._unread.partition(b"\0")
        self._take(json.loads(text))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, parameters = message["method"], message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])


def _start(executable: str, profile: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """The browser, which reads descriptor 3 and writes 4, and our ends of these pipes."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = [*_FLAGS, f"--user-data-dir={profile}"]
    # The shell moves the pipes to the numbers that Chromium expects, which pass_fds cannot do.
    shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, executable, *flags],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process, ours_out, ours_in
