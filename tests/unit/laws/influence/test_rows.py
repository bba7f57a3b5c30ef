"""Rows of a batch that influence each other: found where the model mixes them, nothing said where that is by design."""

from functools import partial

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import trueline
from trueline.judge.check_run import check

BATCH, LENGTH, WIDTH = 6, 10, 8


class Reader(nn.Module):
    """A linear layer, ``within`` what it made, and scores of the means over positions."""

    def __init__(self, within=lambda x: x, norm=None):
        super().__init__()
        self.first, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
        self.within, self.norm = within, norm or nn.Identity()

    def forward(self, x, edge_index=None):
        return self.head(self.norm(self.within(self.first(x)).mean(1)))


def trained(out, model, *, loader=partial(DataLoader, batch_size=BATCH), **inputs):
    """The parameters after two steps, watched into ``out`` unless that is None."""
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1, "influence": 1})
    samples = TensorDataset(torch.randn(2 * BATCH, LENGTH, 4))
    for (x,) in loader(samples) if loader else [(x,) for x in samples.tensors[0].split(BATCH)]:
        model(x, **inputs).square().mean().backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def judged(out):
    """Severities and kinds of the findings, and why there is no answer."""
    findings, why = asked(out, "batch-leak")
    return [(each.severity, each.evidence["kind"]) for each in findings], why


MIXING = {
    "view of the transposed": lambda x: x.transpose(0, 1).reshape(x.shape),
    "softmax over the batch": lambda x: x.softmax(0),
    "mean over the batch": lambda x: x - x.mean(0),
    "no row its own": lambda x: x.roll(3, 0),
    "rows reversed": lambda x: x.flip(0),
    "rows exchanged in pairs": lambda x: x[[1, 0, 3, 2, 5, 4]],
    "rows interleaved": lambda x: x[[0, 3, 1, 4, 2, 5]],
    "earlier rows seen": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("within", MIXING.values(), ids=MIXING)
def test_rows_that_are_mixed_are_found(tmp_path, within):
    trained(tmp_path / "run", Reader(within))
    assert judged(tmp_path / "run") == ([("warning", "rows")], [])


class Recurrent(Reader):
    """The same with a recurrent module in the first place."""

    def __init__(self, **how):
        super().__init__()
        self.first = nn.GRU(4, WIDTH, **how)
        self.within = lambda outputs: outputs[0]


def test_what_is_recurrent_reads_positions_and_not_rows(tmp_path):
    trained(tmp_path / "sound", Recurrent(batch_first=True))
    trained(tmp_path / "run", Recurrent())
    assert judged(tmp_path / "sound") == ([], [])
    findings, (why,) = judged(tmp_path / "run")
    assert findings == []
    assert "batch_first" in why


class TimeFirst(Reader):
    """Reads sequences [T, B, 4], as recurrent modules do by default; ``within`` makes [B, T, 8] of [T, B, 8]."""

    def __init__(self, within, first):
        super().__init__(within)
        self.first = first

    def forward(self, x):
        made = self.first(x)
        return self.head(self.within(made[0] if isinstance(made, tuple) else made).mean(1))


@pytest.mark.parametrize("first", [nn.GRU(4, WIDTH), nn.Linear(4, WIDTH)], ids=["recurrent", "linear"])
@pytest.mark.parametrize(
    ("within", "found"),
    [
        (lambda x: x.transpose(0, 1), []),
        (lambda x: x.reshape(x.shape[1], x.shape[0], -1), [("warning", "rows")]),
        (lambda x: x.softmax(1).transpose(0, 1), [("warning", "rows")]),
    ],
    ids=["transposed", "reshaped", "softmax over the batch"],
)
def test_rows_may_come_behind_the_positions(tmp_path, first, within, found):
    def time_first(samples):
        return [(x.transpose(0, 1).contiguous(),) for x in samples.tensors[0].split(BATCH)]

    trained(tmp_path / "run", TimeFirst(within, first), loader=time_first)
    assert judged(tmp_path / "run") == (found, [])


class Timed(nn.Module):
    """Is given a time for each row, and embeds what ``made`` makes of it."""

    def __init__(self, made, reads):
        super().__init__()
        self.made, self.time = made, reads
        self.first, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x, t=None, lengths=None):
        return self.head(self.first(x).mean(1) + self.time(self.made(t if lengths is None else lengths)))


def waves(t):
    angles = t[:, None].float() * torch.tensor([1.0, 0.1, 0.01])
    return torch.cat([angles.sin(), angles.cos()], 1)


TIMES = torch.arange(BATCH)
BY_WAVES, BY_NUMBER = lambda: nn.Linear(6, WIDTH), lambda: nn.Embedding(BATCH, WIDTH)


