"""What a training did is said in lines whose numbers are those of the training."""

import json

import pytest
import torch
from tests.synthetic_runs import write_run
from tests.unit.healthy_run import healthy_rows, rank_env
from tests.unit.healthy_run import write_run as write_healthy_run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trueline
from trueline.judge.facts import data, loss, model, update
from trueline.judge.facts.training_facts import all_subjects, read_facts
from trueline.schema.errors import CannotTell


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three epochs of 16 samples by fours, in one order; the rate falls to 0 at the sixth of twelve updates."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
    model.head = nn.Linear(2, 2)
    model[0].bias.requires_grad_(False)
    model[1].eval()
    model.forward = lambda x: model[2](model[1](model[0](x)))
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: max(0, 1 - update / 6))
    data = DataLoader(TensorDataset(torch.randn(16, 8), torch.arange(16) % 2), batch_size=4)
    out = tmp_path_factory.mktemp("facts") / "run"
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for _ in range(3):
            for x, y in data:
                nn.functional.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return trueline.facts(out)


def text_of(facts, name):
    (fact,) = (fact for fact in facts.facts if fact.name == name)
    return fact.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("samples", "48 samples in 12 steps of one process, 16 of them different; the data set has 16"),
        ("loader", "TensorDataset, read by SequentialSampler, no loader workers"),
        ("epoch-order", "3 epochs: each has the samples of the first in the same order"),
        ("batch", "4 samples an update"),
        ("parameters", "5 parameters trained, of 168 numbers; 1 frozen (0.bias)"),
        (
            "without-gradient",
            "2 trained parameters never had a gradient: head.bias and head.weight, of 12 sampled steps",
        ),
        ("evaluation-modules", "1 module in evaluation mode at 12 of 12 sampled steps"),
        ("weight-dtypes", "all parameters are float32"),
        ("optimizer", "SGD (momentum 0.9)"),
        ("learning-rate", "learning rate 0.5 at 0 → 0 at 6 → 0 at 11"),
        ("rate-zero", "6 of 12 updates had the learning rate 0 (50%): steps 6-11"),
        (
            "clipping",
            "gradients are clipped at the norm 0.0001: 12 of 12 sampled calls made them smaller; the median norm is "
            "10,688 times the limit",
        ),
        ("autocast", "the model is called outside of autocast"),
        ("seeds", "torch was seeded with 0"),
        ("starts", "started once"),
    ],
)
def test_a_line_has_the_numbers_of_the_training(trained, name, text):
    assert text_of(trained, name) == text


def test_what_may_be_unusual_of_a_training_is_marked(trained):
    assert {mark for fact in trained.facts for mark in fact.marks} == {
        "frozen-without-adapters",
        "parameters-without-gradient",
        "modules-in-evaluation-mode",
        "rate-zero",
        "all-calls-clip",
        "clips-to-a-hundredth",
        "loss-did-not-fall",
    }


def test_subjects_are_in_one_order_and_the_document_is_json(trained):
    names = [fact.name for fact in trained.facts]
    assert names == [subject.name for subject in all_subjects() if subject.name in names]
    document = json.loads(json.dumps(trained.to_json()))
    assert (document["schema"], document["unknown"]) == (1, {})
    assert {"name": "rate-zero", "area": "update", "value": {"updates": 6, "share": 0.5}}.items() <= next(
        fact for fact in document["facts"] if fact["name"] == "rate-zero"
    ).items()


