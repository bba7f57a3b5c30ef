"""Influence of later tokens: found where a mask lets it through, exactly 0 where not, and training as it was."""

import pytest
import torch
from gallery.problems import CausalLM
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline
from trueline.judge.check_run import check
from trueline.schema.plan import LAWS_AGE, Plan

LENGTH = CausalLM.length


def trained(out, problem=None, *, dtype=torch.float32, targets=lambda ids: ids[:, 1:], plan=None):
    """The parameters after three steps; watched into ``out`` unless that is None."""
    problem = problem or CausalLM(dropout=0.1)
    torch.manual_seed(1)
    model = problem.model().to(dtype)
    updates = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plan = {"every": 1, "influence": 1} if plan is None else plan
    watch = None if out is None else trueline.watch(model, updates, out=out, plan=plan)
    data = problem.dataset(24).columns["input_ids"].view(3, 8, LENGTH)
    for ids in data:
        logits = model(ids)[:, : targets(ids).shape[1]]
        functional.cross_entropy(logits.flatten(0, 1), targets(ids).flatten()).backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def judged(out):
    """Findings, and why there is no answer."""
    return asked(out, "influence-leak")


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("ahead", "seen"), [(0, 0), (1, 2), (LENGTH, LENGTH // 2)])
def test_as_many_later_tokens_are_seen_as_two_layers_let_through(tmp_path, dtype, ahead, seen):
    trained(tmp_path / "run", CausalLM(ahead=ahead), dtype=dtype)
    findings, why = judged(tmp_path / "run")
    assert why == []
    assert [each.severity for each in findings] == ["error"] * (seen > 0)
    assert all(f"to {seen} of the {LENGTH // 2} later" in each.claim and each.step_first == 1 for each in findings)


def masked(ids):
    """Targets of a masked language model: a token's own."""
    return torch.where(torch.arange(LENGTH) % 3 == 0, ids, -100)


def others(ids):
    """Targets that no embedding read, as those of tokens that are masked."""
    return (ids + 1) % CausalLM.vocab_size


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("problem", "more", "reason"),
    [
        (CausalLM(ahead=LENGTH), {"targets": masked}, "not the next tokens"),
        (CausalLM(ahead=LENGTH), {"targets": others}, "not the next tokens"),
        (CausalLM(checkpointing="reentrant"), {}, "recomputed"),
        (CausalLM(checkpointing="non-reentrant"), {}, "recomputed"),
        (CausalLM(), {"plan": {"every": 1}}, "names no step"),
    ],
)
def test_where_it_does_not_apply_there_is_a_reason_and_no_finding(tmp_path, problem, more, reason):
    trained(tmp_path / "run", problem, **more)
    findings, (why,) = judged(tmp_path / "run")
    assert findings == []
    assert reason in why
    told = "--plan laws" if reason == "names no step" else "trueline trial batch"
    assert [told in line for line in check(trueline.open_run(tmp_path / "run")).next] == [True]


@pytest.mark.in_turn
@pytest.mark.parametrize("preset", ["modules", "ops", "mix", "monitor"])
def test_a_recorded_step_is_looked_at_and_has_nothing_of_it(tmp_path, preset):
    """No row more, no gradient seen twice, and training as it was."""
    problem, tables, weights = CausalLM(dropout=0.1, ahead=1), [], [trained(None, CausalLM(dropout=0.1, ahead=1))]
    for name, more in (("looked", {"influence": 1}), ("not", {})):
        weights.append(trained(tmp_path / name, problem, plan={"every": 1, "preset": preset, **more}))
        table = trueline.open_run(tmp_path / name).records()
        assert {"fwd", "bwd"} <= set(table["phase"].to_pylist())
        tables.append(table.drop_columns([each for each in ("time_ns", "stack") if each in table.column_names]))
    assert tables[0].to_pylist() == tables[1].to_pylist()
    assert all(torch.equal(*pair) for each in weights[1:] for pair in zip(weights[0], each, strict=True))
    findings, why = judged(tmp_path / "looked")
    assert (len(findings), why) == (1, [])


@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "non-reentrant"])
def test_training_is_the_same_to_the_bit(tmp_path, checkpointing):
    problem = CausalLM(dropout=0.1, checkpointing=checkpointing)
    alone, watched = trained(None, problem), trained(tmp_path / "run", problem)
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


