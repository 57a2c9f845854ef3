"""The world: the data behind Desk's windows. Task checkers look at nothing else.

Example:

    {
        "files": {"": {"report": "milk"}, "Work": {}},  # folder → file → text; "" is the root
        "mail": {
            "In": [{"from": "Anna", "subject": "lunch", "body": "rice", "flag": False}],
            "Sent": [{"to": "Boris", "subject": "rent", "body": "tea"}],
            "Trash": [],
        },
        "conf": {"Wifi": True, "Theme": "Light", "Volume": 30, …},
        "calc": {"A1": 3},
        "orders": [{"name": "Nora", "item": "Sofa", "city": "Lima", "size": "Small", "gift": True}],
    }
"""

from __future__ import annotations

from typing import Any

World = dict[str, Any]
