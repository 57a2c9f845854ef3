"""Parses HTML pages as a browser does."""

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
        if tag not in {"meta", "img", "line", "circle", "polyline", "path"}:
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
