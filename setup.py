"""The one part of the package that is compiled, where there is a compiler; all else is said in pyproject.toml.

An optional extension that cannot be built is left out with a warning, and NumPy measures instead.
"""

from __future__ import annotations

from glob import glob

from setuptools import Extension, setup

FOLDER = "src/trueline/tensor/kernel"

setup(
    ext_modules=[
        Extension(
            "trueline.tensor._native",
            sources=[f"{FOLDER}/instances.c", f"{FOLDER}/module.c"],
            depends=sorted(glob(f"{FOLDER}/*.h")),
            # one rounding for each operation on every machine, so that all of them give the same sums
            extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
