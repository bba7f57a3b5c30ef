"""Prometheus: ``prometheus:PORT`` serves ``/metrics`` on that port of the first rank's host while the job runs;
``prometheus:FILE.prom`` writes a file for the textfile collector of node_exporter, which stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueline.schema.finding import Finding
from trueline.schema.live import Numbers

LIBRARY = "prometheus_client"


def open_sink(target: str, run: str) -> Prometheus:
    """Serves or writes gauges. Raises ``OSError``."""
    from prometheus_client import start_http_server

    sink = Prometheus(run, file="" if target.isdecimal() else target)
    if target.isdecimal():
        start_http_server(int(target), registry=sink.registry)
    return sink


class Prometheus:
    """The latest value of each series, and the number of findings by code, severity and the rank, node and device that
    they name ('' for none or several), all labelled with the Run.
    """

    def __init__(self, run: str, *, file: str = "") -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = CollectorRegistry()
        self._run, self._file = run, file
        self._make = lambda name, text: Gauge(name, text, ["run"], registry=self.registry)
        self._gauges: dict[str, Any] = {}
        labels = ["run", "code", "severity", "rank", "node", "device"]
        self._findings_counter = Counter("trueline_findings", "findings reported", labels, registry=self.registry)

    def numbers(self, rows: Sequence[Numbers]) -> None:
        """Set each gauge to its latest value, and ``trueline_step`` to the latest step."""
        for step_numbers in rows:
            for name, value in (*step_numbers.values.items(), ("step", step_numbers.step)):
                if name not in self._gauges:
                    self._gauges[name] = self._make(f"trueline_{name}", f"{name}, of the latest step that has it")
                self._gauges[name].labels(self._run).set(value)
        self._save()

    def finding(self, finding: Finding) -> None:
        where = finding.where
        machine = ("" if text is None else text for text in (where.rank, where.host, where.device))
        self._findings_counter.labels(self._run, finding.code, finding.severity, *machine).inc()
        self._save()

    def close(self) -> None:
        """The file, if there is one, stays."""
        self._save()

    def _save(self) -> None:
        if self._file:
            from prometheus_client import write_to_textfile

            write_to_textfile(self._file, self.registry)
