"""Digest the samples that a worker consumes, in order, and count the tokens that the loss averages over.

Letters: B samples, T positions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueline.capture.model.contents import Walk, elements, is_tensor
from trueline.capture.model.layout import local
from trueline.capture.probes.base import Moment, Step
from trueline.capture.step.own_columns import digest_columns
from trueline.capture.step.passes import Contributions, Pass
from trueline.schema.columns.batch_features import FEATURES, TARGETS
from trueline.tensor.digest import combine, digest_of_zeros, digest_rows, unsigned

MASKS = ("attention_mask", "mask", "padding_mask")
POSITIONS = ("position_ids", "token_type_ids", "cache_position", "inputs_embeds_mask")
LOOKED_AT = 16384
"""Elements of a tensor that features are of, at equal distances: their shares are known to a hundredth."""
HASHES = (0x9E3779B1, 0x85EBCA77)
"""Odd 32-bit factors (those of xxHash): the top bit of a product puts a whole number into one half or the other."""
MAX_SHAPES = 8
"""Shapes of a sample of which it is worked out what all zeros have for a digest, once each."""
LEAST_ELEMENTS = 8
"""Elements of a sample from which on all of them are zero by more than chance."""
IGNORE_INDEX = -100
"""The label that torch's cross entropy and Hugging Face leave out of the loss by default."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """int64 [B] digests on the batch's device; ``tokens`` float64 [1]. ``samples`` is None where the model is called on
    what autograd has computed, which is no data, ``targets`` where no labels were seen. ``single_input`` is the tensor
    that digests of samples are of, where that is one and no mask leaves any of it out.
    """

    samples: Tensor | None
    targets: Tensor | None
    tokens: Tensor | None
    token_source: str
    single_input: Tensor | None = None


_ROWS = ("sample_digests", "target_digests", "tokens")


class BatchProbe:
    """Digests the samples of a step's micro-batches. The fact ``token_source`` is how their tokens were counted,
    ``zero_samples`` are the digests of samples of nothing but zeros.
    """

    name = "batch"
    moments = ("batch", "update", "gradients")
    between = ("batch", "gradients")

    def __init__(self, passes: Contributions) -> None:
        self._passes = passes
        self._batches: list[tuple[Pass, Batch]] = []
        self._features: list[tuple[Pass, Tensor]] = []
        self._zeros: dict[tuple[Any, ...], int] = {}

    def begin(self, step: Step) -> bool:
        self._batches, self._features = [], []
        return step.watched

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``sample_digests`` and ``target_digests``, int64 [B], ``tokens`` of each micro-batch, float64, and of sampled
        steps ``batch_features``, float64 [M, features]; absent where there are none.
        """
        if moment == "gradients":
            rows: dict[str, list[tuple[Pass, Tensor]]] = {}
            for forward_pass, batch in self._batches:
                for name, values in zip(_ROWS, (batch.samples, batch.targets, batch.tokens), strict=True):
                    if values is not None:
                        rows.setdefault(name, []).append((forward_pass, values))
            if self._features:
                rows["batch_features"] = self._features
            columns: dict[str, Tensor] = {}
            for name in rows:
                columns |= step.counted.take(name, rows[name])
            return columns
        if moment == "update" and self._batches:
            step.facts["token_source"] = self._batches[0][1].token_source or step.facts.get("token_source", "")
        elif moment == "batch" and not self._passes.is_over:
            batch = read_batch(*step.args, **step.kwargs)
            if batch is not None:
                self._add(batch, step)
            if step.sampled and (features := read_features(*step.args, **step.kwargs)) is not None:
                self._features.append((self._passes.now(), features[None]))
        return {}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """The digests, as uint64, and the mean of the features of its micro-batches; ``tokens`` are a column where they
        are those of the loss.
        """
        columns: dict[str, Any] = dict(digest_columns(host, "sample_digests", "target_digests"))
        if "batch_features" in host:
            columns["batch_features"] = host["batch_features"].mean(0).tolist()
        return columns

    def _add(self, batch: Batch, step: Step) -> None:
        """Note a batch; of two that are read in one pass, by parts of the model, make one."""
        forward_pass, batches = self._passes.now(), self._batches
        if batches and batches[-1][0] is forward_pass:
            batch = _joined(batches.pop()[1], batch)
        batches.append((forward_pass, batch))
        if batch.single_input is not None:
            self._know_zeros(batch.single_input, step)

    def _know_zeros(self, samples: Tensor, step: Step) -> None:
        kind = (samples.shape[1:], samples.dtype, samples.device.type)
        if kind in self._zeros or len(self._zeros) >= MAX_SHAPES or samples.shape[1:].numel() < LEAST_ELEMENTS:
            return
        self._zeros[kind] = unsigned(digest_of_zeros(samples))
        step.facts["zero_samples"] = sorted({*step.facts.get("zero_samples", ()), self._zeros[kind]})


