"""The page: framework and mode by what is shown of them; what is grey, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.frameworks.job import FAULTS
from benchmarks.page import table

FRAMEWORKS = {
    "launchers": "launchers",
    "ddp": "torch's DDP",
    "fsdp": "torch's FSDP",
    "trainer": "Transformers",
    "trl": "TRL",
    "trl_grpo": "TRL with rollouts",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "ray": "Ray",
    "deepspeed": "DeepSpeed",
    "deepspeed_hf": "DeepSpeed below Hugging Face",
    "megatron": "Megatron-core",
}
"""Each file here, and what to call it."""

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
    every = [(name, mode) for name, of in results.items() for mode, tried in of["modes"].items() if "not run" in tried]
    unseen: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, mode in every:
        tried = results[name]["modes"][mode]
        for code, why in [*(("", note) for note in tried["notes"]), *tried["not run"].items()]:
            unseen.setdefault((code, why), []).append((name, mode))
    codes: dict[tuple[str, str], list[str]] = {}
    for (code, why), found in unseen.items():
        codes.setdefault((why.rstrip("."), _where(found, every)), []).extend([f"`{code}`"] if code else [])
    lines = [f"- {', '.join(of)}{': ' if of else ''}{why}. {where}" for (why, where), of in codes.items()]
    return [
        *(["## What is not right", "\n".join(wrong)] if wrong else []),
        "## What is not seen, and why",
        "\n".join(lines) or "Nothing.",
    ]


def _where(found: Sequence[tuple[str, str]], every: Sequence[tuple[str, str]]) -> str:
    """In which modes of which frameworks, or in which it is not where these are few."""
    others = [one for one in every if one not in found]
    if not others:
        return "*(all)*"
    if len(others) < len(found) / 3:
        return f"*(all but {_named(others, every)})*"
    return f"*({_named(found, every)})*"


def _named(some: Sequence[tuple[str, str]], every: Sequence[tuple[str, str]]) -> str:
    texts = []
    for name in dict.fromkeys(name for name, _ in some):
        modes = [mode for of, mode in some if of == name]
        is_whole = len(modes) == len([mode for of, mode in every if of == name])
        texts.append(FRAMEWORKS[name] if is_whole else f"{FRAMEWORKS[name]}: {'; '.join(modes)}")
    return " · ".join(texts)


def _how(results: Mapping[str, Any]) -> str:
    lines = ["## When and where", ""]
    for name, of in results.items():
        now = of["facts"]
        source = Path(__file__).with_name("jobs").joinpath(f"{name}.py").read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
        when = dict.fromkeys(each for tried in of["modes"].values() for each in tried["when"].values())
        lines.append(f"- {about} `{now['command']}`, {now['machine']}, {'; '.join(when)}")
    return "\n".join(lines)
