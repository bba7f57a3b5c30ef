"""Results as Markdown: shares by kind of fault with their 95 % lower bounds, and what was missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.compare.corpus.verdict import CRASH, ELSEWHERE, EXACT, MODULE, NOWHERE, SILENT, UNDECIDED
from benchmarks.page import table
from gallery.scoring import upper_bound

_COLUMNS = (EXACT, MODULE, ELSEWHERE, NOWHERE, UNDECIDED, SILENT, CRASH)
Result = dict[str, Any]


def summary(results: Sequence[Result]) -> str:
    """A table of faults by kind, and one of healthy pairs."""
    faults, healthy = [each for each in results if each["kind"]], [each for each in results if not each["kind"]]
    kinds = sorted({each["kind"] for each in faults})
    rows = [_row(kind, [each for each in faults if each["kind"] == kind]) for kind in kinds]
    rows += [_row("**all**", faults)] if faults else []
    head = ["kind of fault", "faults", *_COLUMNS, "silent at tensor too", "other code", "first site", "at least"]
    parts = [table(head, rows, right=range(1, len(head)))] if faults else []
    if healthy:
        silent = _count(healthy, SILENT)
        cells = [len(healthy), silent, _count(healthy, "alarm"), _count(healthy, UNDECIDED), _count(healthy, CRASH)]
        head = ["healthy pairs", "silent", "alarm", "cannot tell", "crash", "silent", "at least"]
        parts.append(table(head, [[*cells, *share(silent, len(healthy))]], right=range(len(head))))
    parts += [f"Judged of {what}: {text}." for what, text in _judged(faults, healthy) if text]
    return "\n\n".join(parts)


def _judged(faults: Sequence[Result], healthy: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """The least and the median share of values that were judged, of healthy pairs and of faults without a finding."""
    for what, some in (("healthy pairs that were silent", healthy), ("faults that no finding names", faults)):
        known = [each["judged"] for each in some if each["verdict"] in (SILENT, UNDECIDED) and each.get("judged")]
        shares = {name: sorted(each[name] for each in known if name in each) for name in ("forward", "backward")}
        yield (
            what,
            "; ".join(f"{name} {of[0]:.2f} or more, median {median(of):.2f}" for name, of in shares.items() if of),
        )


def _row(name: str, results: Sequence[Result]) -> list[Any]:
    exact = _count(results, EXACT)
    below = sum(hidden(each) for each in results)
    other = sum(each["verdict"] == EXACT and not each["right_code"] for each in results)
    counts = [_count(results, verdict) for verdict in _COLUMNS]
    return [name, len(results), *counts, below, other, *share(exact, len(results))]


def hidden(result: Result) -> bool:
    """Whether a fault that was silent has an effect, where values are stored, that rounding explains as well."""
    return result["verdict"] == SILENT and result.get("at_tensor", result)["verdict"] == SILENT


def _count(results: Sequence[Result], verdict: str) -> int:
    return sum(each["verdict"] == verdict for each in results)


def share(count: int, among: int) -> tuple[str, str]:
    """A share and its lower bound, as texts."""
    return (f"{count / among:.0%}", f"{lower_bound(count, among):.0%}") if among else ("", "")


def lower_bound(count: int, among: int) -> float:
    """The one-sided 95 % lower bound of a share: all but the bound of the others' (Clopper and Pearson)."""
    return 1 - upper_bound(among - count, among)


def details(results: Sequence[Result]) -> str:
    """One line for each case that was missed: the fault, the truth, and what compare said."""
    missed = [each for each in results if each["verdict"] != (EXACT if each["kind"] else SILENT)]
    return "\n".join(map(_line, missed)) or "Nothing was missed."


def _line(result: Result) -> str:
    truth = f" truth `{' '.join(filter(None, result['truth']))}`;" if result.get("truth") else ""
    if "error" in result:
        return f"- {result['key']}: **crash**; {result['error'].strip().splitlines()[-1]}"
    at = result.get("at_tensor")
    more = f"; at tensor {at['verdict']}: {at['headline']} {at['counts']}" if at else ""
    return (
        f"- {result['key']}: **{result['verdict']}**;{truth} exit {result['exit']} {result['code']}: "
        f"{result['headline']}{more}"
    )
