"""The vocabulary: sites, findings, plans."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueline.schema.columns.records import Unmeasured
from trueline.schema.columns.table import column_names, worker_columns
from trueline.schema.errors import PlanError, SiteError
from trueline.schema.files.run_manifest import Manifest, with_interval
from trueline.schema.finding import Finding, by_weight
from trueline.schema.plan import Plan
from trueline.schema.site import Site
from trueline.schema.text.words import groups_text

NAMES = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="._-"), max_size=30)


@given(st.integers(0, 10**9), st.integers(0, 99), st.integers(0, 9999), NAMES, st.integers(0, 99))
def test_a_site_survives_its_text(step, micro, rank, name, call):
    site = Site(step, micro, rank, "fwd", name, call, "out0")
    assert Site.parse(str(site)) == site


def test_the_sites_text_is_the_documented_one():
    text = "120.0/r3/fwd/layers.7.attn.qkv#0:out0"
    assert str(Site.parse(text)) == text


@pytest.mark.parametrize("text", ["", "120/r3/fwd/x#0:out0", "120.0/3/fwd/x#0:out0", "120.0/r3/fwd/x:out0", "x"])
def test_what_is_no_site_is_refused_with_an_example(text):
    with pytest.raises(SiteError, match="is not a site"):
        Site.parse(text)


def test_a_finding_survives_json():
    finding = Finding(
        code="duplicate-data",
        severity="error",
        claim="Ranks 0 and 1 consumed the same samples.",
        ranks=(0, 1),
        step_first=3,
        measured=1.0,
        false_alarm_rate=1e-6,
        evidence={"pairs": [1, 2]},
        next=("Use a DistributedSampler.",),
    )
    assert Finding.from_json(json.loads(json.dumps(finding.to_json()))) == finding


def test_errors_come_first_and_early_ones_before_late_ones():
    late = Finding(code="a", severity="error", claim="", step_first=9)
    early = Finding(code="b", severity="error", claim="", step_first=1)
    info = Finding(code="c", severity="info", claim="", step_first=0)
    assert sorted([info, late, early], key=by_weight) == [early, late, info]


def test_what_is_seen_of_all_workers_comes_after_what_says_more():
    close, same = (Finding(code, "error", "", step_first=3) for code in ("dispersion-low", "duplicate-data"))
    assert sorted([close, same], key=by_weight) == [same, close]


def test_column_names_are_unique():
    assert len(column_names()) == len(worker_columns())


def test_plans_load_from_presets_files_and_dicts(tmp_path):
    (tmp_path / "plan.toml").write_text("every = 5\nnames = ['layers.*']\n", encoding="utf-8")
    (tmp_path / "plan.json").write_text('{"every": 5, "names": ["layers.*"]}', encoding="utf-8")
    expected = Plan(every=5, names=("layers.*",))
    assert Plan.load(tmp_path / "plan.toml") == Plan.load(tmp_path / "plan.json") == expected
    assert Plan.load({"every": 5, "names": ["layers.*"]}) == expected
    assert Plan.load("workers") == Plan.load(None) == Plan()
    assert Plan.load(expected) is expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"evry": 5}, "Unknown key 'evry' in the plan: did you mean 'every'"),
        ({"every": 0}, "Key 'every' in the plan has the value 0"),
        ({"budget": float("nan")}, "Key 'budget'"),
        ({"preset": "everything"}, "Key 'preset'"),
        ({"false_alarms": 0}, "Key 'false_alarms' in the plan has the value 0"),
        ({"false_alarms": float("inf")}, "Key 'false_alarms'"),
        ({"worker_groups": [[0, 1], [1, 2]]}, "[[0, 1], [1, 2]]: rank 1 stands twice"),
        ({"worker_groups": [[0, 0]]}, "rank 0 stands twice"),
        ({"worker_groups": [[0, 1], [2]]}, "group [2] has 1 of the at least 2 ranks"),
        ({"worker_groups": [[0, -1]]}, "rank -1 in group [0, -1] is negative"),
        ({"worker_groups": [0, 1]}, "Key 'worker_groups.0' in the plan has the value 0"),
    ],
)
def test_a_wrong_plan_says_what_is_wrong_and_what_is_valid(content, says):
    with pytest.raises(PlanError) as caught:
        Plan.load(content)
    assert says in str(caught.value)


def test_workers_that_are_alike_are_declared_in_any_form_of_plan(tmp_path):
    (tmp_path / "plan.toml").write_text("worker_groups = [[0, 2], [1, 3]]\nfalse_alarms = 0.1\n", encoding="utf-8")
    plan = Plan.load(tmp_path / "plan.toml")
    assert plan == Plan.load({"worker_groups": [(0, 2), (1, 3)], "false_alarms": 0.1})
    assert plan.worker_groups == ((0, 2), (1, 3))
    manifest = Manifest(plan=plan.model_dump(mode="json"))
    assert Plan.load(manifest.plan) == plan, "a plan survives the manifest"


def test_a_group_of_many_ranks_may_be_ranges_and_is_told_so():
    others = (*range(77), *range(78, 128))
    assert Plan.load({"worker_groups": ["0-76,78-127"]}).worker_groups == (others,)
    assert groups_text(others) == '["0-76,78-127"]'
    assert groups_text((0, 1, 3)) == "[[0, 1, 3]]"
    assert Plan.load({"worker_groups": ["0-2, 5", [3, 4]]}).worker_groups == ((0, 1, 2, 5), (3, 4))
    for wrong in ("0-", "a", "5-2", "", "0--3"):
        with pytest.raises(PlanError, match="is no rank and no range of ranks"):
            Plan.load({"worker_groups": [wrong]})


def test_an_unreadable_plan_file_is_named(tmp_path):
    broken = tmp_path / "plan.toml"
    broken.write_text("every = = 3", encoding="utf-8")
    with pytest.raises(PlanError, match=r"plan\.toml' cannot be read"):
        Plan.load(broken)
    with pytest.raises(PlanError, match="neither a preset"):
        Plan.load(tmp_path / "missing.toml")
    listed = tmp_path / "plan.json"
    listed.write_text("[1]", encoding="utf-8")
    with pytest.raises(PlanError, match="it holds a list, expected a table of keys"):
        Plan.load(listed)


def test_what_notes_of_older_runs_say_is_still_known():
    msprobe = "from msProbe: Max inf, Min 0.0; not all elements are finite, and nothing was counted"
    assert Unmeasured.of(msprobe) is Unmeasured.UNCOUNTED
    assert Unmeasured.of("a collective that is still under way") is Unmeasured.UNDER_WAY
    assert Unmeasured.of("a nested tensor is not measured") is None
    compiled = "blocks.0 is compiled: what runs inside it is not seen, only what goes in and comes out."
    early = "gradients are sampled every 4 steps since about step 12: the smallest interval within the budget."
    assert Manifest(notes=[compiled, early]).compiled == {"blocks.0"}
    assert with_interval([early, compiled], 8, step=20, why="so") == [
        compiled,
        "gradients are sampled every 8 steps since about step 20: so.",
    ]
