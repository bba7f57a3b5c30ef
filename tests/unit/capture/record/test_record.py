"""The recorder in one process: what it sees of modules, calls and gradients, held against plain hooks and NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unit.recording import Recording, site
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.down(self.dropout(F.relu(self.up(x))))


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = Block(dropout)
        self.second = Block(dropout)

    def forward(self, x, scale=1.0):
        return self.second(self.first(x) * scale)


def made(dropout=0.0):
    torch.manual_seed(0)
    model = Net(dropout)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), torch.randn(5, 6)


def trained(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def by_site(rows):
    return {site(row): row for row in rows}


def assert_stats(row, x):
    """Against NumPy in float64; sums of at most 100 float32 numbers are off by less than 100 roundings."""
    x = x.detach().numpy().astype(np.float64)
    assert row["shape"] == x.shape
    assert (row["min"], row["max"]) == (x.min(), x.max())
    assert row["zero"] == (x == 0).sum()
    assert row["sum"] == pytest.approx(x.sum(), abs=100 * 2**-24 * np.abs(x).sum())
    assert row["sum_sq"] == pytest.approx((x**2).sum(), rel=100 * 2**-24)


def slow_truth():
    """Inputs, outputs and their gradients by plain hooks, and parameters and gradients before the update."""
    model, _optimizer, x = made()
    seen = {}

    def note(name, args, output):
        seen[f"0/fwd/{name}#0:in0"], seen[f"0/fwd/{name}#0:out0"] = args[0], output
        for slot, value in (("in0", args[0]), ("out0", output)):
            if value.requires_grad:
                value.register_hook(lambda g, key=f"0/bwd/{name}#0:{slot}": seen.setdefault(key, g.clone()))

    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, args, output, name=name or "Net": note(name, args, output))
    model(x).square().mean().backward()
    for name, param in model.named_parameters():
        seen[f"0/param/{name}#0:value"], seen[f"0/grad/{name}#0:grad"] = param, param.grad
    return seen


def test_modules_are_recorded_as_plain_hooks_see_them():
    model, optimizer, x = made()
    rows = by_site(Recording(model, {"preset": "modules"}, optimizer).step(0, lambda: trained(model, optimizer, x)))
    truth = slow_truth()
    for key, value in truth.items():
        assert_stats(rows[key], value)
    others = {key for key in set(rows) - set(truth) if not key.startswith("0/bwd/") or ":grad" not in key}
    assert others == set()


def test_the_gradient_of_a_parameter_is_seen_as_it_is_made():
    model, optimizer, x = made()
    rows = by_site(Recording(model, {"preset": "modules"}, optimizer).step(0, lambda: trained(model, optimizer, x)))
    for name, _ in model.named_parameters():
        assert rows[f"0/bwd/{name}#0:grad"]["sum_sq"] == rows[f"0/grad/{name}#0:grad"]["sum_sq"] > 0


class NoGradientForTheSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_a_gradient_that_autograd_leaves_undefined_is_no_value():
    class Undefined(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            y = self.inner(x)
            return NoGradientForTheSecond.apply(y, y * 2)

    model = Undefined()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = by_site(
        Recording(model, {"preset": "mix"}, optimizer).step(0, lambda: trained(model, optimizer, torch.ones(4, 6)))
    )
    assert "0/bwd/inner.linear#0:out0" in rows
    assert "0/bwd/Undefined.mul#0:out0" not in rows


def test_ops_have_the_name_of_their_module_and_are_seen_however_they_were_imported():
    from torch import relu, tanh

    class Free(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return relu(self.inner(x)) + tanh(x)

    torch.manual_seed(0)
    model = Free()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3)
    rows = Recording(model, {"preset": "ops"}, optimizer).step(0, lambda: trained(model, optimizer, x))
    forward = [site(row) for row in rows if row["phase"] == "fwd" and row["slot"].startswith("out")]
    assert forward == [
        "0/fwd/inner.linear#0:out0",
        "0/fwd/Free.relu#0:out0",
        "0/fwd/Free.tanh#0:out0",
        "0/fwd/Free.add#0:out0",
        "0/fwd/square#0:out0",
        "0/fwd/mean#0:out0",
    ]
    seen = by_site(rows)
    assert seen["0/fwd/inner.linear#0:in0"]["api"] == "torch.nn.functional.linear"
    assert seen["0/bwd/Free.relu#0:out0"]["sum_sq"] > 0
    assert any(row["phase"] == "opt" and row["name"] == "SGD.add_" for row in rows)


def test_a_value_is_measured_once_however_often_it_is_seen():
    model, optimizer, x = made()
    rows = Recording(model, {"preset": "mix"}, optimizer).step(0, lambda: trained(model, optimizer, x))
    seen = by_site(rows)
    same = ["0/fwd/first.up#0:out0", "0/fwd/first.up.linear#0:out0", "0/fwd/first.relu#0:in0"]
    assert [seen[key]["measured"] for key in same] == [False, True, False]
    assert len({(seen[key]["min"], seen[key]["sum"]) for key in same}) == 1


def test_a_value_that_is_changed_in_place_is_measured_again():
    class InPlace(nn.Module):
        def forward(self, x):
            y = x * 2
            y.add_(1)
            return y

    model = InPlace()
    x = torch.ones(3)
    with torch.no_grad():
        rows = by_site(Recording(model, {"preset": "ops", "steps": [0, 1]}).step(0, lambda: model(x)))
    assert rows["0/fwd/InPlace.mul#0:out0"]["sum"] == rows["0/fwd/InPlace.add_#0:in0"]["sum"] == 6
    assert rows["0/fwd/InPlace.add_#0:out0"]["sum"] == 9
    assert [rows[f"0/fwd/InPlace.{name}#0:out0"]["flags"] for name in ("mul", "add_")] == ["no_grad", "no_grad,inplace"]


def test_storage_that_is_used_again_is_not_taken_for_what_it_held_before():
    class Reuse(nn.Module):
        def forward(self, x):
            for factor in range(1, 6):
                y = x * factor
                del y  # its memory is free, and the allocator hands it out again
            return x

    model, x = Reuse(), torch.ones(4096)
    rows = by_site(Recording(model, {"preset": "ops"}).step(0, lambda: model(x)))
    assert [rows[f"0/fwd/Reuse.mul#{n}:out0"]["sum"] for n in range(5)] == [4096.0 * f for f in range(1, 6)]


@pytest.mark.parametrize("preset", ["modules", "ops", "mix"])
@pytest.mark.parametrize("depth", ["structure", "stats", "fingerprint", "tensor"])
def test_training_is_bitwise_the_same(preset, depth):
    bare, optimizer, x = made(dropout=0.3)
    torch.manual_seed(1)
    losses = [trained(bare, optimizer, x).item() for _ in range(5)]
    model, optimizer, x = made(dropout=0.3)
    recording = Recording(model, {"preset": preset, "depth": depth, "exponents": True}, optimizer)
    torch.manual_seed(1)
    found = []
    for step in range(5):
        recording.step(step, lambda: found.append(trained(model, optimizer, x).item()))
    assert found == losses
    assert len(recording.steps) == 5
    for a, b in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_nothing_is_hooked_outside_of_the_steps_that_are_asked_for():
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "mix", "steps": [2, 3]}, optimizer)
    for step in range(5):
        recording.session.open_step(step)
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        assert hooked is (step == 2)
        trained(model, optimizer, x)
    assert len(recording.steps) == 1
    assert torch.overrides._get_current_function_mode_stack() == []


def test_recomputed_calls_are_tagged_and_training_is_the_same():
    class Saving(Net):
        def forward(self, x, scale=1.0):
            return self.second(checkpoint(self.first, x, use_reentrant=False) * scale)

    def saving():
        torch.manual_seed(0)
        model = Saving(0.3)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(5, 6)

    bare, optimizer, x = saving()
    torch.manual_seed(1)
    trained(bare, optimizer, x)
    model, optimizer, x = saving()
    torch.manual_seed(1)
    rows = Recording(model, {"preset": "mix"}, optimizer).step(0, lambda: trained(model, optimizer, x))
    for a, b in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    tagged = {row["name"] for row in rows if "recomputed" in row["flags"]}
    assert {"first", "first.up", "first.up.linear", "first.relu"} <= tagged
    assert not any(name.startswith("second") for name in tagged)
    seen = by_site(rows)
    assert seen["0/fwd/first.up#1:out0"]["sum"] == seen["0/fwd/first.up#0:out0"]["sum"]


def test_micro_batches_and_generation_are_told_apart():
    model, optimizer, x = made()

    def accumulated():
        for part in x.split(3):
            model(part).sum().backward()
        with torch.no_grad():
            model(x)
        optimizer.step()

    rows = Recording(model, {"preset": "modules"}, optimizer).step(0, accumulated)
    forward = [row for row in rows if row["phase"] == "fwd" and row["name"] == "first" and row["slot"] == "in0"]
    assert [(row["micro"], row["call"], row["shape"], row["flags"]) for row in forward] == [
        (0, 0, (3, 6), ""),
        (1, 0, (2, 6), ""),
        (1, 1, (5, 6), "no_grad"),
    ]


def test_names_phases_and_between_choose_what_is_recorded():
    def recorded(**plan):
        model, optimizer, x = made()
        rows = Recording(model, {"preset": "mix", **plan}, optimizer).step(0, lambda: trained(model, optimizer, x))
        return {row["name"] for row in rows}, {row["phase"] for row in rows}

    names, phases = recorded(names=["second.*"])
    assert all(name.startswith("second.") for name in names)
    assert phases == {"fwd", "bwd", "param", "grad"}
    assert recorded(phases=["fwd"])[1] == {"fwd"}
    assert recorded(phases=["bwd"])[0] == recorded(phases=["fwd", "bwd"])[0]
    assert recorded(phases=["bwd"])[1] == {"bwd"}
    names, _ = recorded(between=["first.relu", "second.up"], phases=["fwd"])
    assert names == {
        *("first.relu", "first.dropout", "first.dropout.dropout", "first.down", "first.down.linear", "first.add"),
        *("Net.mul", "second", "second.up", "second.up.linear"),
    }


def test_nothing_is_recorded_while_the_session_is_paused():
    model, _, x = made()
    recording = Recording(model, {"preset": "mix", "phases": ["fwd"]})

    def run():
        recording.session.pause()
        model(x)
        recording.session.resume()
        model.first(x)

    assert {row["name"].split(".")[0] for row in recording.step(0, run)} == {"first"}


def test_arguments_that_are_no_tensors_and_the_call_stack_are_kept():
    model, _, x = made()
    recording = Recording(model, {"preset": "mix", "phases": ["fwd"]})
    rows = recording.step(0, lambda: model(x, scale=2.5))
    first = next(row for row in rows if row["name"] == "Net")
    assert first["args"] == '{"args":[{"in":"in0"}],"kwargs":{"scale":2.5}}'
    relu = next(row for row in rows if row["name"] == "first.relu")
    frames = recording.stacks[relu["stack"]]
    assert "test_record.py" in frames[0]
    assert frames[0].endswith("Block.forward")
    assert not any("torch/nn" in frame for frame in frames)
    known = len(recording.stacks)
    for step in (1, 2):
        recording.step(step, lambda: model(x, scale=2.5))
        assert len(recording.stacks) == 2 * known  # those of the loop, which are the same in both steps


def test_one_nan_does_not_wipe_the_rest():
    class Bad(nn.Module):
        def forward(self, x):
            return x / torch.tensor([1.0, 0.0, 2.0, 0.0])

    model = Bad()
    rows = by_site(Recording(model, {"preset": "ops"}).step(0, lambda: model(torch.tensor([1.0, 1.0, 4.0, 0.0]))))
    out = rows["0/fwd/Bad.div#0:out0"]
    assert (out["nan"], out["pos_inf"], out["min"], out["max"], out["sum"]) == (1, 1, 1, 2, 3)


def test_memory_that_nobody_has_written_is_not_measured():
    class Empty(nn.Module):
        def forward(self, x):
            return torch.empty(3).copy_(x)

    model = Empty()
    rows = by_site(Recording(model, {"preset": "ops"}).step(0, lambda: model(torch.ones(3))))
    assert rows["0/fwd/Empty.empty#0:out0"]["note"] == "memory that is not initialised"
    assert rows["0/fwd/Empty.empty#0:out0"]["numel"] is None
    assert rows["0/fwd/Empty.copy_#0:out0"]["sum"] == 3


def test_a_part_of_a_buffer_that_nobody_has_written_is_not_measured_until_it_is():
    """As TRL's loss does, chunk by chunk of the vocabulary."""

    class Buffered(nn.Module):
        def forward(self, x):
            tile = torch.empty(8, 8)[:3, :3]
            torch.mm(x, x, out=tile)
            return tile[:2].exp()

    model = Buffered()
    rows = by_site(Recording(model, {"preset": "ops"}).step(0, lambda: model(torch.eye(3))))
    unfilled = {site for site, row in rows.items() if row["note"] == "memory that is not initialised"}
    getitem, mm = "0/fwd/Buffered.getitem#0", "0/fwd/Buffered.mm#0:out"
    assert unfilled == {"0/fwd/Buffered.empty#0:out0", f"{getitem}:in0", f"{getitem}:out0", mm}
    assert rows["0/fwd/Buffered.mm#0:out0"]["sum"] == 3
    assert rows["0/fwd/Buffered.getitem#1:out0"]["sum"] == 2


