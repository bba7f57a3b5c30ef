"""What of a Run has grown: the sizes of its files, by table."""

from __future__ import annotations

from collections.abc import Mapping

from trueline.store import file_names
from trueline.store.filesystem import filesystem_of

Sizes = Mapping[str, Mapping[str, int]]
"""Bytes of each file, by table."""

_TABLE_OF = {
    file_names.WORKERS_DIR: "workers",
    file_names.JOURNAL_DIR: "workers",
    file_names.ENV_DIR: "workers",
    file_names.RECORDS_DIR: "records",
    file_names.STACKS_DIR: "records",
}
"""Of folders; files beside them are of the table ``run``. Stored values are left out: the page shows none."""
_LEFT_OUT = (file_names.TENSORS_DIR, file_names.MODELS_DIR)


def sizes_of(path: str) -> Sizes:
    """The files of the Run at ``path``. Raises ``RunError`` or ``OSError`` where it cannot be reached."""
    fs, root = filesystem_of(path)
    sizes: dict[str, dict[str, int]] = {"workers": {}, "records": {}, "run": {}}
    for entry in fs.ls(root, detail=True, refresh=True):
        name = entry["name"].rstrip("/").rpartition("/")[2]
        if entry["type"] != "directory":
            sizes["run"][name] = int(entry["size"] or 0)
        elif name not in _LEFT_OUT:
            files = fs.find(entry["name"], detail=True)
            sizes[_TABLE_OF.get(name, "run")] |= {file: int(details["size"] or 0) for file, details in files.items()}
    return sizes


def grown_tables(before: Sizes, now: Sizes) -> list[str]:
    """The tables whose files are not what they were."""
    return [table for table, files in now.items() if files != before.get(table)]
