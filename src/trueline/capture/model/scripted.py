"""``torch.jit.script`` and ``torch.jit.trace`` of a model that has our hooks: without them, as it compiles them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from trueline.capture.model.patches import Function, Patch, calling
from trueline.capture.model.untraced import is_ours


@contextlib.contextmanager
def without_hooks(model: Any) -> Iterator[None]:
    """Takes our hooks off ``model`` and what is in it for the block, and puts them back in their order."""
    before: list[tuple[dict[int, Any], dict[int, Any]]] = []
    with contextlib.suppress(Exception):
        for module in model.modules() if isinstance(model, nn.Module) else ():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                own_keys = [key for key, hook in hooks.items() if is_ours(hook)]
                if own_keys:
                    before.append((hooks, dict(hooks)))
                    for key in own_keys:
                        del hooks[key]
    try:
        yield
    finally:
        for hooks, all_hooks in before:
            users = dict(hooks)
            hooks.clear()
            hooks_before = {key: hook for key, hook in all_hooks.items() if is_ours(hook) or key in users}
            hooks.update(hooks_before | users)


def _scripting(original: Function, model: Any, *args: Any, **kwargs: Any) -> Any:
    with without_hooks(model):
        return original(model, *args, **kwargs)


_script = Patch(torch.jit._recursive, "create_script_module", calling(_scripting))


def hide_hooks() -> None:
    """Let TorchScript see models without our hooks from now on, as copies of a model have them for longer."""
    _script.install()