@pytest.mark.parametrize(
    ("made", "reads", "inputs", "found"),
    [
        (lambda t: waves(t // 200), BY_WAVES, {"t": TIMES}, ["lost"]),
        (lambda t: waves(t * 0 + 3), BY_WAVES, {"t": TIMES[:, None]}, ["lost"]),
        (lambda t: torch.full_like(t, 2), BY_NUMBER, {"t": TIMES}, ["lost"]),
        (waves, BY_WAVES, {"t": TIMES}, []),
        (lambda t: t, BY_NUMBER, {"t": TIMES}, []),
        (lambda t: waves(torch.full_like(t, 3)), BY_WAVES, {"lengths": TIMES}, []),
        (lambda t: waves(t) * 0, BY_WAVES, {"t": TIMES}, []),
    ],
    ids=["divided", "constant", "one class", "sound", "sound class", "length", "states that begin as zeros"],
)
def test_a_condition_that_does_not_get_into_the_model_is_found(tmp_path, made, reads, inputs, found):
    model = Timed(lambda t: made(t.flatten()), reads())
    trained(tmp_path / "run", model, **inputs)
    assert [each.evidence["kind"] for each in asked(tmp_path / "run", "input-constant")[0]] == found


@pytest.mark.parametrize("norm", [None, nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH).eval()])
def test_rows_that_are_not_are_left_alone(tmp_path, norm):
    trained(tmp_path / "run", Reader(lambda x: x.softmax(1), norm))
    assert judged(tmp_path / "run") == ([], [])


def by_sampler(samples):
    """A loader that is given batches of indices, as those of accelerate are."""
    return DataLoader(samples, batch_sampler=BatchSampler(SequentialSampler(samples), BATCH, False))


def test_a_batch_sampler_tells_rows_too(tmp_path):
    trained(tmp_path / "run", Reader(MIXING["mean over the batch"]), loader=by_sampler)
    assert judged(tmp_path / "run") == ([("warning", "rows")], [])


def test_without_a_loader_rows_may_be_nodes_or_positions(tmp_path):
    trained(tmp_path / "run", Reader(MIXING["mean over the batch"]), loader=None)
    assert judged(tmp_path / "run") == ([("info", "rows")], [])


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        (Reader(norm=nn.BatchNorm1d(WIDTH)), {}, "batch normalisation"),
        (Reader(MIXING["mean over the batch"]), {"edge_index": torch.zeros(2, 5, dtype=torch.long)}, "as graphs"),
        (Reader(MIXING["mean over the batch"]), {"edge_index": object()}, "not all seen"),
    ],
)
def test_what_mixes_rows_by_design_has_a_reason_and_no_finding(tmp_path, model, inputs, reason):
    trained(tmp_path / "run", model, **inputs)
    findings, (why,) = judged(tmp_path / "run")
    assert findings == []
    assert reason in why


def test_training_is_the_same_to_the_bit(tmp_path):
    models = [Reader(MIXING["mean over the batch"], nn.Dropout(0.5)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    alone, watched = trained(None, models[0]), trained(tmp_path / "run", models[1])
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


class Tokens(nn.Module):
    """Means over words, of what ``mask`` makes of the attention mask."""

    def __init__(self, mask, *, first=0):
        super().__init__()
        self.mask, self.first = mask, first
        self.embed, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, ids, attention_mask):
        # Whatever order its dimensions are in inside: places are those of the ids.
        x = self.embed(ids.transpose(0, self.first)).transpose(0, self.first)
        weights = self.mask(attention_mask)[..., None].float()
        return self.head((x * weights).sum(1))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (lambda mask: mask, []),
        (lambda mask: mask + mask.roll(1, 1), []),
        (torch.ones_like, [("warning", "padding")]),
        (lambda mask: 0.9 * mask + 0.1, [("warning", "padding")]),
    ],
)
def test_padding_that_is_seen_is_found(tmp_path, mask, found, first):
    torch.manual_seed(1)
    model = Tokens(mask, first=first)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1, "influence": 0})
    ids, keeps = torch.randint(16, (BATCH, LENGTH)), torch.arange(LENGTH) < torch.arange(4, 4 + BATCH)[:, None]
    functional.cross_entropy(model(ids, attention_mask=keeps.long()), ids[:, 0] % 3).backward()
    updates.step()
    watch.close()
    assert judged(tmp_path / "run") == (found, [])


class Tags(nn.Module):
    """A class for each word, from attention to the words that ``sees`` makes of where there is no padding."""

    def __init__(self, sees, *, padding_idx=None):
        super().__init__()
        self.sees = sees
        self.embed, self.head = nn.Embedding(16, WIDTH, padding_idx), nn.Linear(WIDTH, 3)

    def forward(self, ids, attention_mask=None):
        x = self.embed(ids)
        keeps = ids != 0 if attention_mask is None else attention_mask != 0
        mixed = functional.scaled_dot_product_attention(x, x, x, attn_mask=self.sees(keeps)[:, None])
        return self.head(x + mixed)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("sees", "by_index", "found"),
    [
        (lambda keeps: keeps, False, []),
        (lambda keeps: ~keeps, False, [("warning", "padding-alone")]),
        (torch.ones_like, False, [("warning", "padding")]),
        (lambda keeps: keeps, True, []),
        (lambda keeps: ~keeps, True, [("warning", "padding-alone")]),
        (torch.ones_like, True, [("confirm", "padding")]),
    ],
)
@pytest.mark.parametrize("declared", [True, False], ids=["padding_idx", "what fills rows"])
def test_a_mask_that_is_inverted_is_known_from_one_that_is_lost(tmp_path, sees, by_index, found, declared):
    torch.manual_seed(1)
    model = Tags(sees, padding_idx=0 if by_index and declared else None)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1, "influence": 0})
    keeps = torch.arange(LENGTH) < torch.arange(4, 4 + BATCH)[:, None]
    ids = torch.randint(1, 16, (BATCH, LENGTH)) * keeps
    output = model(ids) if by_index else model(ids, attention_mask=keeps.long())
    functional.cross_entropy(output[keeps], ids[keeps] % 3).backward()
    updates.step()
    watch.close()
    assert judged(tmp_path / "run") == (found, [])


