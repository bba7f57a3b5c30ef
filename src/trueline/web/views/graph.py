"""The calls and modules directly in one module as a graph: nodes in the order of execution, edges from operands.

C calls, N nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trueline.schema.errors import InputError
from trueline.schema.text.words import numberless
from trueline.web.views.calls import AskedStatistic, Outline, Statistic
from trueline.web.views.compared import GRAVITY
from trueline.web.views.fault_path import FaultPath
from trueline.web.views.operands import FORWARD, Operands, Tree, operands_of

MAX_NODES = 300
"""What can be read at once, and laid out and drawn in a moment."""
HUB = 20
"""Calls that one node may give values to before its edges hide all others: it is then a mark at each of them."""
_FOLDED = 3
"""Equal neighbours that are folded into one node."""

Kind = Literal["module", "op", "input", "output"]


@dataclass(frozen=True, slots=True)
class Node:
    """A call, a module, what the opened module took or returned (``input``, ``output``), or ``repeats`` equal modules
    in one, ``name`` to ``last_name``. ``place`` is that of its first call in the outline, -1 where it has none. Numbers
    are those of the worst call in it; ``found`` counts the calls that the search finds, ``hubs`` are nodes that give it
    values and whose edges are not drawn.
    """

    kind: Kind
    name: str
    last_name: str
    api: str
    place: int
    repeats: int
    num_calls: int
    not_finite: int
    value: float | None
    judgement: str
    found: int
    on_path: bool
    hubs: tuple[int, ...]
    num_taking: int


@dataclass(frozen=True, slots=True)
class Edge:
    """Values that node ``source`` gives to node ``target``: how many, and the shape of the first, with ``, …`` where
    it is not the only one.
    """

    source: int
    target: int
    values: int
    shape: str
    on_path: bool


Pairs = defaultdict[tuple[int, int], list[int]]
"""By source and target the rows of the values that the one gives to the other."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One module opened, the outermost one being "". ``around`` are the modules that it lies in, and itself.
    ``before`` and ``after`` count nodes that are left out; ``scale`` is the lowest and highest value of the statistic
    over the whole step.
    """

    step: int
    rank: int
    micro: int
    micros: tuple[int, ...]
    module: str
    around: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    before: int
    after: int
    folded: int
    statistic: Statistic
    scale: tuple[float, float] | None
    fault_path: FaultPath | None


class StepGraph:
    """The forward pass of one recorded step on one rank."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        forward_C = np.fromiter((phase == FORWARD for phase in outline.phases), bool, len(outline))
        if not forward_C.any():
            raise InputError(f"Nothing of the forward pass was recorded at step {outline.step} of rank {outline.rank}.")
        self.micros = tuple(sorted(set(outline.micros[forward_C].tolist())))
        self._forward_C = forward_C
        self.tree = Tree(outline.names, outline.kinds, outline.modules)
        self._operands: dict[int, Operands] = {}

    def in_micro_batch(self, micro: int) -> np.ndarray:
        """[C] which calls are of the forward pass of a micro-batch."""
        return self._forward_C & (self.outline.micros == micro)

    def operands(self, micro: int) -> Operands:
        """The edges of the forward pass of a micro-batch."""
        if micro not in self._operands:
            self._operands[micro] = operands_of(self.outline.rows, self.in_micro_batch(micro))
        return self._operands[micro]

    def first_module(self) -> str:
        """What is opened where nothing was asked for: the module around most calls, where it is the only one."""
        outermost = {
            name
            for index in np.flatnonzero(self._forward_C).tolist()
            if self.outline.kinds[index] == "module" and self.tree.outer(name := self.outline.names[index]) == ""
        }
        return outermost.pop() if len(outermost) == 1 else ""