def test_a_buffer_that_is_filled_part_by_part_is_measured_when_it_is_full():
    """As DeepSeek's keys are in transformers 5."""

    class Buffered(nn.Module):
        def forward(self, x):
            keys = torch.empty(4, 3)
            keys[..., :2].copy_(x[..., :2])
            keys[..., 2:].copy_(x[..., 2:])
            return keys.exp()

    model = Buffered()
    rows = by_site(Recording(model, {"preset": "ops"}).step(0, lambda: model(torch.zeros(4, 3))))
    unfilled = {site.removeprefix("0/fwd/Buffered.") for site, row in rows.items() if row["note"]}
    assert unfilled == {
        *("empty#0:out0", "getitem#0:in0", "getitem#0:out0", "copy_#0:in0"),
        *("getitem#2:in0", "getitem#2:out0", "copy_#1:in0"),
    }
    assert rows["0/fwd/Buffered.exp#0:in0"]["sum"] == 0


def test_strides_are_kept_of_values_that_do_not_lie_row_by_row():
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "ops", "steps": (0, 1), "phases": ["fwd"]}, optimizer)

    rows = by_site(recording.step(0, lambda: model(x.t().contiguous().t()).sum().backward()))
    assert rows["0/fwd/first.up.linear#0:in0"]["strides"] == (1, 5)
    assert rows["0/fwd/first.up.linear#0:out0"]["strides"] is None