def with_epochs(orders):
    """Rows of epochs of four steps, whose samples are read in these orders."""

    def change(step, rank, row):
        row["epoch"] = step // 4
        row["sample_digests"] = [1 + orders[step // 4][step % 4]]

    return change


@pytest.mark.parametrize(
    ("orders", "says"),
    [
        ([[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]], "3 epochs: each has another order than the first"),
        ([[0, 1, 2, 3], [0, 1, 2, 3], [2, 3, 1, 0]], "3 epochs: 1 of 2 have the order of the first"),
        ([[0, 1, 2, 3]], None),
    ],
)
def test_the_order_of_epochs(tmp_path, orders, says):
    write_run(tmp_path / "run", num_ranks=1, num_steps=4 * len(orders), change=with_epochs(orders))
    texts = [fact.text for fact in read_facts(tmp_path / "run").facts if fact.name == "epoch-order"]
    assert texts == ([says] if says else [])


def marks_of(facts, name):
    (fact,) = (fact for fact in facts.facts if fact.name == name)
    return set(fact.marks)


def test_rows_that_a_data_set_has_twice_and_ends_of_epochs_are_no_marks():
    assert not data.reads_many_twice({"again": 3, "samples": 1024})
    assert data.reads_many_twice({"again": 300, "samples": 1024})
    assert not data.leaves_many_out({"unread": 3, "data_set": 532})
    assert data.leaves_many_out({"unread": 60, "data_set": 532})


@pytest.mark.parametrize(
    ("names", "is_one_layer"),
    [
        (["blocks.0.weight", "blocks.1.weight"], True),
        (["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"], False),
    ],
)
def test_a_tie_of_numbered_layers_is_one_layer(names, is_one_layer):
    assert model.ties_numbered_layers({"tied": [names]}) is is_one_layer


def test_a_tie_of_many_layers_is_said_in_a_few_words():
    layers = [[f"layers.{layer}.{name}" for layer in range(12)] for name in ("up", "down")]
    assert model.numbered_ties({"tied": [["head", "embed"], *layers]}) == (
        "layers.0.up, layers.1.up, layers.2.up and 9 more are one parameter, and so are 1 more such set of names"
    )


def test_a_loss_that_rises_and_one_that_is_level_in_the_end(tmp_path):
    for name, loss_at in (("rising", lambda step: 1 + step / 40), ("level", lambda step: max(2 - step / 5, 1))):

        def change(step, rank, row, loss_at=loss_at):
            row["loss"] = loss_at(step) + 0.1 * (-1) ** step

        write_run(tmp_path / name, num_ranks=1, num_steps=40, change=change)
    rising, level = (read_facts(tmp_path / name) for name in ("rising", "level"))
    assert text_of(rising, "loss").startswith("the loss rose beyond chance: from ")
    assert marks_of(rising, "loss") == {"loss-rose"}
    assert text_of(level, "loss").endswith("from step 20 on it did not fall beyond chance")
    assert marks_of(level, "loss") == set()


@pytest.mark.parametrize(("offset", "marks"), [(-3.0, {"loss-below-zero"}), (-1.5, set()), (0.5, set())])
def test_a_loss_that_falls_below_zero(tmp_path, offset, marks):
    def change(step, rank, row):
        row["loss"] = 1 - step / 40 + offset

    write_run(tmp_path / "run", num_ranks=1, num_steps=40, change=change)
    assert marks_of(read_facts(tmp_path / "run"), "loss") == marks


def test_a_loss_that_does_not_fall_beyond_its_noise(tmp_path):
    def steady(step, rank, row):
        row["loss"] = 2.0 + 0.1 * (-1) ** step

    def falling(step, rank, row):
        row["loss"] = 2.0 - step / 20 + 0.1 * (-1) ** step

    for name, change in (("steady", steady), ("falling", falling)):
        write_run(tmp_path / name, num_ranks=2, num_steps=40, change=change)
    assert text_of(read_facts(tmp_path / "steady"), "loss") == (
        "the loss did not fall beyond chance: from 2 to 2 (means of the first and the last 4 steps)"
    )
    assert marks_of(read_facts(tmp_path / "steady"), "loss") == {"loss-did-not-fall"}
    assert text_of(read_facts(tmp_path / "falling"), "loss") == (
        "the loss went from 1.925 to 0.125 (means of the first and the last 4 steps)"
    )


def test_ranks_that_share_a_stream_and_ranks_that_do_not(tmp_path):
    def rows(shared):
        def change(step, rank, row):
            row |= {"rng_used": 4, "rng_torch": 7 + step + (0 if shared else 100 * rank)}

        return change

    for shared, says in ((True, "all ranks at one place of it"), (False, "ranks at other places of it")):
        write_run(tmp_path / str(shared), num_ranks=2, num_steps=8, change=rows(shared))
        text = text_of(read_facts(tmp_path / str(shared)), "random-streams")
        assert text == f"random numbers may come from torch's stream ({says})"


@pytest.mark.parametrize(
    ("num_ranks", "tokens", "says"),
    [
        (1, 60, "60 tokens an update are trained on"),
        (2, 60, "60 tokens a rank and update are trained on"),
        (2, 4, None),  # as many as samples: a class each
    ],
)
def test_tokens_are_no_samples(tmp_path, num_ranks, tokens, says):
    def change(step, rank, row):
        row |= {"tokens": float(tokens), "sample_digests": [100 * step + 10 * rank + at for at in range(4)]}

    env = {"token_source": "attention_mask"}
    run = trueline.open_run(write_run(tmp_path, num_ranks=num_ranks, num_steps=8, change=change, env=env))
    assert data.tokens(run) == (says and (says, {"least": tokens, "most": tokens}))


def test_what_a_run_does_not_tell_is_named_with_the_reason(tmp_path):
    write_run(tmp_path / "run", num_ranks=2, num_steps=8)
    facts = read_facts(tmp_path / "run")
    assert facts.unknown["the DataLoader"] == "no DataLoader of torch was seen"
    assert "the DataLoader (no DataLoader of torch was seen)" in facts.unknown_line
    assert not {"loader", "learning-rate"} & {fact.name for fact in facts.facts}
    assert list(facts.to_pandas()["fact"]) == [fact.text for fact in facts.facts]
    assert "not known: the DataLoader" in facts._repr_html_()


def test_a_loss_that_never_moves(tmp_path):
    write_run(tmp_path / "run", num_ranks=2, num_steps=12, change=lambda step, rank, row: row.update(loss=2.303))
    assert text_of(read_facts(tmp_path / "run"), "loss") == "the loss is 2.303 at every one of 12 steps"


def test_a_job_that_was_started_again(tmp_path):
    def train(resume, steps):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trueline.watch(model, optimizer, out=tmp_path / "run", resume=resume, step=steps[0]):
            for _ in steps:
                model(torch.randn(4, 4)).sum().backward()
                optimizer.step()

    train(False, range(4))
    train(True, range(4, 8))
    assert text_of(read_facts(tmp_path / "run"), "starts") == "2 starts, at steps 0 and 4"


def test_of_a_large_run_some_steps_are_looked_at(tmp_path, monkeypatch):
    def row_of(step, rank, row):
        row["param_grad_norms"] = [0.0 if step % 2 else 1.0]

    write_run(tmp_path / "run", num_ranks=2, num_steps=40, change=row_of)
    monkeypatch.setattr(model, "MAX_NORMS", 20)
    monkeypatch.setattr(data, "MAX_SAMPLES", 79)
    facts = read_facts(tmp_path / "run")
    assert text_of(facts, "without-gradient") == "every trained parameter had a gradient, of 10 sampled steps"
    assert facts.unknown["samples"] == "there may be more than 79, which are not looked at together"
    monkeypatch.setattr(data, "MAX_SAMPLES", 80)
    assert text_of(read_facts(tmp_path / "run"), "samples").startswith("80 samples in 40 steps of 2 ranks")


@pytest.mark.parametrize(
    ("value", "text"), [([0.9232600369352953, 0.999], "[0.9233, 0.999]"), (1e-08, "1e-08"), (True, "True"), (2, "2")]
)
def test_a_setting_is_said_in_four_digits(value, text):
    assert update._setting(value) == text


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        ([4, 4, 4, 2, 2, 2, 1, 1], "learning rate 4 at 0 → 2 at 3 → 1 at 6 → 1 at 7"),
        ([1, 2, 4, 4, 4, 4, 2, 1], "learning rate 1 at 0 → 4 at 2 → 4 at 5 → 1 at 7"),
        ([4, 4, 4, 4, 3, 2, 1, 0], "learning rate 4 at 0 → 4 at 3 → 0 at 7"),
    ],
)
def test_a_rate_that_goes_by_epochs_is_said_by_their_beginnings(tmp_path, rates, text):
    def change(step, rank, row):
        row["lr"] = [float(rates[step])]

    write_run(tmp_path, num_ranks=1, num_steps=len(rates), change=change)
    assert text_of(read_facts(tmp_path), "learning-rate") == text


