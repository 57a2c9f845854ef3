import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arpo.actions import Click, Finished, Hotkey, Point, Type
from arpo.config import TasksConfig
from arpo.config.recipe import changed, load_config
from arpo.dialects.ui_tars import parse_solution
from arpo.errors import UserError
from arpo.storage.files import escapes_folder
from arpo.tasks.lists import (
    check_disjoint,
    is_shipped,
    load_counts,
    load_tasks,
    select_tasks,
)
from arpo.tasks.screened import Count, format_selection, learnable
from arpo.types import Task
from upstream import VERIFIED, needs_upstream


def entry(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "snapshot": "desk",
        "instruction": f"do {name}",
        "source": "a person",
        "config": [{"type": "open", "parameters": {"path": name}}],
        "related_apps": ["files"],
        "evaluator": {"func": "exact"},
    } | changes


def judged(**evaluator: Any) -> dict[str, Any]:
    return entry("a", evaluator=evaluator)


def write(path: Path, content: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def refusal(source: Path | str, examples: Path | str = "") -> str:
    with pytest.raises(UserError) as caught:
        load_tasks(str(source), str(examples))
    return str(caught.value)


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_a_list_of_tasks(tmp_path: Path) -> None:
    source = write(tmp_path / "tasks.json", [entry("a"), entry("b")])
    first, second = load_tasks(source)
    assert first == Task(
        id="a",
        instruction="do a",
        snapshot="desk",
        config=({"type": "open", "parameters": {"path": "a"}},),
        evaluator={"func": "exact"},
        related_apps=("files",),
        domain="files",
    )
    assert second.id == "b"


def test_keys_that_osworld_omits_are_optional(tmp_path: Path) -> None:
    bare = {"id": "a", "instruction": "do", "evaluator": {"func": "infeasible"}}
    (task,) = load_tasks(write(tmp_path / "tasks.json", [bare]))
    assert (task.config, task.snapshot, task.related_apps, task.domain) == ((), "", (), "")


def test_a_task_may_have_a_solution(tmp_path: Path) -> None:
    steps = ["click(start_box='(105,63)')", "type(content='Nora')\nhotkey(key='enter')", "finished()"]
    (task,) = load_tasks(write(tmp_path / "tasks.json", [entry("a", solution=steps)]))
    assert task.solution == tuple(steps)
    first, second, last = parse_solution(task.solution)
    assert first == (Click(point=Point(105.0, 63.0)),)
    assert second == (Type(text="Nora", submit=False), Hotkey(keys=("enter",)))
    assert last == (Finished(content=""),)


@pytest.mark.parametrize(
    ("solution", "reason"),
    [
        ("finished()", "key 'solution' must be a list, not \"finished()\""),
        (["finished()", "click(105, 63)"], "key 'solution': step 2: click(): expected an argument or ), got"),
        ([{"do": "Wait"}], 'key \'solution\': step 1: {"do": "Wait"} is not a string: write a call such as'),
        ([""], "key 'solution': step 1: no call follows 'Action:': write a call"),
    ],
)
def test_a_bad_solution_is_refused(tmp_path: Path, solution: object, reason: str) -> None:
    source = write(tmp_path / "tasks.json", [entry("a", solution=solution)])
    assert f"entry 0 (id 'a'): {reason}" in refusal(source)


def test_a_task_of_a_plain_list_may_name_its_domain(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "tasks.json", [entry("a", domain="calc")]))
    assert task.domain == "calc"
    assert "key 'domain' must be a string, not 3" in refusal(
        write(tmp_path / "bad.json", [entry("a", domain=3)])
    )


def test_osworlds_folder(tmp_path: Path) -> None:
    write(tmp_path / "test_all.json", {"os": ["b", "a"], "vlc": ["c"]})
    write(tmp_path / "test_small.json", {"vlc": ["c"]})
    for domain, name in (("os", "a"), ("os", "b"), ("vlc", "c")):
        write(tmp_path / "examples" / domain / f"{name}.json", entry(name))
    assert names(load_tasks(str(tmp_path))) == ["b", "a", "c"]
    assert names(load_tasks(str(tmp_path / "test_small.json"))) == ["c"]
    assert [task.domain for task in load_tasks(str(tmp_path))] == ["os", "os", "vlc"]


