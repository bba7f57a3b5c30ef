"""OpenTelemetry: ``otlp:URL`` sends metrics, log records and one span to a collector by OTLP/HTTP; ``otlp`` alone sends
where ``OTEL_EXPORTER_OTLP_ENDPOINT`` says, by default ``http://localhost:4318``. The further variables of OpenTelemetry
hold (``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_RESOURCE_ATTRIBUTES``, …). ``$NAME`` in the URL is a variable of the
environment.

Each series is the gauge ``trueline.NAME``, beside ``trueline.step``; findings are counted in ``trueline.findings``. A
finding is a log record, sent at once, and an event of the one span of the Run, which is sent when the Run ends.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import InputError, RunError
from trueline.schema.finding import Finding, Severity
from trueline.schema.live import Numbers, headline, with_advice
from trueline.store.manifest import open_manifest

LIBRARY = "opentelemetry.exporter.otlp.proto.http"
INSTALL = "trueline[otlp]"

DEFAULT = "$OTEL_EXPORTER_OTLP_ENDPOINT"

TIMEOUT_S = 3.0
"""Seconds in which a collector takes one request, with all its retries: the end of a job waits for one at most."""

PAUSE_S = 30.0
"""Seconds in which nothing is sent to a collector that took nothing: what comes meanwhile is lost without waiting."""

LOG_SEVERITIES: dict[Severity, str] = {"error": "ERROR", "warning": "WARN", "confirm": "INFO2", "info": "INFO"}
"""Our severities as those of OpenTelemetry."""


def require_target(target: str) -> None:
    """Raise ``InputError`` for what is no URL."""
    if not _base_url(target).startswith(("https://", "http://")):
        raise InputError(
            "Sink 'otlp' sends by HTTP, and its target is no http:// or https:// URL, as otlp:http://localhost:4318."
        )


def open_sink(target: str, run: str) -> Otlp:
    """Sends to the collector at the base URL ``target``. Raises ``InputError``."""
    require_target(target)
    return Otlp(_base_url(target), run)


def _base_url(target: str) -> str:
    if target == DEFAULT:
        return os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    return os.path.expandvars(target)


class Otlp:
    """Sends within the call that hands it something, and raises where the collector does not take it."""

    def __init__(self, url: str, run: str) -> None:
        import requests
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk import _logs, metrics, resources, trace
        from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what is not taken is said once, by us
        self._run = run
        self._status: int | None = None
        self._mute_until = 0.0
        session = requests.Session()
        session.hooks["response"] = [self._hear]
        self._metrics, self._logs, self._spans = (
            exporter(f"{url.rstrip('/')}/v1/{signal}", session=session, timeout=TIMEOUT_S)
            for exporter, signal in (
                (OTLPMetricExporter, "metrics"),
                (OTLPLogExporter, "logs"),
                (OTLPSpanExporter, "traces"),
            )
        )
        self._common = {"run": run, "job": _job_of(run)}
        service = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "trueline"}
        resource = resources.Resource.create(
            service | {"service.instance.id": self._common["job"] or run, "host.name": os.uname().nodename}
        )
        # The preference of the exporter (OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE) is for its reader.
        self._measured = InMemoryMetricReader(getattr(self._metrics, "_preferred_temporality", None))
        self._meter = metrics.MeterProvider([self._measured], resource, shutdown_on_exit=False).get_meter("trueline")
        self._written = InMemoryLogRecordExporter()
        log_provider = _logs.LoggerProvider(resource, shutdown_on_exit=False)
        log_provider.add_log_record_processor(SimpleLogRecordProcessor(self._written))
        self._logger = log_provider.get_logger("trueline")
        self._ended = InMemorySpanExporter()
        tracer_provider = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self._span = tracer_provider.get_tracer("trueline").start_span(
            f"watch {os.path.basename(run)}", attributes=self._common
        )
        self._gauges: dict[str, Any] = {}
        self._counter = self._meter.create_counter("trueline.findings", description="findings reported")

    def numbers(self, rows: Sequence[Numbers]) -> None:
        """Send the latest value of each series, and the latest step."""
        for step_numbers in rows:
            for name, value in (*step_numbers.values.items(), ("step", step_numbers.step)):
                if name not in self._gauges:
                    text = f"{name}, of the latest step that has it"
                    self._gauges[name] = self._meter.create_gauge(f"trueline.{name}", description=text)
                self._gauges[name].set(value, {"run": self._run})
        self._send_metrics()

    def finding(self, finding: Finding) -> None:
        """Send a log record of it and the new count."""
        from opentelemetry import trace
        from opentelemetry._logs import LogRecord, SeverityNumber

        where = finding.where
        machine = {"rank": where.rank, "node": where.host, "device": where.device}
        identity = {"code": finding.code, "severity": finding.severity} | _known(machine)
        script = {"code.file.path": where.file, "code.line.number": where.line}
        more = {"step": finding.step_first, "id": finding.id, "false_alarm_rate": finding.false_alarm_rate, **script}
        attributes = self._common | identity | _known(more) | ({"ranks": finding.ranks} if finding.ranks else {})
        now_ns = time.time_ns()
        self._span.add_event("finding", {**attributes, "claim": finding.claim}, now_ns)
        self._logger.emit(
            LogRecord(
                timestamp=now_ns,
                observed_timestamp=now_ns,
                context=trace.set_span_in_context(self._span),
                severity_text=finding.severity,
                severity_number=SeverityNumber[LOG_SEVERITIES[finding.severity]],
                body=with_advice(headline(finding), finding),
                attributes=attributes,
                event_name="trueline.finding",
            )
        )
        self._counter.add(1, {"run": self._run} | identity)
        records = self._written.get_finished_logs()
        self._written.clear()
        self._send(self._logs, records)
        self._send_metrics()

    def close(self) -> None:
        """End the span of the Run, and send it, unless the collector took nothing a moment ago."""
        if time.monotonic() < self._mute_until:
            return
        self._span.end()
        self._send(self._spans, self._ended.get_finished_spans())

    def _send_metrics(self) -> None:
        self._send(self._metrics, self._measured.get_metrics_data())

    def _send(self, exporter: Any, batch: Any) -> None:
        """Raises ``ConnectionError`` where the collector does not take ``batch``, and for a while without asking it."""
        if time.monotonic() < self._mute_until:
            raise ConnectionError("the collector took nothing a moment ago")
        self._status = None
        if exporter.export(batch).name != "SUCCESS":
            self._mute_until = time.monotonic() + PAUSE_S
            if self._status is None:
                raise ConnectionError(f"no answer from the collector within {TIMEOUT_S:g} s")
            raise ConnectionError(f"the collector answered {self._status}")

    def _hear(self, response: Any, **_: object) -> None:
        self._status = response.status_code


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    """Without what is unknown: an attribute has no null."""
    return {name: value for name, value in attributes.items() if value is not None}


def _job_of(run: str) -> str:
    """What the manifest calls the job; '' where it cannot be read yet."""
    try:
        return open_manifest(LocalFileSystem(), run, run).job
    except (RunError, OSError):
        return ""