def test_rates_of_several_groups(tmp_path):
    """An update changes nothing only where all rates are 0."""

    def change(step, rank, row):
        row["lr"] = [0.0, 0.0 if step < 3 else 0.1]

    write_run(tmp_path / "run", num_ranks=1, num_steps=12, change=change)
    facts = read_facts(tmp_path / "run")
    assert text_of(facts, "learning-rate") == "learning rate of the first of 2 parameter groups 0 at all 12 steps"
    assert text_of(facts, "rate-zero") == "3 of 12 updates had the learning rate 0 (25%): steps 0-2"


def test_samples_whose_values_change_from_epoch_to_epoch_have_no_known_order(tmp_path):
    write_run(tmp_path / "run", num_ranks=1, num_steps=8, change=with_epochs([[0, 1, 2, 3], [10, 11, 12, 13]]))
    assert text_of(read_facts(tmp_path / "run"), "epoch-order") == (
        "2 epochs: none has a sample of the first with the same values"
    )


def test_updates_that_a_scaler_left_out_are_counted_to_the_end(tmp_path):
    def change(step, rank, row):
        row["loss_scaler"] = [float(step == 2), 1024.0, 2.0, 0.5]
        if step == 7:
            row["closing_loss_scaler"] = [3.0, 128.0, 2.0, 0.5]

    write_run(tmp_path / "run", num_ranks=2, num_steps=8, change=change)
    assert text_of(read_facts(tmp_path / "run"), "scaler") == "the GradScaler left out 4 updates of 12 steps"