def read_batch(*inputs: Any, **kwargs: Any) -> Batch | None:
    """The Batch in whatever a training step was fed (tensors, tuples, mappings, dataclasses), or None without tensors.

    The first dimension of the first tensor is the sample dimension. Labels, masks and positions are not part of a
    sample's identity, nor is what autograd has computed, as from an embedding: it changes with every update. An
    attention mask takes padding out. Of a DTensor it is this rank's own part. A pair of positional tensors is read as
    (inputs, targets).
    """
    parts = batch_parts(inputs, kwargs)
    if parts is None:
        return None
    content, targets, mask = parts
    data = [(name, x) for name, x in content if x.grad_fn is None]
    samples = _digest(data, mask) if data else None
    tokens, source = _tokens(content[0][1], targets, mask)
    target_digests = _digest([("", x) for x in targets], mask) if targets else None
    plain = len(data) == 1 and (mask is None or mask.shape != data[0][1].shape)
    single_input = data[0][1] if plain else None
    return Batch(samples=samples, targets=target_digests, tokens=tokens, token_source=source, single_input=single_input)


def _joined(first: Batch, second: Batch) -> Batch:
    """What two parts of a model are called on, in one pass. Nothing says which of two numbers of rows is that of the
    samples.
    """
    samples, more = first.samples, second.samples
    if samples is None or more is None:
        samples = more if samples is None else samples
    else:
        samples = combine(samples, more) if len(samples) == len(more) and samples.device == more.device else None
    targets = second.targets if first.targets is None else first.targets
    return dataclasses.replace(first, samples=samples, targets=targets, single_input=None)


def read_features(*inputs: Any, **kwargs: Any) -> Tensor | None:
    """float64 [``NUM_FEATURES``] of what ``read_batch`` reads first, and of its targets, on the device of the first."""
    parts = batch_parts(inputs, kwargs)
    if parts is None:
        return None
    (_, first_input), targets = parts.content[0], parts.targets
    return torch.cat([features_of(first_input, first_input), features_of(targets[0] if targets else None, first_input)])


