"""Each sink against the real thing: an HTTP server, Prometheus' own parser, W&B's files, MLflow's store."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.schema.live import Numbers
from trueline.sinks import webhook
from trueline.sinks.delivery import Delivery
from trueline.sinks.registry import opener

FINDING = Finding(
    code="replica-drift", severity="error", claim="Rank 2 drifts.", ranks=(2,), step_first=50, next=("x",)
)
KNOWN = Finding(code="rng-streams", severity="info", claim="Streams differ.")
NUMBERS = (Numbers(0, {"loss": 1.5}), Numbers(1, {"loss": 1.25, "worst_rank": 2.0}))


def deliver(target, *items, run="/runs/a", within_s=100.0):
    """What is said while the sink takes ``items``."""
    said = []
    thread = Delivery("it", lambda: opener(target)(run), say=said.append)
    for item in items:
        thread.put(item)
    thread.close(within_s=within_s)
    return said


@pytest.fixture
def server():
    """A server that answers with ``status``, when ``free`` is set, and keeps what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.sent.append((self.path, self.headers["Content-Type"], json.loads(body)))
            made.free.wait()
            self.send_response(made.status)
            self.end_headers()

        def log_message(self, *words):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.sent, made.status, made.free = [], 200, threading.Event()
    made.free.set()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.free.set()
    made.shutdown()
    made.server_close()


def test_a_webhook_gets_what_is_wrong_in_words(server, monkeypatch):
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/T0/secret")
    degraded = Finding(code=WATCH_DEGRADED, severity="info", claim="The Run could not be written.")
    assert deliver("webhook:$HOOK", NUMBERS, FINDING, KNOWN, degraded) == []
    drift = "error replica-drift, rank 2, since step 50: Rank 2 drifts.\nx\nRun: /runs/a"
    assert server.sent[0] == ("/T0/secret", "application/json", {"text": drift})
    assert [sent["text"].split(":")[0] for _, _, sent in server.sent[1:]] == ["info watch-degraded"]


def test_a_webhook_that_refuses_fails_or_hangs_costs_its_findings_and_its_address_stays_secret(server, monkeypatch):
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.3)
    url = f"http://127.0.0.1:{server.server_port}/T0/secret"
    server.status = 503
    said = {"fails": deliver(f"webhook:{url}", FINDING)}
    server.free.clear()
    said["hangs"] = deliver(f"webhook:{url}", FINDING)
    said["refuses"] = deliver("webhook:http://127.0.0.1:9/T0/secret", FINDING)
    said["is none"] = deliver("webhook:secret.example", FINDING)
    for why, words in {"fails": "503", "hangs": "timed out", "refuses": "refused", "is none": "no http://"}.items():
        assert words in said[why][0]
        assert said[why][1:] == ["sink it did not get 1 findings."]
        assert not any("secret" in sentence for sentence in said[why])


def test_prometheus_parses_what_is_written(tmp_path):
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    path = tmp_path / "trueline.prom"
    assert deliver(f"prometheus:{path}", NUMBERS, FINDING, KNOWN) == []
    samples = [one for family in text_string_to_metric_families(path.read_text()) for one in family.samples]
    found = {(one.name, one.labels.get("code"), one.labels["run"]): one.value for one in samples}
    expected = {"trueline_loss": 1.25, "trueline_worst_rank": 2.0, "trueline_step": 1.0}
    assert {name: found[name, None, "/runs/a"] for name in expected} == expected
    assert found["trueline_findings_total", "replica-drift", "/runs/a"] == 1.0


def test_prometheus_is_served(tmp_path):
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    import socket
    import urllib.request

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        held.listen()
        (refused, lost) = deliver(f"prometheus:{port}", NUMBERS)
    assert "it cannot be opened (OSError: Address already in use)" in refused
    assert lost == "sink it did not get 2 steps of numbers."
    assert deliver(f"prometheus:{port}", NUMBERS) == []
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert 'trueline_loss{run="/runs/a"} 1.25' in answer.read().decode()


def in_log(data, block=32768, header=7):
    """The records of a file in LevelDB's log format, which W&B writes behind a head of 7 bytes: blocks of records, each
    with checksum, length and whether it is whole (1), or a first (2), middle (3) or last (4) piece.
    """
    at, pieces = header, b""
    while at + header <= len(data):
        if block - at % block < header:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):
            yield pieces
            pieces = b""


@pytest.mark.in_turn
def test_wandb_writes_files_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_RUN_ID", "of-the-training")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert deliver("wandb:project", NUMBERS, FINDING, run="/runs/a") == []
    (path,) = tmp_path.rglob("*.wandb")
    records = [Record.FromString(data) for data in in_log(path.read_bytes())]
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(row["trueline/step"], row["trueline/loss"]) for row in rows] == [(0, 1.5), (1, 1.25)]
    assert [record.alert.title for record in records if record.HasField("alert")] == ["trueline: replica-drift"]
    (run,) = {record.run.run_id for record in records if record.HasField("run")}
    assert run != "of-the-training"


def test_mlflow_reads_what_is_written(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert deliver(f"mlflow:{tmp_path}", NUMBERS, FINDING, run="/runs/a") == []
    client = MlflowClient(str(tmp_path))
    (run,) = client.search_runs([client.get_experiment_by_name("trueline").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["trueline.replica-drift"].startswith("error replica-drift, rank 2")
    history = client.get_metric_history(run.info.run_id, "trueline.loss")
    assert [(each.step, each.value) for each in history] == [(0, 1.5), (1, 1.25)]


TRACKED = """
import json, shutil
from pathlib import Path
from tests.unit.sinks.test_places import FINDING, KNOWN, NUMBERS, deliver
from trueline.sinks.registry import opener
said = deliver("trackio:project", NUMBERS, FINDING, KNOWN, run="/runs/a")
from trackio import Api, utils
from trackio.sqlite_storage import SQLiteStorage
(run,) = Api().runs("project")
rows = SQLiteStorage.get_logs("project", run.name)
told = {"said": said, "name": run.name, "config": run.config, "alerts": run.alerts(), "rows": rows}
shutil.rmtree(utils.TRACKIO_DIR)
Path(utils.TRACKIO_DIR).write_text("no directory any more")
told["lost"] = deliver("trackio:project", NUMBERS, FINDING, run="/runs/a")
print(json.dumps(told))
"""


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_reads_what_is_written_and_a_disk_that_takes_nothing_is_said(tmp_path):
    environ = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", TRACKED], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["said"], told["name"], told["config"]["trueline_run"]) == ([], "a", "/runs/a")
    assert [(row["step"], row["trueline/loss"]) for row in told["rows"]] == [(0, 1.5), (1, 1.25)]
    alerts = {alert["title"]: alert for alert in told["alerts"]}
    drift = alerts["trueline: replica-drift"]
    assert (drift["level"], drift["step"]) == ("error", 50)
    assert drift["text"] == "error replica-drift, rank 2, since step 50: Rank 2 drifts.\nx"
    assert alerts["trueline: rng-streams"]["level"] == "info"
    (line,) = told["lost"]
    assert line.startswith("sink it could not be closed: OSError: trackio failed to flush")