def mark(name):
    (chosen,) = (mark for subject in all_subjects() for mark in subject.marks if mark.name == name)
    return chosen.applies


@pytest.mark.parametrize(
    ("name", "unusual", "usual"),
    [
        ("frozen-without-adapters", {"frozen": 3, "trained": 1, "adapters": False}, {"frozen": 3, "adapters": True}),
        ("frozen-without-adapters", {"frozen": 3, "adapters": False}, {"frozen": 0, "adapters": False}),
        ("parameters-without-gradient", {"without": ["head"]}, {"without": []}),
        ("modules-in-evaluation-mode", {"most": 2}, {"most": 0}),
        (
            "weights-in-16-bits",
            {"dtypes": {"bfloat16": 4}, "masters": False},
            {"dtypes": {"bfloat16": 4}, "masters": True},
        ),
        (
            "weights-in-16-bits",
            {"dtypes": {"bfloat16": 4, "float16": 1}, "masters": False},
            {"dtypes": {"bfloat16": 4, "float32": 1}, "masters": False},
        ),
        (
            "rate-rises-again",
            {"turns": [(0, 0.0), (5, 1.0), (9, 0.0), (14, 1.0)]},
            {"turns": [(0, 0.0), (5, 1.0), (9, 0.0)]},
        ),
        ("rate-rises-again", {"turns": [(0, 1.0), (5, 0.1), (9, 0.2)]}, {"turns": [(0, 1.0), (5, 0.1), (9, 0.1)]}),
        ("all-calls-clip", {"calls": 4, "clipped": 4}, {"calls": 4, "clipped": 3}),
        ("no-call-clips", {"calls": 4, "clipped": 0}, {"calls": 0, "clipped": 0}),
        ("scaler-leaves-out-many", {"left_out": 18, "steps": 2000}, {"left_out": 17, "steps": 2000}),
        ("streams-shared", {"rng_torch": True, "rng_numpy": None}, {"rng_torch": False, "rng_numpy": None}),
        (
            "stream-in-one-order",
            {"epochs": 3, "as_the_first": 2, "stream": True},
            {"epochs": 3, "as_the_first": 2, "stream": False},
        ),
        (
            "stream-in-one-order",
            {"epochs": 3, "as_the_first": 2, "stream": True, "shuffles": None},
            {"epochs": 3, "as_the_first": 2, "stream": True, "shuffles": True},  # epochs-alike says that
        ),
        (
            "rate-still-rises",
            {"turns": [(0, 0.0), (59, 0.4)], "largest": 0.4},
            {"turns": [(0, 0.0), (9, 0.4), (59, 0.4)], "largest": 0.4},
        ),
        ("rate-nearly-gone", {"low": 0.03}, {"low": 0.02}),
        ("rate-tiny", {"largest": 1e-6}, {"largest": 1e-5}),
        ("rate-tiny", {"largest": 1e-6}, {"largest": 0.0}),  # rate-zero says that
        (
            "few-of-the-data-set",
            {"read": 64, "data_set": 64, "different": 31},
            {"read": 63, "data_set": 64, "different": 31},
        ),
        ("loss-never-moves", {"constant": True}, {"fell": False}),
    ],
)
def test_a_mark_applies_to_what_is_unusual_alone(name, unusual, usual):
    assert mark(name)(unusual)
    assert not mark(name)(usual)


