"""What a page says, as a reader meets it: for tests of HTML."""

from __future__ import annotations

from html.parser import HTMLParser


class Words(HTMLParser):
    """The text of a page, and its elements with their attributes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._skip = 0
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def attributes(self) -> list[tuple[str, str]]:
        """Names and values, of all elements in order."""
        return [(name, value or "") for _, attrs in self.elements for name, value in attrs.items()]
