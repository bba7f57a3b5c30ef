"""A headless Chromium that a test can drive, over the DevTools protocol on a pair of pipes: no port, no package.

The protocol: https://chromedevtools.github.io/devtools-protocol/; messages on the pipes end with a NUL byte.
"""

from __future__ import annotations

import atexit
import base64
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

TIMEOUT_S = 60.0
_CODES = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SHOWN = "document.body.innerText.slice(0, 2000)"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-backgrounding-occluded-windows",
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


class _Chromium:
    """One browser for all pages of this process; it ends with the pipes to it."""

    def __init__(self) -> None:
        executable = chromium_path()
        if executable is None:
            raise FileNotFoundError(f"None of {', '.join(_NAMES)} is on the PATH.")
        self._sent = 0
        self._unread = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self._free: list[tuple[str, str]] = []
        self._profile = tempfile.TemporaryDirectory(prefix="trueline-chromium-", ignore_cleanup_errors=True)
        self._process, self._to, self._from = _start(executable, self._profile.name)
        self._arrives = select.poll()  # select.select takes no descriptor of 1,024 or more
        self._arrives.register(self._from, select.POLLIN)
        atexit.register(self.close)

    def close(self) -> None:
        """End this browser, and no other."""
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._profile.cleanup()

    def open(self, heard: Callable[[str, dict[str, Any]], None]) -> tuple[str, str]:
        """Target and session of a window that nobody uses, whose events are given to ``heard``: method and parameters.

        A new one, with a process of its own, takes as long as a page.
        """
        if not self._free:
            target = self.call("Target.createTarget", {"url": "about:blank", "newWindow": True})["targetId"]
            session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
            self._free.append((target, session))
        target, session = self._free.pop()
        self._listeners[session] = heard
        return target, session

    def leave(self, target: str, session: str) -> None:
        """Keep a window, which shows nothing, for another page."""
        self._free.append((target, session))

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """One DevTools call, of a session or of the browser itself, and its result."""
        self._sent += 1
        number = self._sent
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end_s = time.monotonic() + TIMEOUT_S
        while number not in self._answers:
            self.receive(end_s)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def receive(self, end_s: float) -> None:
        """Take one message, an answer or an event."""
        while b"\0" not in self._unread:
            ready = self._arrives.poll(1000 * max(0.0, end_s - time.monotonic()))
            read = os.read(self._from, 1 << 16) if ready else b""
            if not read:
                raise TimeoutError(f"Chromium gave no answer within {TIMEOUT_S:.0f} s, or it ended.")
            self._unread += read
        text, _, self._unread = self._unread.partition(b"\0")
        message = json.loads(text)
        if "id" in message:
            self._answers[message["id"]] = message
        elif (heard := self._listeners.get(message.get("sessionId"))) is not None:
            heard(message["method"], message.get("params", {}))


_browser = functools.cache(_Chromium)


class BrowserPage:
    """One page in a window of its own; ``errors`` and ``requests`` collect what happened since it was opened."""

    def __init__(self, url: str, *, width: int, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._browser = _browser()
        self._target, self._session = self._browser.open(self._heard)
        self._prepare(url, width=width, height=height, dark=dark, scripts=scripts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._browser.call("Target.closeTarget", {"targetId": self._target})

    def close(self) -> None:
        """Leave the page and its window, with the mouse in the corner."""
        self._go("about:blank")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self._browser.leave(self._target, self._session)

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
        """Press a key by its DOM name, such as ``Tab``, ``ArrowLeft`` or ``j``."""
        code = ord(key.upper()) if len(key) == 1 else _CODES[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def until(self, expression: str) -> Any:
        """The value of an expression, True for an element, once it is true; raises ``AssertionError`` where it stays
        false.
        """
        end_s = time.monotonic() + TIMEOUT_S
        while not (value := self.evaluate(f"(value => value instanceof Node || value)({expression})")):
            if time.monotonic() > end_s:
                raise AssertionError(f"{expression} is still {value!r}. On the page: {self.evaluate(_SHOWN)}")
            time.sleep(0.05)
        return value

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one point of the viewport and release it at another."""
        for kind, (x, y) in (("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Save the viewport, or the whole page, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full, **self._clip(full))
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools call on this page and its result."""
        return self._browser.call(method, parameters, self._session)

    def _clip(self, full: bool) -> dict[str, Any]:
        if not full:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _prepare(self, url: str, *, width: int, height: int, dark: bool, scripts: bool) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._go(url)

    def _go(self, url: str) -> None:
        """Show another document, and wait until it is loaded."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        end_s = time.monotonic() + TIMEOUT_S
        while not self._loaded:
            self._browser.receive(end_s)

    def _heard(self, method: str, parameters: dict[str, Any]) -> None:
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
