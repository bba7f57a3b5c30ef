"""Summarise what a model reads, and what its loss compares with, by tensor, to see whether it varies at all.

Letters: F numbers of a tensor (``NUM_FIELDS``), M passes, K tensors.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from trueline.capture.model.layout import local
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.arguments import named_tensors
from trueline.capture.probes.at_backward import BackwardProbe
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import descent
from trueline.capture.probes.losses.loss_inputs import targets_of
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.passes import Pass
from trueline.schema.columns.input_values import NOISE, NUM_FIELDS, ROWS_ALIKE, InputFact, facts_text, float_of
from trueline.tensor.digest import digest_tensor

MAX_TENSORS = 16
"""Tensors of a forward pass that are looked at, and targets of a backward pass."""
MAX_PASSES = 8
"""Micro-batches of a step that are looked at."""
NOISE_FROM, NOISE_OF = 256, 16_384
"""Elements that are needed to call something noise, and the first ones, which are looked at."""
ROW_BEGIN = 4096
"""First elements of each row by which rows are compared."""
NOISE_SIGMAS = 6.0
"""Largest distance that mean, variance, kurtosis and correlation of neighbours of noise may have from 0, 1, 3 and 0,
in their standard deviations of independent normal numbers, sqrt(1/n), sqrt(2/n), sqrt(24/n) and sqrt(1/n) (Stuart and
Ord, Kendall's Advanced Theory of Statistics 1, chapters 10 and 12)."""

_NAMES = ("read_values", "target_values")

Row = tuple[Pass, tuple[InputFact, ...], Tensor]
"""Of a pass; int64 [K * F]."""


class InputProbe(BackwardProbe):
    """At the first sampled steps, then now and then, the columns ``input_facts`` and ``input_values``, of the passes
    that count, and ``output_spread`` of the first. What autograd made is left out of inputs. All is computed on the
    device and copied with the step's row.
    """

    name = "inputs"
    moments = ("output", "gradients")
    between = None

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``input_facts`` and, int64 [M, K * F], ``read_values`` and ``target_values``, and float64 [1]
        ``output_spread``; absent where there are none.
        """
        if moment == "output":
            counts = not (in_backward() or self._passes.is_over)
            if counts and step.module is not None and len(self._read_rows) < MAX_PASSES:
                read = list(_read_by(step.module, step.args, step.kwargs))
                if not self._read_rows:
                    self._spread = _spread_of(step.output, read)
                self._read_rows += _row(self._passes.now(), read)
            return {}
        read_rows, target_rows = _rows_alike(self._read_rows), _rows_alike(self._target_rows)
        spread = self._spread
        self._forget(due=False)
        columns: dict[str, Any] = step.counted.take("read_values", _values_of(read_rows))
        columns |= step.counted.take("target_values", _values_of(target_rows), backward=True)
        rows = [rows[0] for name, rows in zip(_NAMES, (read_rows, target_rows), strict=True) if name in columns]
        facts = [fact for _, facts, _ in rows for fact in facts]
        columns |= {} if spread is None or "read_values" not in columns else {"output_spread": spread}
        return columns | ({"input_facts": facts_text(facts)} if facts else {})

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``input_values``, the passes of the step together."""
        values = [_merge_passes(host[name]) for name in _NAMES if len(host.get(name, ()))]
        columns: dict[str, Any] = {"input_values": list(itertools.chain(*values))} if values else {}
        return columns | ({"output_spread": float(host["output_spread"])} if "output_spread" in host else {})

    def _forget(self, *, due: bool) -> None:
        super()._forget(due=due)
        self._read_rows: list[Row] = []
        self._target_rows: list[Row] = []
        self._spread: Tensor | None = None

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        forward_pass = self._passes.backward_pass
        if not self._due or forward_pass is None or len(self._target_rows) >= MAX_PASSES:
            return
        with self._guard(self.name), torch.no_grad():
            self._target_rows += _row(forward_pass, list(targets_of(descent.roots_of(tensors))))


def _read_by(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[InputFact, Tensor]]:
    """The tensors among the arguments that autograd has not made, with the names that the model gives them."""
    for name, x in named_tensors(module, args, kwargs):
        if not x.requires_grad:
            yield InputFact(name, False, str(x.dtype), tuple(x.shape)), x


def _spread_of(output: Any, read: list[tuple[InputFact, Tensor]]) -> Tensor | None:
    """Float64 [1]: by what share of its largest magnitude a number of an output differs most among samples; None where
    nothing is returned for each of the samples that the model reads.
    """
    num_samples = next((fact.shape[0] for fact, _ in read if fact.shape), 0)
    spreads: list[Tensor] = []
    for x in itertools.islice(differentiable(output), MAX_TENSORS):
        rows = local(x).detach()
        if num_samples < 2 or not rows.dim() or len(rows) != num_samples or not rows.is_floating_point():
            continue
        rows = rows.reshape(num_samples, -1)[:, :ROW_BEGIN].double()
        least, greatest = rows.aminmax(dim=0)
        share = (greatest - least) / torch.maximum(least.abs(), greatest.abs())
        # 0 in all samples is no difference; that of infinite numbers is not known
        share = torch.where((least == 0) & (greatest == 0), 0.0, share).nan_to_num(nan=torch.inf)
        spreads.append(share.amax() if share.numel() else share.new_zeros(()))
    spreads = [spread for spread in spreads if spread.device == spreads[0].device]
    return torch.stack(spreads).amax()[None] if spreads else None


def _row(forward_pass: Pass, tensors: list[tuple[InputFact, Tensor]]) -> list[Row]:
    tensors = [(fact, local(x).detach()) for fact, x in tensors]
    tensors = [(fact, x) for fact, x in tensors if x.layout == torch.strided and x.numel() and not x.is_complex()]
    tensors = tensors[:MAX_TENSORS]
    if not tensors:
        return []
    facts: list[InputFact] = []
    for fact, _ in tensors:
        num_earlier = sum(earlier.name.partition("[")[0] == fact.name for earlier in facts)
        facts.append(replace(fact, name=f"{fact.name}[{num_earlier}]") if num_earlier else fact)
    device = tensors[0][1].device
    return [(forward_pass, tuple(facts), torch.cat([_numbers(x).to(device) for _, x in tensors]))]


def _numbers(x: Tensor) -> Tensor:
    """int64 [F]: digest, 1 if all elements are one number, the bits of the smallest as float64, what kinds it is of,
    the bits of the largest.
    """
    flat = x.flatten()
    flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
    smallest, largest = flat.aminmax()
    kinds = _is_noise(flat).long() * NOISE
    if x.dim() and len(x) > 1:
        rows = x.reshape(len(x), -1)[:, :ROW_BEGIN]
        kinds += (rows == rows[:1]).all().long() * ROWS_ALIKE
    ends = [end.double().view(torch.int64) for end in (smallest, largest)]
    return torch.stack([digest_tensor(x), (smallest == largest).long(), ends[0], kinds, ends[1]])


def _is_noise(flat: Tensor) -> Tensor:
    n = min(flat.numel(), NOISE_OF)
    if not flat.is_floating_point() or n < NOISE_FROM:
        return torch.zeros((), dtype=torch.int64, device=flat.device)
    x = flat[:n].double()
    square = x.square()
    far = torch.stack([x.mean(), square.mean() - 1, square.square().mean() - 3, (x[1:] * x[:-1]).mean()]).abs()
    # the fourth moment about 0 of a standard normal number has variance 105 - 9
    return (far < NOISE_SIGMAS * far.new_tensor([1.0, 2.0, 96.0, 1.0]).div(n).sqrt()).all()


def _values_of(rows: list[Row]) -> list[tuple[Pass, Tensor]]:
    return [(forward_pass, x[None]) for forward_pass, _, x in rows]


def _rows_alike(rows: list[Row]) -> list[Row]:
    """Rows of the tensors that the first row is of; their sizes may differ."""
    names = [[(fact.name, len(fact.shape)) for fact in facts] for _, facts, _ in rows]
    return [row for row, row_names in zip(rows, names, strict=True) if row_names == names[0]]


def _merge_passes(values_MF: Tensor) -> list[int]:
    """The numbers of each tensor in all passes."""
    numbers: list[int] = []
    for passes in values_MF.view(len(values_MF), -1, NUM_FIELDS).transpose(0, 1).tolist():
        digest, single, smallest, _, _ = passes[0]
        # passes that read one content keep its digest, so that it can be compared with steps of one pass
        if any(fields[0] != digest for fields in passes):
            mixed = xxhash.xxh3_64_intdigest(repr([fields[0] for fields in passes]).encode())
            digest = mixed - (1 << 63)
        is_single = single and all(fields[1] and fields[2] == smallest for fields in passes)
        kinds = functools.reduce(operator.and_, (fields[3] for fields in passes))
        # NaN is smaller than nothing: min() would depend on where it stands
        least = min((fields[2] for fields in passes), key=lambda bits: (not math.isnan(float_of(bits)), float_of(bits)))
        greatest = max((fields[4] for fields in passes), key=lambda bits: (math.isnan(float_of(bits)), float_of(bits)))
        numbers += [digest, int(is_single), least, kinds, greatest]
    return numbers


def make_probe(parts: ProbeParts) -> InputProbe:
    """The probe of this law for one watched model."""
    return InputProbe(parts.guard, parts.contributions)