def test_a_list_may_be_in_another_folder_than_its_tasks(tmp_path: Path) -> None:
    write(tmp_path / "osworld" / "examples" / "os" / "a.json", entry("a"))
    index = write(tmp_path / "lists" / "few.json", {"os": ["a"]})
    (task,) = load_tasks(index, str(tmp_path / "osworld" / "examples"))
    assert (task.id, task.domain) == ("a", "os")
    assert "or with tasks.examples" in refusal(index)
    assert f"the folder of its tasks, {tmp_path}/gone, does not exist: set tasks.examples" in refusal(
        index, tmp_path / "gone"
    )


@pytest.mark.parametrize(
    ("domain", "name"),
    [("os", "../../x"), ("..", "x"), ("os", "/etc/x"), ("/etc", "x"), ("os", "a\\..\\..\\x"), ("os", ".")],
)
def test_no_name_in_a_list_leads_out_of_the_folder(tmp_path: Path, domain: str, name: str) -> None:
    (tmp_path / "in" / "examples" / "os").mkdir(parents=True)
    write(tmp_path / "x.json", entry("x"))
    index = write(tmp_path / "in" / "test_all.json", {domain: [name]})
    assert refusal(index).startswith(f"{index}: {domain!r}: {name!r} leads out of {tmp_path}/in/examples")


def test_paths_that_escape_their_folder() -> None:
    assert [path for path in ("a", "a/b", "a..b", "...", "a/./b") if escapes_folder(path)] == []
    assert all(escapes_folder(path) for path in ("", ".", "..", "/", "/a", "a/..", "a/../b", "\\a", "a\0"))


def test_an_id_cannot_escape_its_folder(tmp_path: Path) -> None:
    assert "id and domain become file names" in refusal(write(tmp_path / "tasks.json", [entry("../a")]))
    assert "id and domain become file names" in refusal(
        write(tmp_path / "tasks.json", [entry("a", domain="/etc")])
    )


def pool(**domains: Sequence[str]) -> list[Task]:
    """pool(os="ab") has tasks a and b of the domain os."""
    return [
        Task(id=name, instruction="", snapshot="", config=(), evaluator={}, domain=domain)
        for domain, ids in domains.items()
        for name in ids
    ]


def test_tasks_are_selected_by_domain_and_id() -> None:
    tasks = pool(os="ab", vlc="cd", gimp="e")
    assert names(select_tasks(tasks, TasksConfig())) == list("abcde")
    assert names(select_tasks(tasks, TasksConfig(domains="gimp, os"))) == list("abe")
    assert names(select_tasks(tasks, TasksConfig(ids="d,a,"))) == ["a", "d"]
    assert names(select_tasks(tasks, TasksConfig(domains="os", ids="b,c"))) == ["b"]


def test_unknown_domains_and_ids_are_reported_with_the_known_ones() -> None:
    tasks = pool(os=["task-01", "task-02"], vlc=[f"movie-{n:02}" for n in range(30)])
    with pytest.raises(UserError, match=r"tasks.domains: no task of domain 'vcl'; the domains are: os, vlc"):
        select_tasks(tasks, TasksConfig(domains="os,vcl"))
    with pytest.raises(UserError, match=r"no task 'task-03' among the 32 tasks \(did you mean task-02\?\)"):
        select_tasks(tasks, TasksConfig(ids="task-03"))
    with pytest.raises(
        UserError, match=r"tasks.ids: no task 'xyz' among the 32 tasks. Example: --tasks.ids task-01,task-02"
    ):
        select_tasks(tasks, TasksConfig(ids="xyz"))
    with pytest.raises(
        UserError, match=r"none of these tasks is in tasks.domains: remove one of the two settings"
    ):
        select_tasks(tasks, TasksConfig(domains="vlc", ids="task-01"))


