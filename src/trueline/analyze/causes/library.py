"""The causes that are known: one file each under ``known``."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache

from trueline.analyze.causes import known
from trueline.analyze.causes.cause import Cause


@cache
def known_causes() -> tuple[Cause, ...]:
    """Every cause, in the order of their slugs: file ``data/data_not_split.py`` is the cause ``data-not-split``."""
    found = pkgutil.walk_packages(known.__path__, f"{known.__name__}.")
    modules = [importlib.import_module(each.name) for each in found if not each.ispkg]
    causes = [
        replace(
            module.CAUSE,
            slug=module.__name__.rpartition(".")[2].replace("_", "-"),
            manual=(module.__doc__ or "").strip(),
        )
        for module in modules
    ]
    return tuple(sorted(causes, key=lambda cause: cause.slug))
