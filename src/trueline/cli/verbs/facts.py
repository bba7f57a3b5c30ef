"""`trueline facts`: what a training did."""

from __future__ import annotations

from trueline.cli.options import LATEST, Json, MaxBytes, Page, RunPath, bounds_of


def command(run: RunPath = LATEST, json: Json = False, max_bytes: MaxBytes = None, page: Page = 1) -> None:
    """Say what the training did, a line a fact: data, model, loss, updates, precision, starts. It judges nothing.

    What the Run does not tell is named at the end, with the reason.
    """
    from trueline.cli.json_document import print_bounded
    from trueline.cli.lines import print_facts, screen
    from trueline.cli.waiting import waiting
    from trueline.judge.facts.training_facts import read_facts

    bounds = bounds_of(max_bytes, page, json=json)
    with waiting(f"Reading {run}"):
        facts = read_facts(run)
    if json:
        print_bounded(facts.to_json(), "facts", bounds)
    else:
        print_facts(screen(), facts)
