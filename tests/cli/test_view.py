"""`trueline view`: an address on the first line, and one sentence for mistakes."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tests.cli.in_process import trueline
from tests.synthetic_runs import write_run

import trueline as trueline_package
from trueline.schema.errors import InputError, RunError
from trueline.web.serve import listen, require_token


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return write_run(tmp_path / "exp", num_steps=4)


def test_what_is_no_run_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        code, printed, said = trueline(monkeypatch, capsys, "view", path)
        assert (code, printed, said.count("\n")) == (2, "", 1)
        assert str(path) in said


def test_a_reference_that_is_no_run_is_one_sentence(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = trueline(monkeypatch, capsys, "view", run_path, "--ref", run_path / "nowhere")

    assert (code, said.count("\n")) == (2, 1)


def test_other_machines_need_a_token_of_ones_own(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRUELINE_VIEW_TOKEN", raising=False)
    code, _, said = trueline(monkeypatch, capsys, "view", run_path, "--host", "0.0.0.0")
    assert code == 2
    assert "TRUELINE_VIEW_TOKEN" in said
    for token, why in (
        ("abc", "has 3 char"),
        ("with spaces in its middle", "a space"),
        ("ünprintable-in-a-url", "or a"),
    ):
        with pytest.raises(InputError, match=f"^The token .*{why}.*16 or more"):
            require_token("127.0.0.1", token)
    monkeypatch.setenv("TRUELINE_VIEW_TOKEN", "abc")
    assert trueline(monkeypatch, capsys, "view", run_path)[2] == (
        "trueline: TRUELINE_VIEW_TOKEN has 3 characters; it needs 16 or more.\n"
    )
    assert require_token("0.0.0.0", "sixteen-letters-") == "sixteen-letters-"
    assert len({require_token("127.0.0.1", None) for _ in range(3)}) == 3


def test_in_python_the_page_is_there_until_it_is_closed(run_path: Path) -> None:
    with trueline_package.view(run_path, port=0) as page:
        address = urlsplit(page.url)
        assert repr(page) == f"Trueline page at {page.url}"
        assert f'href="{page.url}"' in page._repr_html_()
        assert _status(address.port, f"/api/runs?{address.query}") == 200
        assert _status(address.port, "/api/runs") == 403
    page.close()
    with pytest.raises(ConnectionRefusedError):
        _status(address.port, "/api/runs")


def test_in_python_what_cannot_be_shown_is_refused_and_leaves_nothing_behind(tmp_path: Path, run_path: Path) -> None:
    before = len(psutil.Process().children(recursive=True))
    with pytest.raises(RunError, match="nowhere"):
        trueline_package.view([run_path, tmp_path / "nowhere"], port=0)
    with pytest.raises(InputError, match="token"):
        trueline_package.view(run_path, host="0.0.0.0")
    assert len(psutil.Process().children(recursive=True)) == before


def _status(port: int | None, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port or 0, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_port_in_use_gives_way_to_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listening, address = listen("127.0.0.1", port, "token")
        with listening:
            assert address.busy_port == port
            assert port < address.port < port + 100


def test_an_address_that_is_not_this_machines_is_one_sentence(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRUELINE_VIEW_TOKEN", "sixteen-letters-")
    code, _, said = trueline(monkeypatch, capsys, "view", run_path, "--host", "198.51.100.7")

    assert (code, said.count("\n")) == (2, 1)
    assert "198.51.100.7" in said


def test_without_its_packages_it_says_what_to_install(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "trueline.web.serve", raising=False)
    code, _, said = trueline(monkeypatch, capsys, "view", run_path)

    assert code == 2
    assert "pip install 'trueline[view]'" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_answers_there_and_leaves_nothing_behind(run_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "trueline", "view", str(run_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        line = process.stdout.readline()
        url = urlsplit(line.split()[1])
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        connection.request("GET", f"/?{url.query}")
        answer = connection.getresponse()
        assert (answer.status, b"assets/page.js" in answer.read()) == (200, True)
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=60)
    assert said == ""
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number)
    end_s = time.monotonic() + 60
    while left := living(process.pid):  # nor does the process that judges stay
        assert time.monotonic() < end_s, left
        time.sleep(0.05)


def living(group: int) -> list[int]:
    """Processes of a group that have not ended; whose parent is gone may wait for long to be buried."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(each.pid) == group and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found
