"""Goal families and applications outside of all generated training tasks.

Evaluation on them shows what training on other tasks has taught. The shipped lists desk:32, desk:128 and
desk:pool contain them.
"""

from __future__ import annotations

from arpo.envs.desk.apps import APPS
from arpo.envs.desk.goals import FAMILIES

HELDOUT_FAMILIES = ("SetLanguage", "RenameFile", "ReplaceText", "AnswerMail")  # of four applications
HELDOUT_APPLICATIONS = ("Calc",)

TRAINING_APPLICATIONS = tuple(app for app in APPS if app not in HELDOUT_APPLICATIONS)
TRAINING_FAMILIES = tuple(
    name
    for name, family in FAMILIES.items()
    if family.app in TRAINING_APPLICATIONS and name not in HELDOUT_FAMILIES
)
# Families of the held-out applications.
APPLICATION_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.app in HELDOUT_APPLICATIONS)
