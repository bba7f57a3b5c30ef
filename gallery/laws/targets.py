"""W5. A loss is given what it is not made for, or counts padding; texts begin with a special token twice.

Who had it: a large share of the questions about losses that fall too little: softmax in front of CrossEntropyLoss,
sigmoid in front of BCEWithLogitsLoss, NLLLoss without log_softmax, predictions [B, 1] against targets [B], labels of -1
and 1, labels that are copies of padded input ids; a class that is what the loss ignores; a padding token that is the
end token, whose labels a collator leaves out; Q learning whose target is not under no_grad.
Planted: each of these.
Twin: logits; log-probabilities; equal shapes; labels of 0 and 1; padding that is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_OF_TOKENS
from gallery.problems import CausalLM, Problem, Regression, Rows, Vision
from gallery.training import fit
from gallery.witness import trains_differently

LossOf = Callable[[nn.Module, Any], Tensor]


def trained(problem: Problem, wrong: LossOf, right: LossOf) -> Any:
    """Training with either loss, in one process."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        return fit(ctx, problem, problem.model(), loss_of=wrong if faulty else right)

    return train


def _vision(loss: Callable[[Tensor, Tensor], Tensor]) -> LossOf:
    return lambda model, batch: loss(model(batch["image"]), batch["label"])


def _regression(loss: Callable[[Tensor, Tensor], Tensor]) -> LossOf:
    """Of one number a sample, [B, 1], and its target, [B]."""
    return lambda model, batch: loss(model(batch["x"])[:, :1], batch["y"][:, 0])


def _divergence(given: Tensor, label_B: Tensor) -> Tensor:
    target_BC = functional.one_hot(label_B, Vision.num_classes).float() * 0.9 + 0.025
    return functional.kl_div(given, target_BC, reduction="batchmean")


def _signs(x_B1: Tensor, y_B: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x_B1[:, 0], y_B.sign())


def _binary(x_B1: Tensor, y_B: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x_B1[:, 0], (y_B > 0).float())


def _bootstrapped(detached: bool) -> LossOf:
    """Temporal differences: outputs are values of four actions, and rows follow each other."""

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        action_B1, reward_B = batch["y"].argmax(1, keepdim=True), batch["y"][:, 0]
        with torch.set_grad_enabled(not detached):
            target_B = reward_B + 0.9 * model(batch["x"].roll(1, 0)).max(1).values
        return functional.smooth_l1_loss(model(batch["x"]).gather(1, action_B1)[:, 0], target_B)

    return loss_of


class Padded(CausalLM):
    """The same rows with all behind a place of their own padded, as ``attention_mask`` says."""

    def model(self, *, seed: int = 0) -> nn.Module:
        """The decoder, which is causal and so has no use for the mask on the right."""
        return _Masked(super().model(seed=seed))

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """``attention_mask`` [num_samples, L] beside ids and labels; these are -100 at padding."""
        ids_BL = super().dataset(num_samples, seed=seed).columns["input_ids"]
        mask_BL = (torch.arange(self.length) < 4 + ids_BL.sum(1, keepdim=True) % 8).long()
        ids_BL = ids_BL * mask_BL
        return Rows({"input_ids": ids_BL, "attention_mask": mask_BL, "labels": ids_BL.masked_fill(mask_BL == 0, -100)})

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy over the labels that count."""
        logits_BLV = model(batch["input_ids"], attention_mask=batch["attention_mask"])
        return functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    def loss_of_ids(self, model: nn.Module, batch: Any) -> Tensor:
        """The same with ids as labels."""
        return self.loss(model, {**batch, "labels": batch["input_ids"]})


class Ended(Padded):
    """The same texts with an end behind each, which is also the padding."""

    end = 0

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """The end is at the last attended place, and its label counts."""
        columns = super().dataset(num_samples, seed=seed).columns
        mask_BL, ids_BL = columns["attention_mask"], columns["input_ids"].clamp(min=self.end + 1)
        ids_BL = torch.where(mask_BL.cumsum(1) * mask_BL == mask_BL.sum(1, keepdim=True), self.end, ids_BL * mask_BL)
        labels_BL = ids_BL.masked_fill(mask_BL == 0, -100)
        return Rows({"input_ids": ids_BL, "attention_mask": mask_BL, "labels": labels_BL})

    def loss_of_words(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss where labels are left out by the id of the padding."""
        return self.loss(model, {**batch, "labels": batch["labels"].masked_fill(batch["input_ids"] == self.end, -100)})


