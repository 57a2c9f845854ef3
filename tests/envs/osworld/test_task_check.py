"""Checks of a task before its desktop boots."""

import pytest

from arpo.envs.osworld.task_check import KnownNames, check_task
from arpo.errors import EnvError
from arpo.types import Task

KNOWN = KnownNames(
    steps=frozenset({"launch", "execute", "download"}),
    getters=frozenset({"vm_file", "cloud_file", "cache_file", "rule"}),
    metrics=frozenset({"exact_match", "compare_table", "infeasible"}),
    unusable={"compare_table": "it needs a ruler: pip install ruler"},
)
GOOD = {"func": "exact_match", "result": {"type": "vm_file", "path": "/a", "dest": "a"}}


def error_of(*config, evaluator=GOOD, id="t"):
    task = Task(id=id, instruction="", snapshot="", config=config, evaluator=evaluator)
    with pytest.raises(EnvError) as caught:
        check_task(task, KNOWN)
    assert caught.value.where == "start"
    return caught.value.message


def test_valid_tasks_pass():
    step = {"type": "execute", "parameters": {"command": "ls", "stdout": "ls.out"}}
    several = {
        "func": ["exact_match", "exact_match"],
        "conj": "or",
        "result": [GOOD["result"], {"type": "cache_file", "path": "ls.out"}],
        "expected": [{"type": "cloud_file", "path": ["u", "v"], "dest": ["u", "v"], "multi": True}, None],
        "postconfig": [step],
    }
    for evaluator in (GOOD, several, {"func": "infeasible"}, {**GOOD, "expected": {}}):
        task = Task(id="t", instruction="", snapshot="", config=(step,), evaluator=evaluator)
        check_task(task, KNOWN)


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        (
            {**GOOD, "result": {"type": "vm_fil"}},
            "task t: evaluator.result.type = 'vm_fil': desktop-env has no getter get_vm_fil "
            "(did you mean 'vm_file'?)",
        ),
        (
            {"func": ["exact_match", "zzz"], "result": [GOOD["result"]] * 2},
            "task t: evaluator.func[1] = 'zzz': desktop-env has no metric zzz",
        ),
        ({}, "task 't': evaluator: key 'func' must be a name or a list of names"),
        ({"func": ["exact_match", 3], "result": [GOOD["result"]] * 2}, "desktop-env has no metric 3"),
        ({**GOOD, "func": "compare_table"}, "'compare_table': it needs a ruler: pip install ruler"),
        (
            {"func": ["exact_match"] * 2, "result": [GOOD["result"]]},
            "task t: evaluator.result: must be a list, one for each of 2 metrics",
        ),
        ({"func": ["exact_match"], "result": [GOOD["result"]], "conj": "xor"}, "evaluator.conj: is 'xor'"),
        (
            {**GOOD, "postconfig": [{"type": "lunch", "parameters": {}}]},
            "evaluator.postconfig[0].type = 'lunch': desktop-env has no setup step lunch "
            "(did you mean 'launch'?)",
        ),
    ],
)
def test_error_names_the_key(evaluator, message):
    assert message in error_of(evaluator=evaluator)


@pytest.mark.parametrize("name", ["../.bashrc", "/etc/passwd", ".."])
def test_names_leading_out_of_the_folder_are_rejected(name):
    assert repr(name) in error_of(id=name)
    assert repr(name) in error_of({"type": "execute", "parameters": {"command": "x", "stdout": name}})
    assert repr(name) in error_of(evaluator={**GOOD, "result": {"type": "cache_file", "path": name}})


def test_malformed_step_is_rejected():
    assert "config, step 1: must be an object" in error_of({"type": "launch", "parameters": {}}, "launch")
