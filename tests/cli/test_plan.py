"""`trueline plan` shows what a Run observes, and refuses in one sentence what cannot be."""

from __future__ import annotations

import itertools
import json
import shlex

import pytest

from trueline.cli import main as command_line
from trueline.schema.files.plan_files import plan_path, read_changes, revision_path, write_plan
from trueline.schema.files.run_manifest import Manifest, PlanRevision, RankEnv
from trueline.schema.plan import Plan
from trueline.store.writer import RunWriter


@pytest.fixture
def running(tmp_path):
    """A Run whose job trains and has changed its Plan at step 120."""
    writer = RunWriter(tmp_path / "run", rank=0)
    first = Plan()
    then = first.revised({"preset": "mix", "steps": (120, 125)}, "test").model_dump(mode="json")
    revision = PlanRevision(revision=1, step=120, plan=then)
    manifest = Manifest(adapter="single", plan=first.model_dump(mode="json"), plans=[revision])
    writer.describe(manifest, RankEnv(rank=0))
    writer.write({"step": 0, "loss": 1.0})
    yield str(tmp_path / "run")
    writer.close()


@pytest.fixture
def plan(monkeypatch, capsys):
    def plan(*words):
        """Exit code, standard output and standard error of `trueline plan`."""
        monkeypatch.setattr("sys.argv", ["trueline", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            command_line.main()
        output = capsys.readouterr()
        return left.value.code or 0, output.out, output.err

    return plan


def test_the_plan_in_force_is_shown_with_what_followed_what(running, plan):
    code, out, _ = plan(running)
    assert code == 0
    assert "Since step 120: preset = mix, steps = 120:125." in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()[:1]}
    assert rows["preset"] == ["mix", "workers", "yes"]
    assert rows["budget"] == ["0.01"]
    assert set(Plan.model_fields) <= set(rows)


def test_json_has_the_plan_its_history_and_what_is_asked_for(running, plan):
    assert plan(running, "--set", "depth=tensor")[0] == 0
    document = json.loads(plan(running, "--json")[1])
    assert document["plan"]["preset"] == "mix"
    assert (document["revision"], document["since_step"], document["running"]) == (1, 120, True)
    assert document["asked"] == {"depth": "tensor"}
    assert [(entry["step"], entry["plan"]["preset"]) for entry in document["history"]] == [(0, "workers"), (120, "mix")]


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("steps=130:135", "steps", [130, 135]),
        ("steps=130:", "steps", [130, None]),
        ("steps=:7", "steps", [0, 7]),
        ("steps=130", "steps", [130, 131]),
        ("steps=[3, 5]", "steps", [3, 5]),
        ("steps=", "steps", [0, None]),
        ("names=layers.0.*, lm_head", "names", ["layers.0.*", "lm_head"]),
        ("between=layers.0,layers.3", "between", ["layers.0", "layers.3"]),
        ("phases=fwd,bwd", "phases", ["fwd", "bwd"]),
        ("ranks=0", "ranks", [0]),
        ("every=5", "every", 5),
        ("every=", "every", None),
        ("stacks=false", "stacks", False),
        ("first_rows=2", "first_rows", 2),
        ("when=worker-nonfinite,reduction-mismatch", "when", ["worker-nonfinite", "reduction-mismatch"]),
        ("preset=workers", "preset", "workers"),
    ],
)
def test_values_are_read_as_text_and_written_to_the_plan_file(running, plan, change, key, value):
    code, _, err = plan(running, "--set", change)
    assert (code, err) == (0, "")
    asked = read_changes(plan_path(running))
    assert asked[key] == value
    assert set(asked) == set(Plan().kept())


def test_one_change_after_another_keeps_the_first(running, plan):
    plan(running, "--set", "depth=tensor")
    plan(running, "--set", "every=3", "--set", "stacks=no")
    asked = read_changes(plan_path(running))
    assert (asked["depth"], asked["every"], asked["stacks"], asked["preset"]) == ("tensor", 3, False, "mix")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("depth=deep", "Key 'depth' in --set and plan.json has the value 'deep'"),
        ("dept=stats", "Unknown key 'dept' in --set and plan.json: did you mean 'depth'?"),
        ("depth", "'--set depth' has no '='"),
        ("steps=9:3", "no step lies from 9 up to, and not including, 3"),
        ("steps=-1:3", "the first step is -1; steps count from 0"),
        ("steps=[1,", "'--set steps=[1,' cannot be parsed"),
        (
            "when=loss-spike",
            "should be 'worker-nonfinite' or 'reduction-mismatch' or 'gradient-not-reduced' or 'grad-spike'",
        ),
        ("worker_groups=[[0, 1]]", "'worker_groups' in --set and plan.json has the value [[0, 1]], but it is []"),
        ("max_groups=4", "cannot change while a job runs. Start a new Run"),
    ],
)
def test_what_cannot_be_followed_is_refused_and_nothing_is_written(running, plan, change, words):
    code, out, err = plan(running, "--set", change)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
    assert json.loads(plan(running, "--json")[1])["asked"] == {}


