"""One name for one thing, whatever wrappers or frameworks call it."""

from __future__ import annotations

from dataclasses import dataclass

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that DDP, torch.compile, FSDP1 and activation checkpointing put in."""


def plain_name(name: str) -> str:
    """``name`` without what wrappers put into it; itself where nothing else would be left."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


@dataclass(frozen=True)
class NameMap:
    """What one framework calls what another calls otherwise. Applied to the names of both runs alike."""

    def plain(self, name: str) -> str:
        """``name`` as both runs are to call it."""
        return plain_name(name)