def test_a_single_element_of_any_stride_is_stored():
    """As the index of an expert is that Mixtral of transformers 5 takes."""

    class Cut(nn.Module):
        def forward(self, x):
            return x.long()[:, 0] + 1

    model = Cut()
    recording = Recording(model, {"preset": "ops", "depth": "tensor"})
    rows = by_site(recording.step(0, lambda: model(torch.tensor([[0.0, 2.0, 0.0, 0.0]]))))
    assert rows["0/fwd/Cut.getitem#0:out0"]["note"] is None
    assert rows["0/fwd/Cut.add#0:out0"]["sum"] == 1


def test_what_cannot_be_measured_is_named():
    class Odd(nn.Module):
        def forward(self, x):
            return x.to_sparse(), torch.empty(2, device="meta"), x.to(torch.complex64) * 1j

    model = Odd()
    rows = by_site(Recording(model, {"preset": "ops"}).step(0, lambda: model(torch.eye(2))))
    assert "sparse" in rows["0/fwd/Odd.to_sparse#0:out0"]["note"]
    assert rows["0/fwd/Odd.empty#0:out0"]["note"]
    assert (rows["0/fwd/Odd.mul#0:out0"]["sum_sq"], rows["0/fwd/Odd.mul#0:out0"]["numel"]) == (2, 8)


