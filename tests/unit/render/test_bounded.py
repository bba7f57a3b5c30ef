"""Pages of a document are as small as asked for, have everything once, and say what is left out."""

from __future__ import annotations

import json

import pytest

from trueline.render.bounded import FEWEST_BYTES, Listed, document_text, page_of
from trueline.schema.errors import InputError

DOCUMENT = {
    "verdict": "Fault found: " + "a very long reason, " * 200,
    "judged": {"enough": True, "questions": [{"question": f"q{number}"} for number in range(40)]},
    "findings": [{"id": f"f{number}", "claim": "ö" * number} for number in range(30)],
    "missing": {f"m{number}": ["x"] * 3 for number in range(20)},
    "notes": [f"note {number}" for number in range(50)],
}
ORDER = [Listed("findings", key=lambda finding: -len(finding["claim"])), Listed("judged.questions"), Listed("missing")]


def all_pages(max_bytes):
    pages = [page_of(DOCUMENT, ORDER, max_bytes=max_bytes)]
    while pages[-1]["next_page"]:
        pages.append(page_of(DOCUMENT, ORDER, max_bytes=max_bytes, page=pages[-1]["next_page"]))
    return pages


@pytest.mark.parametrize("max_bytes", [FEWEST_BYTES, 3000, 10000])
def test_pages_have_everything_once_and_are_no_larger_than_asked_for(max_bytes):
    pages = all_pages(max_bytes)
    assert all(len(document_text(page, compact=True).encode()) < max_bytes for page in pages)
    worst_first = sorted(DOCUMENT["findings"], key=ORDER[0].key)
    assert [finding for page in pages for finding in page["findings"]] == worst_first
    assert [asked for page in pages for asked in page["judged"]["questions"]] == DOCUMENT["judged"]["questions"]
    assert [note for page in pages for note in page["notes"]] == DOCUMENT["notes"]
    assert {key: value for page in pages for key, value in page["missing"].items()} == DOCUMENT["missing"]
    assert all(page["judged"]["enough"] for page in pages)


def test_a_page_says_what_is_on_later_ones():
    first, *_, last = all_pages(FEWEST_BYTES)
    assert first["left_out"] == {
        "findings": 30 - len(first["findings"]),
        "judged.questions": 40,
        "missing": 20,
        "notes": 50,
    }
    assert "characters more)" in first["verdict"]
    assert (last["left_out"], last["next_page"]) == ({}, None)


def test_an_item_larger_than_a_page_is_cut_and_says_so_but_no_command_is():
    argv = ["trueline", "run", "--", *["x" * 3000]]
    document = {"actions": [{"say": "y" * 5000, "argv": argv}], "rows": [{"shape": list(range(5000))}]}
    action = page_of(document, [Listed("actions")], max_bytes=FEWEST_BYTES)["actions"][0]
    assert action["argv"] is None
    assert action["say"].endswith("characters more)")
    row = page_of(document, [Listed("rows")], max_bytes=FEWEST_BYTES)["rows"][0]
    assert (row["shape"], row["shortened"]) == ([*range(8)], True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"max_bytes": 10}, "A page of 10 bytes is too small. Take 2000 or more."),
        ({"max_bytes": 10**6, "page": 2}, "There is no page 2: the answer has 1."),
        ({"max_bytes": 10**6, "page": 0}, "Page 0 is none: pages count from 1."),
    ],
)
def test_what_is_no_page_is_one_sentence(words, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        page_of(DOCUMENT, ORDER, **words)


def test_a_document_is_one_line_or_several_and_steers_no_terminal():
    document = {"text": "a\u202eb ##[error] \x1b", "number": float("nan")}
    text = document_text(document, compact=True)
    assert "\n" not in text
    assert json.loads(text) == {"text": "a\u202eb ##[error] \x1b", "number": "NaN"}
    assert "\u202e" not in text
    assert "##[" not in text
