"""The losses of single samples under DDP: recorded on every rank, with training bitwise as it is without."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from trueline.capture.probes.losses.sample_losses import STEPS_AT_START

STEPS, SAMPLES, VOCAB = 6, 3, 40


class OutputLM(nn.Module):
    """Returns what Hugging Face models do: a loss in float32 over shifted labels, and the logits."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, input_ids, labels, num_items_in_batch=None):
        logits = self.head(self.drop(self.embed(input_ids)))
        if num_items_in_batch is not None:
            return {"logits": logits, "loss": token_sum(logits.float(), labels) / num_items_in_batch}
        following = pad(labels[:, 1:], (0, 1), value=-100)
        return {"logits": logits, "loss": cross_entropy(logits.float().flatten(0, 1), following.flatten())}


def train(rank, world, out, autocast, micros, compiled):
    import trueline

    torch.manual_seed(0)
    model = OutputLM()
    inner = torch.compile(model, backend="aot_eager") if compiled else model
    ddp = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    losses = []
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1}) if out else contextlib.nullcontext():
        for step in range(STEPS):
            for micro in range(micros):
                generator = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
                ids = torch.randint(0, VOCAB, (SAMPLES, 8), generator=generator)
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = ddp(input_ids=ids, labels=ids)["loss"]
                (loss / micros).backward()
                losses.append(float(loss.detach()))
            optimizer.step()
            optimizer.zero_grad()
    return losses, [param.detach().clone() for param in model.parameters()]


def train_by_items(rank, world, out):
    """As Hugging Face's Trainer does: sums over the tokens of all ranks, and the average over ranks undone in place.
    Returns what each step's tokens of this rank lose by themselves, in float64, and how many they are.
    """
    import trueline

    torch.manual_seed(0)
    model = OutputLM()
    model.drop.p = 0.0
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    truths = []
    with trueline.watch(ddp, optimizer, out=out):
        for step in range(STEPS):
            micros = [uneven_batch(100 * step + 10 * micro + rank) for micro in range(2)]
            counts = torch.tensor(float(sum((labels[:, 1:] != -100).sum() for _, labels in micros)))
            items = counts.clone()
            torch.distributed.all_reduce(items)
            with torch.no_grad():
                total = sum(float(token_sum(model(*micro)["logits"].double(), micro[1])) for micro in micros)
            truths.append((total / float(counts), float(counts)))
            for index, (ids, labels) in enumerate(micros):
                with contextlib.nullcontext() if index else ddp.no_sync():
                    loss = ddp(ids, labels=labels, num_items_in_batch=items)["loss"]
                    loss *= world
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return truths


def uneven_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (SAMPLES, 8), generator=generator)
    labels = ids.clone()
    for row in labels:
        row[: int(torch.randint(1, 7, (1,), generator=generator))] = -100
    return ids, labels


def token_sum(logits, labels):
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("autocast", "micros", "compiled"), [(False, 1, False), (True, 1, False), (False, 2, False), (False, 1, True)]
)
def test_samples_are_seen_on_every_rank_and_nothing_changes(two, tmp_path, autocast, micros, compiled):
    import trueline

    plain = two.run(train, None, autocast, micros, compiled)
    watched = two.run(train, str(tmp_path / "run"), autocast, micros, compiled)
    for (losses, params), (losses_watched, params_watched) in zip(plain, watched, strict=True):
        assert losses == losses_watched
        assert all(torch.equal(a, b) for a, b in zip(params, params_watched, strict=True))
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.manifest.notes == []
    loss, _ = run.pivot("loss")
    found = run.lists("part_losses")
    for rank in range(2):
        for step in range(STEPS):
            expected = SAMPLES * micros if step < STEPS_AT_START else micros if micros > 1 else 0
            assert len(found.get((step, rank), [])) == expected
            if expected:
                # two float32 evaluations of the same cross entropies
                assert found[step, rank].mean() == pytest.approx(loss[step, rank], rel=1e-5)


def test_shares_of_all_ranks_tokens_are_recorded_as_each_ranks_own_mean(two, tmp_path):
    import trueline

    truths = two.run(train_by_items, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    for rank in range(2):
        for column, truth in zip(("loss", "tokens"), zip(*truths[rank], strict=True), strict=True):
            assert run.pivot(column)[0][:, rank] == pytest.approx(truth, rel=2e-6)  # a sum in float32
        assert run.env[rank].loss_source == "backward, per token"
    assert len({count for truth in truths for _, count in truth}) > 2, "the ranks' tokens were to be uneven"
