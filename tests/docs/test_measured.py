"""The numbers of README.md are those of the pages that measured them."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="pages")
def fixture_pages(tmp_path: Path) -> ModuleType:
    """docs/measured.py, reading a copy of the pages that a test may change."""
    spec = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for page in ("benchmarks/compare", "benchmarks/recording", "benchmarks/overhead", "studies/judgement"):
        (tmp_path / page).mkdir(parents=True)
        shutil.copy(ROOT / page / "README.md", tmp_path / page)
    module.ROOT = tmp_path
    return module


def test_the_numbers_of_the_readme_are_those_of_the_pages(pages: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == pages.measured(text), "README.md is behind its pages: run python docs/measured.py"
    assert all(f"<!-- measured: {name} -->" in text for name in pages.BLOCKS)


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("benchmarks/compare", "| true call named first |"),
        ("benchmarks/recording", "| statistics, modules and ops |"),
        ("benchmarks/recording", "| Trueline |"),
        ("benchmarks/overhead", "| default plan |"),
        ("studies/judgement", "| 250 | 20 |"),
    ],
)
def test_another_number_on_a_page_is_another_in_the_readme(pages: ModuleType, page: str, row: str) -> None:
    path = pages.ROOT / page / "README.md"
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = [row + re.sub(r"\d", "7", line.removeprefix(row)) if line.startswith(row) else line for line in lines]
    assert changed != lines
    path.write_text("\n".join(changed), encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert pages.measured(readme) != readme


def test_a_row_that_a_page_no_longer_has_is_named(pages: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"overhead/README\.md has no row 'nothing watched' any more"):
        pages.Table("benchmarks/overhead/README.md", "Step time").row("nothing watched")