class Begun(Ended):
    """The same texts with a begin token in front, once or twice."""

    begin = CausalLM.vocab_size - 1

    def loss_of_twice(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of texts that begin with it twice."""
        return self.loss(model, self._begun(batch, 2))

    def loss_of_once(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of texts that begin with it once."""
        return self.loss(model, self._begun(batch, 1))

    def _begun(self, batch: Any, times: int) -> Any:
        columns = {name: column.clone() for name, column in batch.items()}
        for name in ("input_ids", "labels"):
            columns[name][columns[name] == self.begin] -= 1
            columns[name][:, :times] = self.begin
        return columns


class Cut(CausalLM):
    """Questions, of which a greatest length leaves an answer in one row of four, and others."""

    def loss_of_cut(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss where three rows of four have no answer left."""
        labels_BL = batch["labels"].clone()
        labels_BL[torch.arange(len(labels_BL)) % 4 != 0] = -100
        return self.loss(model, {**batch, "labels": labels_BL})


def _classes_but_first(x_BC: Tensor, y_B: Tensor) -> Tensor:
    return functional.cross_entropy(x_BC, y_B, ignore_index=0)


class _Masked(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.decoder(input_ids)


_fault = variants(
    "W5",
    ("loss-misapplied",),
    trains_differently,
    world_size=1,
    ranks=(0,),
    family="losses that are given something else",
    causes=("loss-misapplied",),
)
_classes, _labels, _ended, _begun, _cut = Vision(), Padded(), Ended(), Begun(), Cut()
_cross_entropy = _vision(functional.cross_entropy)

ENTRIES = (
    _fault(
        "",
        "softmax in front of the cross-entropy",
        trained(_classes, _vision(lambda x, y: functional.cross_entropy(x.softmax(-1), y)), _cross_entropy),
    ),
    _fault(
        "sigmoid",
        "sigmoid in front of the binary cross-entropy with logits",
        trained(Regression(), _regression(lambda x, y: _binary(x.sigmoid(), y)), _regression(_binary)),
    ),
    _fault(
        "log",
        "nll_loss of logits",
        trained(
            _classes,
            _vision(functional.nll_loss),
            _vision(lambda x, y: functional.nll_loss(x.log_softmax(-1), y)),
        ),
    ),
    _fault(
        "divergence",
        "a divergence of probabilities in place of their logarithms",
        trained(
            _classes,
            _vision(lambda x, y: _divergence(x.softmax(-1), y)),
            _vision(lambda x, y: _divergence(x.log_softmax(-1), y)),
        ),
    ),
    _fault(
        "rows",
        "predictions [B, 1] less targets [B]",
        trained(
            Regression(),
            _regression(lambda x, y: (x - y).square().mean()),
            _regression(lambda x, y: (x - y[:, None]).square().mean()),
        ),
    ),
    _fault(
        "relu",
        "ReLU behind the last layer of a classifier",
        trained(_classes, _vision(lambda x, y: functional.cross_entropy(x.relu(), y)), _cross_entropy),
        causes=(),
    ),
    _fault(
        "reach",
        "targets of both signs behind ReLU",
        trained(
            Regression(),
            _regression(lambda x, y: functional.mse_loss(x.relu()[:, 0], y)),
            _regression(lambda x, y: functional.mse_loss(x[:, 0], y)),
        ),
        causes=(),
    ),
    _fault("signs", "binary labels of -1 and 1", trained(Regression(), _regression(_signs), _regression(_binary))),
    _fault(
        "target",
        "a bootstrap target is not detached",
        trained(Regression(), _bootstrapped(detached=False), _bootstrapped(detached=True)),
    ),
    _fault(
        "padding",
        "labels are copies of padded ids",
        trained(_labels, _labels.loss_of_ids, _labels.loss),
        must_find=("padding-trained",),
        family=WEIGHTS_OF_TOKENS,
        causes=("padding-counted",),
    ),
    _fault(
        "end",
        "the end of each text is left out with the padding, which is the same token",
        trained(_ended, _ended.loss_of_words, _ended.loss),
        must_find=("end-untrained",),
        family=WEIGHTS_OF_TOKENS,
        causes=("end-left-out",),
    ),
    _fault(
        "begin",
        "a begin token is added to texts that have one",
        trained(_begun, _begun.loss_of_twice, _begun.loss_of_once),
        must_find=("token-doubled",),
        family="special tokens",
        causes=(),
    ),
    _fault(
        "cut",
        "a greatest length cuts off most answers",
        trained(_cut, _cut.loss_of_cut, _cut.loss),
        must_find=("rows-untrained",),
        family=WEIGHTS_OF_TOKENS,
        causes=(),
    ),
    _fault(
        "class",
        "a class is the label that the loss ignores",
        trained(_classes, _vision(_classes_but_first), _cross_entropy),
        must_find=("class-ignored",),
        family=WEIGHTS_OF_TOKENS,
        causes=(),
    ),
)
