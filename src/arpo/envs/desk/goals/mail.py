"""Goals in the mail program."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from arpo.envs.desk.apps.files import ROOT
from arpo.envs.desk.apps.mail import ComposeWindow, Mail
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals.base import Step, click_on, close_menu, fill_field, find_item, give_up, open_app
from arpo.envs.desk.goals.files import show_file, shows_file
from arpo.envs.desk.words import PEOPLE, SUBJECTS, TEXTS
from arpo.envs.desk.world import World


def _random_sender(rng: random.Random, world: World) -> str:
    return str(rng.choice(world["mail"]["In"])["from"])


def _unknown_sender(rng: random.Random, world: World) -> str:
    known = {mail["from"] for mail in world["mail"]["In"]}
    return rng.choice([name for name in PEOPLE if name not in known])


def _index(world: World, sender: str) -> int:
    return next((i for i, mail in enumerate(world["mail"]["In"]) if mail["from"] == sender), -1)


def select_mail(desktop: Desktop, sender: str) -> Step | None:
    """Show the inbox with the mail from `sender` selected."""
    if step := close_menu(desktop) or open_app(desktop, "Mail"):
        return step
    front = desktop.front
    assert isinstance(front, Mail)
    if front.box != "In":
        return click_on(desktop, "In", "Tab")
    index = _index(desktop.world, sender)
    if front.selected == index:
        return None
    mail = desktop.world["mail"]["In"][index]
    row = find_item(desktop, f"{sender:<6} {mail['subject']}")
    if isinstance(row, Step):
        return Step(f"Scroll to {sender}", row.action)
    return Step(f"Click {sender}", click_on(desktop, row.label, "Item").action)


def _sent_mail(to: str, subject: str, body: str) -> dict[str, str]:
    """A mail in the form of the Sent box."""
    return {"to": to, "subject": subject, "body": body}


def write_mail(desktop: Desktop, to: str, subject: str, body: str) -> Step:
    """Fill the compose window and send the mail."""
    return (
        fill_field(desktop, "To", to)
        or fill_field(desktop, "Sub", subject)
        or fill_field(desktop, "Body", body)
        or click_on(desktop, "Send")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMail:
    app: ClassVar[str] = "Mail"
    to: str
    subject: str
    body: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SendMail:
        return cls(to=rng.choice(PEOPLE), subject=rng.choice(SUBJECTS), body=rng.choice(TEXTS))

    @property
    def instruction(self) -> str:
        return f"Send a mail to {self.to} about {self.subject} saying {self.body}"

    def apply(self, world: World) -> None:
        world["mail"]["Sent"].append(_sent_mail(self.to, self.subject, self.body))

    def next_step(self, desktop: Desktop) -> Step | None:
        if _sent_mail(self.to, self.subject, self.body) in desktop.world["mail"]["Sent"]:
            return None
        if isinstance(desktop.front, ComposeWindow):
            return write_mail(desktop, self.to, self.subject, self.body)
        return close_menu(desktop) or open_app(desktop, "Mail") or click_on(desktop, "New")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMail:
    app: ClassVar[str] = "Mail"
    sender: str
    subject: str
    body: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> AnswerMail:
        mail = rng.choice(world["mail"]["In"])
        return cls(sender=mail["from"], subject=mail["subject"], body=rng.choice(TEXTS))

    @property
    def instruction(self) -> str:
        return f"Answer the mail from {self.sender} with {self.body}"

    def apply(self, world: World) -> None:
        world["mail"]["Sent"].append(_sent_mail(self.sender, self.subject, self.body))

    def next_step(self, desktop: Desktop) -> Step | None:
        if _sent_mail(self.sender, self.subject, self.body) in desktop.world["mail"]["Sent"]:
            return None
        if isinstance(desktop.front, ComposeWindow):
            return write_mail(desktop, self.sender, self.subject, self.body)
        if _index(desktop.world, self.sender) < 0:
            return give_up(self.sender)
        return select_mail(desktop, self.sender) or click_on(desktop, "Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMail:
    app: ClassVar[str] = "Mail"
    sender: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> DeleteMail:
        return cls(sender=_random_sender(rng, world))

    @property
    def instruction(self) -> str:
        return f"Delete the mail from {self.sender}"

    def apply(self, world: World) -> None:
        world["mail"]["Trash"].append(world["mail"]["In"].pop(_index(world, self.sender)))

    def next_step(self, desktop: Desktop) -> Step | None:
        if _index(desktop.world, self.sender) < 0:
            return None
        return select_mail(desktop, self.sender) or click_on(desktop, "Del")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagMail:
    app: ClassVar[str] = "Mail"
    sender: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> FlagMail:
        plain = [mail["from"] for mail in world["mail"]["In"] if not mail["flag"]]
        return cls(sender=rng.choice(plain))

    @property
    def instruction(self) -> str:
        return f"Flag the mail from {self.sender}"

    def apply(self, world: World) -> None:
        world["mail"]["In"][_index(world, self.sender)]["flag"] = True

    def next_step(self, desktop: Desktop) -> Step | None:
        index = _index(desktop.world, self.sender)
        if index < 0:
            return give_up(self.sender)
        if desktop.world["mail"]["In"][index]["flag"]:
            return None
        return select_mail(desktop, self.sender) or click_on(desktop, "Flag")


class DeleteMissingMail(DeleteMail):
    """Infeasible: the mail does not exist."""

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> DeleteMissingMail:
        return cls(sender=_unknown_sender(rng, world))

    def apply(self, world: World) -> None:
        """Infeasible: nothing changes."""

    def next_step(self, desktop: Desktop) -> Step | None:
        return close_menu(desktop) or open_app(desktop, "Mail") or give_up(self.sender)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFileText:
    """Across applications: read a file, then send its text by mail."""

    app: ClassVar[str] = "File"
    file: str
    to: str
    subject: str
    body: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SendFileText:
        file, body = rng.choice(list(world["files"][ROOT].items()))
        return cls(file=file, to=rng.choice(PEOPLE), subject=rng.choice(SUBJECTS), body=body)

    @property
    def instruction(self) -> str:
        return f"Send the text of the file {self.file} in a mail to {self.to} about {self.subject}"

    def apply(self, world: World) -> None:
        world["mail"]["Sent"].append(_sent_mail(self.to, self.subject, self.body))

    def next_step(self, desktop: Desktop) -> Step | None:
        if _sent_mail(self.to, self.subject, self.body) in desktop.world["mail"]["Sent"]:
            return None
        if not any(shows_file(window, self.file) for window in desktop.windows):  # not read yet
            known = desktop.world["files"][ROOT].get(self.file) == self.body
            return show_file(desktop, self.file) if known else give_up(self.file)
        if isinstance(desktop.front, ComposeWindow):
            return write_mail(desktop, self.to, self.subject, self.body)
        return close_menu(desktop) or open_app(desktop, "Mail") or click_on(desktop, "New")
