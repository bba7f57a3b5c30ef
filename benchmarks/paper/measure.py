"""All runs, in one process and one thread; what is in the results already is not run again."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.paper import coverage, ddp
from benchmarks.paper.cells import LIBRARY, PAPER, SEED_APART, WARM_SEED, Cell, Size, cells, job_of, setting_of
from benchmarks.paper.results import Results
from benchmarks.paper.together import train_together

from trueline.demo.fine_tune import Material, Options, prepare
from trueline.demo.model import build_model

COVERAGE_SEEDS = 20
COVERAGE_STEPS = 80


def measure(results: Results, path: Path, size: Size, data: Path | None, *, quick: bool) -> None:
    """Fill ``results`` with what they lack, and write them to ``path`` after every part of it."""
    torch.set_num_threads(1)
    material: dict[str, Material] = {LIBRARY: read(None, size)}
    if data is not None:
        material[data.name] = read(data, size)
    results.about["rows"] = {text: len(read_text.samples) for text, read_text in material.items()}
    results.about["parameters"] = sum(param.numel() for param in build_model(material[LIBRARY].model).parameters())
    _train_all(results, path, size, material)
    seeds, steps = (2, 20) if quick else (COVERAGE_SEEDS, COVERAGE_STEPS)
    for text in material.keys() - {row["text"] for row in results.coverage}:
        _say(f"{text}: who consumes which samples")
        results.coverage += coverage.caught(material[text], text, size, seeds=seeds, steps=steps)
        results.write(path)
    if not results.ddp:
        _say(f"comparing with {ddp.WORKERS} real workers")
        results.ddp = ddp.agreement(material[LIBRARY], size)
    results.write(path)


def read(data: Path | None, size: Size) -> Material:
    """Samples and model for ``data``, or for the standard library: the demo's, with this size."""
    options = Options(
        out=Path("unused"), workers=size.workers, batch_size=size.batch_size, max_length=size.max_length, data=data
    )
    return prepare(options, lambda *_: None)


def _train_all(results: Results, path: Path, size: Size, material: Mapping[str, Material]) -> None:
    @functools.cache
    def trained_weights(text: str) -> Mapping[str, Any]:
        setting = setting_of("sharded", PAPER[0].name)
        job = job_of(setting, material[text], size, seed=WARM_SEED, steps=size.warm_steps)
        curves, weights = train_together(job, size.workers)
        results.about.setdefault("warm_loss", {})[text] = round(float(curves.losses_TN[-10:].mean()), 2)
        return weights

    # Seed by seed, so that all cells grow alike.
    everything = [(cell, seed) for seed in range(size.seeds) for text in material for cell in cells(text)]
    todo = [each for each in everything if each[1] < _num_seeds(each[0], size) and not results.has(*each)]
    start, minutes = time.process_time(), results.about.get("minutes", 0.0)
    for done, (cell, seed) in enumerate(todo, start=1):
        weights = trained_weights(cell.text) if cell.start == "trained" else None
        job = job_of(setting_of(cell.reading, cell.setting), material[cell.text], size, seed=SEED_APART * seed)
        curves, _ = train_together(job, size.workers, dropout=cell.dropout, weights=weights)
        results.add(cell, seed, curves)
        spent_s = time.process_time() - start
        results.about["minutes"] = minutes + spent_s / 60
        results.write(path)
        _say(f"{done} of {len(todo)} runs, about {spent_s / done * (len(todo) - done) / 60:.0f} min of one core left")


def _num_seeds(cell: Cell, size: Size) -> int:
    return size.seeds_random if cell.start == "random" else size.seeds


def describe(size: Size) -> dict[str, Any]:
    """``size`` as it stands in the results."""
    return dataclasses.asdict(size)


def _say(news: str) -> None:
    print(news, file=sys.stderr, flush=True)
