"""Where templates come from."""

import sys
import types
from pathlib import Path

import pytest

from arpo.errors import UserError
from arpo.prompts.templates import PromptTemplate, load_template


def test_template_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Task: {instruction}\n")
    assert load_template(str(path)).user == "Task: {instruction}\n"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("some_agent_prompts")
    texts = {
        "USER": "Calls: {action_space} in {language}. {instruction}",
        "CALLS": "click()",
        "NO_TASK": "hello",
    }
    vars(module).update(texts)
    monkeypatch.setitem(sys.modules, "some_agent_prompts", module)


def test_template_from_a_package(package: None) -> None:
    template = load_template("some_agent_prompts:USER,action_space=CALLS,language=English")
    assert template.user == "Calls: click() in English. {instruction}"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("some_agent_prompts:USER,language=English", "action_space"),
        ("some_agent_prompts:NO_TASK", "no {instruction}"),
        ("some_agent_prompts:MISSING", "no string MISSING"),
        ("no_such_package.prompt:USER", "cannot import"),
        ("no/such/file.txt", "is not 'desk', a file, or"),
    ],
)
def test_a_template_that_cannot_be_had_is_the_users_error(package: None, spec: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_template(spec)


def test_a_template_that_cannot_be_read_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"\xff {instruction}")
    with pytest.raises(UserError, match="as UTF-8 text"):
        load_template(str(tmp_path / "prompt.txt"))
    (tmp_path / "torn_prompts.py").write_text("USER = (", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="cannot import torn_prompts"):
        load_template("torn_prompts:USER")


PROMPTS = """
import a_package_that_is_not_here
USER = '''Calls: {action_space}
in {language}. {instruction}'''
CALLS: str = "not read"
SPACE = "click()" "\\nwait()"
NUMBER = 3
"""


def test_a_template_of_another_interpreters_package_is_read_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.99").mkdir(parents=True)
    (tmp_path / "lib" / "python3.99" / "prompts.py").write_text(PROMPTS, encoding="utf-8")
    file = f"{tmp_path}/lib/python3.*/prompts.py"
    template = load_template(f"{file}:USER,action_space=SPACE,language=English")
    assert template.user == "Calls: click()\nwait()\nin English. {instruction}"
    for spec, reason in {
        f"{file}:NUMBER": "has no string NUMBER",
        f"{file}:USER,language=English": "give values for \\['action_space'\\]",
        f"{tmp_path}/prompts.py:USER": "found no file",
    }.items():
        with pytest.raises(UserError, match=reason):
            load_template(spec)
    (tmp_path / "torn.py").write_text("USER = (", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot parse .*torn\.py as Python"):
        load_template(f"{tmp_path}/torn.py:USER")


def test_a_template_is_found_from_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("USER = 'Do: {instruction}'", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_template("mine.py:USER").user == "Do: {instruction}"


def test_a_prompt_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First in the current folder, then in the project's folder: `arpo osworld install` installs there."""
    spec = ".venv-osworld/lib/python3.*/site-packages/mm_agents/prompts.py:TEXT"
    monkeypatch.setattr("arpo.prompts.templates.PROJECT", tmp_path / "project")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="found no file"):
        load_template(spec)
    for folder in (tmp_path / "project", tmp_path):
        file = folder / ".venv-osworld/lib/python3.11/site-packages/mm_agents/prompts.py"
        file.parent.mkdir(parents=True)
        file.write_text(f'TEXT = "{folder.name}: {{instruction}}"')
        assert load_template(spec).user == f"{folder.name}: {{instruction}}"


def test_a_file_with_a_system_text_in_another_file(tmp_path: Path) -> None:
    task, system = tmp_path / "task.txt", tmp_path / "system.txt"
    task.write_text("Do {instruction} in {language}", encoding="utf-8")
    system.write_text("# Tools", encoding="utf-8")
    template = load_template(f"{task},system={system},language=English")
    assert template == PromptTemplate(system="# Tools", user="Do {instruction} in English")
    assert (
        load_template(f"{task},system=+{system},language=x").system == "You are a helpful assistant.# Tools"
    )
    with pytest.raises(UserError, match=r"cannot read .*nowhere"):
        load_template(f"{task},system={tmp_path}/nowhere,language=English")


AGENT = '''
import json
LINES = ["a", f"{WIDTH} wide"]
class Agent:
    def predict(self, instruction):
        size = "1000" if self.kind == "relative" else f"{processed_width}"
        tools = {"size": size, "one": ["x"]}
        system = """# Tools
""" + json.dumps(tools) + " ".join(LINES)
        user = f"""Do: {instruction}
Before: {previous}
"""
        made = build(size)
        user = user
TEXT = " stripped ".strip()
'''


def test_texts_that_a_function_of_another_package_builds(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(AGENT.replace("        user = user\n", ""), encoding="utf-8")
    spec = f"{file}:Agent.predict.user,system=Agent.predict.system,previous=None,kind=relative"
    template = load_template(spec)
    assert template.user == "Do: {instruction}\nBefore: None\n"
    assert template.system == '# Tools\n{"size": "1000", "one": ["x"]}a {WIDTH} wide'
    with pytest.raises(UserError, match=r"found no system text Agent\.predict\.made"):
        load_template(spec.replace("system=Agent.predict.system", "system=Agent.predict.made"))
    with pytest.raises(UserError, match=r"found no system text Agent\.predict\.system"):
        load_template(spec.removesuffix(",kind=relative"))  # the choice is open
    assert load_template(f"{file}:Agent.predict.user,system=TEXT,previous=TEXT").user.endswith("stripped\n")
    file.write_text(AGENT, encoding="utf-8")
    with pytest.raises(UserError, match=r"has no string Agent\.predict\.user"):
        load_template(spec)  # defined by itself


def test_a_history_stands_at_its_placeholder_or_after_the_task() -> None:
    """Text of the model is text: {instruction} in it stays."""
    placed = PromptTemplate(system="s", user="Before: {history|None}. Do {instruction}.")
    assert placed.task("it") == "Before: None. Do it."
    assert placed.task("{history}", "Step 1: {instruction}") == "Before: Step 1: {instruction}. Do {history}."
    assert PromptTemplate(system="s", user="{history}{instruction}").task("it") == "it"
    plain = PromptTemplate(system="s", user="Do {instruction}")
    assert plain.task("it") == "Do it"
    assert plain.task("it", "Step 1: a") == "Do it\n\nPrevious steps:\nStep 1: a"
