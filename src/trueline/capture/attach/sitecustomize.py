# ruff: noqa: ANN001, ANN202, ANN204, T201
"""Loaded by Python at its start in every process under ``trueline run``; waits for torch and then lets Trueline attach.

It runs before the user's program, so it imports nothing heavy, chains the sitecustomize that it hides, and never fails.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _BeforeTorch(importlib.abc.MetaPathFinder):
    """Lets torch be loaded by a loader of ours. Asking whether there is a torch (``find_spec``) loads nothing."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Attaching(self, spec.loader)
        return spec


class _Attaching(importlib.abc.Loader):
    """Loads torch as its own loader does, and then attaches."""

    def __init__(self, finder, loader):
        self._finder = finder
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        sys.meta_path.remove(self._finder)
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            _attach()
        except Exception as error:
            print(f"trueline: not watching: {type(error).__name__}: {error}", file=sys.stderr)


def _attach():
    if os.environ.get("TRUELINE_TRIAL"):
        from trueline.capture.trial.first_step import attach

        attach()
    else:
        import trueline
        from trueline.capture.launch import attach
        from trueline.rl import follow

        if os.environ.get("TRUELINE_CHANGES"):
            from trueline.capture.trial.changes import install

            install()
        attach(trueline.watch)
        follow()


def _chain():
    """Run the sitecustomize that this one hides, if there is one."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("TRUELINE_RUN") or os.environ.get("TRUELINE_TRIAL"):
    sys.meta_path.insert(0, _BeforeTorch())
_chain()
