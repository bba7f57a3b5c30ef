"""A comparison on one screen of a terminal, or as one line for every row: `trueline compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueline.schema.site import SITE_FORM

if TYPE_CHECKING:
    from rich.text import Text

    from trueline.cli.screen import Console
    from trueline.comparison.result import ComparedRow, Comparison
    from trueline.render.comparison.compare_rows import RelevantRow
    from trueline.render.comparison.compare_story import Story

MAX_LINES = 40
MAX_WIDTH = 100
_MAX_RELEVANT = 12
_LEAST_RELEVANT = 4
"""Rows of the table: at most, and at least, however long the text is."""

_MAX_ONE_SIDED = 4
"""Calls of one run only that are named on a terminal."""
_MAX_IN_FILE = 24
"""Most of them in a file, which names their modules where there are more."""

_STATUS = {"out": "bold red", "suspect": "bold yellow", "clear": "bold green", "unknown": "bold"}
_JUDGEMENT = {"beyond": "red", "propagated": "yellow", "within": "blue", "equal": "green", "not-comparable": "dim"}
_LABEL_WIDTH = 12


@dataclass
class _Block:
    """Lines that belong together; what does not fit is dropped from the end, down to ``least`` lines."""

    lines: list[Text]
    least: int = 0
    cut: bool = False

    def shorten(self) -> None:
        self.lines.pop()
        self.cut = True

    def ended(self, width: int) -> list[Text]:
        """The lines, with an ellipsis where some were taken."""
        if self.cut and self.lines:
            last = self.lines[-1].copy()
            last.truncate(width - 2)
            last.append(" …")
            return [*self.lines[:-1], last]
        return self.lines


def print_screen(
    console: Console, comparison: Comparison, story: Story, *, written: Sequence[str] = (), every_row: bool = False
) -> None:
    """Print at most ``MAX_LINES`` lines on a terminal, else whole ones, or with ``every_row`` every row as well;
    ``written`` are files to name.
    """
    # a file has no width: lines are as long as on the widest terminal at least
    width = min(console.width, MAX_WIDTH) if console.is_terminal else max(console.width, MAX_WIDTH)
    blocks = _blocks(console, comparison, story, written, width)
    if every_row:
        lines = [*_joined(blocks, width), _as_text(""), *_all_rows(comparison.rows)]
    else:
        room = _MAX_RELEVANT
        if console.is_terminal:
            _fit(blocks, MAX_LINES - 2 - min(_LEAST_RELEVANT, len(comparison.rows)))
            room = min(_MAX_RELEVANT, MAX_LINES - 2 - _height(blocks))
        table = _table(comparison, width if console.is_terminal else None, rows=room)
        # The table follows the text on the first difference and precedes the text on all values.
        lines = _joined([*blocks[:4], _Block(table), *blocks[4:]], width)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _blocks(console: Console, comparison: Comparison, story: Story, written: Sequence[str], width: int) -> list[_Block]:
    def wrapped(texts: Iterable[Text], indent: int = 0) -> list[Text]:
        return [line for text in texts for line in _wrapped(console, text, width, indent)]

    findings = [_as_text(f"{finding.code}  {finding.claim}", len(finding.code)) for finding in story.findings]
    details = [
        *wrapped([_as_text(story.counts)], 2),
        *wrapped([_as_text(line) for line in story.steps], 2),
        *wrapped([_as_text(line) for line in _some_calls(comparison, story, on_terminal=console.is_terminal)], 2),
        *wrapped([_as_text(f"Without a twin, {line}") for line in story.missing], 2),
    ]
    verdict = _wrapped(console, _as_text(story.headline, style=_STATUS[story.status]), width, 0)
    judged = wrapped([_as_text(f"Judged: {story.judged}.", style="dim")] if story.judged else [], 2)
    about = wrapped([_as_text(f"note: {line}") for line in story.notes], 2)
    files = [_as_text(f"Written: {path}") for path in written]
    return [
        _Block([*verdict, *judged], len(verdict[:3]) + len(judged)),
        _Block(_labelled(console, story.facts, width, style="dim", legend=SITE_FORM), 6),
        _Block(_labelled(console, [("next", advice) for advice in story.next], width, style="green"), 3),
        _Block(wrapped(findings, 2), 2),
        _Block(details, 4),
        _Block([*about], 1),
        _Block(files, len(files)),
    ]


def _some_calls(comparison: Comparison, story: Story, *, on_terminal: bool) -> Sequence[str]:
    """Lines on calls that only one run makes: all where they are few, else the first ones; in a file, which has room,
    with all modules.
    """
    from trueline.render.comparison.compare_story import one_sided_modules

    lines = story.one_sided
    if len(lines) <= (_MAX_ONE_SIDED if on_terminal else _MAX_IN_FILE):
        return lines
    more = f"and {len(lines) - _MAX_ONE_SIDED} more calls in one run only: --json has them"
    return [*lines[:_MAX_ONE_SIDED], more, *([] if on_terminal else one_sided_modules(comparison))]


def _labelled(
    console: Console, entries: Sequence[tuple[str, str]], width: int, *, style: str, legend: str = ""
) -> list[Text]:
    """(label, text) of ``entries`` in two columns; a ``legend`` follows the first one, which is then bold."""
    lines: list[Text] = []
    for entry_number, (name, text) in enumerate(entries):
        entry_text = _as_text(text, style="bold" if legend and not entry_number else "")
        for index, line in enumerate(_wrapped(console, entry_text, width - _LABEL_WIDTH, 0)):
            lines.append(_as_text(("" if index else name).ljust(_LABEL_WIDTH), style=style).append_text(line))
        if legend and not entry_number:
            lines.append(_as_text(" " * _LABEL_WIDTH + legend, style="dim"))
    return lines


def _fit(blocks: Sequence[_Block], room: int) -> None:
    """Shorten the blocks, each time the one with the most lines to spare, until all fit into ``room`` lines."""
    while _height(blocks) > room:
        longest = max(blocks, key=lambda block: len(block.lines) - block.least)
        # all are as short as they may be: the screen is exceeded rather than a verdict lost
        if len(longest.lines) <= longest.least:
            return
        longest.shorten()


def _height(blocks: Sequence[_Block]) -> int:
    """Lines of the blocks and the empty ones between them."""
    heights = [len(block.lines) for block in blocks if block.lines]
    return sum(heights) + max(len(heights) - 1, 0)


def _joined(blocks: Sequence[_Block], width: int) -> list[Text]:
    lines: list[Text] = []
    for block in blocks:
        if block.lines and lines:
            lines.append(_as_text(""))
        lines += block.ended(width)
    return lines


def _table(comparison: Comparison, width: int | None, *, rows: int) -> list[Text]:
    from trueline.render.comparison.compare_rows import most_relevant

    relevant = most_relevant(comparison.rows, comparison.first, max(rows, 0))
    return (
        [_as_text(_heading(), style="dim"), *(_line(relevant_row, width) for relevant_row in relevant)]
        if relevant
        else []
    )


def _heading() -> str:
    return f"{'what else differs':<17}{'times':>8}  {'difference':>10}  site"


def _line(relevant: RelevantRow, width: int | None) -> Text:
    """A row in ``width`` characters; None: whole."""
    from trueline.render.comparison.compare_rows import JUDGEMENT_WORDS, place_text

    row = relevant.row
    more = f"  (+{relevant.also})" if relevant.also else ""
    note = f"  {row.note}" if row.note and row.judgement == "not-comparable" else ""
    head = f"{JUDGEMENT_WORDS[row.judgement]:<17}{_short(row.times):>8}  {_short(row.measured):>10}  "
    site_text = place_text(row)
    if width is not None:
        site_text = _middle_cut(site_text, width - len(head) - len(more))
        # the site is worth more than the note, which takes what is left
        note = note[: width - len(head) - len(more) - len(site_text)]
    line = _as_text(f"{head}{site_text}{more}{note}")
    line.stylize(_JUDGEMENT[row.judgement], 0, len(JUDGEMENT_WORDS[row.judgement]))
    return line


def _all_rows(rows: Sequence[ComparedRow]) -> Iterable[Text]:
    """One line a row, nothing cut: judgement, times, measured, expected, how, dtypes, shape, site, note."""
    from trueline.render.comparison.compare_rows import JUDGEMENT_WORDS, place_text, shape_text

    heading = f"{'judgement':<17}{'times':>8}  {'difference':>10}  {'explained':>10}  {'how':<11}  "
    yield _as_text(f"{heading}{'dtype':<17}  {'shape':<14}  site", style="dim")
    for row in rows:
        dtype = row.dtype if row.dtype == row.ref_dtype else f"{row.dtype}|{row.ref_dtype}"
        numbers = f"{_short(row.times):>8}  {_short(row.measured):>10}  {_short(row.expected):>10}  {row.how:<11}  "
        where = f"{dtype:<17}  {shape_text(row.shape):<14}  {place_text(row)}" + (f"  {row.note}" if row.note else "")
        line = _as_text(f"{JUDGEMENT_WORDS[row.judgement]:<17}{numbers}{where}")
        line.stylize(_JUDGEMENT[row.judgement], 0, len(JUDGEMENT_WORDS[row.judgement]))
        yield line


def _short(value: float | None) -> str:
    from trueline.render.wording import number

    # terminals without UTF-8 show no minus sign
    return "-" if value is None else number(value, 3).replace("−", "-")


def _middle_cut(text: str, width: int) -> str:
    """``text``, or its beginning and, mostly, its end, which tells sites apart, ``width`` characters in all."""
    if len(text) <= width or width < 8:
        return text
    head = width // 4
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def _as_text(text: str, bold: int = 0, *, style: str = "") -> Text:
    """``text`` as a terminal may safely print it; its first ``bold`` characters are bold."""
    from rich.text import Text

    from trueline.render.wording import one_line

    plain_text = Text(one_line(text).replace("−", "-"), style=style, end="")
    if bold:
        plain_text.stylize("bold", 0, bold)
    return plain_text


def _wrapped(console: Console, text: Text, width: int, indent: int) -> list[Text]:
    """``text`` in lines of at most ``width`` characters, all but the first indented."""
    from rich.text import Text

    lines = list(text.wrap(console, width - indent))
    return [line if index == 0 else Text(" " * indent).append_text(line) for index, line in enumerate(lines)]