def test_tensors_are_stored_once_and_as_they_were():
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "mix", "depth": "tensor"}, optimizer)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    step = recording.step(0, lambda: trained(model, optimizer, x))
    rows = by_site(step)
    kept = recording.tensors[step[rows["0/param/first.up.weight#0:value"]["same_as"]]["tensor"]]
    assert (kept.dtype, kept.shape) == ("F32", (12, 6))
    assert np.array_equal(np.frombuffer(kept.data, dtype=np.float32).reshape(12, 6), before["first.up.weight"])
    assert rows["0/fwd/first.up#0:out0"]["tensor"] is None  # the same as the op's
    assert len(recording.tensors) == sum(row["measured"] for row in rows.values())


def test_stored_tensors_are_cut_and_capped():
    model, _, x = made()
    recording = Recording(model, {"preset": "modules", "depth": "tensor", "first_rows": 2, "max_bytes": 200})
    recording.step(0, lambda: model(x))
    assert {record.shape[0] for record in recording.tensors.values()} == {2}
    assert 0 < sum(len(record.data) for record in recording.tensors.values()) <= 200


def test_equal_runs_have_equal_fingerprints_and_a_flipped_bit_another():
    def fingerprints(flip=False):
        model, optimizer, x = made(dropout=0.3)
        torch.manual_seed(1)
        if flip:
            with torch.no_grad():
                model.second.up.weight.view(torch.int32)[3, 2] ^= 1
        rows = Recording(model, {"preset": "mix", "depth": "fingerprint"}, optimizer).step(
            0, lambda: trained(model, optimizer, x)
        )
        return {site(row): row.get("fingerprint") for row in rows}

    first, second, flipped = fingerprints(), fingerprints(), fingerprints(flip=True)
    assert first == second
    different = [key for key in first if first[key] != flipped[key]]
    assert different[0] == "0/fwd/second.up.linear#0:in1"
    assert "0/fwd/first#0:out0" not in different


