"""The elements of an HTML page, and its text."""

from html.parser import HTMLParser


class Elements(HTMLParser):
    """The elements of a page in their order, and the texts behind each kind of tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.words: list[str] = []
        self._open = ""
        self._hidden = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag
        if tag in ("script", "style"):
            self._hidden = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)
        if not self._hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        """What stands outside scripts and styles."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.found if each == tag]
