"""Puts stand-ins in place: each ``NAME.py`` here has ``AT``, functions by the module after whose import they run."""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path


class _After(importlib.abc.MetaPathFinder):
    """Runs functions once the modules that they are about have been imported."""

    def __init__(self, functions):
        self.functions = functions

    def find_spec(self, name, path=None, target=None):
        if name not in self.functions:
            return None
        waiting = self.functions.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for function in waiting:
                function(module)

        spec.loader.exec_module = exec_module
        return spec


def _begin():
    functions = {}
    for name in filter(None, os.environ.get("STAND_INS", "").split(",")):
        namespace = {}
        exec(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8"), namespace)
        for module, function in namespace["AT"].items():
            functions.setdefault(module, []).append(function)
    if functions:
        sys.meta_path.insert(0, _After(functions))


_begin()
