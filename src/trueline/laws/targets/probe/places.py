"""Find where in its inputs the target of each token stands: one place on for a language model, counted at other places
too; by which operations the loss is computed, and what these are given.

Letters: B samples, T positions of the input, L of the target.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.contents import elements, stored
from trueline.capture.model.layout import local, unwrap
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.arguments import named_tensors
from trueline.capture.probes.at_backward import BackwardProbe
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import MASKS, POSITIONS, TARGETS, attention_mask, token_ids
from trueline.capture.probes.losses import cross_entropy, descent, edge_tokens, end_tokens, first_targets, loss_inputs
from trueline.capture.probes.losses.attached_targets import mark
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.passes import Pass
from trueline.schema.columns.end_tokens import NO_TOKEN
from trueline.schema.columns.loss_inputs import LossInputs
from trueline.schema.columns.target_places import PLACES

MAX_PASSES = 8
"""Passes of a step of which it is told how their rows end."""


class TargetPlaceProbe(BackwardProbe):
    """Compares what the model was called on with the targets of the only cross-entropy of each backward pass, and
    digests and looks at the operations below the loss: all read the same graph, at the same steps. The counts are made
    on the device, and copied with the step's row.
    """

    name = "places of targets"
    moments = ("batch", "output", "gradients")
    between = None

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``target_places``, int64 [M, 2 x places], of the passes whose targets could be compared, ``end_tokens``,
        ``first_targets`` and ``edge_tokens``, int64 [M, numbers], of those over token ids, and ``loss_operations``,
        int64 [M], and ``loss_inputs``, int64 [M, numbers], of all.
        """
        if moment == "batch":
            ids, mask = token_ids(*step.args, **step.kwargs), attention_mask(*step.args, **step.kwargs)
            self._ids = self._ids if ids is None else local(ids)
            self._mask = mask if mask is None else local(mask)
            return {}
        if moment == "output":
            self._calls += 1
            self._eos = NO_TOKEN if step.module is None else _end_of_text(step.module)
            mark(step.output, self._calls)
            self._decoder_ids = self._decoder_ids if step.module is None else _last_ids(step.module, step)
            self._look_at_edges(step)
            return {}
        rows, operations, inputs = self._rows, self._operations, self._inputs
        ends, firsts = list(self._ends.values()), list(self._firsts.values())
        of_edges = step.counted.take("edge_tokens", self._edges)
        self._forget(due=False)
        of_targets = step.counted.take("target_places", rows, backward=True)
        of_loss = step.counted.take("loss_inputs", inputs, backward=True)
        of_ends = step.counted.take("end_tokens", ends, backward=True)
        of_ends |= step.counted.take("first_targets", firsts, backward=True)
        return {
            **of_edges,
            **of_targets,
            **of_ends,
            **of_loss,
            **step.counted.take("loss_operations", operations, backward=True),
        }

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``target_places`` and ``loss_inputs``, the sums over the passes of the step, and ``loss_operations`` of the
        first one; ``end_tokens``, ``first_targets`` and ``edge_tokens`` of each.
        """
        columns: dict[str, Any] = {}
        if len(counts := host.get("target_places", ())):
            columns["target_places"] = counts.sum(0).tolist()
        for name in ("edge_tokens", "end_tokens", "first_targets"):
            if len(numbers := host.get(name, ())):
                columns[name] = numbers.flatten().tolist()
        if len(digests := host.get("loss_operations", ())):
            columns["loss_operations"] = int(digests[0])
        if len(inputs := host.get("loss_inputs", ())):
            rows = (LossInputs.of(row) for row in inputs.tolist())
            columns["loss_inputs"] = functools.reduce(operator.add, rows).to_row()
        return columns

    def _forget(self, *, due: bool) -> None:
        super()._forget(due=due)
        self._calls = 0
        self._ids: Tensor | None = None
        self._decoder_ids: Tensor | None = None
        self._mask: Tensor | None = None
        self._eos = NO_TOKEN
        self._ends: dict[int, tuple[Pass, Tensor]] = {}
        self._firsts: dict[int, tuple[Pass, Tensor]] = {}
        self._edges: list[tuple[Pass, Tensor]] = []
        self._inputs: list[tuple[Pass, Tensor]] = []
        self._rows: list[tuple[Pass, Tensor]] = []
        self._operations: list[tuple[Pass, Tensor]] = []

    def _look_at_edges(self, step: Step) -> None:
        counts = step.module is not None and not (in_backward() or self._passes.is_over)
        # of the call itself: a script that names its batch may change it before that
        ids = token_ids(*step.args, **step.kwargs) if counts and len(self._edges) < MAX_PASSES else None
        if ids is not None and ids.shape[1] >= edge_tokens.FEWEST:
            ids = local(ids)
            mask = self._mask if ids is self._ids else attention_mask(*step.args, **step.kwargs)
            row = edge_tokens.row_of(ids, None if mask is None else local(mask))
            self._edges.append((self._passes.now(), row[None]))

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        backward_pass, ids = self._passes.backward_pass, self._ids
        if not self._due or backward_pass is None:
            return
        with self._guard(self.name), torch.no_grad():
            roots = descent.roots_of(tensors)
            if roots:
                digest, device = descent.operations_below(roots), local(roots[0]).device
                self._operations.append((backward_pass, torch.full((1,), digest, device=device)))
                self._inputs.append((backward_pass, loss_inputs.row_of(roots, ids, self._mask, device)[None]))
            nodes = [] if ids is None else cross_entropy.nodes_of(roots)
            if ids is not None and len(nodes) == 1:
                self._compare(backward_pass, ids, nodes[0])

    def _compare(self, backward_pass: Pass, ids: Tensor, node: Any) -> None:
        """Compare tokens with the targets of the cross-entropy ``node``."""
        target, ignored, position = cross_entropy.targets_of(node)
        counts = _counts(ids, target, ignored, position)
        if self._decoder_ids is not None:
            counts = _more_equal(counts, _counts(self._decoder_ids, target, ignored, position))
        self._rows += [] if counts is None else [(backward_pass, counts[None])]
        if len(self._ends) >= MAX_PASSES or target.device != ids.device or not ids.numel():
            return
        number, mask, eos, labelled = len(self._ends), self._mask, self._eos, target != ignored
        ends, firsts = self._ends, self._firsts

        def look(counts: Tensor) -> None:
            with self._guard(self.name), torch.no_grad():
                row = end_tokens.row_of(ids, mask, target, counts, position, eos)
                ends[number] = (backward_pass, row[None])
                first = first_targets.row_of(ids, mask, target, counts, position)
                if first is not None:
                    firsts[number] = (backward_pass, first[None])

        look(labelled)
        # a mask that losses are multiplied by leaves targets out which the labels do not
        cross_entropy.at_weights(node, lambda weighed: look(_counting(labelled, weighed, len(ids))))


def _last_ids(module: nn.Module, step: Step) -> Tensor | None:
    """The last whole numbers [B, T] that the model was called on, which are those of a decoder beside an encoder."""
    # torch, transformers and most scripts take what a decoder reads behind what its encoder reads
    left_out = (*MASKS, *TARGETS, *POSITIONS)
    named = named_tensors(module, step.args, step.kwargs)
    ids = [x for name, x in named if x.dim() == 2 and x.dtype == torch.int64 and name not in left_out]
    return local(ids[-1]) if ids else None


def _more_equal(counts: Tensor | None, decoder_counts: Tensor | None) -> Tensor | None:
    """Those of the encoder's tokens or of the decoder's, whichever equal more targets at one place."""
    if counts is None or decoder_counts is None:
        return counts if decoder_counts is None else decoder_counts
    # chosen on the device: nothing waits
    num_equal, num_of_decoder = (both[len(PLACES) :].max() for both in (counts, decoder_counts))
    return torch.where(num_of_decoder > num_equal, decoder_counts, counts)


def _counts(ids_BT: Tensor, target: Tensor, ignored: int, first_position: int | None) -> Tensor | None:
    """int64 [2 x places]: of each place how many targets have an input token there, then how many of these equal it.
    None where targets are not of these samples (their number is no multiple, or they are on another device), or nobody
    knows the position of the first one.
    """
    num_samples, length = ids_BT.shape
    if first_position is None or not num_samples or target.numel() % num_samples or target.device != ids_BT.device:
        return None
    target_BL = target.view(num_samples, -1)
    if not length // 2 < target_BL.shape[1] <= length:
        return None
    counts_BL = target_BL != ignored
    compared: list[Tensor] = []
    equal: list[Tensor] = []
    for distance in PLACES:
        ahead = distance + first_position
        first, end = max(0, -ahead), min(target_BL.shape[1], length - ahead)
        counts = counts_BL[:, first:end]
        is_equal = target_BL[:, first:end] == ids_BT[:, first + ahead : end + ahead]
        compared.append(counts.sum())
        equal.append((is_equal & counts).sum())
    return torch.stack([*compared, *equal])


def _counting(labelled: Tensor, weighed: Tensor, num_rows: int) -> Tensor:
    """Targets that count: those with a weight, but for rows of which none has one, as where an advantage is 0."""
    if not num_rows or labelled.numel() % num_rows:
        return labelled & weighed
    weighed_BL = weighed.view(num_rows, -1)
    return labelled & (weighed_BL | ~weighed_BL.any(1, keepdim=True)).flatten()


def _end_of_text(module: nn.Module) -> int:
    """The id that the configuration of a model calls the end of a text, of several the first."""
    eos = stored(stored(unwrap(module), "config"), "eos_token_id")
    eos = next(elements(eos), None) if issubclass(type(eos), (list, tuple)) else eos
    return eos if type(eos) is int else NO_TOKEN


def make_probe(parts: ProbeParts) -> TargetPlaceProbe:
    """The probe of this law for one watched model."""
    return TargetPlaceProbe(parts.guard, parts.contributions)
