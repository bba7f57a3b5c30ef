"""What others put around torch while a step is recorded: their dispatch modes and tensors, and compiled functions."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from tests.unit.capture.record.test_record import by_site, made, trained
from tests.unit.recording import Recording
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Looking(TorchDispatchMode):
    """Looks at what every kernel returns, with kernels of its own."""

    def __init__(self):
        super().__init__()
        self.looks = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            assert torch.isfinite(result).all()
            self.looks += 1
        return result


def recorded(mode):
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "mix"}, optimizer)
    recording.session.open_step(0)
    with mode:
        trained(model, optimizer, x)
    recording.session.drain(wait=True)
    return by_site(recording.steps[0]), list(model.parameters())


def test_a_dispatch_mode_of_the_users_adds_no_rows():
    mode = Looking()
    bare, params = recorded(contextlib.nullcontext())
    looked_at, same_params = recorded(mode)
    assert mode.looks > 20
    assert looked_at.keys() == bare.keys()
    assert all(torch.equal(a, b) for a, b in zip(params, same_params, strict=True))


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.aten.mul.Tensor(grad, 2)


def test_what_a_backward_function_calls_itself_stays_seen():
    model = nn.Linear(2, 2)
    rows = Recording(model, {"preset": "ops"}).step(0, lambda: Doubling.apply(model(torch.ones(1, 2))).sum().backward())
    assert {"0/bwd/mul#0:in0", "0/bwd/mul#0:out0"} <= by_site(rows).keys()


class Graphs:
    """A compiler that counts the calls in each graph it is given, and runs them as they are."""

    def __init__(self, inner="eager"):
        self.sizes = []
        self.inner = inner

    def __call__(self, graph, inputs):
        self.sizes.append(len([node for node in graph.graph.nodes if node.op.startswith("call")]))
        return torch._dynamo.lookup_backend(self.inner)(graph, inputs)


class Calling(nn.Module):
    """Calls a function between two linears."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.function = function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def bent(x):
    return (torch.relu(x) * 2).sin() + 1


def steps_of(backend, plan, compile_part):
    """Graphs, losses and parameters of three steps, the rows of the last, and the notes."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    graphs = Graphs(backend)
    model = Calling(bent)
    compile_part(model, graphs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    recording = None if plan is None else Recording(model, plan, optimizer)
    losses, rows = [], []
    for step in range(3):
        if recording is not None and step != 1:
            recording.session.open_step(step)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if recording is not None:
        recording.session.drain(wait=True)
        rows = recording.steps[-1]
    return graphs.sizes, losses, list(model.parameters()), rows, [] if recording is None else recording.notes


def compile_function(model, graphs):
    model.function = torch.compile(bent, backend=graphs)


def scaled(x, scale):
    return bent(x) * scale


class Bending(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return bent(x) * self.scale


def compile_partial(model, graphs):
    model.function = torch.compile(functools.partial(scaled, scale=2), backend=graphs)


def compile_in_place(model, graphs):
    model.function = Bending()
    model.function.compile(backend=graphs)


def compile_wrapped(model, graphs):
    model.function = torch.compile(Bending(), backend=graphs)


SEAMS = {
    "function": (compile_function, "Calling.bent", "op", "tests.unit.capture.record.test_record_modes.bent"),
    "partial": (compile_partial, "Calling.scaled", "op", "tests.unit.capture.record.test_record_modes.scaled"),
    "module in place": (compile_in_place, "function", "module", "tests.unit.capture.record.test_record_modes.Bending"),
    "module": (compile_wrapped, "function", "module", "tests.unit.capture.record.test_record_modes.Bending"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", SEAMS)
def test_what_is_compiled_runs_as_it_does_unrecorded_and_is_seen_at_its_seam(case, backend):
    compile_part, name, kind, api = SEAMS[case]
    bare_graphs, bare_losses, bare_params, _, _ = steps_of(backend, None, compile_part)
    graphs, losses, params, rows, notes = steps_of(backend, {"preset": "mix"}, compile_part)
    assert graphs == bare_graphs == [graphs[0]]
    assert losses == bare_losses
    assert all(torch.equal(a, b) for a, b in zip(params, bare_params, strict=True))
    seam = [row for row in rows if row["name"] == name and row["phase"] == "fwd"]
    assert [(row["slot"], row["flags"], row["kind"], row["api"]) for row in seam] == [
        ("in0", "compiled", kind, api),
        ("out0", "compiled", kind, api),
    ]
    gradients = {row["slot"] for row in rows if row["name"] == name and row["phase"] == "bwd"}
    assert gradients == {"in0", "out0"}
    assert any(f"{api if kind == 'op' else name} is compiled" in note for note in notes)
    assert not {row["name"] for row in rows if row["name"].rpartition(".")[2] in ("relu", "sin", "cos", "add")}
    assert "first.linear" in {row["name"] for row in rows}
    assert {"square", "mean"} <= {row["name"] for row in rows if row["phase"] == "fwd"}
    kernels = {row["name"] for row in rows if row["phase"] == "bwd" and row["kind"] == "op" and row["module"] == ""}
    assert kernels <= {"square", "mean"}


def test_a_compiled_function_that_raises_passes_its_error_on_and_recording_goes_on():
    def refuses(x):
        if x.shape[0] == 4:
            raise ValueError("four are too many")
        return x

    def caught(x):
        with contextlib.suppress(ValueError):
            torch.compile(refuses, backend="eager")(x)
        return x

    torch.compile(bent, backend="eager")  # Dynamo is there before the step begins
    model = Calling(caught)
    rows = Recording(model, {"preset": "mix"}).step(0, lambda: model(torch.ones(4, 3)).sum().backward())
    names = {row["name"] for row in rows}
    assert {"Calling.refuses", "last.linear", "sum"} <= names
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("in_place", [True, False])
def test_micro_batches_of_a_compiled_model_are_told_apart(in_place):
    torch._dynamo.reset()
    model = Bending()
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def accumulated():
        for part in torch.ones(4, 3).split(2):
            (model(part) * 2).sum().backward()
        optimizer.step()

    rows = Recording(model, {"preset": "mix"}, optimizer).step(0, accumulated)
    seen = {row["micro"] for row in rows if row["phase"] == "fwd"}, {row["call"] for row in rows if row["flags"]}
    assert seen == ({0, 1}, {0})
    assert [row["micro"] for row in rows if row["phase"] == "fwd" and row["name"] == "mul"] == [0, 0, 1, 1]


def test_where_autograd_compiles_a_backward_pass_no_hook_is_left_to_compile(monkeypatch):
    import torch._dynamo.compiled_autograd as compiled

    model = torch.nn.Linear(4, 2)
    recording = Recording(model, {"preset": "mix"})
    recording.session.open_step(0)
    out = model(torch.ones(3, 4))
    assert out._backward_hooks
    monkeypatch.setattr(compiled, "compiled_autograd_enabled", True)
    out.sum().backward()
    assert not out._backward_hooks
    assert not model.weight._backward_hooks
    recording.session.close_step()
    recording.session.drain(wait=True)
    assert not any(row["phase"] == "bwd" for row in recording.steps[0])
    assert any("compiles backward passes" in note for note in recording.notes)
