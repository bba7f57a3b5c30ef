"""OTLP/HTTP against a receiver on loopback that decodes what it is sent by OpenTelemetry's own schema."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.unit.sinks.test_places import FINDING, NUMBERS, deliver

from trueline.schema.errors import InputError
from trueline.schema.finding import Finding, Where
from trueline.sinks import otlp
from trueline.sinks.registry import opener

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="trueline[otlp] is not installed")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}
ON_NODE = Finding(
    code="replica-drift",
    severity="error",
    claim="Rank 2 drifts.",
    ranks=(2,),
    step_first=50,
    false_alarm_rate=0.0,
    next=("Look at it.",),
    where=Where("/job/train.py", 24, "node-9", 2, "cuda:5"),
)


@pytest.fixture
def collector():
    """A receiver of OTLP/HTTP that decodes what it gets, and answers ``status`` once ``free`` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-protobuf"
            made.took.append((self.path, REQUESTS[self.path].FromString(body)))
            made.free.wait()
            self.send_response(made.status)
            self.end_headers()

        def log_message(self, *words):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.took, made.status, made.free = [], 200, threading.Event()
    made.free.set()
    made.url = f"http://127.0.0.1:{made.server_port}"
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.free.set()
    made.shutdown()
    made.server_close()


def plain(attributes):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}


def points(request):
    """(metric, attributes) to its value, of one export."""
    (resource,) = request.resource_metrics
    metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
    return {
        (metric.name, tuple(sorted(plain(point.attributes).items()))): point.as_double or point.as_int
        for metric in metrics
        for point in (metric.gauge.data_points or metric.sum.data_points)
    }


def test_metrics_logs_and_span_events_arrive_with_what_the_finding_says(collector, tmp_path, monkeypatch):
    monkeypatch.setattr(otlp, "_job_of", lambda run: "job-7")
    assert deliver(f"otlp:{collector.url}/", NUMBERS, ON_NODE, run="/runs/a") == []
    sent = [(path, request) for path, request in collector.took]
    assert [path for path, _ in sent] == ["/v1/metrics", "/v1/logs", "/v1/metrics", "/v1/traces"]
    gauges = points(sent[0][1])
    run = (("run", "/runs/a"),)
    assert gauges == {("trueline.loss", run): 1.25, ("trueline.worst_rank", run): 2.0, ("trueline.step", run): 1}
    resource = plain(sent[0][1].resource_metrics[0].resource.attributes)
    assert resource["service.name"] == "trueline"
    assert resource["service.instance.id"] == "job-7"
    what = {"run": "/runs/a", "code": "replica-drift", "severity": "error"}
    what |= {"rank": 2, "node": "node-9", "device": "cuda:5"}
    assert points(sent[2][1])["trueline.findings", tuple(sorted(what.items()))] == 1

    (record,) = sent[1][1].resource_logs[0].scope_logs[0].log_records
    attributes = plain(record.attributes)
    assert what.items() <= attributes.items()
    assert (attributes["job"], attributes["step"], attributes["false_alarm_rate"]) == ("job-7", 50, 0.0)
    assert (attributes["code.file.path"], attributes["code.line.number"]) == ("/job/train.py", 24)
    assert record.severity_number == 17
    assert record.body.string_value == "error replica-drift, rank 2, since step 50: Rank 2 drifts.\nLook at it."
    assert abs(record.time_unix_nano / 1e9 - time.time()) < 60

    (span,) = sent[3][1].resource_spans[0].scope_spans[0].spans
    assert (span.name, record.span_id, record.trace_id) == ("watch a", span.span_id, span.trace_id)
    (event,) = span.events
    assert what.items() <= plain(event.attributes).items()
    assert span.start_time_unix_nano <= event.time_unix_nano <= span.end_time_unix_nano


def test_what_is_unknown_is_left_out_and_severities_keep_their_order(collector):
    several = [Finding(code="x", severity=severity, claim="c") for severity in ("info", "confirm", "warning", "error")]
    assert deliver(f"otlp:{collector.url}", *several) == []
    records = [
        request.resource_logs[0].scope_logs[0].log_records[0] for path, request in collector.took if path == "/v1/logs"
    ]
    assert [record.severity_number for record in records] == sorted({record.severity_number for record in records})
    assert not {"rank", "node", "device", "step", "false_alarm_rate"} & plain(records[0].attributes).keys()


@pytest.mark.parametrize(("how", "words"), [("fails", "answered 503"), ("hangs", "no answer"), ("down", "no answer")])
def test_a_collector_that_fails_hangs_or_is_down_is_said_in_one_line_and_costs_one_time_out(
    how, words, collector, monkeypatch
):
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.3)
    url = "http://127.0.0.1:9" if how == "down" else collector.url
    collector.status = 503
    collector.free.clear() if how == "hangs" else None
    began = time.monotonic()
    said = deliver(f"otlp:{url}", *[NUMBERS, FINDING] * 50, within_s=5.0)
    assert time.monotonic() - began < 3.0, "after the first time nothing is waited for"
    assert words in said[0]
    assert "Training goes on." in said[0]
    assert said[1:] == ["sink it did not get 50 findings and 100 steps of numbers."]


def test_sending_begins_again_when_a_collector_is_back(collector, monkeypatch):
    monkeypatch.setattr(otlp, "PAUSE_S", 0.0)
    sink = opener(f"otlp:{collector.url}")("/runs/a")
    collector.status = 400
    with pytest.raises(ConnectionError, match="answered 400"):
        sink.finding(FINDING)
    collector.status = 200
    sink.finding(FINDING)
    sink.close()
    (span,) = collector.took[-1][1].resource_spans[0].scope_spans[0].spans
    assert len(span.events) == 2, "the span has what was refused, too"


def test_a_target_that_is_no_url_is_refused_before_the_job_starts(monkeypatch):
    with pytest.raises(InputError, match=r"no http:// or https:// URL, as otlp:http://localhost:4318"):
        opener("otlp:localhost:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
    with pytest.raises(InputError, match="no http"):
        opener("otlp")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    opener("otlp")


def test_a_package_that_is_missing_is_named_as_pip_knows_it(monkeypatch):
    monkeypatch.setattr(otlp, "LIBRARY", "no_such_package.exporter")
    with pytest.raises(InputError, match=r"needs the package trueline\[otlp\], which is not installed: pip install"):
        opener("otlp:http://localhost:4318")
