"""No sentence of the documentation is longer than 40 words; those that are, are counted, and may only get fewer.

    python -m tests.docs.test_sentences [--write]

prints the long ones; ``--write`` writes down what got better. A word of code, or a link, is one word or its
text; blocks of code, tables, headings and comments do not count. Decisions are what was written at the time.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNTS = Path(__file__).with_name("long_sentences.json")
MOST_WORDS = 40
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "decisions" not in page.relative_to(ROOT).parts and not page.is_symlink()
)


def paragraphs(text: str) -> Iterator[str]:
    """Running text of a page: paragraphs, items of lists and quotes, each without marks of Markdown."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        words = line.strip()
        begins = re.match(r"(?:[-*+]|\d+\.|>) ", words)
        if lines and (not words or begins or words[0] in "|#"):
            yield " ".join(lines)
            lines = []
        if words and words[0] not in "|#":
            lines.append(words[begins.end() :] if begins else words)


def sentences(paragraph: str) -> list[str]:
    """The sentences of one, with code as one word and links as their text."""
    plain = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "`code`", paragraph))
    return re.split(r"(?<=[.!?:])[*_)”\"]*\s+(?=[*_(“\"]*[A-Z0-9`])", plain)


def long_sentences(text: str) -> list[str]:
    """Those of more than ``MOST_WORDS``."""
    found = (sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph))
    return [sentence for sentence in found if len(re.findall(r"[^\W_]+(?:['’.,-]\w+)*", sentence)) > MOST_WORDS]


def counts() -> dict[str, int]:
    """How many long sentences each page has that has any."""
    numbers = {str(page.relative_to(ROOT)): len(long_sentences(page.read_text(encoding="utf-8"))) for page in PAGES}
    return {name: number for name, number in numbers.items() if number}


LONG = "word " * 40 + "end."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LONG, 1),
        (LONG.removeprefix("word "), 0),
        (f"- {LONG}\n- {LONG}", 2),
        (f"```\n{LONG}\n```\n| {LONG} |\n# {LONG}\n<!-- {LONG} -->", 0),
        ("word " * 30 + "here. And " + "word " * 30, 0),
        ("word " * 39 + "`a b c d`", 0),
        ("word " * 38 + "[two words](a/long/address/of/many/words.md)", 0),
    ],
)
def test_a_long_sentence_is_seen(text: str, expected: int) -> None:
    assert len(long_sentences(text)) == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_more_long_sentences_than_before(page: Path) -> None:
    allowed = json.loads(COUNTS.read_text(encoding="utf-8")).get(str(page.relative_to(ROOT)), 0)
    long = long_sentences(page.read_text(encoding="utf-8"))

    assert len(long) <= allowed, f"{len(long)} sentences of over {MOST_WORDS} words, {allowed} allowed:\n" + "\n".join(
        long
    )


def test_the_counts_are_of_today() -> None:
    """One that got better is written down, so that it stays so: python -m tests.docs.test_sentences --write."""
    assert json.loads(COUNTS.read_text(encoding="utf-8")) == counts()


def main() -> None:
    """Print the long sentences of each page, or write down where they got fewer."""
    if "--write" in sys.argv:
        before = json.loads(COUNTS.read_text(encoding="utf-8"))
        fewer = {name: min(number, before.get(name, 0)) for name, number in counts().items()}
        left = {name: number for name, number in fewer.items() if number}
        COUNTS.write_text(json.dumps(left, indent=2) + "\n", encoding="utf-8")
        return
    for page in PAGES:
        for sentence in long_sentences(page.read_text(encoding="utf-8")):
            sys.stdout.write(f"{page.relative_to(ROOT)}: {len(sentence.split())}: {sentence}\n")


if __name__ == "__main__":
    main()
