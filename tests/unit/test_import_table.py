"""Reading, judging and showing Runs works where torch is not installed; every package has its import contract."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)
    assert "torch" not in sys.modules, f"importing {name} imports torch"
print(len(names))
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("package", ["schema", "store", "judge", "render", "web"])
def test_package_and_every_module_below_leave_torch_out(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, f"trueline.{package}"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, f"no module was found below trueline.{package}: this test would prove nothing"


def test_public_names_for_reading_leave_torch_out() -> None:
    code = "import sys, trueline\ntrueline.open_run, trueline.check, trueline.report\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "False", done.stderr


def test_every_package_that_may_not_import_all_has_an_import_contract() -> None:
    packages = {f"trueline.{path.parent.name}" for path in (ROOT / "src/trueline").glob("*/__init__.py")}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contracted = {module for contract in contracts for module in contract.get("source_modules", ())}

    assert packages - contracted == {"trueline.compat"}