def graph_of(
    graph: StepGraph,
    *,
    module: str | None,
    micro: int | None,
    statistic: AskedStatistic,
    search: str = "",
    unfolded: bool = False,
    begin: int | None = None,
    fault_path: FaultPath | None = None,
) -> Graph:
    """A module opened. Raises ``InputError`` where there is no such module or micro-batch."""
    opened = graph.first_module() if module is None else module
    if opened and opened not in graph.tree:
        raise InputError(
            f"Module '{opened}' was not recorded at step {graph.outline.step} of rank {graph.outline.rank}."
        )
    micro_chosen = graph.micros[0] if micro is None else micro
    if micro_chosen not in graph.micros:
        raise InputError(f"Micro-batch {micro_chosen} was not recorded. There are {', '.join(map(str, graph.micros))}.")
    resolved = graph.outline.resolved(statistic)
    opened_module = _Opened(
        graph, opened, micro_chosen, resolved, search, frozenset(fault_path.places if fault_path else ())
    )
    nodes, of_unit = opened_module.nodes(unfolded)
    pairs, on_path = opened_module.pairs(of_unit)
    low, high = _window(nodes, begin)
    nodes, edges = _without_hubs(graph.outline, nodes, pairs, on_path, low, high)
    values_C = graph.outline.statistic(resolved)
    finite = values_C[np.isfinite(values_C)]
    return Graph(
        step=graph.outline.step,
        rank=graph.outline.rank,
        micro=micro_chosen,
        micros=graph.micros,
        module=opened,
        around=tuple(graph.tree.path(opened)),
        nodes=tuple(nodes[low:high]),
        edges=tuple(edges),
        before=low,
        after=len(nodes) - high,
        folded=sum(node.repeats for node in nodes if node.repeats > 1),
        statistic=resolved,
        scale=(float(finite.min()), float(finite.max())) if finite.size else None,
        fault_path=fault_path,
    )


