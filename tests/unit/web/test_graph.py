"""A module opened as a graph: its calls and modules, what gives values to what, what is folded and what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic_runs import write_run
from tests.web.recorded_step import OPS, row, write_rows, write_step

from trueline.comparison.result import ComparedRow
from trueline.schema.errors import InputError
from trueline.store.reader import Run
from trueline.web.views.calls import Outline
from trueline.web.views.compared import judgements_of
from trueline.web.views.fault_path import FaultPath, _difference, _not_finite
from trueline.web.views.graph import HUB, MAX_NODES, Graph, StepGraph, graph_of


def opened(graph: StepGraph, module: str | None = None, **asked: Any) -> Graph:
    return graph_of(graph, **{"module": module, "micro": None, "statistic": "not_finite", **asked})


def names(graph: Graph) -> list[str]:
    return [node.name if node.repeats == 1 else f"{node.name} to {node.last_name}" for node in graph.nodes]


def edges(graph: Graph) -> list[tuple[int, int]]:
    return [(edge.source, edge.target) for edge in graph.edges]


def chain(graph: Graph) -> list[tuple[int, int]]:
    return [(place, place + 1) for place in range(len(graph.nodes) - 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graph")


@pytest.fixture(scope="module")
def blocks(folder: Path) -> StepGraph:
    path = write_step(write_run(folder / "blocks", num_steps=4), num_blocks=40, nan_in=17)
    return StepGraph(Outline(Run(str(path)), 3, 0))


def stepped(path: Path, rows: Sequence[dict[str, Any]]) -> StepGraph:
    return StepGraph(Outline(Run(str(write_rows(write_run(path, num_steps=4), rows))), 3, 0))


def test_equal_layers_are_folded_but_for_the_one_with_values_that_are_not_finite(blocks: StepGraph) -> None:
    graph = opened(blocks)

    assert (graph.module, graph.around) == ("Model", ("Model",))
    assert names(graph) == ["in0", "layers.0 to layers.16", "layers.17", "layers.18 to layers.39", "out0"]
    assert [node.repeats for node in graph.nodes] == [1, 17, 1, 22, 1]
    assert edges(graph) == chain(graph)
    assert {edge.shape for edge in graph.edges} == {"2x8"}
    assert graph.folded == 39


def test_a_layer_that_the_search_finds_stands_alone(blocks: StepGraph) -> None:
    graph = opened(blocks, search="layers.30.mlp")
    assert names(graph)[3:6] == ["layers.18 to layers.29", "layers.30", "layers.31 to layers.39"]
    assert [node.found for node in graph.nodes] == [0, 0, 0, 0, 2, 0, 0]


def test_a_module_shows_its_calls_from_what_it_takes_to_what_it_returns(blocks: StepGraph) -> None:
    graph = opened(blocks, "layers.17")

    assert names(graph) == ["in0", *(f"layers.17.{op}" for op in OPS), "out0"]
    assert edges(graph) == chain(graph)
    assert [node.not_finite for node in graph.nodes] == [0, 0, 0, 4, 4, 0, 0]
    assert graph.around == ("Model", "layers.17")
    assert names(opened(blocks, "")) == ["Model"]


def test_of_more_nodes_than_can_be_read_those_round_the_fault_are_shown_and_the_others_counted(folder: Path) -> None:
    path = write_step(write_run(folder / "many", num_steps=4), num_blocks=700, nan_in=200)
    many = StepGraph(Outline(Run(str(path)), 3, 0))
    graph = opened(many, unfolded=True)

    assert len(graph.nodes) == MAX_NODES
    assert "layers.200" in names(graph)
    assert graph.before + len(graph.nodes) + graph.after == 702
    assert edges(graph) == chain(graph)
    assert opened(many, unfolded=True, begin=0).before == 0
    assert opened(many, unfolded=True, begin=10**6).after == 0


def test_what_gives_to_many_becomes_a_mark_at_each_of_them(folder: Path) -> None:
    rows = [row("mask", "op", "", "out0", api="torch.ones")]
    for place in range(HUB + 1):
        rows.append(row(f"add_{place}", "op", "", "in0", api="torch.add", given_by=rows[:1]))
        rows.append(row(f"add_{place}", "op", "", "out0", api="torch.add"))
    graph = opened(stepped(folder / "hub", rows))
    assert graph.edges == ()
    assert {node.hubs for node in graph.nodes[1:]} == {(0,)}
    assert (graph.nodes[0].num_taking, graph.nodes[0].hubs) == (HUB + 1, ())

    fewer = opened(stepped(folder / "no hub", rows[:-2]))
    assert edges(fewer) == [(0, place) for place in range(1, HUB + 1)]


def faulty(path: Path, *, lost: bool = False) -> StepGraph:
    """A model that makes NaN, looks at it another way, and returns a loss of it."""
    rows = [row("Net", "module", "", "in0", api="my.Net")]
    rows += [row("Net.exp", "op", "Net", "in0", api="torch.exp", given_by=rows)]
    rows += [row("Net.exp", "op", "Net", "out0", api="torch.exp")]
    rows += [row("Net.log", "op", "Net", "in0", api="torch.log", given_by=rows)]
    rows += [row("Net.log", "op", "Net", "out0", api="torch.log", bad=True)]
    rows += [row("Net.view", "op", "Net", slot, api="torch.view", given_by=rows) for slot in ("in0", "out0")]
    rows += [row("Net", "module", "", "out0", api="my.Net", given_by=rows)]
    rows += [row("mean", "op", "", "in0", api="torch.mean", given_by=() if lost else rows, bad=lost)]
    rows += [row("mean", "op", "", "out.loss", api="torch.mean", bad=True, shape=())]
    return stepped(path, rows)


def walked(graph: StepGraph, path: FaultPath) -> list[str]:
    return [graph.outline.names[place] for place in path.places]


def test_the_path_of_nan_leads_through_views_to_the_loss(tmp_path: Path) -> None:
    graph = faulty(tmp_path / "run")
    path = _not_finite(graph.outline, graph.operands(0))

    assert [name for name in walked(graph, path) if name != "Net"] == ["Net.log", "Net.view", "mean"]
    assert path.said == f"From 3.0/r0/fwd/Net.log#0:out0 to the loss: {len(path.places)} calls."
    shown = opened(graph, "Net", fault_path=path)
    assert [node.on_path for node in shown.nodes] == [False, False, True, True, False]
    assert [edge.on_path for edge in shown.edges] == [False, False, True, False]


def test_the_path_of_a_difference_leads_to_the_last_single_number_or_is_said_to_be_missing(tmp_path: Path) -> None:
    graph = faulty(tmp_path / "run")
    path = _difference(graph.outline, graph.operands(0), "3.0/r0/fwd/Net.exp#0:out0")
    assert walked(graph, path) == ["Net.exp", "Net.log", "Net.view", "Net", "mean"]

    broken = faulty(tmp_path / "lost", lost=True)
    path = _difference(broken.outline, broken.operands(0), "3.0/r0/fwd/Net.exp#0:out0")
    assert walked(broken, path) == ["Net.exp"]
    assert path.said.endswith("no recorded values lead from it to mean.")


def test_a_call_has_the_gravest_judgement_of_its_values(blocks: StepGraph) -> None:
    def compared(site: str, judgement: Any, step: int = 3, rank: int | None = 0) -> ComparedRow:
        return ComparedRow(step, rank, 0, site, site, judgement, "op", "", "float32", "float32", (2, 8))

    rows = [
        compared("3.0/r0/fwd/layers.2.attn.softmax#0:in0", "propagated"),
        compared("3.0/r0/fwd/layers.2.attn.softmax#0:out0", "beyond"),
        compared("3.0/r0/fwd/layers.2.mlp.gelu#0:out0", "propagated", rank=None),
        compared("3.0/r0/fwd/layers.2.mlp.gelu#0:in0", "equal"),
        compared("3.0/r1/fwd/layers.9.mlp.gelu#0:in0", "beyond", rank=1),
        compared("4.0/r0/fwd/layers.9.mlp.gelu#0:in0", "beyond", step=4),
    ]
    found = judgements_of(rows, 3, 0, blocks.outline.place_of)
    judged = {blocks.outline.names[place]: text for place, text in enumerate(found) if text}
    assert judged == {"layers.2.attn.softmax": "beyond", "layers.2.mlp.gelu": "propagated"}


def test_what_was_not_recorded_is_refused_in_one_sentence(blocks: StepGraph) -> None:
    with pytest.raises(InputError, match="Module 'nowhere' was not recorded"):
        opened(blocks, "nowhere")
    with pytest.raises(InputError, match="Micro-batch 7 was not recorded"):
        opened(blocks, micro=7)
