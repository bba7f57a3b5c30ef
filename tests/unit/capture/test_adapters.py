"""Adapters enter by one door: ours, and those of other packages before them if they say so."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import trueline
from trueline.capture import adapters
from trueline.capture.adapters.single import SingleAdapter
from trueline.schema.errors import CaptureError

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
REGISTERED: dict[str, str] = PROJECT["entry-points"][adapters.GROUP]


class Engine(nn.Linear):
    """The module of a framework that we know nothing of."""


def foreign(precedence=50):
    """An adapter's module of another package, for Engines only."""
    module = ModuleType("elsewhere")

    class EngineAdapter(SingleAdapter):
        name = "engine"

    module.PRECEDENCE = precedence
    module.adapter_for = lambda model, process_group: EngineAdapter() if isinstance(model, Engine) else None
    return module


@pytest.fixture
def install(monkeypatch):
    def install(**modules):
        for name, module in modules.items():
            if module is not None:
                monkeypatch.setitem(sys.modules, f"elsewhere_{name}", module)
        values = REGISTERED | {name: f"elsewhere_{name}" for name in modules}
        entries = [EntryPoint(name, value, adapters.GROUP) for name, value in values.items()]
        monkeypatch.setattr(adapters, "entry_points", lambda group: entries)

    return install


def test_ours_are_registered_under_their_names(monkeypatch):
    found = adapters.installed_adapters()
    assert [module.__name__ for module in found] == [
        REGISTERED[name] for name in ("deepspeed", "megatron", "ddp", "fsdp2", "sharded", "manual", "single")
    ]
    monkeypatch.setattr(adapters, "entry_points", lambda group: [])
    assert adapters.installed_adapters() == found, "run from its sources, without being installed"


def test_an_adapter_of_another_package_watches_its_own_models_only(install, tmp_path):
    install(engine=foreign())
    for model, name in ((Engine(2, 2), "engine"), (nn.Linear(2, 2), "single")):
        with trueline.watch(model, out=tmp_path / name):
            model(torch.ones(1, 2)).sum().backward()
            torch.optim.SGD(model.parameters()).step()
        assert trueline.open_run(tmp_path / name).manifest.adapter == name


def test_an_adapter_may_leave_out_what_has_a_default_and_hold_no_attributes(install, tmp_path):
    own = SingleAdapter()

    class Slotted:
        __slots__ = ("attach", "detach", "mesh", "name", "notes", "reduction")

    slotted = Slotted()
    for member in Slotted.__slots__:
        setattr(slotted, member, getattr(own, member))
    module = foreign()
    module.adapter_for = lambda model, process_group: slotted
    install(engine=module)
    adapter = adapters.choose_adapter(Engine(2, 2))
    assert (adapter.own, adapter.reduces_by_hand, adapter.goes_round) == (frozenset(), False, None)
    assert adapter.follow(print, print) is None
    model = Engine(2, 2)
    with trueline.watch(model, out=tmp_path / "run"):
        model(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(model.parameters()).step()
    assert len(trueline.open_run(tmp_path / "run").steps) == 1


def test_the_higher_precedence_is_asked_first(install):
    install(engine=foreign(precedence=-1))
    assert adapters.choose_adapter(Engine(2, 2)).name == "single"
    install(engine=foreign(precedence=1))
    assert adapters.choose_adapter(Engine(2, 2)).name == "engine"


def test_what_is_no_adapter_is_refused_in_words(install, tmp_path):
    install(broken=None)
    with pytest.raises(CaptureError, match="Adapter 'broken' cannot be loaded from 'elsewhere_broken'"):
        trueline.watch(nn.Linear(2, 2), out=tmp_path / "run")
    install(half=ModuleType("half"))
    with pytest.raises(CaptureError, match="'half' in elsewhere_half lacks PRECEDENCE, adapter_for"):
        adapters.choose_adapter(nn.Linear(2, 2))


def test_a_model_that_nothing_fits_is_named(monkeypatch):
    entry = EntryPoint("engine", "elsewhere_engine", adapters.GROUP)
    monkeypatch.setitem(sys.modules, "elsewhere_engine", foreign())
    monkeypatch.setattr(adapters, "entry_points", lambda group: [entry])
    with pytest.raises(CaptureError, match="fits a Linear"):
        adapters.choose_adapter(nn.Linear(2, 2))


def test_an_adapter_that_fails_is_named_with_what_it_missed(install):
    """As one does whose framework keeps something elsewhere in a later version."""
    later = foreign()
    later.adapter_for = lambda model, process_group: model.engine_parts
    install(later=later)
    with pytest.raises(CaptureError, match=r"Adapter elsewhere failed on a Engine \(AttributeError: .*engine_parts"):
        adapters.choose_adapter(Engine(2, 2))


@pytest.mark.parametrize("name", ["megatron.core.distributed.distributed_data_parallel", "deepspeed.runtime.engine"])
def test_a_framework_whose_import_failed_halfway_is_passed_over(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert adapters.choose_adapter(nn.Linear(2, 2)).name == "single"