def test_a_selection_file(tmp_path: Path) -> None:
    write(tmp_path / "lists" / "pool.json", [entry(name) for name in "abcd"])
    kept = learnable(
        {"d": Count(successes=16, rollouts=16), "a": Count(successes=5, rollouts=16)}, drop_always=False
    )
    source = write(tmp_path / "lists" / "kept.json", format_selection("pool.json", kept))
    assert names(load_tasks(source)) == ["d", "a"]
    again = write(
        tmp_path / "again.json", format_selection("lists/kept.json", {"a": Count(successes=1, rollouts=2)})
    )
    assert names(load_tasks(again)) == ["a"]


def test_a_selection_can_name_the_examples_folder(tmp_path: Path) -> None:
    write(tmp_path / "osworld" / "examples" / "os" / "a.json", entry("a"))
    write(tmp_path / "lists" / "few.json", {"os": ["a"]})
    text = format_selection("../lists/few.json", {"a": Count(successes=1, rollouts=2)}, "../osworld/examples")
    kept = write(tmp_path / "out" / "kept.json", text)
    assert [(task.id, task.domain) for task in load_tasks(kept)] == [("a", "os")]
    assert names(load_tasks(kept, str(tmp_path / "gone"))) == ["a"]
    without = write(tmp_path / "out" / "kept.json", format_selection("../lists/few.json", {}))
    assert "or with tasks.examples" in refusal(without)
    assert "contains no task" in refusal(without, tmp_path / "osworld" / "examples")
    wrong = write(tmp_path / "wrong.json", {"source": "lists/few.json", "examples": 3, "tasks": {}})
    assert "key 'examples' must be a string, not 3" in refusal(wrong)


def test_unknown_shipped_lists_are_reported() -> None:
    assert refusal("desk:nonsense").startswith("desk:nonsense: no such shipped task list; the lists are: ")
    assert refusal("desk:nonsense").endswith(", desk:fresh")
    assert "no such shipped" in refusal("desk:../tasks/nonsense")
    assert refusal("desk:Fresh").startswith(
        "desk:Fresh: no such shipped task list (did you mean desk:fresh?); "
    )
    for prefix in ("osworld", "desktop"):
        assert refusal(f"{prefix}:nonsense") == (
            f"{prefix}:nonsense: no such shipped task list; the lists are: osworld:heldout, "
            "osworld:published_128, osworld:train"
        )


def test_desktop_is_an_alias_of_the_prefix_osworld(tmp_path: Path) -> None:
    assert load_tasks("desktop:train") == load_tasks("osworld:train")
    assert is_shipped("desktop:train") and is_shipped("osworld:train")
    name = load_tasks("osworld:train")[0].id
    kept = write(
        tmp_path / "kept.json", format_selection("desktop:train", {name: Count(successes=1, rollouts=2)})
    )
    assert names(load_tasks(kept)) == [name]


