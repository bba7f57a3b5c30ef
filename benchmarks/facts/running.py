"""One public training: its sources laid out, changed as the catalogue says, run below ``trueline run``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from benchmarks.facts.catalogue import Example
from benchmarks.facts.made_up import images, texts

LIMIT_S = 600
"""A training that takes longer is ended and not counted."""
KINDS = texts.KINDS | images.KINDS
ROOT = Path(__file__).resolve().parents[2]


_MAKING = threading.Lock()


class NotRun(Exception):
    """A training did not come to its end: why."""


def run_example(example: Example, *, sources: Path, run: Path, pool: Path, place: Path) -> None:
    """Writes the Run ``run``. ``pool`` keeps made-up files from one training to the next; the training works below
    ``place``. Raises ``NotRun``.
    """
    lay_out(example, sources=sources, place=place)
    start = place / example.started_in
    start.mkdir(parents=True, exist_ok=True)
    for where, kind in example.files.items():
        copy_made(kind, start / where, pool=pool)
    command = [sys.executable, "-m", "trueline", "run", "--plan", "laws", "--overwrite", "--out", str(run), "--"]
    command += [sys.executable, *(_torchrun(example.ranks) if example.ranks else ())]
    command += ["-m", _module(example)] if example.module else [os.path.relpath(place / example.path, start)]
    log = place / "output.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *example.arguments],
            cwd=start,
            env=environment(example, place),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotRun(f"it took more than {LIMIT_S} s: {log}") from None
    if code:
        raise NotRun(f"exit code {code}: {' / '.join(log.read_text(errors='replace').strip().splitlines()[-4:])}")
    if not (run / "manifest.json").exists():
        raise NotRun(f"no Run: {' / '.join(log.read_text(errors='replace').strip().splitlines()[-2:])}")


def lay_out(example: Example, *, sources: Path, place: Path) -> None:
    """The folder that the training needs, of its commit, below ``place``, with the substitutions of the catalogue."""
    clone = sources / example.repository.replace("/", "+")
    if not clone.exists():
        raise NotRun(f"{clone} is not there: git clone --bare https://github.com/{example.repository} {clone}")
    git_dir = next((folder for folder in (clone / ".git", clone / "repo", clone) if (folder / "HEAD").exists()), None)
    if git_dir is None:
        raise NotRun(f"{clone} is no clone")
    for name, content in _files(git_dir, example):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    for words in example.replaced:
        file, before, after = words if len(words) == 3 else (example.path, *words)
        text = (place / file).read_text(encoding="utf-8")
        if before not in text:
            raise NotRun(f"{file} does not have {before!r}")
        (place / file).write_text(text.replace(before, after), encoding="utf-8")


def _files(git_dir: Path, example: Example) -> Iterator[tuple[str, bytes]]:
    """(path in the repository, content) of what the training needs; what the clone lacks is left out."""
    git = ["git", f"--git-dir={git_dir}"]
    command = [*git, "ls-tree", "-r", "-z", example.commit, "--", *example.laid_out]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise NotRun(f"{example.repository}: {listed.stderr.strip()}")
    rows = [row.split("\t", 1) for row in listed.stdout.split("\0") if row]
    blobs = [(facts.split()[2], name) for facts, name in rows if facts.split()[1] == "blob"]
    asked = "".join(f"{blob}\n" for blob, _ in blobs).encode()
    answer = BytesIO(subprocess.run([*git, "cat-file", "--batch"], input=asked, capture_output=True, check=True).stdout)
    for _, name in blobs:
        head = answer.readline().split()
        if head[-1] == b"missing":
            continue
        content = answer.read(int(head[-1]))
        answer.read(1)
        yield name, content


def copy_made(kind: str, where: Path, *, pool: Path) -> None:
    """Made-up files of ``kind`` at ``where``: made once, below ``pool``; a metric has the name of its folder."""
    made = pool / kind.replace(" ", "-") / (where.name if kind == "metric" else "made")
    with _MAKING:
        if not made.exists():
            making = made.with_name("making") / where.name
            shutil.rmtree(making.parent, ignore_errors=True)
            making.parent.mkdir(parents=True)
            KINDS[kind](making)
            making.rename(made)
    shutil.copytree(made, where, dirs_exist_ok=True)


def environment(example: Example, place: Path) -> dict[str, str]:
    """Of the training: without downloads and reports to others, with its stand-ins and a home of its own."""
    own = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(place / "hf"),
        "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_HOME": str(place / "torch"),
        "MPLBACKEND": "Agg",
        "STAND_INS": ",".join(example.stand_ins),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks" / "facts" / "stand_in"), str(ROOT), str(place)]),
    }
    return {
        **os.environ,
        **own,
        **{name: value.replace("PLACE", str(place)) for name, value in example.environment.items()},
    }


def _torchrun(ranks: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))


def _module(example: Example) -> str:
    """The name of the script as a module, from where the training starts."""
    return ".".join(Path(os.path.relpath(example.path, example.started_in)).with_suffix("").parts)
