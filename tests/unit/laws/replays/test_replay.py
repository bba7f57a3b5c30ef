"""Work that is done again: training goes on bit for bit, and what does not repeat itself is found."""

import collections
import random
import sys
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trueline
from trueline.laws.replays import replay_differs, update_not_read
from trueline.laws.replays.columns import Replayed
from trueline.laws.replays.probe import outside
from trueline.schema.errors import CannotTell

SEEN = []
COUNTS = {"calls": 0}
CALLS = 0


class Body(nn.Module):
    """[8, 6] to [8, 64]."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.head = nn.Linear(16, 64)

    def features(self, x):
        return self.drop(functional.relu(self.norm(self.first(x))))

    def forward(self, x):
        return self.head(self.features(x))


class Counts(Body):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 0.01 * self.calls)


class Remembers(Body):
    state = None

    def forward(self, x):
        features = self.features(x)
        features = features if self.state is None else features + 0.1 * self.state
        self.state = features.detach()
        return self.head(features)


class Appends(Body):
    def __init__(self):
        super().__init__()
        self.norms, self.recent, self.named, self.kinds = [], collections.deque(maxlen=3), {"last": 0.0}, set()

    def forward(self, x):
        features = self.features(x)
        self.norms.append(float(features.detach().norm()))
        self.recent.append(len(self.norms))
        self.named["last"] += self.norms[-1]
        self.kinds.add(len(self.norms) % 5)
        return self.head(features) + 0.001 * (self.named["last"] + sum(self.recent) + len(self.kinds))


class InPlace(Body):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(6)

    def forward(self, x):
        self.scale.mul_(1.01)
        x.mul_(self.scale)
        return super().forward(x)


class Draws(Body):
    def __init__(self):
        super().__init__()
        self.torch, self.python, self.numpy = (
            torch.Generator().manual_seed(3),
            random.Random(3),
            np.random.default_rng(3),
        )

    def forward(self, x):
        noise = torch.randn(x.shape, generator=self.torch) * self.python.random() * float(self.numpy.random())
        return super().forward(x + noise + 0.1 * random.random() + 0.1 * np.random.rand())


class Replaces(Body):
    """A function of torch's stands there by another name, and counts."""

    def forward(self, x):
        return super().forward(x) * (1 + 0.01 * len(SEEN))


@dataclass
class Meter:
    total: float = 0.0
    history: list = field(default_factory=list)

    def add(self, value):
        self.total += value
        self.history.append(value)


class Slots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


class Meters(Body):
    def __init__(self):
        super().__init__()
        self.meter, self.slots = Meter(), Slots()

    def forward(self, x):
        self.meter.add(1.0)
        self.slots.calls += 1
        return super().forward(x) + 0.01 * self.meter.total + 0.01 * self.slots.calls


class InGlobals(Body):
    def forward(self, x):
        SEEN.append(1)
        COUNTS["calls"] += 1
        return super().forward(x) + 0.01 * len(SEEN)


class Hooked(Body):
    """Hooks of the user's, one of which keeps a list that only it has."""

    def __init__(self):
        super().__init__()
        self.lengths = lengths = []
        self.first.register_forward_hook(
            lambda module, args, out: lengths.append(len(out)) or out + 0.01 * len(lengths)
        )
        self.head.weight.register_hook(lambda gradient: lengths.append(0) or gradient * (1 + 0.001 * len(lengths)))


class Caches(Body):
    """Keeps its latest results in order, the oldest of which goes, and counts in a queue and a list of its own."""

    class Numbers(list):
        def __iter__(self):
            raise AssertionError("a method of the user's was called")

        def __setitem__(self, place, value):
            raise AssertionError("a method of the user's was called")

    def __init__(self):
        super().__init__()
        self.latest, self.numbers = collections.OrderedDict(), self.Numbers()

    def forward(self, x):
        self.latest[len(self.latest) + len(self.numbers)] = float(x.sum())
        if len(self.latest) > 3:
            self.latest.popitem(last=False)
            self.latest.move_to_end(next_key(self.latest))
        self.numbers.append(len(self.latest))
        return super().forward(x) + 0.01 * sum(self.latest.values()) + 0.001 * list.__len__(self.numbers)


def next_key(table):
    key, *_ = table
    return key


