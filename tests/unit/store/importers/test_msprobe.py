"""Dumps of msProbe as Runs: the names and numbers of our own recorder, and what msProbe does not say stays unknown."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.imports import expect_numbers, rows_by_site
from tests.unit.recording import Recording
from torch import nn

from trueline.cli.verbs.import_ import measure
from trueline.schema.errors import InputError, RunError, RunExistsError
from trueline.store.importers.msprobe.dumps import DumpOptions, import_msprobe
from trueline.store.reader import Run

DUMP = Path(__file__).parents[2] / "fixtures" / "msprobe" / "mix"
"""Step 0 of ``parts`` below, as mindstudio-probe 26.2.0 dumped it: statistics with md5, level mix; paths shortened."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x, *, scale):
        return x + self.fc(self.norm(x)) * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.act = nn.ReLU()

    def forward(self, x):
        x = self.act(self.block(x, scale=torch.tensor(0.5)))
        return self.act(x - 1.0) / 2


def parts():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False), torch.randn(3, 4)


@pytest.fixture(scope="module")
def recorded():
    """Rows of the same step by site, as our recorder sees it."""
    model, optimizer, x = parts()
    recording = Recording(model, {"preset": "mix", "depth": "stats"}, optimizer)

    def train():
        model(x).sum().backward()
        optimizer.step()

    return {(row["phase"], row["name"], row["call"], row["slot"]): row for row in recording.step(0, train)}


def imported(source, target, **settings):
    options = DumpOptions(measure(), **({"model": "Net", "optimizer": "SGD"} | settings))
    import_msprobe(str(source), str(target), options)
    return Run(target)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return imported(DUMP, tmp_path_factory.mktemp("import") / "run")


@pytest.fixture
def dump(tmp_path):
    """A copy of the dump, to be changed: its rank directory."""
    shutil.copytree(DUMP, tmp_path / "dump")
    return tmp_path / "dump" / "step0" / "rank0"


def change(rank, name, edit):
    """Rewrite a JSON file of a dump."""
    document = json.loads((rank / name).read_text())
    edit(document)
    (rank / name).write_text(json.dumps(document))


def test_every_forward_site_parameter_and_update_is_one_of_the_recorder(run, recorded):
    rows = {site: row for site, row in rows_by_site(run).items() if site[0] != "bwd" and site[1] != "Net"}
    entries = json.loads((DUMP / "step0" / "rank0" / "dump.json").read_text())["data"]
    assert len(rows) == sum(len([*leaves(entry)]) for name, entry in entries.items() if ".backward" not in name)
    assert set(rows) <= set(recorded)
    for site, row in rows.items():
        ours = recorded[site]
        assert (row["dtype"], tuple(row["shape"]), row["kind"]) == (ours["dtype"], ours["shape"], ours["kind"]), site
        assert row["module"] == ours["module"], site
        np.testing.assert_allclose([row["min"], row["max"]], [ours["min"], ours["max"]], rtol=1e-5, err_msg=str(site))
        # mean and norm are float32 there: 24 bits of a sum of at most 16 numbers, squared
        np.testing.assert_allclose(row["sum_sq"], ours["sum_sq"], rtol=1e-5, err_msg=str(site))
        np.testing.assert_allclose(row["sum"], ours["sum"], rtol=1e-5, atol=1e-5, err_msg=str(site))


def test_rows_stand_in_the_order_of_execution(run, recorded):
    theirs = [site for site in rows_by_site(run) if site[0] == "fwd" and site[1] != "Net"]
    assert theirs == [site for site in recorded if site in set(theirs)]


def test_gradients_of_what_a_call_returned_are_those_of_the_recorder(run, recorded):
    rows = {site: row for site, row in rows_by_site(run).items() if site[0] == "bwd" and site in recorded}
    entries = json.loads((DUMP / "step0" / "rank0" / "dump.json").read_text())["data"]
    assert len(rows) == sum(len([*leaves(entry["input"])]) for name, entry in entries.items() if ".backward" in name)
    for site, row in rows.items():
        assert site[3].startswith("out")
        np.testing.assert_allclose(row["max"], recorded[site]["max"], rtol=1e-5, err_msg=str(site))


def test_a_backward_pass_is_a_call_of_its_own(run, recorded):
    rows = {site[3]: row for site, row in rows_by_site(run).items() if site[1] == "block.norm.layer_norm_backward"}
    assert list(rows) == ["in0", "out1", "out2"]  # the input of the model has no gradient
    gradient = rows_by_site(run)["bwd", "block.norm.layer_norm", 0, "out0"]
    assert rows["in0"]["same_as"] == gradient["row"]
    assert rows["in0"]["max"] == gradient["max"]
    assert rows["in0"]["args"] == '{"args":[{"in":"in0"}],"kwargs":{}}'
    bias = recorded["grad", "block.norm.bias", 0, "grad"]
    np.testing.assert_allclose(rows["out2"]["max"], bias["max"], rtol=1e-5)


