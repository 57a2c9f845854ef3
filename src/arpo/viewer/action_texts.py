"""Texts of an answer and of its actions, for pages and pictures."""

from __future__ import annotations

from arpo.actions import (
    Action,
    Click,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    LongPress,
    OpenApp,
    RightClick,
    Scroll,
    Type,
)


def split_answer(text: str) -> tuple[str, str]:
    """Thought and actions: ("Open it", "wait()") for the answer "Thought: Open it\\nAction: wait()"."""
    thought, _, action = text.partition("Action:")
    return thought.removeprefix("Thought:").strip(), action.strip()


def action_label(action: Action) -> str:
    """Text of an action without a position; empty for clicks and drags, which are drawn."""
    match action:
        case Click() | DoubleClick() | RightClick() | Hover() | LongPress() | Drag():
            return ""
        case Scroll(direction=direction):
            return f"scroll {direction}"
        case Type(text=text, submit=submit):
            return f"type “{text}”{' ⏎' if submit else ''}"
        case Hotkey(keys=keys):
            return " + ".join(keys)
        case KeyDown(key=key):
            return f"press {key}"
        case KeyUp(key=key):
            return f"release {key}"
        case OpenApp(name=name):
            return f"open {name}"
        case Finished(content=content):
            return f"finished {content}".strip()
        case Fail():
            return "fail: infeasible"
        case _:
            return type(action).__name__
