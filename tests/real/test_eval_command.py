"""`arpo eval osworld` on light desktops: a scripted model behind a real server solves OSWorld's own tasks."""

import json
import sys

import pytest

from arpo.cli.entry_point import main
from arpo.evaluation.osworld_results import scores
from osworld_files import PYTHON, ROOT, osworld_folder, osworld_task

sys.path.append(str(ROOT / "tests"))
from openai_server import says, serving

RENAME, INFEASIBLE = "os/e0df059f", "os/c288e301"
MOVE = "mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="desktop-env is not installed: make osworld")


def next_call(messages):
    """Someone who renames the folder in a terminal, once one has come up, and knows what is not possible."""
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    looks = [message["content"] for message in messages if isinstance(message["content"], list)]
    seen = [part["image_url"]["url"] for (part,) in looks]
    if "todo_list_Jan_1" not in messages[1]["content"]:
        return "call_user()"
    if any("mv " in answer for answer in said):
        return "finished()"
    if not said:
        return "hotkey(key='ctrl alt t')"
    is_up = seen[-1] == seen[-2] != seen[0]
    return f"type(content='{MOVE}\\n')" if is_up else "wait()"


async def solver(request, body, number):
    return says(f"Thought: next\nAction: {next_call(body['messages'])}")


async def gives_up(request, body, number):
    return says("Action: finished()")


def test_a_model_behind_a_server_scores_on_osworlds_tasks_from_any_folder(tmp_path, capsys, monkeypatch):
    """The interpreter of desktop-env and the prompt are found in the project; given paths are relative."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    tasks = [osworld_task(name) for name in (RENAME, INFEASIBLE)]
    (tmp_path / "list.json").write_text(json.dumps({"os": [task.id for task in tasks]}))
    for trial, answer in (("solved", solver), ("left", gives_up)):
        with serving(answer, models=("ui-tars",)) as server:
            words = f"""
                eval osworld --endpoint {server.url} --model ui-tars --num-envs 2 --trial-id {trial}
                --max-steps 40 --max-trajectory-length 40 --test_all_meta_path ../list.json
                --test_config_base_dir {osworld_folder()} --result-dir ../results
            """
            assert main(words.split()) == 0
    folder = tmp_path / "results" / "pyautogui" / "screenshot" / "ui-tars"
    assert set(scores(folder / "solved").values()) == {1.0}
    assert set(scores(folder / "left").values()) == {0.0}
    said = capsys.readouterr().out
    assert "over trials left, solved: pass@1 50.0% (2 tasks), pass@2 100.0% (2 tasks)" in said
    assert "These are not OSWorld scores" in said
