"""frozen-model-drops: a teacher in training mode is told, what is meant to drop is not, and training is as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.analyze.check_run import check
from trueline.capture.probes.other_models import called_parts

CODE, ROWS, WIDTH, STEPS = "frozen-model-drops", 8, 6, 7


class Net(nn.Module):
    """Two layers with dropout between them, as a module or by a function; ``deep``: some with attention."""

    def __init__(self, p=0.5, *, by_function=False, deep=False, reentrant=False, norm=False):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 8, p, batch_first=True) if deep else nn.Identity()
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.by_function, self.reentrant = by_function, reentrant
        if by_function:
            self.drop_rate = p
        else:
            self.drop = nn.Dropout(p)

    def forward(self, x):
        h = self.norm(self.body(self.first(x)[:, None])[:, 0])
        return checkpoint(self.rest, h, use_reentrant=True) if self.reentrant else self.rest(h)

    def rest(self, h):
        return self.last(functional.dropout(h, self.drop_rate, self.training) if self.by_function else self.drop(h))


class Unused(nn.Module):
    """Has dropout that it does not use."""

    def __init__(self):
        super().__init__()
        self.last, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x):
        return self.last(x)


class Recomputed(nn.Module):
    """How far a student is from a teacher, in a checkpoint that calls both again in the backward pass."""

    def __init__(self, teacher):
        super().__init__()
        self.last, self.teacher = nn.Linear(WIDTH, WIDTH), [teacher]

    def forward(self, x):
        return checkpoint(self.apart, x, use_reentrant=False)

    def apart(self, x):
        with torch.no_grad():
            taught = self.teacher[0](x)
        return self.last(x) - taught


class Both(nn.Module):
    """Holds two models."""

    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher


def trained(out, target, *, student=None, holder=None, after=lambda: None, own_input=None, through=None):
    """The parameters after some steps towards ``target(x)``; watched into ``out`` unless that is None."""
    torch.manual_seed(1)
    model = Net(0.0) if student is None else student
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH)
        wanted = target(x)
        own = x if own_input is None else own_input(x, wanted)
        made = model(own) if through is None else through(model(own))
        functional.mse_loss(made, wanted.detach()).backward()
        updates.step()
        updates.zero_grad()
        after()
    if watch is not None:
        watch.close()
    del holder
    return [param.detach().clone() for param in model.parameters()]


def without_gradients(model):
    def call(x):
        with torch.no_grad():
            return model(x)

    return call


def judged(out):
    report = check(trueline.open_run(out))
    assert CODE in report.checks_run
    assert not [each for each in report.findings if each.code == "watch-degraded"]
    found = [each for each in report.findings if each.code == CODE]
    return [(each.severity, each.evidence["kind"], each.evidence["model"]) for each in found]


STILL = [("warning", "still", "Net")]


@pytest.mark.parametrize(
    ("teacher", "found"),
    [
        (lambda: Net(), STILL),
        (lambda: Net(by_function=True), STILL),
        (lambda: Net(deep=True), STILL),
        (lambda: Net().requires_grad_(False), STILL),
        (lambda: nn.Sequential(Net().eval(), Net()), [("warning", "still", "Sequential")]),
        (lambda: Net().eval(), []),
        (lambda: Net(0.0), []),
        (lambda: Net(0.0, norm=True), []),
        (lambda: Net(by_function=True).eval(), []),
        (lambda: nn.Dropout(0.5), []),
        (lambda: Unused(), []),
    ],
)
def test_a_teacher_that_drops_is_told(tmp_path, teacher, found):
    trained(tmp_path / "run", without_gradients(teacher()))
    assert judged(tmp_path / "run") == found


def test_a_teacher_that_was_trained_before_and_has_its_gradients_is_told(tmp_path):
    teacher = Net()
    updates = torch.optim.SGD(teacher.parameters(), lr=0.1)
    teacher(torch.randn(ROWS, WIDTH)).square().mean().backward()
    updates.step()
    trained(tmp_path / "run", without_gradients(teacher))
    assert judged(tmp_path / "run") == STILL


def test_a_teacher_among_many_models_is_told(tmp_path):
    """As what a notebook still holds of its cells before, whichever is found first."""
    before, teacher, behind = [Net() for _ in range(20)], Net(), [Net() for _ in range(20)]
    trained(tmp_path / "run", without_gradients(teacher), holder=(before, behind))
    assert judged(tmp_path / "run") == STILL


def test_a_frozen_teacher_needs_no_no_grad(tmp_path):
    trained(tmp_path / "run", Net().requires_grad_(False))
    assert judged(tmp_path / "run") == STILL


@pytest.mark.parametrize("called", ["part", "average"])
def test_a_teacher_that_a_wrapper_holds_is_told(tmp_path, called):
    average = AveragedModel(Net())
    trained(tmp_path / "run", without_gradients(average if called == "average" else average.module))
    assert judged(tmp_path / "run") == [("warning", "still", "AveragedModel")]


def test_a_teacher_beside_the_student_in_one_module_is_told(tmp_path):
    both = Both(Net(0.0), Net())
    trained(tmp_path / "run", without_gradients(both.teacher), student=both.student, holder=both)
    assert judged(tmp_path / "run") == STILL


def test_a_teacher_that_is_called_again_in_a_recomputation_is_told(tmp_path):
    trained(tmp_path / "run", lambda x: torch.zeros(ROWS, WIDTH), student=Recomputed(Net()))
    assert judged(tmp_path / "run") == STILL


@pytest.mark.parametrize("by_data", [True, False])
def test_an_average_that_drops_is_for_information(tmp_path, by_data):
    """As a mean teacher is meant to."""
    student, teacher = Net(), Net()

    def follow():
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                (mine.data if by_data else mine).lerp_(theirs.data, 0.1)

    trained(tmp_path / "run", without_gradients(teacher), student=student, after=follow)
    assert judged(tmp_path / "run") == [("info", "moves", "Net")]


def test_features_for_a_model_behind_are_for_information(tmp_path):
    features = Net()
    trained(tmp_path / "run", without_gradients(features), own_input=lambda x, made: made)
    assert judged(tmp_path / "run") == [("info", "still", "Net")]


def test_monte_carlo_dropout_is_left_alone(tmp_path):
    teacher = Net()
    trained(tmp_path / "run", lambda x: torch.stack([without_gradients(teacher)(x) for _ in range(4)]).mean(0))
    assert judged(tmp_path / "run") == []


def test_the_trained_model_itself_is_left_alone(tmp_path):
    student = Net(reentrant=True)
    trained(tmp_path / "run", without_gradients(student), student=student)
    assert judged(tmp_path / "run") == []


def test_a_model_that_is_trained_elsewhere_is_left_alone(tmp_path):
    """As the generator of a GAN, which drops on purpose."""
    other = Net()
    updates = torch.optim.SGD(other.parameters(), lr=0.1)

    def train_it():
        updates.zero_grad()
        other(torch.randn(ROWS, WIDTH)).square().mean().backward()
        updates.step()

    trained(tmp_path / "run", without_gradients(other), after=train_it)
    assert judged(tmp_path / "run") == []


def test_a_model_that_gradients_go_through_is_left_alone(tmp_path):
    """As a frozen network that compares what the model makes with what it is to make."""
    critic = Net().requires_grad_(False)
    trained(tmp_path / "run", lambda x: torch.zeros(ROWS, WIDTH), student=nn.Linear(WIDTH, WIDTH), through=critic)
    assert judged(tmp_path / "run") == []


def test_only_parts_that_drop_are_named(tmp_path):
    trained(tmp_path / "run", without_gradients(nn.Sequential(Net().eval(), Net())))
    (finding,) = [each for each in check(trueline.open_run(tmp_path / "run")).findings if each.code == CODE]
    assert "do not move: `Sequential.1.drop` drop values (p up to 0.5)" in finding.claim
    assert "(called at test_other_models.py:" in finding.claim


def test_a_layer_that_computes_otherwise_with_hooks_is_not_hooked():
    model = nn.Sequential(Net(deep=True))
    assert [*called_parts(model, 2)] == [model, model[0]]


def test_a_few_calls_are_not_enough(tmp_path):
    teacher, calls = Net(), []

    def target(x):
        calls.append(x)
        with torch.no_grad():
            return teacher.train(len(calls) in (4, 5))(x)

    trained(tmp_path / "run", target)
    assert judged(tmp_path / "run") == []


@pytest.mark.parametrize("evaluates", [True, False])
def test_training_is_the_same_to_the_bit_and_hooks_are_gone(tmp_path, evaluates):
    torch.manual_seed(3)
    teachers = [Net(deep=True).train(not evaluates)]
    teachers.append(copy.deepcopy(teachers[0]))
    student = Net()
    students = [student, copy.deepcopy(student)]
    alone = trained(None, without_gradients(teachers[0]), student=students[0])
    watched = trained(tmp_path / "run", without_gradients(teachers[1]), student=students[1])
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in teachers[1].modules())


def test_a_compiled_teacher_is_left_alone(tmp_path):
    teacher = torch.compile(Net(), backend="eager")
    trained(tmp_path / "run", without_gradients(teacher))
    assert judged(tmp_path / "run") == []
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in teacher.modules())
