"""frozen-model-drops: a teacher in training mode is told, what is meant to drop is not, and training is as it was."""

import copy

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.judge.check_run import check
from trueline.laws.modes.probe import called_parts, parts_beside_trained

CODE, ROWS, WIDTH, STEPS = "frozen-model-drops", 8, 6, 5


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
    findings, why = asked(out, CODE)
    assert why == []
    return [(each.severity, each.evidence["kind"], each.evidence["model"]) for each in findings]


STILL = [("warning", "still", "Net")]


@pytest.mark.in_turn
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
            return teacher.train(len(calls) in (3, 4))(x)

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


class Inside(nn.Module):
    """Holds parts, of which the last may be frozen; ``far`` says of x how far what they make is apart."""

    def __init__(self, far, frozen=None, **parts):
        super().__init__()
        self.far = far
        for name, part in parts.items():
            self.add_module(name, part)
        if frozen is not None:
            getattr(self, frozen).requires_grad_(False)

    def forward(self, x):
        return self.far(self, x)


def apart(model, x):
    """Of a distillation."""
    with torch.no_grad():
        taught = model.teacher(x)
    return model.student(x) - taught


def apart_later(model, x):
    made = model.student(x)
    return made - model.teacher(x)


def predicted(model, x):
    """A prediction of what a momentum encoder makes, as in BYOL."""
    made = model.student(x)
    with torch.no_grad():
        taught = model.teacher(x)
    return model.head(made.view(-1, WIDTH)) - taught


def of_parts(model, x):
    """Parts of both are called by themselves."""
    with torch.no_grad():
        taught = model.teacher.last(model.teacher.encoder(x))
    return model.student.last(model.student.encoder(x)) - taught


def features(model, x):
    with torch.no_grad():
        made = model.teacher(x)
    return model.head(made)


def pooled(model, x):
    with torch.no_grad():
        made = model.teacher(x)
    return model.head(made * 2)


def joined(model, x):
    """What a frozen model makes beside what a trained one makes."""
    with torch.no_grad():
        made = model.teacher(x)
    return model.head(torch.cat([made, model.student(x)], 1)[:, :WIDTH])


def first_layers(model, x):
    """Nothing frozen takes gradients there."""
    return model.student(model.teacher(x))


def adapted(model, x):
    """An adapter beside a frozen layer, as the first of some."""
    return model.head(model.teacher(x) + model.student(x))


def through(model, x):
    """A frozen model that gradients go through, and one pass without."""
    with torch.no_grad():
        taught = model.teacher(x)
    return model.teacher(model.student(x)) - taught


def through_first(model, x):
    made = model.teacher(model.student(x))
    with torch.no_grad():
        taught = model.teacher(x)
    return made - taught


def of_another_view(model, x):
    with torch.no_grad():
        taught = model.teacher(x + 1)
    return model.student(x) - taught