def test_samples_that_come_again_within_an_epoch(tmp_path):
    write_run(tmp_path / "run", num_ranks=1, num_steps=8, change=with_epochs([[0, 1, 1, 3], [3, 1, 0, 1]]))
    facts = read_facts(tmp_path / "run")
    assert text_of(facts, "read-twice") == "1 of 4 samples of the first epoch were read before in that epoch"
    assert "samples-twice-in-an-epoch" in marks_of(facts, "read-twice")


def test_ranks_that_hold_other_parts_of_a_model(tmp_path):
    """Stages of a pipeline: no rank holds all numbers."""
    envs = {rank: rank_env(rank, 2, params=[f"stage{rank}"], param_shapes=[[10 * (rank + 1)]]) for rank in range(2)}
    run = write_healthy_run(tmp_path / "run", healthy_rows(2, 2), envs=envs)
    assert text_of(read_facts(run), "parameters") == "2 parameters trained, of 10 to 20 numbers on a rank; none frozen"


def test_adapters_by_their_names(tmp_path):
    trained_names = [f"layers.{i}.q_proj.lora_{part}.mine.weight" for i in range(2) for part in "AB"]
    frozen_names = ["layers.0.q_proj.base_layer.weight", "layers.0.q_proj.lora_A.default.weight"]
    env = rank_env(0, 1, params=trained_names, param_shapes=[[2, 2]] * 4, frozen=frozen_names)
    facts = read_facts(write_healthy_run(tmp_path / "run", healthy_rows(1, 2), envs={0: env}))
    assert (
        text_of(facts, "adapters")
        == "adapters mine (4 parameters trained) and default (0 parameters trained, 1 frozen)"
    )
    assert marks_of(facts, "adapters") == {"adapter-frozen"}
    assert not marks_of(facts, "parameters")


