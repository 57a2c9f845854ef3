"""The house's floors: who may import whom, what an import of the package loads, and what no module may do."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "arpo"
MODULES = sorted(SOURCE.rglob("*.py"))

FLOORS = (
    "__init__ actions config errors keys parsing recipe types",
    "advantages codec conversation estimates losses packing preference rendering replay "
    "rewards samples tasks vision",
    "checkpoint display engines envs learner models pack store testing tracking",
    "assembly collect compare evaluate offline osworld_eval rollout run scheduler screening trainer",
    "__main__ cli commands doctor published_flags viewer",
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms.split()}

HEAVY = ("torch", "transformers", "numpy", "PIL", "ray", "vllm")
PURE_LIBRARIES = {"numpy", "torch", "PIL", "tokenizers"}
CLOCKS_AND_DOORS = {
    "time", "datetime", "asyncio", "threading", "subprocess", "socket", "os", "sys", "shutil", "tempfile"
}  # fmt: skip
CODE_FROM_DATA = {"eval", "exec", "compile", "__import__"}
UNPICKLERS = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of what is imported anywhere in the tree: `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def too_high(path: Path) -> list[str]:
    """What a module imports from floors above its own."""
    own = FLOOR_OF[room(path)]
    rooms = [(name, name.split(".")[1]) for name in imported(parsed(path)) if name.startswith("arpo.")]
    return [name for name, other in rooms if FLOOR_OF.get(other, 0) > own]


def on_floor(number: int) -> list[Path]:
    return [path for path in MODULES if FLOOR_OF[room(path)] == number]


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(parsed(path))} - {"arpo"}


def names(tree: ast.AST) -> Iterator[str]:
    """Every plain name and every dotted one that the code reads: random.random, torch.load."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_every_room_has_a_floor():
    assert {room(path) for path in MODULES} == set(FLOOR_OF)


def test_no_module_imports_from_a_higher_floor():
    found = {str(path.relative_to(SOURCE)): names for path in MODULES if (names := too_high(path))}
    assert found == {}


def test_the_vocabulary_needs_only_the_standard_library():
    for path in on_floor(0):
        assert libraries(path) <= sys.stdlib_module_names, path


def test_pure_logic_has_no_clock_no_process_and_no_shared_generator():
    for path in on_floor(1):
        used = libraries(path)
        assert used & CLOCKS_AND_DOORS == set(), path
        assert used - sys.stdlib_module_names <= PURE_LIBRARIES, path
        for name in names(parsed(path)):
            if name.startswith("random."):
                assert name.split(".")[1] == "Random", (path, name)
            assert not name.startswith(("np.random", "torch.rand", "torch.manual_seed")), (path, name)


def test_no_module_makes_code_from_data_or_unpickles():
    for path in MODULES:
        tree = parsed(path)
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert called & CODE_FROM_DATA == set(), path
        assert libraries(path) & UNPICKLERS == set(), path
        assert "torch.load" not in set(names(tree)), path
        assert "torch.load" not in set(imported(tree)), path


@pytest.mark.parametrize("module", ["arpo", "arpo.types", "arpo.cli", "arpo.recipe", "arpo.parsing"])
def test_light_modules_load_nothing_heavy(module):
    code = f"import sys, {module}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_rule_sees_an_import_inside_a_function():
    tree = ast.parse("def f():\n    from arpo import trainer\n    import arpo.cli\n")
    assert list(imported(tree)) == ["arpo.trainer", "arpo.cli"]
