"""The dashboard and the alert rules of docs/dashboards ask for what the sinks send, by its names and labels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.unit.sinks.test_otlp import ON_NODE, collector, plain
from tests.unit.sinks.test_places import deliver

from trueline.schema.finding import SEVERITIES, WATCH_DEGRADED
from trueline.schema.live import Numbers
from trueline.sinks.series import SERIES

__all__ = ["collector"]
FOLDER = Path(__file__).parents[3] / "docs" / "dashboards"
ALL_NUMBERS = (Numbers(0, dict.fromkeys(SERIES, 1.0)),)


def panels():
    return json.loads((FOLDER / "grafana.json").read_text())["panels"]


def rules():
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions():
    return [target["expr"] for panel in panels() for target in panel["targets"]] + [rule["expr"] for rule in rules()]


def names_in(expression):
    return set(re.findall(r"\btrueline_\w+", expression))


def labels_in(text):
    """Those of a selector, of ``by (…)``, of a legend and of a message."""
    listed = [name.strip() for names in re.findall(r"by \(([^)]*)\)", text) for name in names.split(",")]
    return {*listed, *re.findall(r"(\w+)=~?\"", text), *re.findall(r"\{\{(\w+)\}\}|\$labels\.(\w+)", text)}


def test_the_names_are_those_that_prometheus_reads_and_each_is_shown(tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    path = tmp_path / "trueline.prom"
    assert deliver(f"prometheus:{path}", ALL_NUMBERS, ON_NODE) == []
    samples = [one for family in text_string_to_metric_families(path.read_text()) for one in family.samples]
    served = {one.name: set(one.labels) for one in samples if not one.name.endswith("_created")}
    assert set().union(*map(names_in, expressions())) == set(served)
    for expression in expressions():
        labels = set().union(*(served[name] for name in names_in(expression)))
        assert labels_in(expression) <= labels, expression


def test_the_names_are_those_of_otlp_as_prometheus_takes_them(collector):
    assert deliver(f"otlp:{collector.url}", ALL_NUMBERS, ON_NODE) == []
    taken = {}
    for path, request in collector.took:
        if path == "/v1/metrics":
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                name = metric.name.replace(".", "_") + ("_total" if metric.sum.is_monotonic else "")
                (point,) = metric.gauge.data_points or metric.sum.data_points
                taken[name] = set(plain(point.attributes))
                assert not metric.unit, "a unit would become a part of the name"
    assert set().union(*map(names_in, expressions())) == set(taken)
    assert taken["trueline_findings_total"] == {"run", "code", "severity", "rank", "node", "device"}


def test_severities_and_codes_of_the_files_are_ours():
    text = " ".join(expressions())
    assert set(re.findall(r'severity="(\w+)"', text)) <= set(SEVERITIES)
    assert set(re.findall(r'code="([\w-]+)"', text)) == {WATCH_DEGRADED}


def test_messages_name_labels_that_their_rule_leaves():
    for rule in rules():
        left = set(re.findall(r"by \(([^)]*)\)", rule["expr"])) or {"run"}
        left = {name.strip() for names in left for name in names.split(",")}
        said = {name for text in rule["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
        assert said <= left, rule["alert"]


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_the_page_links_the_files(name):
    assert f"(dashboards/{name})" in (FOLDER.parent / "sinks.md").read_text()