def test_a_run_with_the_alias_in_its_recipe_resumes_with_the_prefix_osworld(tmp_path: Path) -> None:
    old = tmp_path / "recipe.toml"
    old.write_text('[tasks]\ntrain = "desktop:train"\nheldout = "desktop:heldout"\n', "utf-8")
    new = ["--tasks.train", "osworld:train", "--tasks.heldout=osworld:heldout"]
    assert changed(load_config(old), load_config(None, new)) == []
    assert load_config(None, ["--tasks.overall", "desktop:train"]).tasks.overall == "osworld:train"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"id": "a",]', "line 1, column 13: not JSON"),
        ("\n\n{", "line 3, column 2: not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ('[{"id": ' + "9" * 5000 + "}]", "Exceeds the limit (4300 digits)"),
        (
            r'[{"id": "a", "instruction": "type \ud83d here"}]',
            "\\ud83d after 'instruction\": \"type ' is half a",
        ),
        ([], "contains no task"),
        ("3", "must be a list of tasks, or a selection"),
        ({"tasks": {}}, "must be a list of tasks, or a selection"),
        ([entry("a"), "b"], "entry 1: must be an object, not str"),
        ([{"instruction": "do"}], "entry 0: key 'id' is missing: add it (a string)"),
        ([entry("a", id=7)], "entry 0: key 'id' must be a string, not 7"),
        ([entry("a", instruction=None)], "entry 0 (id 'a'): key 'instruction' must be a string, not null"),
        ([entry("a", config={})], "entry 0 (id 'a'): key 'config' must be a list, not {}"),
        ([entry("a", config=["open"])], "entry 0 (id 'a'): key 'config': every step must be an object"),
        ([entry("a", evaluator="exact")], "key 'evaluator' must be an object, not \"exact\""),
        ([entry("a"), entry("b"), entry("a")], "id 'a' occurs twice"),
        ([entry("a", related_apps="os")], "key 'related_apps' must be a list, not \"os\""),
        ([judged(func=3)], "key 'evaluator': key 'func' must be a name or a list of names, not 3"),
        ([judged(func=[])], "key 'func' must be a name or a list of names, not []"),
        ([judged(func=["f", None])], "key 'func' must be a name or a list of names"),
        ([judged(func=["f", "g"], result=[{}])], "key 'result' must be a list of 2, one per name"),
        (
            [judged(func=["f", "g"], result=[{}, {}], expected={"type": "rule"})],
            "'expected' must be a list of 2",
        ),
        ([judged(func=["f"], result=[{}], options=[{}, {}])], "key 'options' must be a list of 1"),
        ([judged(func=["f"], result=[{}], conj="xor")], 'key \'conj\' must be "and" or "or", not "xor"'),
        ([judged(func="f", postconfig={})], "key 'evaluator': key 'postconfig' must be a list, not {}"),
        ([judged(func="f", postconfig=[3])], "key 'postconfig': every step must be an object"),
    ],
)
def test_a_defect_is_reported_with_its_location(tmp_path: Path, content: object, says: str) -> None:
    source = write(tmp_path / "tasks.json", content)
    message = refusal(source)
    assert message.startswith(f"{source}: ")
    assert says in message


def test_a_missing_or_unreadable_file_is_reported(tmp_path: Path) -> None:
    assert f"{tmp_path}/gone.json: no such task file: check the path" in refusal(tmp_path / "gone.json")
    assert refusal(tmp_path / "gone.json").endswith("; --tasks.ids chooses some tasks of a list")
    assert "contains test_all.json and examples/" in refusal(tmp_path)
    (tmp_path / "tasks.json").write_bytes(b'["\xff"]')
    assert "byte 2: not UTF-8 text" in refusal(tmp_path / "tasks.json")


def test_only_what_a_task_file_says_to_be_its_size_is_read(tmp_path: Path) -> None:
    """A file of the kernel has no size: this one contains 2, and /proc/kmsg lets its reader wait."""
    assert "not JSON" in refusal("/proc/sys/kernel/randomize_va_space")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    assert "67,108,865 bytes" in refusal(tmp_path / "large.json")


def test_a_bad_selection_is_reported(tmp_path: Path) -> None:
    pool = write(tmp_path / "pool.json", [entry("a")])
    count = {"successes": 1, "rollouts": 2}

    def refused(tasks: object, source: str = "pool.json") -> str:
        return refusal(write(tmp_path / "kept.json", {"source": source, "tasks": tasks}))

    assert "task 'z' is not in 'pool.json'" in refused({"a": count, "z": count})
    assert "task 'a': key 'rollouts' is missing: add it (an integer)" in refused({"a": {"successes": 1}})
    assert "key 'successes' must be an integer, not 1.5" in refused({"a": count | {"successes": 1.5}})
    assert "task 'a': must be an object, not int" in refused({"a": 3})
    assert "contains no task" in refused({})
    assert "gone.json: no such task file" in refused({"a": count}, "gone.json")
    assert "refers to itself" in refused({"a": count}, "kept.json")
    assert names(load_tasks(pool)) == ["a"]


def test_a_bad_folder_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "examples" / "os" / "a.json", entry("other"))
    index = tmp_path / "test_all.json"
    write(index, {"os": ["a"]})
    assert "a.json: id is 'other': change it to the file name, 'a'" in refusal(tmp_path)
    write(index, {"os": ["b"]})
    assert f"{index}: 'os': task 'b' has no file" in refusal(tmp_path)
    write(index, {"os": "a"})
    assert f"{index}: 'os': must be a list of task ids" in refusal(tmp_path)