def features_of(x: Tensor | None, reference: Tensor) -> Tensor:
    """float64 [features] of a tensor (``FEATURES``), on the device of ``reference``: NaN where there is none there, and
    of its elements that stand for no label, or of a kind that has no such feature.
    """
    if x is None or x.is_complex() or x.device != reference.device:
        return reference.new_full((len(FEATURES),), torch.nan, dtype=torch.float64)
    flat = x.detach().flatten()
    # rounded up, so that there are never more than LOOKED_AT
    few = flat[:: max(1, -(-flat.numel() // LOOKED_AT))]
    counts = (few != IGNORE_INDEX) if not few.is_floating_point() else torch.ones_like(few, dtype=torch.bool)
    number, real = counts.sum(), few.to(torch.float64) * counts
    sums = [real.sum(), real.square().sum(), ((few == 0) & counts).sum()]
    if few.is_floating_point() or few.dtype == torch.bool:
        sums += [torch.full_like(sums[0], torch.nan)] * len(HASHES)
    else:
        sums += [((few.to(torch.int64) * factor >> 31 & 1) * counts).sum() for factor in HASHES]
    shares = torch.stack([column_sum.to(torch.float64) for column_sum in sums]) / number
    shares[1] = shares[1].sqrt()
    finite = flat.sum(dtype=torch.float64).isfinite() if flat.is_floating_point() else torch.ones_like(number)
    return torch.cat([shares, 1.0 - finite.to(torch.float64)[None]])


def first_shape(inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Size | None:
    """Shape of the first tensor of what a step was fed, whose first dimension is that of samples; None without one."""
    if inputs and type(inputs[0]) is Tensor and inputs[0].dim():  # as most often: nothing is searched
        return inputs[0].shape
    return next((local(x).shape for _, x in _tensors(inputs, kwargs) if x.dim() > 0), None)


def token_ids(*inputs: Any, **kwargs: Any) -> Tensor | None:
    """The first whole numbers [B, T] among the inputs of a model that are no label, mask or position; None without."""
    for name, x in _tensors(inputs, kwargs):
        if x.dim() == 2 and x.dtype in (torch.int64, torch.int32) and name not in (*MASKS, *TARGETS, *POSITIONS):
            return x
    return None


def attention_mask(*inputs: Any, **kwargs: Any) -> Tensor | None:
    """The input [B, T] of that name, which is 0 at padding wherever it is used; None without."""
    return next((x for name, x in _tensors(inputs, kwargs) if name == "attention_mask" and x.dim() == 2), None)


class BatchParts(NamedTuple):
    """Tensors that a sample is made of, with names, its targets, and the mask of padding."""

    content: list[tuple[str, Tensor]]
    targets: list[Tensor]
    mask: Tensor | None


def batch_parts(inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BatchParts | None:
    """Content, targets and mask among what a step was fed; None without tensors."""
    items = list(_tensors(inputs, kwargs))
    items = [(name, local(x)) for name, x in items if x.dim() > 0 and x.layout == torch.strided]
    if not items:
        return None
    rows = items[0][1].shape[0]
    # scalars and tables that all samples share are no part of a sample
    items = [(name, x) for name, x in items if x.shape[0] == rows]
    mask = next((x for name, x in items if name in MASKS and x.dim() == 2), None)
    targets = [x for name, x in items if name in TARGETS]
    content = [(name, x) for name, x in items if name not in (*MASKS, *TARGETS, *POSITIONS)]
    return BatchParts(content or items, targets, mask)


def _digest(items: list[tuple[str, Tensor]], mask_BT: Tensor | None) -> Tensor:
    total = None
    for _, x in items:
        fits = mask_BT is not None and x.shape == mask_BT.shape
        digest = digest_rows(x, mask_BT.bool() if fits and mask_BT is not None else None)
        total = digest if total is None else combine(total, digest)
    assert total is not None
    return total


def _tokens(first: Tensor, targets: list[Tensor], mask: Tensor | None) -> tuple[Tensor | None, str]:
    if targets and not targets[0].is_floating_point() and targets[0].dim() >= 2:
        return (targets[0] != IGNORE_INDEX).sum().double().reshape(1), "labels"
    if mask is not None:
        return mask.sum().double().reshape(1), "attention_mask"
    if not first.is_floating_point() and first.dim() == 2:
        return torch.tensor([first.numel()], dtype=torch.float64), "inputs"
    return torch.tensor([first.shape[0]], dtype=torch.float64), "samples"


def _tensors(inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    pair = inputs if len(inputs) != 1 else tuple(itertools.islice(elements(inputs[0]), 3))
    # the pair of a loader, (inputs, targets), which gives its parts no names
    if len(pair) == 2 and not kwargs and all(map(is_tensor, pair)):
        yield "", pair[0]
        yield "targets", pair[1]
        return
    for value in inputs:
        yield from tensors_inside("", value)
    for name, value in kwargs.items():
        yield from tensors_inside(name, value)


def tensors_inside(name: str, value: Any) -> Iterable[tuple[str, Tensor]]:
    """The tensors in ``value``, with the names that mappings and dataclasses give them, else ``name``."""
    return ((name, value),) if is_tensor(value) else Walk().tensors(name, value)
