"""The losses of single samples: recomputed ones against each sample by itself, and what is done where they disagree."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import trueline
from trueline.capture.model.layout import make_layout
from trueline.capture.probes.base import Step
from trueline.capture.probes.losses import sample_losses
from trueline.capture.probes.losses.loss import LossProbe
from trueline.capture.probes.losses.sample_losses import STEPS_AT_START, SampleLossProbe, loss_rounding
from trueline.capture.step.passes import Contributions, CountedPasses
from trueline.schema.plan import Plan

SAMPLES, POSITIONS, CLASSES = 4, 7, 11
STEP = Step(0, make_layout(nn.Linear(1, 1), patterns=("*",), max_groups=1), Plan(), facts={}, watched=True)
"""The first of a job, at which samples are looked at."""


def random_batch(seed=0, *, positions=POSITIONS, classes=CLASSES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(SAMPLES, positions, classes, generator=generator) * 3).to(dtype)
    labels = torch.randint(0, classes, (SAMPLES, positions), generator=generator)
    labels[0, :3] = -100
    labels[1, 2:] = -100
    return logits, labels


def next_token_loss(logits, labels, **how):
    return cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), **how)


def output(logits, loss):
    return SimpleNamespace(logits=logits, loss=loss)


def recorded(probe, *passes, **kwargs):
    """The column after one step with these (logits, labels, loss)."""
    probe.begin(STEP)
    for logits, labels, loss in passes:
        probe.see(output(logits, loss), (), {"labels": labels} | kwargs)
    return probe.columns(probe.result(CountedPasses()), STEP, {}).get("part_losses")


# -- recomputed from logits


@pytest.mark.parametrize("chunk", [1, CLASSES * 3, CLASSES * POSITIONS, CLASSES * POSITIONS * 3, 2**24])
def test_recomputed_losses_equal_each_sample_by_itself(monkeypatch, chunk):
    monkeypatch.setattr(sample_losses, "CHUNK", chunk)
    logits, labels = random_batch()
    alone = [float(next_token_loss(logits[i : i + 1], labels[i : i + 1])) for i in range(SAMPLES)]
    found = recorded(SampleLossProbe([]), (logits, labels, next_token_loss(logits, labels)))
    assert found == pytest.approx(alone, rel=1e-5)  # two float32 evaluations of about 7 x 11 terms


def test_pieces_cover_all_logits_once_and_stay_small(monkeypatch):
    for chunk in (1, 10, 80, 200, 1000):
        monkeypatch.setattr(sample_losses, "CHUNK", chunk)
        seen = torch.zeros(5, 6, 7)
        for rows, positions in sample_losses._pieces(*seen.shape):
            seen[rows, positions] += 1
            assert seen[rows, positions].numel() <= max(chunk, 7)
        assert seen.eq(1).all()


def test_classifiers_and_labels_of_the_same_position_are_read_too():
    logits, labels = random_batch()
    one = SampleLossProbe([])
    loss = cross_entropy(logits[:, 0], labels[:, -1].clamp(min=0))
    truth = cross_entropy(logits[:, 0], labels[:, -1].clamp(min=0), reduction="none").tolist()
    assert recorded(one, (logits[:, 0], labels[:, -1].clamp(min=0), loss)) == pytest.approx(truth, rel=1e-5)

    notes = []
    same = SampleLossProbe(notes)
    batch = (logits, labels, cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert recorded(same, batch) is None, "read as the next token's label at first"
    assert len(recorded(same, batch)) == SAMPLES
    assert notes == []


def test_a_sum_over_the_tokens_of_all_workers_is_read_by_their_number():
    logits, labels = random_batch()
    loss = next_token_loss(logits, labels, reduction="sum") / 1000
    expected = recorded(SampleLossProbe([]), (logits, labels, next_token_loss(logits, labels)))
    for items in (1000, torch.tensor(1000)):
        assert recorded(SampleLossProbe([]), (logits, labels, loss), num_items_in_batch=items) == expected


def test_labels_in_a_positional_mapping_are_found():
    logits, labels = random_batch()
    probe = SampleLossProbe([])
    probe.begin(STEP)
    probe.see({"logits": logits, "loss": next_token_loss(logits, labels)}, ({"labels": labels},), {})
    assert len(probe.columns(probe.result(CountedPasses()), STEP, {})["part_losses"]) == SAMPLES


def test_a_sample_without_a_label_has_no_loss_of_its_own():
    logits, labels = random_batch()
    labels[2] = -100
    found = recorded(SampleLossProbe([]), (logits, labels, next_token_loss(logits, labels)))
    assert [math.isnan(value) for value in found] == [False, False, True, False]


def test_another_loss_is_not_recorded_not_tried_again_and_noted_once(monkeypatch):
    logits, labels = random_batch()
    notes = []
    probe = SampleLossProbe(notes)
    smooth = (logits, labels, next_token_loss(logits, labels, label_smoothing=0.01))
    assert [recorded(probe, smooth) for _ in range(3)] == [None] * 3
    monkeypatch.setattr(sample_losses, "_look", lambda *_args, **_kwargs: pytest.fail("looked at again"))
    assert recorded(probe, smooth) is None
    assert len(notes) == 1
    assert "is not the mean cross entropy" in notes[0]


def test_a_loss_that_is_not_finite_decides_nothing():
    logits, labels = random_batch()
    notes = []
    probe = SampleLossProbe(notes)
    broken = logits.clone()
    broken[3, 2, 1] = math.nan
    for _ in range(3):
        assert recorded(probe, (broken, labels, next_token_loss(broken, labels))) is None
        assert recorded(probe, (logits, labels, torch.tensor(math.inf))) is None
    assert len(recorded(probe, (logits, labels, next_token_loss(logits, labels)))) == SAMPLES
    assert notes == []


@pytest.mark.parametrize("stray", [-1, -2, CLASSES, 10**6])
def test_labels_outside_the_classes_never_index(stray):
    """They end the process on an accelerator; here they are left out, as a model that ignores them does."""
    logits, labels = random_batch()
    strayed = torch.where(labels == -100, stray, labels)
    expected = recorded(SampleLossProbe([]), (logits, labels, next_token_loss(logits, labels)))
    assert recorded(SampleLossProbe([]), (logits, strayed, next_token_loss(logits, labels))) == expected


@pytest.mark.parametrize(
    ("logits", "labels", "loss"),
    [
        (None, torch.zeros(2, 3, dtype=torch.int64), torch.ones(())),
        (torch.randn(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64), torch.ones(())),
        (torch.randn(2, 3, 5), torch.zeros(2, 3), torch.ones(())),
        (torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64), None),
        (torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2)),
        (torch.randn(2, 3, 5), None, torch.ones(())),
        (torch.randn(1, 3, 5), torch.zeros(1, 3, dtype=torch.int64), torch.ones(())),
        (torch.randn(2, 3, 4, 5), torch.zeros(2, 3, 4, dtype=torch.int64), torch.ones(())),
    ],
)
def test_what_does_not_fit_is_left_alone(logits, labels, loss):
    notes = []
    assert recorded(SampleLossProbe(notes), (logits, labels, loss)) is None
    assert notes == []


def test_all_passes_of_a_step_or_none():
    probe = SampleLossProbe([])
    logits, labels = random_batch()
    whole = (logits, labels, next_token_loss(logits, labels))
    assert len(recorded(probe, whole, whole)) == 2 * SAMPLES
    assert recorded(probe, whole, (logits[:1], labels[:1], torch.ones(()))) is None


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("positions", "classes"), [(3, 2), (65, 1000), (129, 20_011)])
def test_a_models_own_rounding_is_no_disagreement(dtype, positions, classes):
    """The loss in float32 of logits in any dtype, as Hugging Face does it, and in the dtype of the logits."""
    for seed in range(5):
        logits, labels = random_batch(seed, positions=positions, classes=classes, dtype=dtype)
        assert recorded(SampleLossProbe([]), (logits, labels, next_token_loss(logits, labels))) is not None
        few, wanted = logits[:, 0], labels[:, -1].clamp(min=0)
        assert recorded(SampleLossProbe([]), (few, wanted, cross_entropy(few, wanted))) is not None


def test_a_loss_near_zero_may_be_off_by_what_its_logits_are_rounded_by():
    """The model's loss in float64, ours in float32, of predictions that are nearly sure among 20,011 words."""
    for seed in range(5):
        logits, labels = random_batch(seed, positions=65, classes=20_011)
        logits[:, :-1].scatter_(-1, labels[:, 1:, None].clamp(min=0), 22.0)
        loss = cross_entropy(logits[:, :-1].double().flatten(0, 1), labels[:, 1:].flatten())
        assert float(loss) < 0.01
        assert recorded(SampleLossProbe([]), (logits, labels, loss)) is not None


