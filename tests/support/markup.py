"""Parses HTML pages as a browser does, and the data of reports and exports."""

import json
import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """Collects tags with attributes, and text. Asserts that tags are balanced."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.text = []
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "input", "img", "line", "circle", "polyline", "path"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in {"line", "circle", "polyline", "path"} and self.open[-1] != tag:
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def parsed(path):
    tags = Tags()
    tags.feed(path.read_text("utf-8"))
    tags.close()
    assert tags.open == []
    return tags


def answers(path):
    """The answers of the server, by path, that a report or a data file of an export contains."""
    lines = re.findall(r'^window\.ARPO_EXPORT\[(".*?")\] = (.*);$', path.read_text("utf-8"), re.MULTILINE)
    return {json.loads(name): json.loads(value) for name, value in lines}


def report_of(path):
    """The page "Report" of report.html, as JSON."""
    return next(value for name, value in answers(path).items() if name.endswith("/report"))
