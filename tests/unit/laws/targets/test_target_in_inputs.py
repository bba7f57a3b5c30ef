"""target-in-inputs: the target among the numbers that a model reads; targets that follow from several of them."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline

NUM, WIDTH, BATCH, STEPS = 1024, 12, 32, 20


def data():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(NUM, WIDTH, generator=draw)
    return x, x[:, :4].sum(1) + torch.randn(NUM, generator=draw), torch.randint(0, 4, (NUM,), generator=draw)


def with_column(column):
    """Inputs, of which the last number is this."""
    return torch.cat([data()[0], column.reshape(NUM, -1)], 1)


def windows(length):
    walk = torch.randn(NUM + length, generator=torch.Generator().manual_seed(2)).cumsum(0)
    return torch.stack([walk[at : at + length] for at in range(NUM)]), walk[8 : 8 + NUM]


def said_of(path, inputs, targets, loss=functional.mse_loss, width=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs.shape[1], 16), nn.Tanh(), nn.Linear(16, width))
    optimizer = torch.optim.AdamW(model.parameters())
    watch = trueline.watch(model, optimizer, out=path, plan={"every": 1})
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % NUM
        output = model(inputs[rows])
        optimizer.zero_grad()
        loss(output[:, 0] if width == 1 else output, targets[rows]).backward()
        optimizer.step()
    watch.close()
    return asked(path, "target-in-inputs")[0]


def test_a_scaled_target_among_the_columns(tmp_path):
    _, target, _ = data()
    (finding,) = said_of(tmp_path / "run", with_column((target - target.mean()) / target.std()), target)
    assert (finding.severity, finding.evidence["kind"], finding.false_alarm_rate < 1e-6) == ("confirm", "affine", True)
    assert finding.claim == (
        "Number 12 of 13 of each sample of `input`, counted from 0, is the target of mse_loss but for a factor and an "
        "offset, in all 512 samples that were looked at."
    )


def test_a_window_that_ends_one_step_late(tmp_path):
    (finding,) = said_of(tmp_path / "late", *windows(9))
    assert (finding.evidence["kind"], finding.evidence["place"]) == ("affine", 8)
    assert said_of(tmp_path / "right", *windows(8)) == []


def test_a_class_that_has_another_name(tmp_path):
    names = torch.tensor([3.0, -1.0, 0.5, 9.0])
    classes = data()[2]
    (finding,) = said_of(tmp_path / "run", with_column(names[classes]), classes, functional.cross_entropy, 4)
    assert (finding.evidence["kind"], finding.evidence["place"], finding.measured) == ("renamed", 12, 1)
    assert "it is a number of its own for each target" in finding.claim


def test_a_class_that_is_encoded(tmp_path):
    classes = data()[2]
    inputs = with_column(functional.one_hot(classes, 4).float())
    (finding,) = said_of(tmp_path / "run", inputs, classes, functional.cross_entropy, 4)
    assert (finding.evidence["kind"], finding.measured) == ("encoded", 4)
    assert finding.claim.endswith("512 samples that were looked at (3 more do so).")


def test_a_sign_is_a_binary_target(tmp_path):
    target = (data()[1] > 0).float()
    loss = functional.binary_cross_entropy_with_logits
    (finding,) = said_of(tmp_path / "run", with_column(2 * target - 1), target, loss)
    assert finding.evidence["function"] == "binary_cross_entropy_with_logits"


def healthy():
    x, target, classes = data()
    sparse = (torch.rand(NUM, 400, generator=torch.Generator().manual_seed(3)) < 0.01).float()
    many = torch.randint(0, 50, (NUM,), generator=torch.Generator().manual_seed(4))
    yield "nothing", (x, target)
    yield "classes", (x, classes, functional.cross_entropy, 4)
    yield "signs", (x, (x[:, 0] > 0).float(), functional.binary_cross_entropy_with_logits)
    yield "one property of a class", (with_column((classes == 2).float()), classes, functional.cross_entropy, 4)
    yield "nearly", (with_column(target + 1e-3 * x[:, 0]), target)
    yield "rare words and many classes", (sparse, many, functional.cross_entropy, 50)
    yield "one class", (x, torch.zeros(NUM, dtype=torch.long), functional.cross_entropy, 4)
    yield "a target for all", (x, torch.ones(NUM))
    yield "made up of the classes", (classes[:, None].expand(NUM, 6).float(), classes, functional.cross_entropy, 4)
    yield "several targets", (x, x, functional.mse_loss, WIDTH)


@pytest.mark.in_turn
@pytest.mark.parametrize("job", [job for _, job in healthy()], ids=[name for name, _ in healthy()])
def test_what_does_not_tell_the_target(tmp_path, job):
    assert said_of(tmp_path / "run", *job) == []


def test_a_sample_that_differs_once(tmp_path):
    _, target, _ = data()
    column = target.clone()
    column[5 * BATCH] += 1
    assert said_of(tmp_path / "run", with_column(column), target) == []