def test_rounding_is_far_below_what_another_loss_differs_by():
    """8 x 2,048 tokens of 128,256 words in float32, loss 2.5: less than a thousandth of the loss."""
    count = torch.tensor(8 * 2048.0).double()
    rounding = loss_rounding(2.5 * count, count, classes=128_256, unit=2.0**-24) / count
    assert 0 < float(rounding) < 1e-3


def test_other_losses_by_a_thousandth_are_refused():
    for seed in range(5):
        logits, labels = random_batch(seed, positions=65, classes=1000)
        assert recorded(SampleLossProbe([]), (logits, labels, next_token_loss(logits, labels) * 1.001)) is None


def test_graph_autocast_and_random_streams_are_left_alone():
    logits, labels = random_batch()
    logits.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = next_token_loss(logits, labels)
        before = torch.get_rng_state()
        versions = logits._version, labels._version
        probe = SampleLossProbe([])
        assert len(recorded(probe, (logits, labels, loss))) == SAMPLES
        assert not any(value.requires_grad for value in probe.result(CountedPasses()).values())
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert (logits._version, labels._version) == versions
    loss.backward()


# -- given by hand, and micro-batches


def by_hand(*given):
    probe = LossProbe()
    probe.begin(STEP)
    try:
        for loss, tokens in given:
            probe.give(loss, tokens)
        return {name: value.tolist() for name, value in probe.result(CountedPasses()).items()}
    finally:
        probe.detach()