class HooksItself(Body):
    """Puts a hook on a part in each pass, and one takes itself off when it is called."""

    def __init__(self):
        super().__init__()
        handle = self.norm.register_forward_hook(lambda module, args, out: (handle.remove(), out * 2)[1])

    def forward(self, x):
        if len(self.first._forward_hooks) < 30:
            self.first.register_forward_hook(lambda module, args, out: out * 1.01)
        return super().forward(x)


class Leaf(nn.Linear):
    """A model that is one module."""

    def __init__(self):
        super().__init__(6, 64)


class Spectral(Body):
    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 16))


class Embeds(Body):
    """A user's function of autograd, and a method that another decorates."""

    @staticmethod
    def scaled(x):
        return _Doubled.apply(x)

    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        return self.head(self.scaled(self.features(x)))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class SetsGlobal(Body):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return super().forward(x) * (1 + 0.01 * CALLS)


class Prints(Body):
    def forward(self, x):
        print("forward")
        return super().forward(x)


class SetsCell(Body):
    def __init__(self):
        super().__init__()
        calls = 0

        def count():
            nonlocal calls
            calls += 1
            return calls

        self.count = count

    def forward(self, x):
        return super().forward(x) * (1 + 0.01 * self.count())


class Reads(Body):
    """Takes the next number of an iterator."""

    def __init__(self):
        super().__init__()
        self.numbers = iter(range(1000))

    def forward(self, x):
        for number in self.numbers:
            return super().forward(x) + 0.01 * number
        return None


MODELS = (
    Body,
    Leaf,
    Caches,
    HooksItself,
    Replaces,
    Counts,
    Remembers,
    Appends,
    InPlace,
    Draws,
    Meters,
    InGlobals,
    Hooked,
    Spectral,
    Embeds,
)
LEFT_ALONE = {SetsGlobal: "CALLS", Prints: "print", SetsCell: "calls", Reads: "iterator"}


def trained(make, out, *, steps=24, every=2, batches=1, wrong=None, read=False):
    """(everything that training left, the Run)."""
    global CALLS
    SEEN.clear()
    COUNTS["calls"] = CALLS = 0
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    linear = functional.linear
    if make is Replaces:
        functional.linear = lambda *args: SEEN.append(1) or linear(*args)
    model = make()
    updates = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = None
    if out is not None:
        watch = trueline.watch(model, updates, out=out, plan={"preset": "audit", "replay": every})
    for step in range(steps):
        for _ in range(batches):
            x, y = torch.randn(8, 6), torch.randint(64, (8,))
            functional.cross_entropy(model(x), y).backward()
        updates.step()
        updates.zero_grad()
        if wrong is not None:
            wrong(step)
    if watch is not None:
        watch.close()
    functional.linear = linear
    left = [
        *model.state_dict().values(),
        torch.rand(3),
        random.random(),
        np.random.rand(),
        len(SEEN),
        dict(COUNTS),
        CALLS,
    ]
    left += [len(module._forward_hooks) for module in model.modules()]
    left += [list(value.items()) for value in vars(model).values() if isinstance(value, collections.OrderedDict)]
    left += [value for name, value in sorted(vars(model).items()) if not name.startswith("_") and _shown(value)]
    return repr([_bits(value) for value in left]), None if out is None else trueline.open_run(out)


def _shown(value):
    return isinstance(value, (int, float, list, dict, set, collections.deque, torch.Tensor, Meter))


def _bits(value):
    return value.detach().numpy().tobytes() if isinstance(value, torch.Tensor) else value


def rows(run):
    return [Replayed.from_json(text) for text in run.texts("replayed").values()]


@pytest.mark.in_turn
@pytest.mark.parametrize("make", [*MODELS, *LEFT_ALONE])
def test_training_goes_on_bit_for_bit(tmp_path, make):
    plain, _ = trained(make, None)
    watched, run = trained(make, tmp_path / "run")
    assert plain == watched
    assert [finding.code for finding in trueline.check(run).findings if finding.code == "watch-degraded"] == []
    replayed = rows(run)
    if make in LEFT_ALONE:
        assert all(LEFT_ALONE[make] in row.doubt for row in replayed), replayed
        with pytest.raises(CannotTell, match=LEFT_ALONE[make]):
            replay_differs.check(run)
        return
    assert len(replayed) == 7
    assert {(row.doubt, row.forward, row.backward, row.reads) for row in replayed} == {("", "", "", True)}
    assert replay_differs.check(run) == []
    assert update_not_read.check(run) == []