def test_a_start_by_findings_is_refused_where_nothing_would_be_recorded(running, plan):
    code, _, err = plan(running, "--set", "preset=workers", "--set", "when=worker-nonfinite")
    assert code == 2
    assert "preset 'workers' records nothing; use modules, ops, mix, bits or monitor" in err


def test_what_is_watched_cannot_change_under_the_name_of_what_is_recorded(running, plan):
    for change, what in (("names=head", "parameters"), ("steps=0:9", "steps")):
        code, _, err = plan(running, "--set", "preset=workers", "--set", change)
        assert code == 2
        assert f"with preset 'workers' it chooses the {what} that are watched" in err


def test_a_plan_file_that_is_no_plan_is_named_and_the_plan_in_force_still_shown(running, plan):
    with open(plan_path(running), "w") as file:
        file.write('{"preset": "mix",')
    code, out, _ = plan(running)
    assert code == 0
    assert "plan.json is not followed: Plan file" in out
    code, _, err = plan(running, "--set", "every=2")
    assert code == 2
    assert "cannot be parsed" in err


def test_the_plan_of_a_job_that_has_ended_cannot_change(tmp_path, plan):
    writer = RunWriter(tmp_path / "run", rank=0)
    writer.describe(Manifest(adapter="single", plan=Plan().model_dump(mode="json")), RankEnv(rank=0))
    writer.close()
    code, _, err = plan(tmp_path / "run", "--set", "preset=mix")
    assert code == 2
    assert "has ended, so its Plan cannot change" in err
    assert plan(tmp_path / "run")[0] == 0


def test_there_is_no_plan_to_change_before_training_begins(tmp_path, plan):
    writer = RunWriter(tmp_path / "run", rank=0)
    code, _, err = plan(tmp_path / "run", "--set", "preset=mix")
    writer.close()
    assert code == 2
    assert "has not begun to train" in err
    assert plan(tmp_path / "none")[0] == 2


def test_overwriting_a_run_takes_its_plan_files_away(tmp_path):
    RunWriter(tmp_path / "run", rank=0).close()
    for path in (plan_path(tmp_path / "run"), revision_path(tmp_path / "run", 1)):
        write_plan(path, Plan())
    RunWriter(tmp_path / "run", rank=0, overwrite=True).close()
    assert {entry.name for entry in (tmp_path / "run").iterdir()}.isdisjoint({"plan.json", "plans"})


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, ""),
        ({"confirmed": ["rate-zero", "tie-lost.end"]}, "--set confirmed=rate-zero,tie-lost.end"),
        ({"preset": "laws", "every": 5}, "--plan laws --set every=5"),
        ({"steps": [3, None], "names": ["*.weight", "head"]}, "--set steps=3: --set 'names=*.weight,head'"),
        ({"worker_groups": [[0, 1], [2, 3]], "local_updates": True}, None),
        ({"preset": "mix", "names": ["a,b"], "ranks": [0, 2], "depth": "tensor", "steps": [1, 2]}, None),
        ({"stop": "enough", "next_steps": 2}, ""),
    ],
)
def test_options_of_a_plan_make_it_again(keys, options):
    from trueline.cli.plan_keys import key_and_value
    from trueline.schema.text.plan_options import options_of

    plan = Plan.load(keys)
    words = shlex.split(options_of(plan))
    if options is not None:
        assert options_of(plan) == options
    values = [word for before, word in itertools.pairwise(words) if before == "--set"]
    preset = words[1] if words[:1] == ["--plan"] else "workers"
    remade = Plan.load({"preset": preset} | dict(map(key_and_value, values)))
    assert remade == plan.model_copy(update={"stop": "", "next_steps": None})
