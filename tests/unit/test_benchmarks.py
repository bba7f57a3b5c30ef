"""`make bench` runs packages that are there, and each keeps its page."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.__main__ import QUICK


@pytest.mark.parametrize("name", QUICK)
def test_every_quick_benchmark_is_a_package_with_a_page_that_names_its_command(name):
    spec = find_spec(f"benchmarks.{name}.__main__")
    assert spec is not None
    assert f"- command: `python -m benchmarks.{name}" in (Path(spec.origin).parent / "README.md").read_text()