def test_save_records_a_value_and_its_gradient():
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "modules"}, optimizer)

    def run():
        hidden = model.first(x)
        recording.session.save("hidden", hidden)
        (hidden * 3).sum().backward()

    rows = by_site(recording.step(0, run))
    assert rows["0/save/hidden#0:value"]["sum"] == rows["0/fwd/first#0:out0"]["sum"]
    assert rows["0/bwd/hidden#0:value"]["sum"] == 3 * 30


def test_a_compiled_module_is_recorded_at_its_seam_and_noted():
    model, optimizer, x = made()
    model.first = torch.compile(model.first, backend="eager")
    recording = Recording(model, {"preset": "mix"}, optimizer)
    rows = by_site(recording.step(0, lambda: trained(model, optimizer, x)))
    assert math.isfinite(rows["0/fwd/first#0:out0"]["sum"])
    assert not any(row["name"].startswith("first.") for row in rows.values() if row["phase"] in ("fwd", "opt"))
    assert "0/fwd/second.relu#0:out0" in rows
    assert any("first is compiled" in note for note in recording.notes)


def test_a_scripted_module_hides_its_calls_and_nothing_else():
    model, optimizer, x = made()
    model.first = torch.jit.script(model.first)
    recording = Recording(model, {"preset": "mix"}, optimizer)
    rows = by_site(recording.step(0, lambda: trained(model, optimizer, x)))
    assert not any(row["name"].startswith("first") for row in rows.values() if row["phase"] == "fwd")
    assert "0/fwd/second.relu#0:out0" in rows
    assert any("first is compiled" in note for note in recording.notes)


def test_a_step_that_no_update_ends_is_written_at_the_end():
    model, _, x = made()
    recording = Recording(model, {"preset": "modules"})
    recording.session.open_step(0)
    with torch.no_grad():
        model(x)
    recording.session.detach()
    assert {row["name"] for row in recording.steps[0] if row["phase"] == "fwd"} >= {"Net", "first.up"}