def tasks(*ids: str, instruction: str = "do {}") -> list[Task]:
    return [
        Task(id=name, instruction=instruction.format(name), snapshot="", config=(), evaluator={})
        for name in ids
    ]


def counted(**successes: int) -> dict[str, Count]:
    return {name: Count(successes=n, rollouts=16) for name, n in successes.items()}


def test_the_counts_of_a_selection(tmp_path: Path) -> None:
    pool = write(tmp_path / "pool.json", [entry(name) for name in "abc"])
    assert load_counts(pool) == {}
    kept = write(tmp_path / "kept.json", format_selection("pool.json", counted(c=16, a=5)))
    assert list(load_counts(kept).items()) == list(counted(c=16, a=5).items())
    again = write(
        tmp_path / "again.json", format_selection("kept.json", {"a": Count(successes=1, rollouts=2)})
    )
    assert load_counts(again) == {"a": Count(successes=1, rollouts=2)}
    unknown = write(tmp_path / "unknown.json", format_selection("pool.json", counted(d=1)))
    with pytest.raises(UserError, match=r"task 'd' is not in 'pool\.json'"):
        load_counts(unknown)


def test_the_shipped_selections_have_counts_and_the_pool_has_none() -> None:
    for source in ("desk:32", "desk:128", "desk:screened"):
        counts = load_counts(source)
        assert list(counts) == names(load_tasks(source))
        assert all(0 < count.successes <= count.rollouts == 16 for count in counts.values())
    assert load_counts("desk:pool") == {}


def test_training_and_held_out_tasks_are_disjoint() -> None:
    check_disjoint(tasks("a", "b"), tasks("c"))
    with pytest.raises(UserError, match="held-out task 'b' is also training task 'b'"):
        check_disjoint(tasks("a", "b"), tasks("b", instruction="another"))
    with pytest.raises(UserError, match="held-out task 'c' is also training task 'a'"):
        check_disjoint(tasks("a", instruction="same"), tasks("c", instruction="same"))


@needs_upstream
@pytest.mark.parametrize(
    ("name", "count"),
    [("test_all", 369), ("test_nogdrive", 361), ("test_small", 39), ("test_infeasible", 28)],
)
def test_osworlds_own_lists(name: str, count: int) -> None:
    loaded = load_tasks(str(VERIFIED / f"{name}.json"))
    assert len(loaded) == count
    assert {task.domain for task in loaded} <= {folder.name for folder in (VERIFIED / "examples").iterdir()}


@needs_upstream
def test_the_published_training_list() -> None:
    loaded = load_tasks("osworld:published_128", str(VERIFIED / "examples"))
    assert len(loaded) == 128
    assert sum(task.evaluator["func"] == "infeasible" for task in loaded) == 25
    everything = load_tasks(str(VERIFIED))
    assert len(select_tasks(everything, TasksConfig(domains="os,vlc"))) == 24 + 17


@pytest.mark.parametrize(
    ("successes", "rollouts"), [(-1, 2), (3, 2), (10**30, 10**30), (0, -1)], ids=lambda number: f"{number:g}"
)
def test_impossible_counts_of_a_selection_are_refused(tmp_path, successes, rollouts):
    count = {"successes": successes, "rollouts": rollouts}
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"source": "desk:32", "tasks": {"pool-023": count}}))
    with pytest.raises(UserError, match=r"kept\.json: task 'pool-023': .* are not possible: screen"):
        load_tasks(str(path))


def test_a_long_chain_of_selections_is_refused(tmp_path):
    for number in range(300):
        chosen = {"source": f"{number + 1}.json", "tasks": {}}
        (tmp_path / f"{number}.json").write_text(json.dumps(chosen))
    with pytest.raises(UserError, match="more than 20 selections refer to each other"):
        load_tasks(str(tmp_path / "0.json"))
