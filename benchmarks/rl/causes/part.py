"""Each fault with each seed in each model, judged from what was recorded and from what a framework's log has of the
same steps; results are lines of JSON, so that it may be interrupted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.rl import measure
from benchmarks.rl.causes.faults import OPEN, Fault
from benchmarks.rl.causes.seen import SEEN
from benchmarks.rl.causes.seen_second import SEEN_SECOND
from benchmarks.rl.causes.seen_third import SEEN_THIRD
from benchmarks.rl.causes.training import Dump
from benchmarks.rl.causes.twins import TWINS

import trueline
from trueline.judge.causes.diagnosis import Diagnosis
from trueline.rl.batch import rows_of
from trueline.store.importers.rollout_logs import import_rollouts

HELD = "c53f4d1838eab34a154eca72adf3d7f1247eec2299df316ea7a13df8d4964015"
"""SHA-256 of the file of faults that were set aside, committed before any of them was judged."""
STEPS = 6
FORMS = ("verl", "slime")
"""Whose dump is imported, by turns from seed to seed."""
TWIN_SIZE, TWIN_LENGTH = 24, 12
TWIN_STEPS = {"small": 240, "large": 80}
"""Steps of one Run of a twin."""
TWIN_SEEDS = 3


def faults_in(path: str) -> tuple[Fault, ...]:
    """The ``HELD`` of a file that is no part of this package."""
    spec = importlib.util.spec_from_file_location("held", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"'{path}' is no file of Python.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.HELD


def run(half: str, faults: Iterable[Fault], seeds: Iterable[int], models: Iterable[str]) -> None:
    """Judge what ``results/causes-HALF.jsonl`` has not yet; ``half`` is ``open``, ``held`` or ``twins``."""
    import torch

    torch.set_num_threads(1)
    measure.RESULTS.mkdir(exist_ok=True)
    name = f"causes-{half}"
    known = {(one["case"], one["model"], one["seed"]) for one in measure.read(name)}
    for seed, fault, model in product(seeds, faults, models):
        if model not in fault.models or (fault.name, model, seed) in known:
            continue
        with (measure.RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            for result in judged(fault, model, seed, twin=half == "twins"):
                file.write(json.dumps(result) + "\n")
                said = (result[key] for key in ("case", "model", "source", "seed", "cause", "said", "found", "seconds"))
                print(half, *said, flush=True)


def judged(fault: Fault, model: str, seed: int, *, twin: bool = False) -> Iterator[dict[str, Any]]:
    """What is said of one training, by both sources."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        form = FORMS[seed % 2]
        shape = {"size": TWIN_SIZE, "length": TWIN_LENGTH} if twin else {}
        training = fault.training(model, seed, **shape)
        steps = TWIN_STEPS[model] if twin else STEPS
        training.run(steps, f"{folder}/record", Dump(f"{folder}/dump", form))
        import_rollouts(f"{folder}/dump", f"{folder}/import", rows_of, version=trueline.__version__)
        of_run = round(time.process_time() - began, 2)
        for source in ("record", "import") if training.in_log else ("record",):
            began = time.process_time()
            said = verdict(trueline.diagnose(f"{folder}/{source}"), fault.causes)
            facts = {"case": fault.name, "model": model, "seed": seed, "source": source}
            facts |= {"form": form} if source == "import" else {}
            seconds = {"of_run": of_run, "seconds": round(time.process_time() - began, 2)}
            yield (
                facts
                | said
                | tokens_of(f"{folder}/{source}")
                | seconds
                | {
                    "says": fault.says,
                    "causes": fault.causes,
                    "from": fault.source,
                }
            )


def verdict(diagnosis: Diagnosis, causes: tuple[str, ...]) -> dict[str, Any]:
    """The first cause of the first incident: ``named`` is right, ``wrong`` is not, ``open`` says that it cannot be told
    or that several are as likely, ``none`` found nothing.
    """
    report = diagnosis.report
    answer = diagnosis.of(0)[0] if report.incidents else None
    kind = "none"
    if answer is not None:
        named = answer.standing in ("suspected", "supported")
        kind = ("named" if answer.cause in causes else "wrong") if named else "open"
    return {
        "cause": kind,
        "said": "" if answer is None else answer.cause,
        "found": sorted({finding.code for finding in report.findings if finding.is_grave}),
        "incidents": len(report.incidents),
    }


def tokens_of(path: str) -> dict[str, Any]:
    """How much was judged, and how far apart the sides are in the mean."""
    from benchmarks.rl import rivals

    of_steps = rivals.by_step(path)
    tokens = sum(one["tokens"] for one in of_steps)
    gap = sum(one["abs_diff"] * one["tokens"] for one in of_steps) / tokens
    return {"steps": len(of_steps), "tokens": tokens, "mean_abs_diff": gap}


def measure_part(half: str, model: str, num_seeds: int, held: str) -> None:
    """Both halves and the twins, or one of them; the held one only where its file is named, and is as it was when it
    was set aside.
    """
    models = ("small", "large") if model == "all" else (model,)
    beside = Path(__file__).with_name("held.py")  # where the set-aside half is once it was run
    held = held or (str(beside) if beside.exists() else "")
    if half in ("open", "all"):
        run("open", (*OPEN, *SEEN, *SEEN_SECOND, *SEEN_THIRD), range(num_seeds), models)
    if half in ("held", "all") and held:
        if hashlib.sha256(Path(held).read_bytes()).hexdigest() != HELD:
            raise SystemExit(f"'{held}' is not the file that was set aside.")
        run("held", faults_in(held), range(num_seeds), models)
    if half in ("twins", "all"):
        run("twins", TWINS, range(min(num_seeds, TWIN_SEEDS)), models)
    from benchmarks.rl.causes import page

    page.write_page()
