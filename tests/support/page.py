"""The page of a report, parsed."""

import json
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """The text, elements and tables of a page, and the data of its figures."""

    def __init__(self, html: str):
        super().__init__()
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.in_cell = False
        self.feed(html)
        self.data = json.loads(self.scripts[0])
        self.figures = {figure["name"]: figure for figure in self.data["figures"]}

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if dict(attrs).get("class") == "table" or (tag == "table" and "id" in dict(attrs)):
            self.rows = self.tables[str(dict(attrs)["id"])] = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td") and self.rows:
            self.rows[-1].append("")
            self.in_cell = True
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.in_cell = False

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
            return
        self.text.append(data)
        if self.in_cell:
            self.rows[-1][-1] += re.sub("^[●◆■✚✖▲]$", "", data).strip()

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def values(self, tag: str, attribute: str) -> list[str]:
        return [
            attrs[attribute] or ""
            for name, attrs in self.elements
            if name == tag and attribute in attrs
        ]
