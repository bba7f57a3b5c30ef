"""A module that is imported later is given to whoever waits for it, once, and imports as it would have."""

import importlib
import sys

from trueline.capture.model.imports import when_imported


def test_a_module_is_seen_once_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("NUMBER = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, modules = [*sys.meta_path], []
    when_imported("imported_later", modules.append)
    assert importlib.util.find_spec("imported_later") is not None  # asking imports nothing
    assert modules == []
    module = importlib.import_module("imported_later")
    assert (module.NUMBER, modules, sys.meta_path) == (3, [module], finders)
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    when_imported("imported_later", modules.append)
    assert modules == [module, module]
    del sys.modules["imported_later"]


def test_what_raises_there_does_not_end_the_import(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("NUMBER = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    when_imported("imported_later", lambda module: module.MISSING)
    assert importlib.import_module("imported_later").NUMBER == 3
    del sys.modules["imported_later"]