def test_the_share_of_the_data_that_ranks_read(tmp_path):
    """Of a data set of ten samples each of two ranks reads four of its own twice."""
    rows = {}
    for step in range(4):
        for rank in range(2):
            digests = [10 * rank + 2 * (step % 2) + number + 1 for number in range(2)]
            rows[step, rank] = {"sample_digests": digests, "epoch": step // 2}
    envs = {rank: rank_env(rank, 2, data={"dataset_len": 10}) for rank in range(2)}
    text, value = data.shares(write_healthy_run(tmp_path / "run", rows, envs=envs))
    assert text == (
        "each rank read 40% of the data set in 1 whole epoch and what followed; 2 of its 10 samples, by their values, "
        "were read by none"
    )
    assert value == {"least": 0.4, "most": 0.4, "unread": 2, "alike": 0, "data_set": 10, "epochs": 1}
    # four batches of the loader a step, given by hand as one, are more samples than were seen; of two steps an epoch
    joined = {key: row | {"loader_batches": 4 * (key[0] % 2 + 1), "num_micro": 1} for key, row in rows.items()}
    begun = {key: row | {"passes_begun": 4} for key, row in joined.items()}
    run_of_lists = write_healthy_run(tmp_path / "joined", begun, envs=envs)
    with pytest.raises(CannotTell, match="fewer batches were seen"):
        data.shares(run_of_lists)
    skipped = {key: row | {"passes_begun": 1} for key, row in joined.items()}
    text_of_skipped, _ = data.shares(write_healthy_run(tmp_path / "skipped", skipped, envs=envs))
    assert text_of_skipped == text
    once = {key: row | {"epoch": 0} for key, row in rows.items()}
    assert data.shares(write_healthy_run(tmp_path / "once", once, envs=envs)) is None


@pytest.mark.parametrize(
    ("params", "frozen", "sentence"),
    [
        (
            ["head.weight", "head.bias"],
            ["bert.embed.weight", "bert.layers.0.weight"],
            "2 of 4 parameters are frozen: `bert`; trained: `head`",
        ),
        (
            ["bert.layers.1.weight", "head.weight"],
            ["bert.embed.weight", "bert.layers.0.bias", "bert.layers.0.weight"],
            "3 of 5 parameters are frozen: `bert.embed` and `bert.layers.0`; trained: `bert.layers.1` and `head`",
        ),
        (["0.weight"], ["0.bias"], "1 of 2 parameters is frozen: `0.bias`; trained: `0.weight`"),
    ],
)
def test_what_is_frozen_is_named_by_its_outermost_parts(tmp_path, params, frozen, sentence):
    env = rank_env(0, 1, params=params, param_shapes=[[2, 2]] * len(params), frozen=frozen)
    facts = read_facts(write_healthy_run(tmp_path / "run", healthy_rows(1, 3), envs={0: env}))
    assert next(fact for fact in facts.facts if fact.name == "parameters").marks["frozen-without-adapters"] == sentence


@pytest.mark.parametrize("updates_copies", [True, False])
def test_weights_in_16_bits_of_which_the_optimizer_updates_copies_are_usual(tmp_path, updates_copies):
    rows = healthy_rows(2, 12)
    for row in rows.values():
        if updates_copies:
            del row["used_param_norms"]
    envs = {rank: rank_env(rank, 2, param_dtypes=["torch.bfloat16"] * 4) for rank in range(2)}
    _, value = model.weight_dtypes(write_healthy_run(tmp_path, rows, envs=envs))
    assert value == {"dtypes": {"bfloat16": 4}, "masters": updates_copies}


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([3, 3], "torch was seeded with 3 on all ranks"),
        ([3, 4], "torch was seeded with different numbers: 3 on rank 0 and 4 on rank 1"),
        ([3, 2**63], "torch was seeded with different numbers: 3 on rank 0 and none on rank 1"),
        ([2**63, 2**62], "torch was not seeded"),
        ([2**62, 2**62], "torch was not seeded, and yet ranks have one seed"),
        ([7], "torch was seeded with 7"),
    ],
)
def test_seeds_of_ranks(tmp_path, seeds, text):
    envs = {rank: rank_env(rank, len(seeds), seed=seed) for rank, seed in enumerate(seeds)}
    run = write_healthy_run(tmp_path / "run", healthy_rows(len(seeds), 2), envs=envs)
    assert text_of(read_facts(run), "seeds") == text


def test_a_run_without_seeds_says_so(tmp_path):
    run = write_healthy_run(tmp_path / "run", healthy_rows(1, 2))
    assert read_facts(run).unknown["seeds"] == "no seed was recorded"


def test_switches_that_are_on_are_told(tmp_path):
    flags = {
        "deterministic_algorithms": True,
        "matmul_tf32": True,
        "cudnn_benchmark": False,
        "cudnn_deterministic": True,
    }
    run = write_healthy_run(tmp_path / "run", healthy_rows(1, 2), envs={0: rank_env(0, 1, flags=flags)})
    assert (
        text_of(read_facts(run), "switches")
        == "deterministic algorithms on, TF32 in matrix products, cuDNN's kernels are deterministic"
    )


def test_a_further_model_of_a_job_knows_that_it_is_not_alone(tmp_path):
    """What one of several models gains another may lose: that its loss rises is no mark."""
    beside = write_healthy_run(tmp_path / "run" / "models" / "net_d", healthy_rows(1, 4))
    alone = write_healthy_run(tmp_path / "alone", healthy_rows(1, 4))
    assert [loss.loss(run)[1]["models"] for run in (beside, alone)] == [1, 0]
