"""Parse a page for its links, and for the forms that lead to other pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urldefrag

#: A query string, by name. If a name occurs twice the last value counts, which is enough for the admin.
Query = dict[str, str]


@dataclass(slots=True)
class Form:
    """A form and its fields: by name, the type and the offered values."""

    method: str = "get"
    action: str = ""
    fields: dict[str, tuple[str, list[str]]] = field(default_factory=dict)


class Page(HTMLParser):
    """A parsed page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pager: list[str] = []
        self.forms: list[Form] = []
        self._open: list[tuple[str, bool]] = []
        self._select = ""
        self._lists: dict[str, str] = {}
        self.feed(html)

    def queries(self, links: list[str]) -> list[Query]:
        """Return the queries of those links that lead to another view of the same page, each once."""
        found: dict[str, Query] = {}
        for link in links:
            if link.startswith("?"):
                found.setdefault(link, dict(parse_qsl(urldefrag(link[1:]).url, keep_blank_values=True)))
        return list(found.values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _NESTED:
            self._open.append((tag, "paginator" in given.get("class", "")))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if any(is_pager for _, is_pager in self._open):
                self.pager.append(given["href"])
        if tag == "form":
            self.forms.append(Form(given.get("method", "get").lower(), given.get("action", "")))
        if tag == "select":
            self._select = given.get("name", "")
        if tag == "input" and "list" in given:
            self._lists[given["list"]] = given.get("name", "")
        if tag == "datalist":
            self._select = self._lists.get(given.get("id", ""), "")
        if self.forms and tag in ("input", "select", "option"):
            name = self._select if tag == "option" else given.get("name", "")
            kind = given.get("type", "text") if tag == "input" else "select"
            values = self.forms[-1].fields.setdefault(name, (kind, []))[1]
            if tag != "select" and "value" in given:
                values.append(given["value"])

    def handle_endtag(self, tag: str) -> None:
        if tag in _NESTED:
            while self._open and self._open.pop()[0] != tag:
                pass


_NESTED = ("div", "nav", "p", "ul", "footer", "section")
