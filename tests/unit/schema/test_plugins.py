"""Entry points are read once, and again where a package came or went."""

import importlib.metadata
import sys

from trueline.schema import plugins


def test_they_are_read_again_where_a_package_came_and_where_it_went(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    reads = []
    read = importlib.metadata.distributions
    monkeypatch.setattr(plugins.importlib.metadata, "distributions", lambda path: reads.extend(path) or read(path=path))
    plugins._entry_points_in.cache_clear()

    assert plugins.entry_points("trueline.checks") == plugins.entry_points("trueline.checks")
    assert reads == list(dict.fromkeys(sys.path))
    reads.clear()
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[trueline.checks]\nmine = mine:check\n")
    assert [entry.value for entry in plugins.entry_points("trueline.checks")] == ["mine:check"]
    package.rename(tmp_path / "gone")
    assert plugins.entry_points("trueline.checks") == []
    assert reads == [str(tmp_path)] * 2, "and no other folder"


def test_they_are_those_that_python_finds_and_of_two_packages_of_a_name_the_first(tmp_path, monkeypatch):
    for folder in ("one", "two"):
        package = tmp_path / folder / "Mine_x-1.0.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: Mine-x\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(
            f"[trueline.checks]\nmine = {folder}:check\n[console_scripts]\nm = m:m"
        )
        monkeypatch.setattr(sys, "path", [*sys.path[:1], str(tmp_path / folder), *sys.path[1:]])
    assert [entry.value for entry in plugins.entry_points("trueline.checks")] == ["two:check"]
    for group in ("trueline.checks", "trueline.adapters", "trueline.sinks"):
        expected = sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name)
        assert plugins.entry_points(group) == expected
        assert [entry.dist.name for entry in plugins.entry_points(group)] == [entry.dist.name for entry in expected]
