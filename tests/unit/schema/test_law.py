"""Laws enter by their folder; one that is broken is said in a sentence, and the others are used."""

import shutil
import sys
import types
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn

import trueline
from trueline.capture.probes.standard import probe_makers
from trueline.judge.causes import library
from trueline.judge.incidents import incidents_of
from trueline.schema import law as laws
from trueline.schema.columns import table
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.schema.law import Code, Law, broken_laws, codes, facts_of, installed_laws
from trueline.store import rows
from trueline.store.log.earlier_start import seal_leftover
from trueline.store.log.sealed_tables import tables_of
from trueline.store.verify import verify

CHECK = '''"""Losses are written in ink.

Manual of another package.
"""
from trueline.schema.finding import Finding

CODE = "loss-inked"
NEEDS = ("loss",)


def check(run):
    return [Finding(CODE, "error", "The loss is inked.", (1,), 3, 9, evidence={"kind": "blue"}, next=("Dry it.",))]
'''
DECLARED = """from trueline.schema.errors import RunError
from trueline.schema.law import Code, Law

LAW = Law(checks={"loss-inked": Code(explains=("*jump", "replica-drift"), signal="loss", dated=True)})
"""
PROBE = """class InkProbe:
    name, moments, between = "ink", ("batch",), ("batch",)

    def begin(self, step):
        return True

    def take(self, moment, step):
        return {"epoch": 7}

    def columns(self, host, step, row):
        return {}


def make_probe(parts):
    assert parts.model is not None
    return InkProbe()
"""
COLUMNS = """from trueline.schema.column import Column
from trueline.schema.errors import RunError
from trueline.schema.law import Code, Law

LAW = Law(
    checks={"ink-dries": Code(signal="ink_left")},
    columns=(
        Column("ink_left", "float64", "ml", "Ink in the pen at the end of the step."),
        Column("ink_drops", "list<int64>", "", "Drops of each line."),
        Column("ink_colour", "string", "", "What is written with.", after="loss"),
    ),
    probes=("probe",),
)
"""
MEASURES = """class InkProbe:
    name, moments, between = "ink", ("batch",), ("batch",)

    def begin(self, step):
        return True

    def take(self, moment, step):
        return {"ink_left": 3.0 - step.number, "ink_drops": [step.number, 2], "ink_colour": "blue"}

    def columns(self, host, step, row):
        return {}


def make_probe(parts):
    return InkProbe()
"""
READS = '''"""The pen is empty.

Manual of another package.
"""
from trueline.schema.finding import Finding

CODE = "ink-dries"
NEEDS = ("ink_left", "ink_drops", "ink_colour")


def check(run):
    left, measured = run.pivot("ink_left")
    drops, _ = run.stack("ink_drops")
    empty = run.steps[measured[:, 0] & (left[:, 0] <= 1)]
    colour = run.column("ink_colour")[0].as_py()
    claim = f"The {colour} ink ends after {drops[:, 0, 1].sum():.0f} drops."
    return [Finding(CODE, "error", claim, (0,), int(empty[0]))] if len(empty) else []
'''
CAUSES = '''[pen-leaks]
manual = """
The pen leaks.
"""
always = ["loss-inked", "loss-inked/blue"]
needs = ["loss-inked"]
settles = "Close the pen."
'''


def healthy_run(path):
    return write_run(path, healthy_rows(2, 16))


def forget():
    for memo in (
        laws._declarations,
        laws.installed_laws,
        laws.broken_laws,
        laws.codes,
        laws.live_codes,
        library.known_causes,
        probe_makers,
        table.worker_columns,
        table.column_names,
        table.param_columns,
        rows.worker_schema,
        rows.scalar_names,
        rows.worker_names,
    ):
        memo.cache_clear()


@pytest.fixture
def entry(monkeypatch):
    """Registers the module of a law under a name, as the package of somebody else does."""
    entries = []
    monkeypatch.setattr(laws, "entry_points", lambda group: entries if group == laws.GROUP else [])

    def register(name, module):
        entries.append(types.SimpleNamespace(name=name, value=module))
        forget()

    def remove():
        entries.clear()
        forget()

    register.remove = remove
    yield register
    monkeypatch.undo()
    forget()


@pytest.fixture
def folder(tmp_path, monkeypatch, entry):
    """Writes the folder of a law of another package and registers it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name="ink", **files):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").touch()
        for file, text in files.items():
            (package / file.replace("__", ".")).write_text(text, encoding="utf-8")
        entry(name, f"{name}.declared")

    yield write
    for module in [module for module in sys.modules if module.split(".")[0] in ("ink", "inkwell")]:
        del sys.modules[module]


def test_a_law_of_another_package_can_do_what_ours_can(folder, tmp_path):
    folder(declared__py=DECLARED, loss_inked__py=CHECK, causes__toml=CAUSES)
    assert facts_of("loss-inked").signal == "loss"
    assert {"loss-spike", "grad-spike", "replica-drift"} <= set(codes()["loss-inked"].explains)

    diagnosis = trueline.diagnose(healthy_run(tmp_path / "run"))
    assert [finding.claim for finding in diagnosis.report.findings if finding.severity == "error"] == [
        "The loss is inked."
    ]
    (verdict,) = diagnosis.verdicts
    assert (verdict.cause, verdict.next[0]) == ("pen-leaks", "Close the pen.")


def training(out):
    """A watched training, and what makes a step of it."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out)

    def step():
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return watch, step


