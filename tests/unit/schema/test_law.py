"""Laws enter by their folder; one that is broken is said in a sentence, and the others are used."""

import sys
import types

import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn

import trueline
from trueline.capture.probes.standard import probe_makers
from trueline.judge.causes import library
from trueline.schema import law as laws
from trueline.schema.law import Code, Law, broken_laws, codes, facts_of, installed_laws

CHECK = '''"""Losses are written in ink.

Manual of another package.
"""
from trueline.schema.finding import Finding

CODE = "loss-inked"
NEEDS = ("loss",)


def check(run):
    return [Finding(CODE, "error", "The loss is inked.", (1,), 3, 9, evidence={"kind": "blue"}, next=("Dry it.",))]
'''
DECLARED = """from trueline.schema.law import Code, Law

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
        library.known_causes,
        probe_makers,
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


def train(out):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out)
    for _ in range(3):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    return trueline.open_run(out)


def test_the_probe_of_a_law_measures_in_the_training(folder, tmp_path):
    declared = DECLARED.replace("LAW = Law(", 'LAW = Law(probes=("probe",), ')
    folder(declared__py=declared, loss_inked__py=CHECK, probe__py=PROBE)
    assert train(tmp_path / "run").column("epoch").to_pylist() == [7, 7, 7]


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
