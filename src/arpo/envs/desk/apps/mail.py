"""A mail program: three boxes, a list, and a window to compose mails."""

from __future__ import annotations

from typing import Any

from arpo.envs.desk.widgets import Button, Callback, Item, Label, ScrollBar, TextEdit, Widget, tab_row
from arpo.envs.desk.window import Window, WindowManager

_VISIBLE_ROWS = 4
_BOXES = (("In", 4), ("Sent", 4), ("Trash", 6))


class Mail(Window):
    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        super().__init__(desktop, column, row)
        self.box = "In"
        self.selected = -1
        self.top = 0

    @property
    def title(self) -> str:
        return "Mail"

    @property
    def mails(self) -> list[dict[str, Any]]:
        mails: list[dict[str, Any]] = self.desktop.world["mail"][self.box]
        return mails

    def widgets(self) -> list[Widget]:
        widgets = tab_row(_BOXES, self.box, self._show)
        widgets += [
            Button(column=0, row=1, columns=4, label="New", click=lambda: self.compose("", "")),
            Button(column=4, row=1, columns=6, label="Reply", click=self._reply),
            Button(column=10, row=1, columns=4, label="Del", click=self._delete),
            Button(column=14, row=1, columns=4, label="Flag", click=self._flag),
            ScrollBar(
                column=22, row=2, columns=2, rows=_VISIBLE_ROWS, top=self.top, shown=_VISIBLE_ROWS,
                total=len(self.mails), scroll=self.scroll,
            ),
        ]  # fmt: skip
        for i, mail in list(enumerate(self.mails))[self.top : self.top + _VISIBLE_ROWS]:
            widgets.append(self._item(i, mail))
        if self.selected >= 0:
            widgets.append(Label(column=2, row=6, columns=20, label=self.mails[self.selected]["body"]))
        return widgets

    def _item(self, i: int, mail: dict[str, Any]) -> Item:
        def select() -> None:
            self.selected = i

        person = mail.get("from") or mail["to"]
        return Item(
            column=0, row=2 + i - self.top, columns=22, label=f"{person:<6} {mail['subject']}",
            on=i == self.selected, flagged=mail.get("flag", False), click=select,
        )  # fmt: skip

    def scroll(self, lines: int) -> None:
        self.top = max(0, min(self.top + lines, len(self.mails) - _VISIBLE_ROWS))

    def key(self, keys: tuple[str, ...]) -> None:
        if keys == ("delete",):
            self._delete()
        elif keys == ("ctrl", "n"):
            self.compose("", "")

    def compose(self, to: str, subject: str) -> None:
        self.desktop.show(ComposeWindow(self.desktop, self.column, self.row + 1, to, subject))

    def _show(self, box: str) -> Callback:
        def show() -> None:
            self.box, self.selected, self.top = box, -1, 0

        return show

    def _reply(self) -> None:
        if self.selected >= 0 and self.box == "In":
            mail = self.mails[self.selected]
            self.compose(mail["from"], mail["subject"])

    def _delete(self) -> None:
        if self.selected >= 0 and self.box != "Trash":
            self.desktop.world["mail"]["Trash"].append(self.mails.pop(self.selected))
            self.selected = -1
            self.scroll(0)

    def _flag(self) -> None:
        if self.selected >= 0 and self.box == "In":
            mail = self.mails[self.selected]
            mail["flag"] = not mail["flag"]


class ComposeWindow(Window):
    """An unsent mail. Closing the window discards it."""

    rows = 7

    def __init__(self, desktop: WindowManager, column: int, row: int, to: str, subject: str) -> None:
        super().__init__(desktop, column, row)
        self.to, self.subject, self.body = TextEdit(to), TextEdit(subject), TextEdit()
        self.focus = self.body if to else self.to

    @property
    def title(self) -> str:
        return "New mail"

    def widgets(self) -> list[Widget]:
        return [
            Label(column=0, row=0, columns=4, label="To"),
            self.field(4, 0, 16, self.to, "To"),
            Label(column=0, row=1, columns=4, label="Sub"),
            self.field(4, 1, 16, self.subject, "Sub"),
            Label(column=0, row=2, columns=4, label="Body"),
            self.field(4, 2, 16, self.body, "Body", rows=2),
            Button(column=4, row=5, columns=4, label="Send", click=self._send),
        ]

    def _send(self) -> None:
        if self.to.text:
            mail = {"to": self.to.text, "subject": self.subject.text, "body": self.body.text}
            self.desktop.world["mail"]["Sent"].append(mail)
            self.desktop.close(self)