def test_a_vector_is_one_loss_a_sample_and_their_mean_the_loss():
    assert by_hand((torch.tensor([1.0, 3.0, 8.0]), None)) == {"loss": 4.0, "part_losses": [1.0, 3.0, 8.0]}
    told = by_hand((torch.tensor([1.0, 3.0]), 7))
    assert told == {"loss": 2.0, "tokens": 7.0, "part_losses": [1.0, 3.0]}


def test_tokens_of_each_sample_weight_its_loss():
    told = by_hand((torch.tensor([1.0, 3.0, 9.0]), torch.tensor([3, 1, 0])))
    assert told["loss"] == 1.5
    assert told["tokens"] == 4
    assert told["part_losses"][:2] == [1.0, 3.0]
    assert math.isnan(told["part_losses"][2]), "a sample without a token"


def test_a_loss_a_token_is_averaged_over_its_sample():
    losses = torch.tensor([[1.0, 3.0], [5.0, 100.0]])
    assert by_hand((losses[:, :1].expand(2, 3), None))["part_losses"] == [1.0, 5.0]
    told = by_hand((losses, torch.tensor([[1, 1], [1, 0]])))
    assert told == {"loss": 3.0, "tokens": 3.0, "part_losses": [2.0, 5.0]}
    told = by_hand((losses, torch.tensor([3, 0])))
    assert told["loss"] == 2.0
    assert told["tokens"] == 3


def test_micro_batches_of_samples_are_joined_and_weighted():
    told = by_hand((torch.tensor([1.0, 3.0]), torch.tensor([1, 1])), (torch.tensor([5.0]), torch.tensor([2])))
    assert told == {"loss": 3.5, "tokens": 4.0, "part_losses": [1.0, 3.0, 5.0]}
    told = by_hand((torch.tensor([1.0, 3.0]), None), (torch.tensor(5.0), None))
    assert told == {"loss": 3.5, "part_losses": [2.0, 5.0]}, "some came as a mean only: one part each"


def test_one_number_a_step_has_no_parts():
    assert "part_losses" not in by_hand((torch.tensor(2.0), 3))
    assert "part_losses" not in by_hand((torch.tensor([2.0]), 3))
    assert by_hand((3.0, None), (5.0, None)) == {"loss": 4.0, "part_losses": [3.0, 5.0]}


def test_counts_of_another_shape_are_refused_in_words():
    with pytest.raises(ValueError, match="3 losses of 3 samples and 2 counts"):
        by_hand((torch.ones(3), torch.ones(2)))


def test_losses_at_backward_are_parts_where_each_has_a_batch():
    weight = torch.ones(1, requires_grad=True)
    for micros, expected in ((2, [2.0, 6.0]), (1, None)):
        passes = Contributions()
        passes.listen(contextlib.nullcontext)
        probe = LossProbe(passes=passes)
        probe.begin(STEP)
        for value in (2.0, 6.0):
            (weight * value).sum().div(2).backward()
        columns = probe.columns(probe.result(CountedPasses()), STEP, {"num_micro": micros})
        probe.detach()
        passes.detach()
        assert columns["loss"] == 4.0
        assert columns.get("part_losses") == expected


# -- in a training


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, CLASSES))

    def forward(self, x, labels):
        logits = self.body(x)
        return {"logits": logits, "loss": cross_entropy(logits, labels)}


def train(out, *, steps=12, **plan):
    torch.manual_seed(1)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, plan=plan) if out else None
    for step in range(steps):
        x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(step))
        model(x=x, labels=torch.arange(SAMPLES))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def test_samples_are_looked_at_in_the_first_steps_and_where_sketches_are_kept(tmp_path):
    plain = train(None)
    watched = train(tmp_path / "run", every=2, matrix_every=8)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    run = trueline.open_run(tmp_path / "run")
    found = run.lists("part_losses")
    assert sorted(step for step, _ in found) == [*range(STEPS_AT_START), 8]
    loss, _ = run.pivot("loss")
    for (step, _), losses in found.items():
        assert len(losses) == SAMPLES
        assert losses.mean() == pytest.approx(loss[step, 0], rel=1e-6)


def test_a_language_model_of_hugging_face_is_read(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install '.[demo]')")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        ids = torch.randint(0, 50, (3, 9))
        with torch.no_grad():
            truth = [float(model(input_ids=row[None], labels=row[None]).loss) for row in ids]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    found = trueline.open_run(tmp_path / "run").lists("part_losses")
    assert found[0, 0].tolist() == pytest.approx(truth, rel=1e-5)


def test_a_failure_of_ours_stops_only_itself(tmp_path, monkeypatch):
    calls = []

    def fail(*_args, **_kwargs):
        calls.append(1)
        raise RuntimeError("mine")

    monkeypatch.setattr(sample_losses, "_look", fail)
    train(tmp_path / "run")
    run = trueline.open_run(tmp_path / "run")
    assert len(calls) == 1
    assert ["losses of samples" in finding.claim for finding in run.live_findings] == [True]
    assert run.pivot("loss")[1].all()
