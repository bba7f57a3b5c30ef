"""`trueline facts`: what a training did."""

from __future__ import annotations

from trueline.cli.options import LATEST, Json, RunPath


def command(run: RunPath = LATEST, json: Json = False) -> None:
    """Say what the training did, a line a fact: data, model, loss, updates, precision, starts. It judges nothing.

    What the Run does not tell is named at the end, with the reason.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.lines import screen
    from trueline.cli.waiting import waiting
    from trueline.judge.facts.training_facts import read_facts

    with waiting(f"Reading {run}"):
        facts = read_facts(run)
    if json:
        print_document(facts.to_json())
        return
    console = screen()
    for heading, lines in facts.by_area():
        console.print(f"{heading}:", style="bold")
        for line in lines:
            console.print(f"  {line}", markup=False, highlight=False)
    if facts.unknown:
        console.print(facts.unknown_line, markup=False, highlight=False)