@pytest.mark.parametrize("whole", [True, False])
def test_compiling_while_a_step_is_recorded_sees_no_tensors_without_values(whole):
    """Compilers run autograd and torch functions on fake tensors while they trace."""
    bare, optimizer, x = made()
    trained(bare, optimizer, x)
    model, optimizer, x = made()
    compiled = torch.compile(model, backend="aot_eager") if whole else model
    if not whole:
        model.first = torch.compile(model.first, backend="aot_eager")
    recording = Recording(compiled, {"preset": "mix"}, optimizer)
    rows = recording.step(0, lambda: trained(compiled, optimizer, x))
    assert not [row["note"] for row in rows if "values in other tensors" in (row["note"] or "")]
    for a, b in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5)


def test_an_exception_of_the_users_passes_and_leaves_nothing_behind():
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError("the user's own")

    model = nn.Sequential(nn.Linear(2, 2), Raises())
    recording = Recording(model, {"preset": "mix"})
    recording.session.open_step(0)
    with pytest.raises(ValueError, match="the user's own"):
        model(torch.ones(1, 2))
    recording.session.close_step()
    assert torch.overrides._get_current_function_mode_stack() == []
    assert recording.steps


def test_a_broken_recorder_stops_recording_and_not_training(monkeypatch):
    from trueline.capture.record import session as module

    model, optimizer, x = made()
    errors = []
    session = module.Session(model, plan=module.Plan(preset="mix"), write=lambda record: None, failed=errors.append)
    monkeypatch.setattr(session._buffer, "see", lambda *a, **k: 1 / 0)
    session.open_step(0)
    trained(model, optimizer, x)
    session.close_step()
    session.open_step(1)
    trained(model, optimizer, x)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert torch.overrides._get_current_function_mode_stack() == []


class Counting(torch.overrides.TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counting.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_users_that_is_on_before_a_step_is_left_in_order():
    model, optimizer, x = made()
    Counting.calls = 0
    with Counting():
        model(x)
    alone, Counting.calls = Counting.calls, 0
    recording = Recording(model, {"preset": "ops"}, optimizer)
    with Counting() as mode:
        recording.session.open_step(0)
        x * 2
        model(x)
        assert torch.overrides._get_current_function_mode_stack() == [mode]
    assert Counting.calls == alone + 1  # ours are not counted
    assert torch.overrides._get_current_function_mode_stack() == []
    recording.session.close_step()
    assert any("Counting" in note for note in recording.notes)


def test_a_mode_of_the_users_within_a_step_leaves_ours_below_it():
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "ops"}, optimizer)
    recording.session.open_step(0)
    with Counting():
        loss = model(x).square().mean()
    assert torch.overrides._get_current_function_mode_stack() == [recording.session._mode]
    loss.backward()
    recording.session.close_step()
    assert torch.overrides._get_current_function_mode_stack() == []
    assert not recording.notes
    recording.session.drain(wait=True)
    assert {"square", "mean"} <= {row["name"] for row in recording.steps[0]}


@pytest.mark.parametrize("depth", ["stats", "fingerprint", "tensor"])
def test_storages_can_still_be_resized_after_being_measured(depth):
    """``Tensor.numpy`` forbids it for good, and FSDP2 frees its unsharded parameters by it."""
    model = nn.Linear(2, 2)
    Recording(model, {"preset": "mix", "depth": depth}).step(0, lambda: model(torch.ones(1, 2)))
    assert model.weight.untyped_storage().resizable()


def test_what_is_measured_on_a_device_arrives_as_if_measured_on_the_host(monkeypatch):
    """The path of a GPU, on the CPU: measured by torch alone, copied once at the end of the step."""
    from trueline.capture.record.buffer import StepBuffer

    def recorded():
        model, optimizer, x = made()
        plan = {"preset": "mix", "depth": "fingerprint", "exponents": True}
        return by_site(Recording(model, plan, optimizer).step(0, lambda: trained(model, optimizer, x)))

    on_host = recorded()
    monkeypatch.setattr(StepBuffer, "_on_host", lambda self, x: False)
    on_device = recorded()
    assert on_host.keys() == on_device.keys()
    for key, row in on_host.items():
        for name in ("min", "max", "nan", "zero", "fingerprint", "measured", "same_as"):
            assert row[name] == on_device[key][name], (key, name)
        assert row["sum"] == pytest.approx(on_device[key]["sum"], rel=1e-5, abs=1e-5)
