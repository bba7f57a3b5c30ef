"""`trueline facts`: what a training did."""

from __future__ import annotations

from trueline.cli.options import LATEST, Json, RunPath


def command(run: RunPath = LATEST, json: Json = False) -> None:
    """Say what the training did, a line a fact: data, model, loss, updates, precision, starts. It judges nothing.

    What the Run does not tell is named at the end, with the reason.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.lines import print_facts, screen
    from trueline.cli.waiting import waiting
    from trueline.judge.facts.training_facts import read_facts

    with waiting(f"Reading {run}"):
        facts = read_facts(run)
    if json:
        print_document(facts.to_json())
    else:
        print_facts(screen(), facts)
