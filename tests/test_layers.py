"""Rules for all modules: docstrings, layers, fast imports, and forbidden functions."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "arpo"
MODULES = sorted(SOURCE.rglob("*.py"))

# Lowest layer first. A module imports from its own layer and from lower ones. Each name is a folder of the
# package, or a module of its root.
LAYERS = (
    "actions config dialects errors interrupts keyboard plugins processes types",
    "http_server png",
    "algorithms",
    "prompts",
    "storage",
    "reporting",
    "models",
    "engines",
    "learner",
    "envs",
    "tasks",
    "testing",
    "serving",
    "cluster",
    "rollout",
    "evaluation",
    "comparison",
    "training",
    "viewer",
    "__init__ __main__ api cli",
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
VOCABULARY = set(LAYERS[0].split())
PURE = {"algorithms", "prompts"}
PURE_MODULES = {
    "storage/codec.py", "tasks/screened.py", "reporting/statistics.py", "comparison/results.py",
}  # fmt: skip

HEAVY = ("torch", "transformers", "numpy", "scipy", "PIL", "ray", "vllm")
PURE_LIBRARIES = {"numpy", "scipy", "torch", "PIL", "tokenizers"}
CLOCKS_AND_PROCESSES = {
    "time", "datetime", "asyncio", "threading", "subprocess", "socket", "os", "sys", "shutil", "tempfile"
}  # fmt: skip
CODE_FROM_DATA = {"eval", "exec", "compile", "__import__"}
UNPICKLERS = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def part(path: Path) -> str:
    """The folder of the package, or module of its root, to which a path belongs."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names of all imports: `from a import b` gives a.b."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def parsed(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module; the first is the module itself. Much faster than `ast.walk`."""
    nodes: list[ast.AST] = [ast.parse(path.read_text("utf-8"), str(path))]
    for node in nodes:
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes.extend(item for item in value if isinstance(item, ast.AST))
    return tuple(nodes)


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(imported(parsed(path)))


def too_high(path: Path) -> list[str]:
    """Imports of a module from layers above its own."""
    own = LAYER_OF[part(path)]
    pairs = [(name, name.split(".")[1]) for name in imports(path) if name.startswith("arpo.")]
    return [name for name, other in pairs if LAYER_OF.get(other, 0) > own]


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - {"arpo"}


def names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """All plain and dotted names in the code, for example random.random and torch.load."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and (name := dotted(node)):
            yield name


def dotted(node: ast.expr) -> str:
    """`torch.load` as it is written; nothing if it begins with an expression, such as a call."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def test_every_part_of_the_package_has_a_layer():
    assert {part(path) for path in MODULES} == set(LAYER_OF)


def test_every_module_has_a_docstring():
    for path in MODULES:
        module = parsed(path)[0]
        assert isinstance(module, ast.Module)
        assert not module.body or ast.get_docstring(module), path


def test_no_module_imports_from_a_higher_layer():
    found = {str(path.relative_to(SOURCE)): names for path in MODULES if (names := too_high(path))}
    assert found == {}


def test_the_vocabulary_needs_only_the_standard_library():
    for path in MODULES:
        if part(path) not in VOCABULARY:
            continue
        assert libraries(path) <= sys.stdlib_module_names, path


def test_pure_logic_has_no_clock_no_process_and_no_shared_generator():
    for path in MODULES:
        if part(path) not in PURE and str(path.relative_to(SOURCE)) not in PURE_MODULES:
            continue
        used = libraries(path)
        assert used & CLOCKS_AND_PROCESSES == set(), path
        assert used - sys.stdlib_module_names <= PURE_LIBRARIES, path
        for name in names(parsed(path)):
            if name.startswith("random."):
                assert name.split(".")[1] == "Random", (path, name)
            assert not name.startswith(("np.random", "torch.rand", "torch.manual_seed")), (path, name)


def test_child_processes_are_started_in_one_folder():
    """Except for what must outlive this process, and for the sandbox of a desktop with its guest."""
    starters = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if {"Popen", "create_subprocess_exec", "ProcessPoolExecutor"} & called(parsed(path))
    }
    others = {"envs/osworld/cleanup.py", "envs/osworld/sandbox.py", "envs/browser/chromium.py"}
    assert {name for name in starters if not name.startswith(("processes/", "envs/osworld/guest/"))} == others


def test_python_is_started_by_one_function():
    """It ignores the modules of the current folder. The guest has a copy of its own folder alone."""
    starters = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if any(isinstance(node, ast.Constant) and node.value == "-m" for node in parsed(path))
    }
    assert starters == {"processes/child.py", "envs/osworld/guest/accessibility.py"}


def called(nodes: Iterable[ast.AST]) -> set[str]:
    """Last names of all called functions: `subprocess.Popen()` gives Popen."""
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    return {getattr(one, "attr", getattr(one, "id", "")) for one in functions}


def test_no_module_makes_code_from_data_or_unpickles():
    for path in MODULES:
        nodes = parsed(path)
        called = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert called & CODE_FROM_DATA == set(), path
        assert libraries(path) & UNPICKLERS == set(), path
        assert "torch.load" not in set(names(nodes)), path
        assert "torch.load" not in imports(path), path


def test_light_modules_load_nothing_heavy():
    modules = "arpo, arpo.api, arpo.types, arpo.cli.entry_point, arpo.config.recipe, arpo.dialects.registry"
    code = f"import sys, {modules}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_rule_sees_an_import_inside_a_function():
    tree = ast.parse("def f():\n    from arpo.training import trainer\n    import arpo.cli.entry_point\n")
    assert list(imported(ast.walk(tree))) == ["arpo.training.trainer", "arpo.cli.entry_point"]
