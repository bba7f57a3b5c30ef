"""What a step repeats of the one before is made once: its calls, its places and its columns."""

import torch
from tests.unit.recording import Recording
from torch import nn
from torch.overrides import TorchFunctionMode

from trueline.capture.record.buffer import StepBuffer
from trueline.capture.record.calls import Calls
from trueline.capture.record.guard import guarded
from trueline.schema.plan import Plan


class Steps:
    """Steps of one call that takes some values and returns one."""

    def __init__(self):
        self.calls = Calls()
        self.buffer = StepBuffer(Plan.load({"preset": "ops", "depth": "stats"}), write=lambda record: None)
        self.number = -1

    def next(self, *given, args="{}"):
        self.number += 1
        self.calls.begin()
        self.buffer.begin(self.number)
        for _ in range(2):
            call = self.calls.next("fwd", "add", "op", "torch.add")
            call.args = args
            self.buffer.see(call, [(f"in{index}", x) for index, x in enumerate(given)])
            self.buffer.see(call, [("out0", torch.zeros(2))])
        return self.buffer.finish([]).columns


def test_a_step_that_repeats_has_the_columns_of_the_one_before():
    steps = Steps()
    first, second = steps.next(torch.ones(3)), steps.next(torch.zeros(3))
    assert all(second[name] is column for name, column in first.items())
    assert first["call"] == (0, 0, 1, 1)
    assert first["slot"] == ("in0", "out0", "in0", "out0")
    assert first["same_as"] == (None, None, 0, None)


def test_only_the_first_row_of_a_call_has_its_arguments():
    steps = Steps()
    assert steps.next(torch.ones(3))["args"] == ("{}", None, "{}", None)
    assert steps.next(torch.ones(3), args='{"value":2}')["args"] == ('{"value":2}', None, '{"value":2}', None)


def test_values_of_other_shapes_and_dtypes_have_places_of_their_own():
    steps = Steps()
    steps.next(torch.ones(3))
    columns = steps.next(torch.ones(2, 2, dtype=torch.complex64))
    assert columns["shape"][0] == (2, 2)
    assert columns["numel"][0] == 8
    assert columns["dtype"][0] == "complex64"
    assert steps.next(torch.ones(3))["numel"] == (3, 2, 3, 2)


def test_no_mode_sees_a_guarded_method_and_its_exception_ends_recording():
    seen, failed = [], []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Hooked:
        @guarded
        def doubles(self, x):
            return x * 2

        @guarded
        def breaks(self):
            raise ValueError("broken")

        def fail(self, error):
            failed.append(str(error))

    one = torch.ones(1)
    with Mode():
        two, nothing = Hooked().doubles(one), Hooked().breaks()
    assert (two.item(), nothing) == (2, None)
    assert seen == []
    assert failed == ["broken"]


def test_what_the_watcher_itself_calls_does_not_pass_through_the_mode():
    model = nn.Linear(2, 2)
    session = Recording(model, {"preset": "ops", "depth": "stats"}).session
    session.open_step(0)
    model(torch.ones(1, 2))
    assert session._mode.is_on()
    session.pause()
    session.pause()
    assert not session._mode.is_on()
    session.resume()
    assert not session._mode.is_on()
    session.resume()
    assert session._mode.is_on()
    session.close_step()
    assert not session._mode.is_on()


def test_a_call_that_is_made_again_is_the_same_object():
    calls = Calls()
    calls.begin()
    first, second = calls.next("fwd", "add", "op"), calls.next("fwd", "add", "op")
    assert (first.index, second.index) == (0, 1)
    calls.begin()
    assert calls.next("fwd", "add", "op") is first
    assert calls.next("fwd", "add", "op", stack=3) is not second