class Packed(nn.Module):
    """Means over what a token may see of its row: with ``borders``, of its document."""

    def __init__(self, borders):
        super().__init__()
        self.borders, self.embed, self.head = borders, nn.Embedding(64, 8), nn.Linear(8, 64)

    def forward(self, ids, position_ids):
        document = (position_ids == 0).cumsum(-1)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.borders:
            seen = seen & (document[..., None] == document[..., None, :])
        return self.head(seen.float() @ self.embed(ids))


@pytest.mark.parametrize("borders", [True, False])
def test_documents_of_a_packed_row_see_each_other_or_not(tmp_path, borders):
    torch.manual_seed(1)
    model = Packed(borders)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1, "influence": 0})
    ids, positions = torch.randint(64, (4, LENGTH)), torch.cat([torch.arange(6), torch.arange(LENGTH - 6)])[None]
    logits = model(ids, position_ids=positions)
    functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    updates.step()
    watch.close()
    findings, why = judged(tmp_path / "run")
    assert why == []
    assert [each.severity for each in findings] == ["warning"] * (not borders)


STEPS = 12


@pytest.mark.parametrize(("preset", "ahead", "found"), [("laws", 1, 1), ("laws", 0, 0), ("workers", 1, 0)])
def test_preset_laws_looks_once_when_a_head_of_zeros_has_been_updated(tmp_path, preset, ahead, found):
    problem = CausalLM(ahead=ahead)
    torch.manual_seed(1)
    model = problem.model()
    nn.init.zeros_(model.get_submodule("head").weight)
    updates = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan=preset)
    for ids in problem.dataset(8 * STEPS).columns["input_ids"].view(STEPS, 8, LENGTH):
        functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        updates.step()
        updates.zero_grad()
    watch.close()
    report = check(trueline.open_run(tmp_path / "run"))
    assert [each.step_first for each in report.findings if each.code == "influence-leak"] == [LAWS_AGE] * found
    told = "--plan laws" if preset == "workers" else "trueline trial batch"
    assert [told in line for line in report.next] == [True] * (not report.has_incidents)


def test_a_step_that_the_plan_names_takes_the_place_of_that_of_preset_laws():
    assert [age for age in range(30) if Plan(preset="laws", influence=3).looks_at(age, age=age)] == [3]
    assert [age for age in range(30) if Plan(preset="laws").looks_at(500 + age, age=age)] == [LAWS_AGE]
    assert not any(Plan().looks_at(age, age=age) for age in range(30))


def parts_called_one_by_one():
    parts = nn.ModuleDict({"embed": nn.Embedding(64, 8), "head": nn.Linear(8, 64)})
    return parts, lambda ids: parts["head"](parts["embed"](ids))


def an_embedding():
    embed = nn.Embedding(64, 64)
    return embed, embed


def hooked_activations():
    """Hooks on what a part returns, which draw, count and retain."""
    model = nn.Sequential(nn.Embedding(64, 8), nn.Tanh(), nn.Linear(8, 64))

    def on_output(module, args, output):
        output.retain_grad()
        output.register_hook(lambda g: g + 0.01 * torch.randn_like(g))

    model[1].register_forward_hook(on_output)
    return model, model


@pytest.mark.parametrize("make", [parts_called_one_by_one, an_embedding, hooked_activations])
def test_preset_laws_changes_no_training_of_any_shape(tmp_path, make):
    weights = []
    for out in (None, tmp_path / "run"):
        torch.manual_seed(1)
        model, call = make()
        updates = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = None if out is None else trueline.watch(model, updates, out=out, plan={"preset": "laws"})
        for _ in range(STEPS):
            ids = torch.randint(64, (4, 12))
            functional.cross_entropy(call(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            updates.step()
            updates.zero_grad()
        if watch is not None:
            watch.close()
        weights.append([param.detach().clone() for param in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert "failed" not in str(trueline.open_run(tmp_path / "run").manifest)