class Adapted(nn.Module):
    """A frozen layer and a change of low rank."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)
        self.layer.requires_grad_(False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def parts_of(p=0.0):
    return nn.ModuleDict({"encoder": Net(p), "last": nn.Linear(WIDTH, WIDTH)})


def holding(model, out, **more):
    """What is said of a model that makes what is to be 0."""
    trained(out, lambda x: torch.zeros(ROWS, WIDTH), student=model, **more)
    return judged(out)


PART = [("warning", "still", "teacher")]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("far", "teacher", "student", "found"),
    [
        (apart, lambda: Net(), lambda: Net(), PART),
        (apart, lambda: Net(by_function=True), lambda: nn.Linear(WIDTH, WIDTH), PART),
        (apart, lambda: Net().eval(), lambda: Net(), []),
        (apart, lambda: Net(0.0, norm=True), lambda: Net(), []),
        (predicted, lambda: Net(), lambda: Net(), PART),
        (of_parts, lambda: parts_of(0.5), parts_of, PART),
        (features, lambda: Net(), lambda: Net(), []),
        (pooled, lambda: Net(), lambda: Net(), []),
        (joined, lambda: Net(), lambda: Net(), []),
        (through, lambda: Net(), lambda: Net(), []),
        (through_first, lambda: Net(), lambda: Net(), []),
        (of_another_view, lambda: Net(), lambda: Net(), []),
    ],
)
def test_a_teacher_inside_the_trained_model_is_told_and_features_are_not(tmp_path, far, teacher, student, found):
    model = Inside(far, "teacher", student=student(), head=nn.Linear(WIDTH, WIDTH), teacher=teacher())
    assert holding(model, tmp_path / "run") == found


@pytest.mark.parametrize(("far", "found"), [(apart, PART), (joined, [])])
def test_what_takes_gradients_and_never_has_any_is_as_what_is_frozen(tmp_path, far, found):
    model = Inside(far, student=Net(), head=nn.Linear(WIDTH, WIDTH), teacher=Net())
    assert holding(model, tmp_path / "run") == found


def test_a_frozen_teacher_inside_needs_no_no_grad(tmp_path):
    model = Inside(apart_later, "teacher", student=Net(), teacher=Net())
    assert holding(model, tmp_path / "run") == PART


def test_a_teacher_deeper_inside_is_told_by_its_path(tmp_path):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Inside(apart, "teacher", student=Net(), teacher=Net()))
    assert holding(model, tmp_path / "run") == [("warning", "still", "1.teacher")]


@pytest.mark.parametrize(
    "model",
    [
        lambda: Inside(first_layers, "teacher", student=Net(), teacher=Net()),
        lambda: Inside(adapted, "teacher", student=nn.Linear(WIDTH, WIDTH), head=Net(), teacher=Net()),
        lambda: nn.Sequential(Adapted(Net()), Adapted(Net()), nn.Linear(WIDTH, 6)),
        lambda: nn.Sequential(Net().requires_grad_(False), Net().requires_grad_(False), Net()),
    ],
)
def test_a_frozen_backbone_with_dropout_is_left_alone(tmp_path, model):
    """As of LoRA, of adapters, and where the last layers are tuned."""
    assert holding(model(), tmp_path / "run") == []


def test_monte_carlo_dropout_inside_is_left_alone(tmp_path):
    def sampled(model, x):
        with torch.no_grad():
            taught = torch.stack([model.teacher(x) for _ in range(4)]).mean(0)
        return model.student(x) - taught

    assert holding(Inside(sampled, "teacher", student=Net(), teacher=Net()), tmp_path / "run") == []


@pytest.mark.parametrize(("p", "found"), [(0.5, [("info", "moves", "teacher")]), (0.0, [])])
def test_a_momentum_encoder_inside_that_drops_is_for_information(tmp_path, p, found):
    """And with batch normalisation only it is as it is meant."""
    model = Inside(
        predicted, "teacher", student=Net(p, norm=True), head=nn.Linear(WIDTH, WIDTH), teacher=Net(p, norm=True)
    )

    def follow():
        for mine, theirs in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            mine.data.lerp_(theirs.data, 0.1)

    assert holding(model, tmp_path / "run", after=follow) == found


def test_a_teacher_inside_that_is_compiled_is_left_alone(tmp_path):
    model = Inside(apart, "teacher", student=Net(), teacher=torch.compile(Net(), backend="eager"))
    assert holding(model, tmp_path / "run") == []
    assert not any(part._forward_hooks for part in model.student.modules())


def test_only_few_parts_are_hooked_and_none_without_a_part_that_is_frozen():
    model = Inside(apart, "teacher", student=Net(deep=True), teacher=Net(deep=True))
    frozen, beside = parts_beside_trained(model)
    student = model.student
    assert frozen == [("teacher", model.teacher)]
    assert beside == [student, student.first, student.last]
    for other in (
        Inside(apart, student=Net(), teacher=Net()),
        Inside(apart, "teacher", student=Net(), teacher=Net(0.0)),
    ):
        assert parts_beside_trained(other) == ([], [])


def test_training_with_a_teacher_inside_is_the_same_to_the_bit_and_hooks_are_gone(tmp_path):
    torch.manual_seed(3)
    models = [Inside(predicted, "teacher", student=Net(), head=Net(deep=True), teacher=Net(deep=True))]
    models.append(copy.deepcopy(models[0]))
    alone, watched = (
        trained(out, lambda x: torch.zeros(ROWS, WIDTH), student=model)
        for out, model in zip((None, tmp_path / "run"), models, strict=True)
    )
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in models[1].modules())
