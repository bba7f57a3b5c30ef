"""The C kernel under the address and undefined-behaviour sanitizers, as a program of its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

KERNEL = Path(__file__).parents[3] / "src/trueline/tensor/kernel"
HARNESS = Path(__file__).parents[1] / "fixtures/kernel_sanitized.c"


@pytest.mark.in_turn
def test_no_kernel_reads_beside_its_values_or_does_what_is_undefined(tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here")
    program = tmp_path / "kernel"
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sanitizers += ["--param", "asan-instrumentation-with-call-threshold=0"]  # compiles in two thirds of the time
    built = subprocess.run(
        [compiler, "-std=gnu11", "-O0", "-g1", "-ffp-contract=off", *sanitizers, f"-I{KERNEL}", HARNESS,
         KERNEL / "instances.c", "-o", program, "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "cannot find" in built.stderr and "san" in built.stderr and "CI" not in os.environ:
        pytest.skip("gcc has no sanitizers here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 13 * 40
