"""A recorded step as a graph that Model Explorer opens (https://github.com/google-ai-edge/model-explorer): its calls,
the tensors between them, and the statistics of each.

The form: https://github.com/google-ai-edge/model-explorer/wiki/6.-Develop-Adapter-Extension, "Graph JSON".
"""

from __future__ import annotations

import shlex
from typing import Any

from trueline.render.comparison.compare_rows import shape_text
from trueline.render.wording import number
from trueline.schema.errors import InputError
from trueline.store.reader import Run

_COLUMNS = (
    *("row", "micro", "phase", "name", "call", "slot", "kind", "api", "module", "same_as", "dtype", "shape", "numel"),
    *("nan", "pos_inf", "neg_inf", "min", "max", "sum_sq"),
)


def graph_of(run: Run, step: int, rank: int) -> dict[str, Any]:
    """The document for one step on one rank. An edge leads from the call that gave a tensor to each that takes it.

    Raises ``InputError`` where the step was not recorded.
    """
    rows = run.records(steps=[step], ranks=[rank], columns=list(_COLUMNS)).to_pylist()
    if not rows:
        listed = f"`trueline info {shlex.quote(run.path)}` lists what was"
        raise InputError(f"Step {step} of rank {rank} was not recorded. {listed}.")
    nodes: dict[tuple[Any, ...], dict[str, Any]] = {}
    source_of_row: dict[int, tuple[str, str]] = {}
    """Of a row with numbers the call that gave it, and as which output."""
    for row in rows:
        if row["kind"] == "module":
            continue  # a module is a namespace here, and holds its calls
        node = nodes.setdefault(_call(row), _node(row, len(nodes)))
        root = row["row"] if row["same_as"] is None else row["same_as"]
        if str(row["slot"]).startswith("out"):
            source_of_row.setdefault(root, (node["id"], str(len(node["outputsMetadata"]))))
            node["outputsMetadata"].append({"id": str(len(node["outputsMetadata"])), "attrs": _attributes(row)})
            continue
        source = source_of_row.get(root)
        slot = str(len(node["inputsMetadata"]))
        node["inputsMetadata"].append({"id": slot, "attrs": _attributes(row)})
        if source is not None and source[0] != node["id"]:
            node["incomingEdges"].append(
                {"sourceNodeId": source[0], "sourceNodeOutputId": source[1], "targetNodeInputId": slot}
            )
    name = f"step {step}, rank {rank}"
    return {"label": name, "graphs": [{"id": name, "nodes": list(nodes.values())}]}


def _call(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["micro"] or 0, row["phase"], row["name"], row["call"]


def _node(row: dict[str, Any], number_of: int) -> dict[str, Any]:
    modules = [part for part in (row["module"] or "").split(".") if part]
    return {
        "id": str(number_of),
        "label": (row["api"] or row["name"] or "").rpartition(".")[2],
        "namespace": "/".join([row["phase"] or "", *modules]),
        "incomingEdges": [],
        "inputsMetadata": [],
        "outputsMetadata": [],
        "attrs": [{"key": "site", "value": f"{row['phase']}/{row['name']}#{row['call']}"}],
    }


def _attributes(row: dict[str, Any]) -> list[dict[str, str]]:
    bad = sum(row[name] or 0 for name in ("nan", "pos_inf", "neg_inf"))
    finite = (row["numel"] or 0) - bad
    rms = (row["sum_sq"] / finite) ** 0.5 if row["sum_sq"] is not None and finite > 0 else None
    texts = {
        "slot": row["slot"],
        "tensor_shape": f"{row['dtype']} {shape_text(row['shape'] or ())}",
        "min": number(row["min"]),
        "max": number(row["max"]),
        "rms": number(rms),
        "not finite": str(bad),
    }
    return [{"key": key, "value": str(value)} for key, value in texts.items()]