def train(out):
    watch, step = training(out)
    for _ in range(3):
        step()
    watch.close()
    return trueline.open_run(out)


def test_the_probe_of_a_law_measures_in_the_training(folder, tmp_path):
    declared = DECLARED.replace("LAW = Law(", 'LAW = Law(probes=("probe",), ')
    folder(declared__py=declared, loss_inked__py=CHECK, probe__py=PROBE)
    assert train(tmp_path / "run").column("epoch").to_pylist() == [7, 7, 7]


def test_a_law_of_another_package_brings_columns_of_its_own(folder, tmp_path):
    ours = rows.worker_schema()
    folder(declared__py=COLUMNS, ink_dries__py=READS, probe__py=MEASURES)
    with_ink = rows.worker_schema()
    assert pa.schema([field for field in with_ink if field.name in ours.names]) == ours
    assert with_ink.names[-2:] == ["ink_left", "ink_drops"]
    assert with_ink.names.index("ink_colour") == with_ink.names.index("loss") + 1

    run = train(tmp_path / "run")
    assert run.column("ink_left").to_pylist() == [3.0, 2.0, 1.0]
    (finding,) = [finding for finding in trueline.check(run).findings if finding.code == "ink-dries"]
    assert (finding.claim, finding.step_first) == ("The blue ink ends after 6 drops.", 2)


ANSWERS = """
def left_out(run):
    return [f"Ink was not looked at in {len(run.steps)} steps."]


def reference_findings(run, ref):
    raise ZeroDivisionError("no ink")
"""


def test_a_law_of_another_package_answers_what_is_asked_beside_its_checks(folder, tmp_path):
    answers = 'LAW = Law(answers={"left_out": "answers.left_out", "reference": "answers.reference_findings"}, '
    folder(declared__py=DECLARED.replace("LAW = Law(", answers), loss_inked__py=CHECK, answers__py=ANSWERS)
    run = healthy_run(tmp_path / "run")
    assert "Ink was not looked at in 16 steps." in trueline.check(run).notes
    says = "ink.answers.reference_findings failed (ZeroDivisionError: no ink), and says nothing here."
    assert says in trueline.check(run, ref=run).notes


def test_a_law_of_another_package_says_what_is_one_fault_with_its_own(folder):
    declared = DECLARED.replace("dated=True", 'same_fault=("logprob-gap",), same_fault_on_ranks=("tokens-differ",)')
    folder(declared__py=declared, loss_inked__py=CHECK)
    inked, gap, tokens = (
        Finding(code, "warning", "", ranks, step)
        for code, ranks, step in (("loss-inked", (1,), 3), ("logprob-gap", (2,), 9), ("tokens-differ", (3,), 12))
    )
    assert len(incidents_of([inked, gap, tokens])) == 2
    assert len(incidents_of([inked, gap, replace(tokens, ranks=(1,))])) == 1


@pytest.mark.parametrize("sealed", [True, False], ids=["parts", "journal"])
def test_columns_of_a_law_that_is_not_installed_are_read_past(folder, entry, tmp_path, sealed):
    folder(declared__py=COLUMNS, ink_dries__py=READS, probe__py=MEASURES)
    watch, step = training(tmp_path / "run")
    for _ in range(3):
        step()
    if sealed:
        watch.close()
    entry.remove()

    run = trueline.open_run(tmp_path / "run")
    assert run.column("epoch").to_pylist() == [None] * 3
    assert (run.problems, verify(str(tmp_path / "run")).missing) == ([], ())
    with pytest.raises(RunError, match="'ink_left' is not a column of a Run"):
        run.column("ink_left")
    assert "ink-dries" not in trueline.check(run).checks_run
    watch.close()


