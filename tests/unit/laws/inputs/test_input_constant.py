"""input-constant: what tells samples apart and is one number, noise that comes again, and labels of one class."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline

ROWS, WIDTH, STEPS = 16, 32, 8


class Model(nn.Module):
    """Reads whatever it is given by these names."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, t=None, y=None, position_ids=None, lengths=None, grid=None):
        positions = 0 if position_ids is None else position_ids.float().mean(-1, keepdim=True)
        return self.body(
            x + positions + sum(0 if number is None else number[:, None].float() for number in (t, y, lengths))
        )


def draws(*shape, low=0, high=None):
    return torch.rand(*shape) if high is None else torch.randint(low, high, shape)


def findings_of(folder, inputs, loss=lambda output: output.square().mean(), *, steps=STEPS, micro=1):
    """(kind, severity, name) of what is found, and why nothing could be, after training on ``inputs`` of each step."""
    torch.manual_seed(0)
    model = Model()
    updates = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = trueline.watch(model, updates, out=folder, plan={"every": 1})
    for step in range(steps):
        for number in range(micro):
            loss(model(**inputs(step * micro + number))).backward()
        updates.step()
        updates.zero_grad()
    watch.close()
    constants, why = asked(folder, "input-constant")
    return [(finding.evidence["kind"], finding.severity, finding.evidence["name"]) for finding in constants], why


def x():
    return draws(ROWS, WIDTH)


NUMBERS = torch.arange(ROWS)
NOWHERE = torch.zeros(ROWS, 9, dtype=torch.long)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (lambda step: {"x": x(), "t": torch.zeros(ROWS)}, [("condition", "warning", "t")]),
        (lambda step: {"x": x(), "t": torch.zeros(ROWS, dtype=torch.long)}, [("condition", "warning", "t")]),
        (lambda step: {"x": x(), "t": torch.full((ROWS,), 7)}, [("condition", "info", "t")]),
        (lambda step: {"x": x(), "y": torch.zeros(ROWS, dtype=torch.long)}, [("condition", "info", "y")]),
        (lambda step: {"x": torch.randn(ROWS, WIDTH), "t": torch.zeros(ROWS)}, [("condition", "info", "t")]),
        (lambda step: {"x": x(), "position_ids": NOWHERE}, [("positions", "warning", "position_ids")]),
        (lambda step: {"x": x(), "t": torch.full((ROWS,), step)}, []),
        (lambda step: {"x": x(), "t": draws(ROWS, high=2)}, []),
        (lambda step: {"x": x(), "y": NUMBERS}, []),
        (lambda step: {"x": x(), "lengths": torch.full((ROWS,), 9)}, []),
        (lambda step: {"x": x(), "position_ids": torch.arange(9).expand(ROWS, 9)}, []),
        (lambda step: {"x": x(), "position_ids": torch.zeros(ROWS, 1, dtype=torch.long)}, []),
        (lambda step: {"x": x(), "t": torch.zeros(())[None]}, []),
        (lambda step: {"x": x(), "grid": torch.linspace(0, 1, ROWS * 20).view(ROWS, 20)}, []),
    ],
)  # fmt: skip
def test_numbers_of_samples_that_are_all_one(tmp_path, inputs, expected):
    assert findings_of(tmp_path / "run", inputs) == (expected, [])


def test_a_class_of_one_micro_batch_is_another_one_of_the_next(tmp_path):
    by_pass = lambda step: {"x": x(), "t": torch.full((ROWS,), step % 2)}  # noqa: E731
    assert findings_of(tmp_path / "run", by_pass, micro=2) == ([], [])
    assert findings_of(tmp_path / "again", lambda step: {"x": x(), "t": torch.zeros(ROWS)}, micro=2)[0] != []


def noise(seed=None):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, WIDTH, generator=generator)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("target", "timed", "severities"),
    [
        (lambda: noise(0), True, ["warning"]),
        (lambda: noise(0), False, ["info"]),
        (lambda: noise(), True, []),
        (lambda: torch.zeros(ROWS, WIDTH), True, []),
        (lambda: torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)), True, []),
        (lambda: 2 * noise(0), True, []),
        (lambda: noise(0).cumsum(1) / 4, True, []),
    ],
)
def test_noise_that_comes_again_as_a_target(tmp_path, target, timed, severities):
    inputs = lambda step: {"x": x(), **({"t": draws(ROWS)} if timed else {})}  # noqa: E731
    constants, why = findings_of(tmp_path / "run", inputs, lambda output: functional.mse_loss(output, target()))
    assert (constants, why) == ([("noise", severity, "mse_loss") for severity in severities], [])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (lambda: torch.full((ROWS,), 3), [("one-class", "warning", "cross_entropy")]),
        (lambda: torch.where(torch.arange(ROWS) % 2 == 0, 3, -100), [("one-class", "warning", "cross_entropy")]),
        (lambda: torch.full((ROWS,), -100), []),
        (lambda: draws(ROWS, high=2), []),
        (lambda: NUMBERS, []),
    ],
)
def test_labels_of_one_class(tmp_path, target, expected):
    loss = lambda output: functional.cross_entropy(output, target())  # noqa: E731
    assert findings_of(tmp_path / "run", lambda step: {"x": x()}, loss) == (expected, [])


def test_a_positive_that_stands_first_is_no_label(tmp_path):
    """As contrast to a queue has it: what is compared is no layer's."""
    loss = lambda output: functional.cross_entropy(output @ output.T, torch.zeros(ROWS, dtype=torch.long))  # noqa: E731
    assert findings_of(tmp_path / "run", lambda step: {"x": x()}, loss) == ([], [])


@pytest.mark.parametrize(
    ("steps", "fixed", "reason"),
    [(STEPS, True, "no input of the model changes"), (STEPS - 1, False, "fewer than 8 steps")],
)
def test_where_nothing_changes_or_little_was_seen_it_cannot_tell(tmp_path, steps, fixed, reason):
    batch = {"x": x(), "t": torch.zeros(ROWS)}
    constants, (why,) = findings_of(tmp_path / "run", lambda step: batch if fixed else {**batch, "x": x()}, steps=steps)
    assert constants == []
    assert reason in why