class _Opened:
    """What lies directly in a module: units, each the calls of a module or a single call."""

    def __init__(
        self,
        graph: StepGraph,
        opened: str,
        micro: int,
        statistic: Statistic,
        search: str,
        on_path: frozenset[int],
    ) -> None:
        self._outline = outline = graph.outline
        self._operands = graph.operands(micro)
        self._judgements, self._path, self._statistic = outline.judgements, on_path, statistic
        self._found_C = np.zeros(len(outline), dtype=bool)
        self._found_C[outline.search(search, FORWARD) if search else []] = True
        self._is_opened_C = np.zeros(len(outline), dtype=bool)
        self._unit_C = np.full(len(outline), -1, dtype=np.int64)
        self.units: list[tuple[Kind, str, list[int]]] = []
        unit_by_child: dict[object, int] = {}
        for index in np.flatnonzero(graph.in_micro_batch(micro)).tolist():
            name, kind = outline.names[index] or "", outline.kinds[index]
            if kind == "module" and name == opened:
                self._is_opened_C[index] = True
                continue
            child = graph.tree.child(opened, name if kind == "module" else outline.modules[index] or "")
            if child is None and (outline.modules[index] or "") != opened:
                continue
            unit = unit_by_child.setdefault(index if child is None else child, len(self.units))
            if unit == len(self.units):
                self.units.append(("op" if child is None else "module", child or name, []))
            self.units[unit][2].append(index)
            self._unit_C[index] = unit
        self._add_ends()

    def _add_ends(self) -> None:
        """Units for what the opened module took and returned."""
        rows = self._outline.rows
        self._ends: dict[tuple[Kind, int], int] = {}
        for row in np.flatnonzero(self._is_opened_C[rows.of_R]).tolist():
            kind: Kind = "output" if rows.returned_R[row] else "input"
            key = kind, int(rows.root_R[row])
            if key not in self._ends:
                self._ends[key] = len(self.units)
                self.units.append((kind, rows.slots[row], []))

    def nodes(self, unfolded: bool) -> tuple[list[Node], np.ndarray]:
        """Nodes in the order of execution, and of each unit its node."""
        order = sorted(range(len(self.units)), key=self._order)
        singles = [self._node(unit) for unit in order]
        nodes: list[Node] = []
        of_unit = np.full(len(self.units), -1, dtype=np.int64)
        for begin, end in [(at, at + 1) for at in range(len(order))] if unfolded else self._alike(order, singles):
            of_unit[order[begin:end]] = len(nodes)
            nodes.append(singles[begin] if end - begin == 1 else _folded_node(singles[begin:end]))
        return nodes, of_unit

    def pairs(self, of_unit: np.ndarray) -> tuple[Pairs, set[tuple[int, int]]]:
        """Which values each node gives to each other one, and between which of them the path of the fault leads."""
        values = Pairs(list)
        on_path: set[tuple[int, int]] = set()
        operands = self._operands
        last: dict[int, int] = {}
        for source, target, root in zip(
            operands.source_E.tolist(), operands.target_E.tolist(), operands.root_E.tolist(), strict=True
        ):
            to = int(self._unit_C[target])
            if to < 0:
                continue
            unit = self._unit_C[source] if source >= 0 else -1
            # made outside of the opened module: it came in by one of its inputs
            unit = self._ends.get(("input", root), -1) if unit < 0 else unit
            if unit >= 0 and of_unit[unit] != of_unit[to]:
                pair = int(of_unit[unit]), int(of_unit[to])
                values[pair].append(root)
                if source in self._path and target in self._path:
                    on_path.add(pair)
        rows = self._outline.rows
        for row in np.flatnonzero(self._unit_C[rows.of_R] >= 0).tolist():
            if rows.returned_R[row]:
                # an operation in place writes the memory once more: the last one made what is returned
                last[int(rows.root_R[row])] = int(self._unit_C[rows.of_R[row]])
        for (kind, root), unit in self._ends.items():
            if kind == "output" and root in last:
                values[int(of_unit[last[root]]), int(of_unit[unit])].append(root)
        return values, on_path

    def _order(self, unit: int) -> tuple[int, int]:
        kind, _, indices = self.units[unit]
        return ({"input": 0, "output": 2}.get(kind, 1), indices[0] if indices else unit)

    def _node(self, unit: int) -> Node:
        kind, name, indices = self.units[unit]
        first_call = next(
            (index for index in indices if self._outline.names[index] == name), indices[0] if indices else -1
        )
        values = self._outline.statistic(self._statistic)[indices]
        finite = values[np.isfinite(values)]
        judged = {self._judgements[index] for index in indices} - {""} if len(self._judgements) else set[str]()
        return Node(
            kind=kind,
            name=name,
            last_name=name,
            api=(self._outline.apis[first_call] or "") if first_call >= 0 else "",
            place=first_call,
            repeats=1,
            num_calls=len(indices),
            not_finite=int(self._outline.statistic("not_finite")[indices].max(initial=0)),
            value=float(finite.max()) if finite.size else None,
            judgement=max(judged, key=GRAVITY.index, default=""),
            found=int(self._found_C[indices].sum()),
            on_path=not self._path.isdisjoint(indices),
            hubs=(),
            num_taking=0,
        )

    def _alike(self, order: list[int], nodes: list[Node]) -> list[tuple[int, int]]:
        """Neighbours that are one node, as half-open ranges: modules with equal calls in them, but for the worst of
        them, and those that the search or the path of the fault are in.
        """
        looks = [self._look(unit) for unit in order]
        ranges: list[tuple[int, int]] = []
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and looks[end] is not None and looks[end] == looks[begin]:
                end += 1
            ranges += _split_around(begin, end, _opened(nodes[begin:end], begin))
            begin = end
        return ranges

    def _look(self, unit: int) -> object:
        """What modules have in common that are folded; None of what is never folded."""
        kind, name, indices = self.units[unit]
        if kind != "module":
            return None
        inside = (((self._outline.names[index] or "")[len(name) :], self._outline.apis[index]) for index in indices)
        return numberless(name), hash(tuple(inside))


