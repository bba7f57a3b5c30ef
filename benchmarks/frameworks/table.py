"""The page: framework and mode by what is shown of them; what is grey, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.frameworks.job import FAULTS
from benchmarks.page import table

FRAMEWORKS = (
    *("launchers", "ddp", "fsdp", "trainer", "trl", "accelerate", "lightning", "ray"),
    *("deepspeed", "deepspeed_hf", "megatron"),
)

TITLE = "Frameworks, with the real package"

ABOUT = """\
Three ranks on a CPU train a small language model. Columns:

- **zero-edit**: `trueline run --` in front of the launcher, `python -m torch.distributed.run` if a row names none: \
the command ends as without it, with the same weights, and every step of every rank is in the Run.
- **bitwise**: the same weights on all ranks, watched or not.
- **truth**: of the first steps and all ranks, loss, gradient norm before the reduction, cosine between two ranks' \
gradients, number of samples and learning rate are those of plain code in float64, but for rounding of the format.
- **healthy**: no finding after 60 healthy steps.
- **faults**: each is planted on one rank of three, and found there, with no other rank named alone: its loss times \
1.5; its labels shuffled; its data in the order of another seed; its learning rate 0, so that it updates nothing. And \
no sampler on any rank, so that all read the same.
- **record, compare**: steps are recorded (`--plan mix`), two equal trainings agree in `trueline compare`, and one \
with a rank's loss times 1.5 does not.

✓ is right, ✗ is not (what was seen stands below), – was not tried."""

COLUMNS = ("zero-edit", "bitwise", "truth", "healthy", *FAULTS, "record, compare")


def page(results: Mapping[str, Any]) -> str:
    """The Markdown of all results."""
    rows = [
        [of["version"], mode, *(_mark(said["cells"].get(column)) for column in COLUMNS)]
        for of in results.values()
        for mode, said in of["modes"].items()
    ]
    absent = [f"- {name}: no result is kept" for name in FRAMEWORKS if name not in results]
    parts = [
        f"# {TITLE}",
        ABOUT,
        table(["framework", "mode", *COLUMNS], rows),
        "\n".join(absent),
        *_grey(results),
        _how(results),
    ]
    return "\n\n".join(parts) + "\n"


def _mark(said: str | None) -> str:
    return "–" if said is None else "✗" if said else "✓"


def _grey(results: Mapping[str, Any]) -> list[str]:
    """What is not right, and of each mode the notes and the checks that did not run."""
    wrong = [
        f"- {name}, {mode}, {what}: {said[:300]}"
        for name, of in results.items()
        for mode, tried in of["modes"].items()
        for what, said in tried["cells"].items()
        if said
    ]
    unseen: dict[str, list[str]] = {}
    for name, of in results.items():
        for mode, tried in of["modes"].items():
            for note in [
                *tried.get("notes", []),
                *(f"`{code}`: {why}" for code, why in tried.get("not run", {}).items()),
            ]:
                unseen.setdefault(note, []).append(f"{name} {mode}")
    lines = [f"- {note} ({'; '.join(where)})" for note, where in unseen.items()]
    return [
        *(["## What is not right", "\n".join(wrong)] if wrong else []),
        "## What is not seen, and why",
        "\n".join(lines) or "Nothing.",
    ]


def _how(results: Mapping[str, Any]) -> str:
    lines = ["## When and where", ""]
    for name, of in results.items():
        now = of["facts"]
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
        when = dict.fromkeys(each for tried in of["modes"].values() for each in tried["when"].values())
        lines.append(f"- {about} `{now['command']}`, {now['machine']}, {'; '.join(when)}")
    return "\n".join(lines)