def flipped(monkeypatch, at, *, of=functional.linear, bit=1 << 30):
    """Every call of the function of torch whose number is in ``at`` has one other bit."""
    calls = []

    def wrong(*args):
        result = of(*args)
        calls.append(1)
        if len(calls) in at:
            with torch.no_grad():
                result.view(-1)[:1].view(torch.int32).bitwise_xor_(bit)
        return result

    monkeypatch.setattr(functional, of.__name__, wrong)
    # what it counts is put back otherwise, and the same passes are wrong again
    monkeypatch.setattr(outside, "replaced_functions", list)
    return calls


@pytest.mark.in_turn
@pytest.mark.parametrize("bit", [1, 1 << 22, 1 << 30, -(1 << 31)])
@pytest.mark.parametrize(("number", "odd"), [(0, "training"), (2, "first"), (4, "second")])
def test_one_flipped_bit_is_found_whichever_of_three_passes_has_it(tmp_path, monkeypatch, bit, number, odd):
    # two calls a pass; it is the second step that is done again
    before = 2 * (PASSES + 4)
    flipped(monkeypatch, {before + number + 1}, bit=bit)
    _, run = trained(Body, tmp_path / "run", steps=13, every=1)
    (finding,) = replay_differs.check(run)
    assert finding.severity == "warning"
    assert finding.evidence["passes"] == [odd]
    assert finding.evidence["names"] == ["first"]
    assert finding.step_first == 11


PASSES = 10
"""Of the training before the first step that is done again, which makes four."""


def test_a_forward_pass_that_never_repeats_itself_is_no_device(tmp_path, monkeypatch):
    flipped(monkeypatch, set(range(1, 1000, 3)), bit=1)
    _, run = trained(Body, tmp_path / "run")
    with pytest.raises(CannotTell, match="do not repeat themselves"):
        replay_differs.check(run)


def test_a_gradient_that_differs_is_named(tmp_path, monkeypatch):
    """Of two backward passes; all forward passes agree."""
    calls, backward = [], torch.autograd.grad

    def wrong(*args, **kwargs):
        gradients = backward(*args, **kwargs)
        calls.append(1)
        if len(calls) == 4:
            gradients[2].view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", wrong)
    _, run = trained(Body, tmp_path / "run", steps=13, every=1)
    (finding,) = replay_differs.check(run)
    assert finding.evidence["names"] == ["norm.weight"]
    assert finding.evidence["passes"] == ["backward"]
    assert "the gradient of norm.weight was another in each of two backward passes" in finding.claim


class Casts(Body):
    """Reads its weights, in another format."""

    def forward(self, x):
        return functional.linear(self.features(x), self.head.weight.bfloat16().float())


class Stale(nn.Module):
    """Computes with a copy of its weights that is made once; gradients go to the weights."""

    def __init__(self):
        super().__init__()
        self.weight, self.copy = nn.Parameter(torch.randn(64, 6)), None

    def forward(self, x):
        if self.copy is None:
            self.copy = self.weight.detach().clone()
        return functional.linear(x, self.copy + (self.weight - self.weight.detach()))


def test_a_forward_pass_that_computes_with_a_copy_is_told(tmp_path):
    _, run = trained(Stale, tmp_path / "run")
    (finding,) = update_not_read.check(run)
    assert finding.severity == "error"
    assert "changed 1 of 1 parameter, and the same batch gives the same 512 numbers" in finding.claim


@pytest.mark.parametrize("make", [Casts, Body])
def test_a_forward_pass_that_reads_its_weights_is_left_alone(tmp_path, make):
    _, run = trained(make, tmp_path / "run")
    assert update_not_read.check(run) == []


@pytest.mark.parametrize("kind", ["profiler", "thread"])
def test_what_would_see_it_keeps_work_from_being_done_again(tmp_path, kind):
    ended = threading.Event()
    beside = threading.Thread(target=lambda: ended.wait(), name="beside")
    if kind == "thread":
        beside.start()
    before = sys.getprofile()
    sys.setprofile((lambda *_: None) if kind == "profiler" else before)
    try:
        _, run = trained(Body, tmp_path / "run")
    finally:
        sys.setprofile(before)
        ended.set()
    words = {"profiler": "a profiler or a debugger is on", "thread": "the thread beside may change"}
    assert rows(run)
    assert all(words[kind] in row.doubt for row in rows(run))
