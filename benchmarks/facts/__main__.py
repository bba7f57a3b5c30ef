"""Run healthy trainings, keep their facts, and write the base rates of what is unusual.

    python -m benchmarks.facts --sources DIR [--only NAME] [--jobs 2] [--runs DIR]
    python -m benchmarks.facts --table [--only NAME] [--runs DIR]

The first runs the gallery's healthy twins, the healthy modes of benchmarks.frameworks that are installed, and the
public examples of examples.toml, whose clones --sources holds, as OWNER+NAME each:

    git clone --bare https://github.com/OWNER/NAME DIR/OWNER+NAME

--only takes a kind (gallery, frameworks, examples), or those whose name begins with NAME. --runs keeps the Runs there,
and those that are there are not run again. --table runs nothing: it makes results (from the Runs, where --runs is
given), README.md and the table that trueline ships anew. Examples need transformers, accelerate, datasets, evaluate,
trl, peft, diffusers, timm, torchvision, lightning, jsonargparse, pytorch-ignite, torch-geometric, gymnasium, tyro,
hydra-core, fire and matplotlib beside trueline; one X on two cores.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.facts import catalogue, table
from benchmarks.facts.running import NotRun, run_example
from benchmarks.facts.training import Training, read
from benchmarks.page import arguments, facts

from trueline.schema.errors import TruelineError


def main() -> None:
    """Run what is asked for, and write results, page and table."""
    parser = arguments(__doc__, only="", jobs=2)
    parser.add_argument("--sources", type=Path, help="the folder with the clones; without it no public example is run")
    parser.add_argument("--runs", type=Path, help="keep the Runs there")
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    words = ["DIR" if "/" in word else word for word in sys.argv[1:]]
    origin = facts(" ".join(["python -m benchmarks.facts", *words]))
    with tempfile.TemporaryDirectory(prefix="trueline-facts-") as temporary:
        runs = chosen.runs or Path(temporary) / "runs"
        if not chosen.table:
            for name, wrong in _trained(runs, chosen.only, chosen.sources, Path(temporary), chosen.jobs):
                print(f"{name}: {wrong or 'done'}", file=sys.stderr, flush=True)
        kept, run = table.read_results()
        by_name = {(training.kind, training.name): training for training in kept}
        for training in _read(runs, chosen.only):
            by_name[training.kind, training.name] = training
    trainings = sorted(by_name.values(), key=lambda training: (table.KINDS.index(training.kind), training.name))
    for kind in table.KINDS:
        run[kind] = max(run[kind], sum(training.kind == kind for training in trainings))
    table.write_results(trainings, run)
    examples = catalogue.read()
    counted = table.counted(trainings, examples)
    table.SHIPPED.write_text(table.as_toml(table.base_rates(counted)), encoding="utf-8")
    text = table.page(trainings, run, examples, origin)
    Path(__file__).with_name("README.md").write_text(text, encoding="utf-8")


def _trained(runs: Path, only: str, sources: Path | None, temporary: Path, jobs: int) -> Iterator[tuple[str, str]]:
    """(name, '' or why it was not run) of what is asked for and is not below ``runs`` yet."""
    from benchmarks.facts import ours

    yield from ours.train_gallery(runs / "gallery", only=only)
    yield from ours.train_frameworks(runs / "frameworks", only=only)
    lacking = [
        example
        for example in (catalogue.read() if sources is not None else ())
        if ours.is_asked("examples", example.name, only)
        and not (runs / "examples" / example.name / "manifest.json").exists()
    ]

    def trained(example: catalogue.Example) -> tuple[str, str]:
        run, place = runs / "examples" / example.name, temporary / example.name
        try:
            run_example(example, sources=sources or Path(), run=run, pool=temporary / "made", place=place)
        except NotRun as error:
            shutil.rmtree(run, ignore_errors=True)
            return example.name, str(error)
        shutil.rmtree(place, ignore_errors=True)
        return example.name, ""

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(trained, lacking)


def _read(runs: Path, only: str) -> Iterator[Training]:
    """What the Runs below ``runs`` tell; one that cannot be read is said."""
    from benchmarks.facts.ours import as_folder, framework_modes, gallery_entries, is_asked

    origins = {example.name: example.repository for example in catalogue.read()}
    places = [("gallery", entry.id, "gallery", runs / "gallery" / entry.id / "healthy") for entry in gallery_entries()]
    for framework, mode in framework_modes():
        name = as_folder(framework, mode)
        places.append(("frameworks", name, framework, runs / "frameworks" / name))
    places += [("examples", name, origin, runs / "examples" / name) for name, origin in origins.items()]
    for kind, name, origin, path in places:
        if not is_asked(kind, name, only) or not (path / "manifest.json").exists():
            continue
        try:
            yield read(path, name=name, kind=kind, origin=origin)
        except TruelineError as error:
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
