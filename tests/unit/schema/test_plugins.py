"""Entry points are read once, and again where a package came or went."""

import importlib.metadata

from trueline.schema import plugins


def test_they_are_read_again_where_a_package_came_and_where_it_went(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    reads = []
    read = importlib.metadata.entry_points
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda: reads.append(1) or read())
    plugins._all_entry_points.cache_clear()

    assert plugins.entry_points("trueline.checks") == plugins.entry_points("trueline.checks")
    assert len(reads) == 1
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[trueline.checks]\nmine = mine:check\n")
    assert [entry.value for entry in plugins.entry_points("trueline.checks")] == ["mine:check"]
    package.rename(tmp_path / "gone")
    assert plugins.entry_points("trueline.checks") == []
    assert len(reads) == 3
