"""trains-in-evaluation: trained parts in evaluation mode are named, frozen ones and norms frozen by design are not."""

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn

import trueline
from trueline.laws.modes import trains_in_evaluation
from trueline.schema.columns.evaluating_parts import EvaluatingPart, parts_text
from trueline.schema.errors import CannotTell

WIDTH, STEPS = 6, 10
BERT = EvaluatingPart("bert", 45, 25, 0.1, 0, 30, is_norm=False)


def block(p=0.1, *, norm=False):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *([nn.BatchNorm1d(WIDTH)] if norm else []), nn.Dropout(p))


def trained(out, prepare, *, p=0.1, norm=False, at_step=lambda model, step: None):
    """The parameters after some steps of two blocks and a head, after ``prepare(model)``."""
    torch.manual_seed(1)
    model = nn.ModuleDict({"encoder": nn.Sequential(block(p, norm=norm), block(p)), "head": nn.Linear(WIDTH, 2)})
    model.forward = lambda x: model["head"](model["encoder"](x))
    prepare(model)
    updates = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for step in range(STEPS):
        at_step(model, step)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def judged(out):
    findings, why = asked(out, trains_in_evaluation.CODE)
    assert why == []
    return [(each.severity, each.evidence["kind"], each.evidence["names"], each.measured) for each in findings]


def freeze_encoder(model):
    model["encoder"].eval().requires_grad_(False)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("prepare", "settings", "expected"),
    [
        (lambda model: model["encoder"].eval(), {}, [("confirm", "dropout", ["encoder"], 7.0)]),
        (lambda model: model["encoder"][1].eval(), {}, [("confirm", "dropout", ["encoder.1"], 3.0)]),
        (lambda model: model.eval(), {}, [("confirm", "dropout", [], 9.0)]),
        (
            lambda model: model["encoder"].eval(),
            {"p": 0.0, "norm": True},
            [("confirm", "statistics", ["encoder"], 8.0)],
        ),
        (lambda model: None, {}, []),
        (lambda model: model["encoder"].eval(), {"p": 0.0}, []),
        (freeze_encoder, {}, []),
        (lambda model: model["encoder"][0][1].eval(), {"norm": True}, []),  # its statistics are frozen alone
        (lambda model: model["encoder"][1][1].eval(), {}, []),  # a dropout alone, which trains nothing
    ],
)
def test_a_part_that_is_trained_in_evaluation_mode_is_named(tmp_path, prepare, settings, expected):
    trained(tmp_path / "run", prepare, **settings)
    assert judged(tmp_path / "run") == expected


def test_a_part_that_is_so_for_a_while_only_is_left_alone(tmp_path):
    def at_step(model, step):
        model["encoder"].train(step >= 5)

    trained(tmp_path / "run", lambda model: None, at_step=at_step)
    assert judged(tmp_path / "run") == []


def test_watching_leaves_a_training_as_it_is(tmp_path):
    plain, watched = (trained(out, lambda model: model["encoder"].eval()) for out in (None, tmp_path / "run"))
    assert all(map(torch.equal, plain, watched))


def run_of(path, rows_of_parts):
    rows = healthy_rows(2, 10)
    for (step, _), row in rows.items():
        if step in rows_of_parts:
            row["evaluating_parts"] = parts_text(rows_of_parts[step])
    return write_run(path, rows)


def test_the_claim_counts_modules_and_dropouts(tmp_path):
    (finding,) = trains_in_evaluation.check(run_of(tmp_path, {2: [BERT], 8: [BERT]}))
    assert (finding.ranks, finding.step_first, finding.step_last) == ((0, 1), 2, 8)
    assert "`bert` is trained in evaluation mode: 45 modules; 25 of them have a dropout above 0" in finding.claim


@pytest.mark.parametrize(("rows", "why"), [({}, "no modes"), ({2: [BERT]}, "one step alone")])
def test_without_two_steps_it_cannot_tell(tmp_path, rows, why):
    with pytest.raises(CannotTell, match=why):
        trains_in_evaluation.check(run_of(tmp_path, rows))
