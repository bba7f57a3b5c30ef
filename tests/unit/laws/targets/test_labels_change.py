"""labels-change: labels that are shuffled apart from their inputs; labels that belong, and such as may change."""

import numpy as np
import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import rank_env
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import trueline
from trueline.laws.targets import labels_change
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import Attempt, Manifest
from trueline.schema.files.start import Start
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

N, B, CLASSES = 96, 12, 5
DRAW = torch.Generator().manual_seed(1)
X_ND = torch.randn(N, 6, generator=DRAW)
Y_N = torch.randint(0, CLASSES, (N,), generator=DRAW)
Z_N = torch.randn(N, generator=DRAW)
TAGS_NT = torch.randint(0, CLASSES, (N, 4), generator=DRAW)


def train(folder, batches, loss_of, model=None, **plan):
    """Findings and reasons after a training on ``batches``."""
    torch.manual_seed(0)
    model = model or nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1, **plan}):
        for batch in batches:
            loss_of(model, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return asked(folder, "labels-change")


def classify(model, x, y):
    return functional.cross_entropy(model(x), y)


def regress(model, x, z):
    return functional.mse_loss(model(x)[:, 0], z)


def tag(model, x, tags):
    """Of four tokens a sample, whose classes are flattened, as scripts do."""
    logits = model(x[:, :4, None].expand(-1, -1, 6))
    return functional.cross_entropy(logits.flatten(0, 1), tags.flatten())


def shuffled(*tensors, epochs=2, apart=False):
    for _ in range(epochs):
        orders = [torch.randperm(N) for _ in tensors]
        orders = orders if apart else orders[:1] * len(tensors)
        yield from zip(*(x[order].split(B) for x, order in zip(tensors, orders, strict=True)), strict=True)


def loaded(*tensors, epochs=2, apart=False):
    sets = [TensorDataset(x) for x in tensors] if apart else [TensorDataset(*tensors)]
    for _ in range(epochs):
        for parts in zip(*(DataLoader(rows, B, shuffle=True, drop_last=True) for rows in sets), strict=True):
            yield [x for part in parts for x in part]


@pytest.mark.in_turn
@pytest.mark.parametrize("batches", [shuffled, loaded])
@pytest.mark.parametrize(("labels", "loss_of"), [(Y_N, classify), (Z_N, regress)])
def test_labels_that_are_shuffled_apart(tmp_path, batches, labels, loss_of):
    torch.manual_seed(3)
    (finding,), _ = train(tmp_path / "run", batches(X_ND, labels, apart=True), loss_of)
    assert finding.severity == "confirm"
    changed = finding.evidence["changed"]
    assert changed > 60
    assert finding.claim == (
        f"{changed} of 96 samples that were read again had another label than before: labels and inputs do not belong "
        "together."
    )


def test_labels_of_tokens_that_are_shuffled_apart(tmp_path):
    (finding,), _ = train(tmp_path / "run", shuffled(X_ND[:, :4], TAGS_NT, apart=True), lambda m, x, y: tag(m, x, y))
    assert finding.evidence["samples"] == N


def test_a_part_of_the_steps_is_enough(tmp_path):
    torch.manual_seed(3)
    (finding,), _ = train(tmp_path / "run", shuffled(X_ND, Y_N, epochs=6, apart=True), classify, every=4)
    assert finding.evidence["samples"] < N


def test_micro_batches(tmp_path):
    def twice(model, x, y):
        classify(model, x[:6], y[:6]).backward()
        return classify(model, x[6:], y[6:])

    (finding,), _ = train(tmp_path / "run", shuffled(X_ND, Y_N, apart=True), twice)
    assert finding.evidence["samples"] == N
    assert train(tmp_path / "right", shuffled(X_ND, Y_N), twice)[0] == []


class Masking(nn.Module):
    """Draws by itself what is masked, which the loss is then of."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, ids):
        self.chosen = torch.rand(ids.shape) < 0.5
        return self.head(self.embedding(ids.masked_fill(self.chosen, 8)))


def masked(model, ids):
    logits = model(ids)
    return functional.cross_entropy(logits.flatten(0, 1), ids.masked_fill(~model.chosen, -100).flatten())


def pairs(model, x, y):
    """Each sample is told from the others of its batch."""
    logits = model(x) @ y
    return functional.cross_entropy(logits, torch.arange(len(x)))


def teacher(model, x):
    with torch.no_grad():
        target = model(x).tanh()
    return functional.mse_loss(model(x + 0.0), target + 0.1)


def two_tasks(model, x, y, task):
    logits = model(x)
    return functional.cross_entropy(logits if task else logits[:, :3], y if task else y % 3)


IDS = torch.randint(0, 8, (N, 12), generator=DRAW)
STATES = nn.functional.one_hot(torch.arange(6)).float()


def visits(epochs=3):
    """States that come again and again, and actions that are drawn."""
    for _ in range(epochs * N // B):
        yield STATES[torch.randint(0, 6, (B,))], torch.randint(0, CLASSES, (B,))


def drawn():
    for _ in range(20):
        chosen = torch.randint(0, N, (B,))
        yield X_ND[chosen], Y_N[chosen].roll(1)


def noisy():
    return ((x + 0.01 * torch.randn(x.shape), y) for x, y in shuffled(X_ND, Y_N, apart=True))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("batches", "loss_of", "model"),
    [
        (lambda: shuffled(X_ND, Y_N), classify, None),
        (lambda: loaded(X_ND, Y_N), classify, None),
        (lambda: shuffled(X_ND, Z_N), regress, None),
        (lambda: shuffled(X_ND[:, :4], TAGS_NT), tag, None),
        (lambda: shuffled(IDS), masked, Masking),
        (lambda: shuffled(X_ND), lambda model, x: pairs(model, x, torch.randn(CLASSES, B)), None),
        (lambda: shuffled(X_ND), teacher, None),
        (visits, classify, None),
        (drawn, classify, None),
        (noisy, classify, None),
        (lambda: ((x, y, e % 2) for e in range(2) for x, y in shuffled(X_ND, Y_N, epochs=1)), two_tasks, None),
        (lambda: shuffled(X_ND, torch.zeros(N, dtype=torch.long)), classify, None),
    ],
)
def test_silent(tmp_path, batches, loss_of, model):
    torch.manual_seed(5)
    findings, _ = train(tmp_path / "run", batches(), loss_of, model and model())
    assert findings == []


def rows_of(label_of, *, ranks=2, epochs=3, samples=64, restart=None, places=False, column="label_digests"):
    """Shuffled epochs over ranks; ``label_of(sample, rank, step)``."""
    rng = np.random.default_rng(0)
    rows, step = {}, 0
    for _ in range(epochs):
        order = rng.permutation(samples).reshape(-1, ranks, 8)
        for batch in order:
            for rank in range(ranks):
                own = batch[rank]
                labels = [label_of(int(sample), rank, step) for sample in own]
                rows[step, rank] = {
                    "sample_digests": (own + 1000).astype(np.uint64),
                    column: (np.array(labels, dtype=np.uint64) + np.uint64(1)) << np.uint64(12),
                }
            step += 1
    return rows


def found_in(tmp_path, rows, *, restarts=()):
    """Findings of ``rows``, of a job that was started again at ``restarts``."""
    attempts = [Attempt(step=step) for step in (0, *restarts)]
    for number, begin in enumerate(attempts):
        end = attempts[number + 1].step if number + 1 < len(attempts) else len(rows)
        manifest = Manifest(world_size=2, attempts=attempts[: number + 1], data_parallel_ranks=[0, 1], adapter="ddp")
        for rank in range(2):
            writer = RunWriter(tmp_path, rank=rank, start=Start(attempt=number, step=begin.step, manifest=manifest))
            writer.describe(manifest if rank == 0 else None, rank_env(rank, 2))
            for step in range(begin.step, end):
                if (step, rank) in rows:
                    writer.write({"step": step, **rows[step, rank]})
            writer.close()
    return labels_change.check(Run(tmp_path))


def test_ranks_that_number_classes_differently(tmp_path):
    (finding,) = found_in(tmp_path, rows_of(lambda sample, rank, step: (sample + rank) % 5, epochs=4))
    assert finding.evidence["kind"] == "ranks"
    assert finding.claim.endswith(
        "samples that another rank read again have another label there: ranks number classes differently."
    )


def test_a_restart_that_numbers_classes_anew(tmp_path):
    (finding,) = found_in(
        tmp_path, rows_of(lambda sample, rank, step: (sample + step // 8) % 5, epochs=4), restarts=[8]
    )
    assert finding.evidence["kind"] == "restart"
    rows = rows_of(lambda sample, rank, step: (sample + step // 4) % 5, epochs=2)
    (finding,) = found_in(tmp_path / "once", rows, restarts=[4])
    assert finding.evidence["kind"] == "restart"
    assert "have another label since the restart, on ranks 0 and 1: classes are numbered anew at each start." in (
        finding.claim
    )


@pytest.mark.parametrize("column", ["label_digests", "target_digests"])
def test_few_labels_that_change_may_be_rows_that_are_there_twice(tmp_path, column):
    def label(sample, rank, step):
        return (sample + step // 4 * (sample < few)) % 5

    few = 3
    assert found_in(tmp_path / "few", rows_of(label, column=column)) == []
    few = 4
    (finding,) = found_in(tmp_path / "more", rows_of(label, column=column))
    assert finding.measured == few / 64


def test_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no labels were seen"):
        found_in(tmp_path / "none", rows_of(lambda *_: 1, column="param_digests"))
    with pytest.raises(CannotTell, match="no sample was read twice"):
        found_in(tmp_path / "once", rows_of(lambda *_: 1, epochs=1))
    with pytest.raises(CannotTell, match="in turn"):
        found_in(
            tmp_path / "drawn",
            {
                key: {**row, "sample_digests": row["sample_digests"] % np.uint64(5)}
                for key, row in rows_of(lambda *_: 1).items()
            },
        )