def test_rows_without_counts_are_not_taken_for_measured(run):
    with pytest.raises(RunError, match="Nothing was measured"):
        run.whole("0.0/r0/fwd/block#0:out0")


def test_arguments_are_those_that_the_recorder_writes(run, recorded):
    for name, call in (("block.fc.linear", 0), ("block.mul", 0), ("act", 1)):
        assert rows_by_site(run)["fwd", name, call, "in0"]["args"] == recorded["fwd", name, call, "in0"]["args"]


def test_call_stacks_lead_to_the_script(run):
    row = rows_by_site(run)["fwd", "block.mul", 0, "in0"]
    frames = run.stack_frames(0, row["stack"])
    assert [frame.rsplit(":", 1)[0] for frame in frames] == ["/home/user/train.py"] * 2 + ["/home/user/d.py"]
    assert frames[0].endswith(" forward")


def test_what_msprobe_does_not_count_is_unknown(run):
    row = rows_by_site(run)["fwd", "block", 0, "out0"]
    assert [row[name] for name in ("nan", "pos_inf", "neg_inf", "zero", "subnormal")] == [None] * 5
    assert "rounded mean and norm" in row["note"]
    assert row["sum"] is not None


def test_fingerprints_are_the_crc32_of_the_bytes(run):
    model, _, x = parts()
    values = {"block.fc.weight": model.block.fc.weight, "block.norm.weight": model.block.norm.weight}
    rows = rows_by_site(run)
    for name, value in values.items():
        assert rows["param", name, 0, "value"]["fingerprint"] == zlib.crc32(value.detach().numpy().tobytes())
    assert rows["fwd", "block", 0, "in0"]["fingerprint"] == zlib.crc32(x.numpy().tobytes())
    assert run.manifest.fingerprint == "msprobe-crc32"


def test_the_manifest_says_where_the_run_is_from(run):
    assert run.manifest.source["format"] == "msprobe"
    assert run.manifest.source["level"] == "mix"
    assert run.manifest.plan == {"preset": "mix", "depth": "stats"}
    assert run.manifest.world_size == 1
    assert run.problems == []


def test_the_model_itself_is_there_without_values(run, recorded):
    rows = {site: row for site, row in rows_by_site(run).items() if site[1] == "Net"}
    assert [*rows] == [("fwd", "Net", 0, "call")]
    assert ("fwd", "Net", 0, "in0") in recorded
    (row,) = rows.values()
    assert (row["kind"], row["module"], row["numel"]) == ("module", "", None)
    assert "not that of the model" in row["note"]


def test_without_the_models_name_its_own_calls_have_none(tmp_path):
    rows = rows_by_site(imported(DUMP, tmp_path / "run", model="", optimizer="optimizer"))
    assert ("fwd", "sub", 0, "in0") in rows
    assert ("opt", "optimizer.add_", 0, "in0") in rows


def test_extremes_that_are_not_finite_are_unknown_and_noted(dump, tmp_path):
    def spoil(document):
        document["data"]["Functional.relu.0.forward"]["output"][0] |= {"Max": float("nan"), "Min": float("nan")}
        document["data"]["Functional.relu.1.forward"]["output"][0] |= {"Max": float("inf"), "Norm": float("inf")}

    change(dump, "dump.json", spoil)
    rows = rows_by_site(imported(dump, tmp_path / "run"))
    for call, told in ((0, "Max nan"), (1, "Max inf")):
        row = rows["fwd", "act.relu", call, "out0"]
        assert [row[name] for name in ("min", "max", "sum", "sum_sq", "nan")] == [None] * 5
        assert told in row["note"]


def test_statistics_of_integers_have_no_sums_and_of_complex_numbers_nothing(dump, tmp_path):
    def retype(document):
        leaf = document["data"]["Functional.relu.0.forward"]["output"][0]
        leaf |= {"dtype": "torch.int64", "Max": 3, "Min": -2, "Mean": None, "Norm": None}
        document["data"]["Functional.relu.1.forward"]["output"][0]["dtype"] = "torch.complex64"

    change(dump, "dump.json", retype)
    rows = rows_by_site(imported(dump, tmp_path / "run"))
    whole, complex_row = (rows["fwd", "act.relu", call, "out0"] for call in (0, 1))
    assert [whole[name] for name in ("min", "max", "sum", "sum_sq")] == [-2.0, 3.0, None, None]
    assert [complex_row[name] for name in ("min", "max", "sum")] == [None] * 3
    assert complex_row["numel"] == 24
    assert "magnitudes" in complex_row["note"]


