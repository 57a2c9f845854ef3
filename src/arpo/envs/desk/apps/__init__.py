"""Desk's six applications, in the order of the task bar."""

from __future__ import annotations

from arpo.envs.desk.apps.calc import Calc
from arpo.envs.desk.apps.conf import Conf
from arpo.envs.desk.apps.files import Files
from arpo.envs.desk.apps.mail import Mail
from arpo.envs.desk.apps.notes import Notes
from arpo.envs.desk.apps.web import Web
from arpo.envs.desk.window import Window

APPS: dict[str, type[Window]] = {
    "File": Files, "Note": Notes, "Mail": Mail, "Conf": Conf, "Calc": Calc, "Web": Web,
}  # fmt: skip
