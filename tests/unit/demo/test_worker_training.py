"""What each setting does to seeds, samples, losses and labels."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from trueline.demo.fine_tune import Options, require_sound
from trueline.demo.model import ModelSpec, build_model, load_pretrained, require_extra
from trueline.demo.settings import SETTINGS
from trueline.demo.tokens import IGNORED, Sample
from trueline.demo.worker_training import Job, PackedSamples, endless_batches, shuffled_labels
from trueline.schema.errors import InputError

BY_NAME = {setting.name: setting for setting in SETTINGS}
WORLD = 4


def numbered_samples(count):
    """Samples whose every token is their own number, of lengths 1 to 3."""
    return [Sample(np.full(1 + n % 3, n), np.full(1 + n % 3, n)) for n in range(count)]


def job(name, samples, *, batch_size=4):
    return Job(
        setting=BY_NAME[name], samples=PackedSamples(samples), pad_id=0, model=ModelSpec(None, 64, 32), run=Path("run"),
        progress=Path("progress"), steps=5, batch_size=batch_size, seed=0, bf16=False,
    )  # fmt: skip


def consumed(name, rank, *, count=64, num_batches=4):
    """Sample numbers of the first batches of ``rank``: by default one epoch of its shard."""
    work = job(name, numbered_samples(count))
    seed = work.setting.seed(rank, base=0)
    batches = itertools.islice(endless_batches(work, rank, WORLD, seed=seed), num_batches)
    return [int(row[0]) for batch in batches for row in batch["input_ids"]]


def shared(name, first, second):
    return len(set(consumed(name, first)) & set(consumed(name, second)))


def test_the_six_settings_are_the_contract():
    assert [setting.name for setting in SETTINGS] == ["s1-1", "s1-2", "s1-3", "no-sampler", "loss-scale", "labels"]


@pytest.mark.parametrize("name", ["s1-1", "loss-scale", "labels"])
def test_shards_of_one_seed_are_disjoint_and_cover_the_data(name):
    assert sorted(itertools.chain(*(consumed(name, rank) for rank in range(WORLD)))) == list(range(64))


def test_only_rank_0_overlaps_in_s1_2():
    assert all(shared("s1-2", 0, rank) for rank in (1, 2, 3))
    assert not any(shared("s1-2", *pair) for pair in itertools.combinations((1, 2, 3), 2))


def test_every_pair_overlaps_in_s1_3():
    assert all(shared("s1-3", *pair) for pair in itertools.combinations(range(WORLD), 2))


def test_without_a_sampler_every_rank_reads_the_same_in_the_same_order():
    assert consumed("no-sampler", 0) == consumed("no-sampler", 3)
    assert len(set(consumed("no-sampler", 0, num_batches=16))) == 64


@pytest.mark.parametrize("name", ["s1-1", "no-sampler"])
def test_the_next_epoch_has_another_order(name):
    per_epoch = 4 if name == "s1-1" else 16
    order = consumed(name, 1, num_batches=2 * per_epoch)
    assert order[: len(order) // 2] != order[len(order) // 2 :]


def test_only_the_middle_rank_has_its_loss_or_labels_tampered_with():
    assert [BY_NAME["loss-scale"].loss_factor(rank, world_size=WORLD) for rank in range(WORLD)] == [1.0, 1.0, 2.0, 1.0]
    assert [BY_NAME["labels"].shuffles_labels(rank, world_size=WORLD) for rank in range(WORLD)] == [0, 0, 1, 0]
    for name in ("s1-1", "s1-2", "s1-3", "no-sampler"):
        for rank in range(WORLD):
            assert BY_NAME[name].loss_factor(rank, world_size=WORLD) == 1.0
            assert not BY_NAME[name].shuffles_labels(rank, world_size=WORLD)


def test_packed_samples_are_the_samples():
    samples = numbered_samples(7)
    packed = PackedSamples(samples)
    assert len(packed) == 7
    for sample, again in zip(samples, (packed[index] for index in range(7)), strict=True):
        assert again.input_ids.tolist() == sample.input_ids.tolist()
        assert again.labels.dtype == np.int64


def test_shuffled_labels_are_a_permutation_of_the_counted_ones():
    labels = torch.arange(60).reshape(4, 15)
    labels[:, :5] = IGNORED
    before = labels.clone()
    mixed = shuffled_labels(labels, torch.Generator().manual_seed(0))
    assert torch.equal(labels, before)
    assert (mixed[:, :5] == IGNORED).all()
    assert sorted(mixed[:, 5:].flatten().tolist()) == sorted(labels[:, 5:].flatten().tolist())
    assert (mixed[:, 5:] == labels[:, 5:]).float().mean() < 0.5


def test_the_small_llama_is_the_same_for_the_same_seed():
    weights = []
    for _ in range(2):
        torch.manual_seed(3)
        model = build_model(ModelSpec(name=None, vocab_size=300, max_length=64))
        weights.append(torch.cat([param.flatten() for param in model.parameters()]))
    assert model.training
    assert torch.equal(*weights)


def test_the_small_llama_has_dropout_that_the_generator_decides():
    model = build_model(ModelSpec(name=None, vocab_size=300, max_length=64))
    logits = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        logits.append(model(input_ids=torch.arange(40)[None]).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A causal LM of 64 positions with its tokenizer, saved as a folder; the tokenizer has no padding token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    build_model(ModelSpec(name=None, vocab_size=260, max_length=64)).save_pretrained(folder)
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bpe = Tokenizer(models.BPE(vocab={**letters, "<s>": 256, "</s>": 257}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return str(folder)


def test_a_real_model_comes_with_its_own_tokenizer(saved_model):
    spec, tokenizer = load_pretrained(saved_model, max_length=64)
    assert spec == ModelSpec(name=saved_model, vocab_size=260, max_length=64)
    assert (tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id) == (256, 257, 257)
    assert len(tokenizer.encode("abc")) == 3
    model = build_model(spec)
    assert model.training
    assert {param.dtype for param in model.parameters()} == {torch.float32}


def test_a_limit_beyond_the_models_context_is_refused(saved_model):
    with pytest.raises(InputError, match="context of 64 tokens"):
        load_pretrained(saved_model, max_length=65)


def test_a_model_that_is_none_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for name in (str(tmp_path / "gone"), str(tmp_path)):
        with pytest.raises(InputError, match="cannot be loaded") as caught:
            load_pretrained(name, max_length=64)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_missing_extra_is_named_with_how_to_get_it(monkeypatch):
    require_extra()
    monkeypatch.setattr("trueline.demo.model.find_spec", lambda package: None if package == "tokenizers" else 1)
    with pytest.raises(InputError, match=r"tokenizers is not installed; run: pip install 'trueline\[demo\]'"):
        require_extra()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"workers": 1}, "--workers is 1"),
        ({"steps": 0}, "--steps is 0"),
        ({"batch_size": -2}, "--batch-size is -2"),
        ({"max_length": 15}, "--max-length is 15"),
    ],
)
def test_numbers_of_no_use_are_refused(wrong, named):
    with pytest.raises(InputError, match=named):
        require_sound(Options(out=Path("out"), **wrong))
