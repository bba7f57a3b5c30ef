"""The catalogues of settings, and how the command line and the environment of a job are with some switched off."""

import json
from pathlib import Path

import pytest

from trueline.capture.trial.changes import _owner_of
from trueline.schema.errors import InputError
from trueline.trials.knobs.catalogue import IN_PROCESS, catalogue, in_use, own_switch, with_off

PARALLEL = "--tensor-model-parallel-size 2"
SWITCHES = {switch.name: switch for switch in catalogue()}


def test_every_switch_has_a_source_a_prior_and_a_name_of_its_own():
    assert len(SWITCHES) == len(catalogue()) > 50
    for switch in SWITCHES.values():
        assert switch.source.startswith("https://"), switch
        assert 1 <= switch.prior <= 4, switch


@pytest.mark.parametrize("name", [name for name, each in SWITCHES.items() if each.how in IN_PROCESS])
def test_every_switch_of_torch_is_where_it_is_said_to_be(name):
    switch = SWITCHES[name]
    for path in (switch.more.get("reads"), switch.more.get("seen"), switch.where):
        if path is not None and switch.how != "optimizer":
            assert _owner_of(path)[0] is not None, path


@pytest.mark.parametrize(
    ("names", "words", "changed"),
    [
        (["megatron-overlap-grad-reduce"], "p.py --overlap-grad-reduce --lr 1", "p.py --lr 1"),
        (["transformers-bf16"], "p.py --bf16 True --lr 1", "p.py --lr 1"),
        (["transformers-bf16"], "p.py --bf16 --lr 1", "p.py --lr 1"),
        (["transformers-bf16"], "p.py --bf16=true --lr 1", "p.py --lr 1"),
        (["megatron-rope-fusion"], f"p.py {PARALLEL}", f"p.py {PARALLEL} --no-rope-fusion"),
        (["megatron-overlap-grad-reduce", "transformers-bf16"], "p.py --bf16 --overlap-grad-reduce", "p.py"),
    ],
)  # fmt: skip
def test_words_are_left_out_or_added(tmp_path, names, words, changed):
    switches = [SWITCHES[name] for name in names]
    assert {each.name for each in in_use(switches, words.split(), {}, ())} == set(names)
    assert with_off(words.split(), switches, tmp_path) == (changed.split(), {})
    assert in_use(switches, changed.split(), {}, ()) == []


@pytest.mark.parametrize("word", ["--bf16 False", "--bf16=0", "--bf167"])
def test_what_is_off_is_not_switched_off(word):
    assert in_use([SWITCHES["transformers-bf16"]], f"p.py {word}".split(), {}, ()) == []


def test_keys_of_the_file_of_deepspeed_are_changed_in_a_copy(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"overlap_comm": True, "offload_optimizer": {"device": "cpu"}}}))
    names = ("deepspeed-overlap-comm", "deepspeed-offload-optimizer", "deepspeed-bucket-size")
    switches = [SWITCHES[name] for name in names]
    words = ["train.py", "--deepspeed", str(file)]
    assert [each.name for each in in_use(switches, words, {}, ())] == list(names[:2])
    changed, _ = with_off(words, switches[:2], tmp_path / "copy")
    assert json.loads(Path(changed[2]).read_text()) == {"zero_optimization": {"overlap_comm": False}}
    assert "true" in file.read_text()


def test_a_variable_is_switched_where_the_job_uses_what_it_is_about(tmp_path):
    nccl = SWITCHES["nccl-algorithm"]
    assert in_use([nccl], [], {}, {"job:gloo"}) == []
    assert in_use([nccl], [], {"NCCL_ALGO": "Ring"}, {"job:nccl"}) == []
    assert in_use([nccl], [], {"NCCL_ALGO": "Tree"}, {"job:nccl"}) == [nccl]
    assert with_off(["a"], [nccl], tmp_path) == (["a"], {"NCCL_ALGO": "Ring"})


def test_a_user_names_settings_of_the_script(tmp_path):
    variable, flag, option = (own_switch(text) for text in ("MY_FUSE=0", "--fuse", "--kernel=plain"))
    words = ["t.py", "--kernel", "fast", "--fuse"]
    assert in_use([variable, flag, option], words, {}, {"job:torch"}) == [variable, flag, option]
    assert with_off(words, [variable, flag, option], tmp_path) == (["t.py", "--kernel", "plain"], {"MY_FUSE": "0"})
    with pytest.raises(InputError, match="give NAME=VALUE"):
        own_switch("fuse")
