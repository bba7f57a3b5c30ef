"""What torch calls of ours: unseen by anybody's mode, and its mistakes stay ours."""

import logging
from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import trueline
from trueline.capture.model.untraced import Hook
from trueline.schema.errors import TrainingStopped


class Functions(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[f"function {getattr(func, '__name__', '')}"] += 1
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[f"dispatch {func}"] += 1
        return func(*args, **(kwargs or {}))


class Counted(torch.Tensor):
    seen: ClassVar = Counter()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen[getattr(func, "__name__", "")] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def calls_seen(out, plan):
    """By function modes, dispatch modes and a class of tensors, in 13 steps, watched into ``out`` unless None."""
    seen = Counter()
    Counted.seen = Counter()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 8), nn.Dropout(0.1), nn.Linear(8, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    watch = None if out is None else trueline.watch(model, optimizer, out=out, plan=plan)
    for step in range(13):
        ids = torch.randint(0, 32, (4, 6)).as_subclass(Counted if step % 4 == 3 else torch.Tensor)
        with Functions(seen), Dispatched(seen):
            logits = model(ids)
            nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return seen, Counted.seen


@pytest.mark.parametrize("plan", [{"preset": "laws"}, {"preset": "ops"}, {"preset": "modules"}])
def test_modes_and_classes_of_the_users_see_the_calls_of_the_users_alone(tmp_path, plan):
    assert calls_seen(tmp_path / "run", plan | {"every": 1}) == calls_seen(None, plan)


def test_a_mistake_of_ours_in_a_hook_never_reaches_training(caplog):
    calls = []

    def mistaken(*args):
        calls.append(args)
        raise ZeroDivisionError

    linear = nn.Linear(2, 2)
    linear.register_forward_hook(Hook(mistaken))
    assert [linear(torch.ones(1, 2)).shape for _ in range(3)] == [(1, 2)] * 3
    assert len(calls) == len(caplog.records) == 1


def test_nor_does_a_filter_of_the_log_that_raises_over_it():
    def refusing(record):
        raise ZeroDivisionError

    log = logging.getLogger("trueline")
    log.addFilter(refusing)
    try:
        linear = nn.Linear(2, 2)
        linear.register_forward_hook(Hook(lambda *args: 1 / 0))
        assert linear(torch.ones(1, 2)).shape == (1, 2)
    finally:
        log.removeFilter(refusing)


def test_what_is_raised_on_purpose_goes_on_through_a_hook():
    def stopping(*args):
        raise TrainingStopped("as the Plan asks")

    linear = nn.Linear(2, 2)
    linear.register_forward_pre_hook(Hook(stopping))
    with pytest.raises(TrainingStopped):
        linear(torch.ones(1, 2))