class Placed(Tags):
    """With an embedding of positions, which are counted from the first token of the text, or from the padding on."""

    def __init__(self, *, from_text):
        super().__init__(lambda keeps: keeps)
        self.from_text, self.places = from_text, nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids, attention_mask):
        places = torch.arange(LENGTH)[None]
        if self.from_text:
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        keeps = attention_mask != 0
        x = self.embed(ids) + self.places(places)
        return self.head(
            x
            + functional.scaled_dot_product_attention(
                x, x, x, attn_mask=keeps[:, None, :] & keeps[:, :, None] | torch.eye(LENGTH, dtype=torch.bool)
            )
        )


@pytest.mark.parametrize(
    ("side", "from_text", "found"),
    [("left", False, [("confirm", "positions")]), ("left", True, []), ("right", False, []), ("none", False, [])],
)
def test_positions_that_are_counted_from_the_padding_on_are_found(tmp_path, side, from_text, found):
    torch.manual_seed(1)
    model = Placed(from_text=from_text)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1, "influence": 0})
    keeps = torch.arange(LENGTH) < torch.arange(4, 4 + BATCH)[:, None]
    keeps = {"left": keeps.flip(1), "right": keeps, "none": torch.ones_like(keeps)}[side]
    ids = torch.randint(1, 16, (BATCH, LENGTH)) * keeps
    functional.cross_entropy(model(ids, attention_mask=keeps.long())[keeps], ids[keeps] % 3).backward()
    updates.step()
    watch.close()
    assert judged(tmp_path / "run") == (found, [])


class Loss(Timed):
    """Returns a number alone."""

    def forward(self, x, t=None, lengths=None):
        return super().forward(x, t, lengths).square().mean()


def test_without_an_output_of_rows_it_is_said_so_and_a_lost_condition_is_found_all_the_same(tmp_path):
    trained(tmp_path / "run", Loss(lambda t: waves(t // 200), BY_WAVES()), loader=None, t=TIMES)
    report = check(trueline.open_run(tmp_path / "run"))
    assert [each.evidence["kind"] for each in report.findings if each.code == "input-constant"] == ["lost"]
    (why,) = [each.why for each in report.checks_not_run if each.check == "batch-leak"]
    assert "a row for each sample" in why


class AsWide(Reader):
    """Returns as many features as the batch has rows, from a layer that is ``wide`` and what is ``behind`` it."""

    def __init__(self, within, wide, behind):
        super().__init__(within)
        self.head, self.behind = nn.Linear(WIDTH, wide), behind

    def forward(self, x):
        return self.behind(super().forward(x))


class Joined(nn.Module):
    """A half of what it reads with a residual connection, in two parts that are put together again."""

    def __init__(self):
        super().__init__()
        self.norm, self.again = nn.LayerNorm(BATCH), nn.Linear(BATCH, BATCH)

    def forward(self, x):
        first, _ = x.split(BATCH, -1)
        return torch.cat([(first + self.again(self.norm(first))).relu()[:, :2], first[:, 2:]], 1)


WIDE = {
    "linear": lambda: (BATCH, nn.Identity()),
    "normalised": lambda: (BATCH, nn.Sequential(nn.LayerNorm(BATCH), nn.Tanh())),
    "split and joined": lambda: (2 * BATCH, Joined()),
}


@pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize(
    ("within", "found"),
    [(lambda x: x, []), (MIXING["mean over the batch"], [("warning", "rows")])],
    ids=["sound", "mixed"],
)
def test_an_output_as_wide_as_the_batch_is_no_table_of_pairs(tmp_path, wide, within, found):
    trained(tmp_path / "run", AsWide(within, *wide()))
    assert judged(tmp_path / "run") == (found, [])


PAIRS = {
    "product": lambda x: x @ x.flip(1).T,
    "scaled and normalised": lambda x: (functional.normalize(x, dim=1) @ functional.normalize(x, dim=1).T * 5).softmax(
        1
    ),
    "distance": lambda x: (x[:, None] - x[None]).square().sum(-1),
}


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_a_table_of_pairs_mixes_rows_by_design(tmp_path, pairs):
    class Contrastive(Reader):
        def forward(self, x):
            return pairs(super().forward(x))

    trained(tmp_path / "run", Contrastive())
    findings, (why,) = judged(tmp_path / "run")
    assert findings == []
    assert "a row for each sample" in why
