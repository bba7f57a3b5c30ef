"""What ``trueline.rl.read_logits`` reads of the logits that a module makes, and that it changes nothing."""

from __future__ import annotations

import contextlib
import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from trueline import rl
from trueline.rl import logits as logits_module
from trueline.schema.errors import InputError

B, P, L, V = 6, 5, 4, 50
NAMES = ("logp", "entropy", "varentropy", "mass_above", "top", "odds")


class Model(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(V, 16, dtype=dtype), nn.Linear(16, V, dtype=dtype)

    def forward(self, ids, keep=0):
        return SimpleNamespace(logits=self.lm_head(self.embed(ids)[:, -keep:]))


@pytest.fixture
def ids():
    return torch.randint(V, (B, P + L), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep", [0, L + 1])
@pytest.mark.parametrize("micro", [B, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_read_is_what_the_logits_say(ids, dtype, keep, micro, whole):
    model, pair = Model(dtype), torch.randint(V, (B, L, 2))
    before = torch.cat([model(part, keep).logits[:, -L - 1 : -1] for part in ids.split(micro)])
    said = rl.of_logits(before, ids[:, P:], temperature=0.7, pair=pair)
    with rl.read_logits(model if whole else model.lm_head, ids[:, P:], temperature=0.7, pair=pair) as told:
        for part in ids.split(micro):
            model(part, keep)
    for name in NAMES:
        assert torch.equal(getattr(told, name), getattr(said, name)), name


def test_what_the_response_alone_is_computed_of_is_read_as_it_is(ids, model):
    hidden = model.embed(ids)[:, P - 1 : -1]
    with rl.read_logits(model.lm_head, ids[:, P:]) as told:
        logits = model.lm_head(hidden)
    assert torch.equal(told.logp, rl.of_logits(logits, ids[:, P:]).logp)


def _trained(model, ids, read):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        reading = rl.read_logits(model.lm_head, ids[:, P:])
        with reading if read else contextlib.nullcontext():
            checkpoint(model.lm_head, model.embed(ids), use_reentrant=True).logsumexp(-1).mean().backward()
        assert not read or reading.entropy.shape == (B, L)
        optimizer.step()
    return [(param, param.grad) for param in model.parameters()]


def test_training_is_bitwise_the_same_and_a_recomputation_is_not_read(ids, model):
    twin = copy.deepcopy(model)
    for (weight, grad), (own, own_grad) in zip(_trained(model, ids, True), _trained(twin, ids, False), strict=True):
        assert torch.equal(weight, own)
        assert torch.equal(grad, own_grad)
    assert not model.lm_head._forward_hooks


class Largest(TorchDispatchMode):
    """The most elements that any operator returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        is_view = func is torch.ops.aten.view.default or "slice" in str(func) or "detach" in str(func)
        if isinstance(made, torch.Tensor) and not is_view and "select" not in str(func):
            self.numel = max(self.numel, made.numel())
        return made


def test_no_more_than_a_chunk_is_held_beside_the_logits(ids, model, monkeypatch):
    monkeypatch.setattr(logits_module, "CHUNK", 2)
    logits = model(ids).logits.detach()
    with Largest() as seen, rl.read_logits(nn.Identity(), ids[:, P:]) as told:
        told._add_statistics(logits)
    assert seen.numel == 2 * V
    with Largest() as seen:
        rl.of_logits(logits[:, :L], ids[:, P:])
    assert seen.numel == 2 * V


def test_what_does_not_fit_is_said_once_and_the_forward_pass_goes_on(ids, model, caplog):
    with caplog.at_level(logging.WARNING), rl.read_logits(model.lm_head, ids[:, P:]) as told:
        assert model(ids[:, : L - 1]).logits.shape == (B, L - 1, V)
        model(ids)
    assert [getattr(told, name) for name in NAMES] == [None] * len(NAMES)
    assert ["no statistics: InputError: logits have shape (6, 3, 50)" in each.message for each in caplog.records] == [
        True
    ]


def test_sequences_that_were_not_seen_are_counted(ids, model, caplog):
    with caplog.at_level(logging.WARNING), rl.read_logits(model.lm_head, ids[:, P:]) as told:
        model(ids[:2])
    assert told.entropy is None
    assert "logits of 2 of 6 sequences were made by this module" in caplog.text


def test_what_is_no_module_or_no_batch_of_ids_is_refused(ids, model):
    with pytest.raises(InputError, match=r"was given Tensor, not a module: pass model.lm_head"):
        rl.read_logits(ids, ids)
    with pytest.raises(InputError, match=r"shape \(6,\), expected \[sequences, tokens\]"):
        rl.read_logits(model.lm_head, ids[:, 0])