def test_columns_stay_in_a_run_that_a_start_without_their_law_takes_over(folder, entry, tmp_path):
    folder(declared__py=COLUMNS, ink_dries__py=READS, probe__py=MEASURES)
    watch, step = training(tmp_path / "run")
    step()
    killed = shutil.copytree(tmp_path / "run", tmp_path / "killed")
    watch.close()
    entry.remove()
    for table_of_rank in tables_of(0):
        seal_leftover(str(killed), table_of_rank)
    assert not trueline.open_run(killed).unclosed
    entry("ink", "ink.declared")
    assert trueline.open_run(killed).column("ink_colour").to_pylist() == ["blue"]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("column", "says"),
    [
        ('Column("loss", "float64", "", "Ink.")', "It declares the column 'loss', which is Trueline's own."),
        (
            'Column("norm_facts", "string", "", "Ink.")',
            "It declares the column 'norm_facts', which the law 'batch_norm' has. Give it another name.",
        ),
        (
            'Column("ink", "string", "", "Ink."), Column("ink", "int32", "", "Ink.")',
            "It declares the column 'ink' twice. Give one of them another name.",
        ),
        (
            'Column("ink", "float16", "", "Ink.")',
            "Its column 'ink' has the type 'float16'. Use one of int64, int32, uint64,",
        ),
        ('Column("my ink", "int64", "", "Ink.")', "Its column 'my ink' has no name of letters, digits"),
        ('Column("ink", "int64", "", "")', "Its column 'ink' does not say what it holds."),
        ('Column(3, "int64", "", "Ink.")', "Its column 3 does not say what it holds."),
        ('"ink"', "Its columns have 'ink'. Write Column(name, type, unit, meaning)."),
    ],
)
def test_a_column_that_cannot_be_is_said_in_a_sentence_and_the_others_run(folder, tmp_path, column, says):
    declared = DECLARED.replace("LAW = Law(", f"LAW = Law(columns=({column},), ")
    names = rows.worker_schema().names
    folder(declared__py=f"from trueline.schema.column import Column\n{declared}", loss_inked__py=CHECK)
    assert rows.worker_schema().names == names
    assert [law.reason[: len(says)] for law in broken_laws()] == [says]

    run = train(tmp_path / "run")
    (told,) = run.live_findings
    assert says in told.claim
    (not_run,) = [entry for entry in trueline.check(run).checks_not_run if entry.check == "ink"]
    assert not_run.why.startswith(says.removesuffix("."))


def test_two_laws_of_other_packages_cannot_share_a_column(folder):
    folder(declared__py=COLUMNS, ink_dries__py=READS, probe__py=MEASURES)
    folder("inkwell", declared__py=COLUMNS.replace("ink-dries", "well-dries"))
    says = "It declares the column 'ink_left', which the law 'ink' has. Give it another name."
    assert [(law.name, law.reason) for law in broken_laws()] == [("inkwell", says)]
    assert table.worker_columns()[-1].name == "ink_drops"


@pytest.mark.parametrize(
    "probe", ["import gone_for_good", "raise SystemExit(3)", PROBE.replace("is not None", "is None"), "x = 1"]
)
def test_a_probe_that_cannot_be_made_is_left_out_and_training_goes_on(folder, tmp_path, probe):
    folder(declared__py=DECLARED.replace("LAW = Law(", 'LAW = Law(probes=("probe",), '), probe__py=probe)
    assert len(train(tmp_path / "run").column("epoch")) == 3


@pytest.mark.parametrize(
    ("files", "name", "says"),
    [
        ({"declared__py": "import gone_for_good"}, "ink", "It cannot be loaded from 'ink.declared': ModuleNotFound"),
        ({"declared__py": "raise SystemExit(3)"}, "ink", "It cannot be loaded from 'ink.declared': SystemExit: 3"),
        ({"declared__py": "LAW = 3"}, "ink", "'ink.declared' has no LAW. Declare one: LAW = Law(checks={…})."),
        (
            {"declared__py": DECLARED.replace("loss-inked", "grad-spike")},
            "ink",
            "It names the code 'grad-spike', which the law 'jumps' has. Give it another code.",
        ),
        ({"declared__py": DECLARED}, "loss-inked", "It cannot be loaded from 'ink.loss_inked': ModuleNotFoundError"),
        (
            {"declared__py": DECLARED, "loss_inked__py": CHECK.replace("loss-inked", "loss-penned")},
            "loss-inked",
            "The law declares 'loss-inked', and ink.loss_inked has the CODE 'loss-penned'. Make them one.",
        ),
    ],
    ids=["import fails", "ends", "no law", "code twice", "check missing", "another code"],
)
def test_a_broken_law_is_said_in_a_sentence_and_the_others_run(folder, tmp_path, files, name, says):
    run = healthy_run(tmp_path / "run")
    whole = trueline.check(run)
    folder(**files)
    report = trueline.check(run)
    (entry,) = [entry for entry in report.checks_not_run if entry.check == name]
    assert entry.why.startswith(says.removesuffix("."))
    assert report.checks_run == whole.checks_run
    assert entry.reason == "failed"


def test_every_folder_of_ours_is_a_law():
    assert broken_laws() == ()
    names = [law.package.rpartition(".")[2] for law in installed_laws()]
    assert len(names) == len(set(names)) > 20
    assert facts_of("nobody-declared-it") == Code()
    assert Law().codes == {}