def test_xor_checksums_are_a_kind_of_their_own(dump, tmp_path):
    def to_xor(document):
        for entry in document["data"].values():
            for leaf in leaves(entry):
                leaf["md5"] = "0x00000000000000ff"
                for name in ("Max", "Min", "Mean", "Norm"):
                    leaf.pop(name)

    change(dump, "dump.json", to_xor)
    run = imported(dump, tmp_path / "run")
    row = rows_by_site(run)["fwd", "block", 0, "out0"]
    assert (row["fingerprint"], row["min"], row["nan"]) == (255, None, None)
    assert run.manifest.fingerprint == "msprobe-xor"


def leaves(node):
    if isinstance(node, dict) and "md5" in node:
        yield node
    elif isinstance(node, dict | list):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from leaves(inner)


@pytest.fixture
def tensor_dump(dump):
    """The dump with one stored value that differs from its statistics, and one whose file is not there."""

    def store(document):
        document["task"] = "tensor"
        for entry in document["data"].values():
            for leaf in leaves(entry):
                del leaf["md5"]
        names = {"Functional.relu.0.forward": "relu.pt", "Functional.relu.1.forward": "gone.pt"}
        for name, file in names.items():
            document["data"][name]["output"][0]["data_name"] = file

    change(dump, "dump.json", store)
    (dump / "dump_tensor_data").mkdir()
    torch.save(torch.arange(12.0).reshape(3, 4).bfloat16() / 8, dump / "dump_tensor_data" / "relu.pt")
    return dump


def test_stored_values_are_kept_and_measured_anew(tensor_dump, tmp_path):
    run = imported(tensor_dump, tmp_path / "run")
    row = rows_by_site(run)["fwd", "act.relu", 0, "out0"]
    values = np.arange(12.0).reshape(3, 4) / 8
    expect_numbers(row, values)
    assert row["dtype"] == "bfloat16"
    stored = run.tensor("0.0/r0/fwd/act.relu#0:out0")
    assert stored.dtype == "BF16"
    np.testing.assert_array_equal((stored.data.astype(np.uint32) << 16).view(np.float32), values)
    assert run.manifest.fingerprint == "trueline"
    assert row["fingerprint"] is not None


def test_a_stored_value_with_a_checksum_keeps_that_as_all_others_do(tensor_dump, tmp_path):
    def add_checksum(document):
        document["data"]["Functional.relu.0.forward"]["output"][0]["md5"] = "0000002a"

    change(tensor_dump, "dump.json", add_checksum)
    run = imported(tensor_dump, tmp_path / "run")
    row = rows_by_site(run)["fwd", "act.relu", 0, "out0"]
    assert (row["fingerprint"], row["max"]) == (42, 11 / 8)
    assert run.manifest.fingerprint == "msprobe-crc32"


