"""The one part of the package that is compiled, where there is a compiler; all else is said in pyproject.toml.

An optional extension that cannot be built is left out with a warning, and NumPy measures instead. With
``TRUELINE_PURE=1`` it is not tried, and the wheel is one for every machine. With ``SOURCE_DATE_EPOCH`` set, equal
sources make equal files (https://reproducible-builds.org/specs/source-date-epoch/).
"""

from __future__ import annotations

import gzip
import os
import tarfile
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

FOLDER = "src/trueline/tensor/kernel"

kernel = Extension(
    "trueline.tensor._native",
    sources=[f"{FOLDER}/instances.c", f"{FOLDER}/module.c"],
    depends=sorted(glob(f"{FOLDER}/*.h")),
    # one rounding for each operation on every machine, so that all of them give the same sums; what a debugger reads
    # would name the directory of the build
    extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off", "-g0"],
    py_limited_api=True,
    optional=True,
)


class DatedSdist(sdist):
    """An archive of sources in which order, owners and times are of the sources, and not of the build."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):  # noqa: ANN001, ANN201
        date = os.environ.get("SOURCE_DATE_EPOCH")
        if date is None or format != "gztar" or base_dir is None:
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)

        def dated(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = int(date), 0, 0, "", ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            return member

        path = f"{base_name}.tar.gz"
        root = Path(root_dir or ".")
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(date)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted((root / base_dir).rglob("*")):
                archive.add(name, name.relative_to(root), recursive=False, filter=dated)
        return path


setup(
    ext_modules=[] if os.environ.get("TRUELINE_PURE") == "1" else [kernel],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    cmdclass={"sdist": DatedSdist},
)