def _opened(nodes: Sequence[Node], begin: int) -> list[int]:
    """Which of equal nodes stand alone: the worst one, and those that were asked for."""
    if len(nodes) < _FOLDED:
        return []
    wanted_nodes = [begin + at for at, node in enumerate(nodes) if node.found or node.on_path]
    bad = [at for at, node in enumerate(nodes) if node.not_finite]
    judged = max(range(len(nodes)), key=lambda at: _gravity(nodes[at]))
    values = [(-np.inf if node.value is None else node.value) for node in nodes]
    if bad:
        worst = bad[:1]
    elif _gravity(nodes[judged]) >= GRAVITY.index("propagated"):
        worst = [judged]
    else:
        worst = [int(np.argmax(values))] if max(values) > min(values) else []
    # where all are asked for, none stands out
    return sorted({*(wanted_nodes if len(wanted_nodes) < len(nodes) else []), *(begin + at for at in worst)})


def _gravity(node: Node) -> int:
    return GRAVITY.index(node.judgement) if node.judgement else -1


def _split_around(begin: int, end: int, alone: Sequence[int]) -> list[tuple[int, int]]:
    """``begin`` to ``end`` in pieces round what stands alone; a piece of fewer than ``_FOLDED`` stays single nodes."""
    ranges: list[tuple[int, int]] = []
    for stop in [*alone, end]:
        if stop - begin >= _FOLDED:  # fewer are read sooner one by one than as a folded node
            ranges.append((begin, stop))
        else:
            ranges += [(at, at + 1) for at in range(begin, stop)]
        if stop < end:
            ranges.append((stop, stop + 1))
        begin = stop + 1
    return ranges


def _folded_node(nodes: Sequence[Node]) -> Node:
    values = [node.value for node in nodes if node.value is not None]
    return replace(
        nodes[0],
        last_name=nodes[-1].name,
        repeats=len(nodes),
        num_calls=sum(node.num_calls for node in nodes),
        not_finite=max(node.not_finite for node in nodes),
        value=max(values, default=None),
        judgement=max(nodes, key=_gravity).judgement,
        found=sum(node.found for node in nodes),
        on_path=any(node.on_path for node in nodes),
    )


def _window(nodes: Sequence[Node], begin: int | None) -> tuple[int, int]:
    """The nodes that are shown: from ``begin`` on, or round the first that matters."""
    if len(nodes) <= MAX_NODES:
        return 0, len(nodes)
    if begin is None:
        matters: list[Callable[[Node], object]] = [
            lambda node: node.found,
            lambda node: node.on_path,
            lambda node: node.not_finite,
        ]
        at = next((at for test in matters for at, node in enumerate(nodes) if test(node)), 0)
        begin = at - MAX_NODES // 3
    begin = max(0, min(begin, len(nodes) - MAX_NODES))
    return begin, begin + MAX_NODES


def _without_hubs(
    outline: Outline, nodes: list[Node], pairs: Pairs, on_path: set[tuple[int, int]], low: int, high: int
) -> tuple[list[Node], list[Edge]]:
    """Nodes with marks for hubs, and the edges that are drawn: of nodes ``low`` to ``high``, by place among those."""
    taking = Counter(source for source, _ in pairs)
    hubs = {source for source, count in taking.items() if count > HUB}
    marks: dict[int, list[int]] = {}
    edges: list[Edge] = []
    for (source, target), values in sorted(pairs.items()):
        if not (low <= source < high and low <= target < high):
            continue
        if source in hubs:
            marks.setdefault(target, []).append(source - low)
        else:
            # a value that a module and a call in it take is one
            shape = outline.shape(values[0]) + (", …" if len(set(values)) > 1 else "")
            edges.append(Edge(source - low, target - low, len(values), shape, (source, target) in on_path))
    nodes_marked = [
        replace(node, hubs=tuple(marks.get(at, ())), num_taking=taking[at] if at in hubs else 0)
        for at, node in enumerate(nodes)
    ]
    return nodes_marked, edges
