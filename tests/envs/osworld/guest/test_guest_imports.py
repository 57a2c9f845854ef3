"""Guest modules import only the guest folder of this package: the sandbox mounts no other."""

import ast
from pathlib import Path

import arpo.envs.osworld.guest as guest


def test_the_guest_imports_nothing_of_the_package_but_itself():
    for path in Path(guest.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.split(".")[0] == "arpo"]
            assert all(name.startswith("arpo.envs.osworld.guest") for name in ours), (path, ours)