def test_checksums_of_two_kinds_do_not_become_one_run(tensor_dump, tmp_path):
    shutil.copytree(DUMP / "step0", tensor_dump.parents[1] / "step1")
    with pytest.raises(InputError, match="checksums of another kind"):
        imported(tensor_dump.parents[1], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_value_without_its_file_has_msprobes_numbers(tensor_dump, tmp_path):
    rows = rows_by_site(imported(tensor_dump, tmp_path / "run"))
    row = rows["fwd", "act.relu", 1, "out0"]
    assert row["tensor"] is None
    assert "gone.pt is not in the dump" in row["note"]


def test_values_can_be_left_out(tensor_dump, tmp_path):
    row = rows_by_site(imported(tensor_dump, tmp_path / "run", tensors=False))["fwd", "act.relu", 0, "out0"]
    assert row["tensor"] is None
    assert row["max"] == 11 / 8


def test_the_structure_task_has_every_call_once(dump, tmp_path):
    change(dump, "dump.json", lambda document: document.update(task="structure", data={}))
    run = imported(dump, tmp_path / "run")
    rows = rows_by_site(run)
    forward = {site[1:3] for site in rows if site[0] == "fwd"}
    assert ("block.fc.linear", 0) in forward
    assert ("act", 1) in forward
    assert all(row["slot"] == "call" and row["numel"] is None for row in rows.values())
    assert "no values" in rows["fwd", "block.fc.linear", 0, "call"]["note"]
    assert run.manifest.plan["depth"] == "structure"


def test_steps_and_ranks_of_a_whole_dump_are_one_run(dump, tmp_path):
    whole = dump.parents[1]
    shutil.copytree(dump, whole / "step0" / "rank1")
    shutil.copytree(whole / "step0", whole / "step12")
    run = imported(whole, tmp_path / "run")
    assert run.record_steps.tolist() == [0, 12]
    assert run.record_ranks == [0, 1]
    assert run.manifest.world_size == 2
    assert run.problems == []
    of_step = imported(whole / "step12", tmp_path / "step")
    assert of_step.record_steps.tolist() == [12]
    of_rank = imported(whole / "step12" / "rank1", tmp_path / "rank")
    assert (of_rank.record_steps.tolist(), of_rank.record_ranks) == ([12], [1])


def test_a_job_without_ranks_is_rank_0(dump, tmp_path):
    dump.rename(dump.parent / "proc4711")
    assert imported(dump.parents[1], tmp_path / "run").record_ranks == [0]


def test_stacks_that_an_older_version_wrote_for_each_entry_are_the_same(dump, tmp_path):
    whole = imported(dump.parents[1], tmp_path / "run").records().to_pylist()
    stacks = json.loads((dump / "stack.json").read_text())
    (dump / "stack.json").write_text(json.dumps({name: frames for names, frames in stacks.values() for name in names}))
    older = imported(dump.parents[1], tmp_path / "older").records().to_pylist()
    sites = [
        {(row["phase"], row["name"], row["slot"], row["stack"] is None) for row in rows} for rows in (whole, older)
    ]
    assert sites[0] == sites[1]
    assert not all(row["stack"] is None for row in older)


def test_without_construct_json_calls_have_no_module(dump, tmp_path):
    (dump / "construct.json").write_text("{}")
    (dump / "stack.json").unlink()
    rows = rows_by_site(imported(dump, tmp_path / "run"))
    assert ("fwd", "linear", 0, "in0") in rows
    assert ("fwd", "relu", 1, "out0") in rows


def test_micro_batches_of_megatron_are_told_apart(dump, tmp_path):
    def number(document):
        for name, parent in document.items():
            document[name] = [parent, 1 if name == "Functional.relu.1.forward" else 0]

    change(dump, "construct.json", number)
    rows = Run(imported(dump, tmp_path / "run").path).records(names=["act.relu"], phases=["fwd"]).to_pylist()
    assert {(row["micro"], row["call"]) for row in rows} == {(0, 0), (1, 0)}


def test_a_collective_has_what_went_in_and_what_came_out(dump, tmp_path):
    def leaf(high):
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": high, "Min": 0.0, "Mean": 0.0,
                "Norm": 0.0, "md5": "00000001"}  # fmt: skip

    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}
    gathered = [leaf(3.0), leaf(4.0)]

    def add(document):
        document["data"]["Distributed.all_gather.0.forward"] = {
            "input_args": [[leaf(1.0), leaf(1.0)], leaf(2.0)],
            "input_kwargs": {"group": group},
            "output": [gathered, leaf(2.0), group],
        }

    change(dump, "dump.json", add)
    rows = {site: row for site, row in rows_by_site(imported(dump, tmp_path / "run")).items() if site[0] == "comm"}
    assert {site[1:]: row["max"] for site, row in rows.items()} == {
        ("allgather", 0, "in0"): 2.0,
        ("allgather", 0, "out0"): 3.0,
        ("allgather", 0, "out1"): 4.0,
    }
    assert {(row["kind"], row["api"]) for row in rows.values()} == {("collective", "torch.distributed.allgather")}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda rank: (rank / "dump.json").unlink(), "holds no dump.json"),
        (lambda rank: (rank / "dump.json").write_text((rank / "dump.json").read_text()[:999]), "cannot be read"),
        (lambda rank: (rank / "stack.json").write_text("[1]"), "holds a list"),
        (lambda rank: (rank / "stack.json").write_text('{"0": 7}'), "stack.json"),
        (lambda rank: (rank / "dump.json").write_text('{"framework": "mindspore", "data": {}}'), "dump of mindspore"),
        (lambda rank: (rank / "dump.json").write_text('{"schema_version": 1}'), "no 'data'"),
        (lambda rank: change(rank, "dump.json", lambda it: it["data"].update(x=[1])), "no 'data'"),
        (lambda rank: shutil.copytree(rank, rank.parent / "proc7"), "not known which ranks"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_dump_is_one_sentence_and_leaves_nothing(dump, tmp_path, spoil, told):
    spoil(dump)
    with pytest.raises(InputError, match=told) as met:
        imported(dump.parents[1], tmp_path / "run")
    assert "\n" not in str(met.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump"]


def test_a_damaged_value_is_one_sentence_and_leaves_nothing(tensor_dump, tmp_path):
    (tensor_dump / "dump_tensor_data" / "relu.pt").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(InputError, match=r"relu\.pt' cannot be read as a tensor"):
        imported(tensor_dump, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump"]


def test_what_is_there_already_is_not_touched(dump, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("mine")
    with pytest.raises(RunExistsError, match="exists already"):
        imported(dump, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]
