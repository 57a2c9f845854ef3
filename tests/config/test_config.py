"""Configs and recipes: reading, writing, overrides, and the error messages for wrong values."""

import os
import re
from dataclasses import replace
from importlib.resources import files
from typing import get_type_hints

import pytest

from arpo.config import Config, LossConfig, RolloutConfig, TrainConfig
from arpo.config.recipe import (
    PROJECT,
    changed,
    describe,
    find_program,
    keys,
    load_config,
    load_recorded_model,
    parse_recorded,
    shipped_recipes,
    to_toml,
)
from arpo.errors import BadSetting, UserError
from arpo.prompts.templates import load_template

FRESH = ("--tasks.train", "desk:fresh", "--train.tasks", "8", "--replay.enabled", "false")


def refusal(recipe, *overrides):
    with pytest.raises(UserError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


def recipe(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    return path


def test_without_a_recipe_all_keys_have_their_defaults():
    assert load_config() == Config()


def test_overrides_win_over_the_recipe(tmp_path):
    path = recipe(tmp_path, "[loss]\nclip_low = 0.05\nkl = 1\n[replay]\nenabled = true\n")
    config = load_config(path, ["--loss.clip_low", "0.1", "--replay.enabled=false", "--run.dir", "a=b"])
    assert config.loss == replace(LossConfig(), clip_low=0.1, kl=1.0)
    assert type(config.loss.kl) is float
    assert config.replay.enabled is False
    assert config.run.dir == "a=b"


def test_settings_of_a_dict_have_the_same_checks_as_those_of_a_recipe():
    config = load_config("desk", {"loss.kl": 0, "replay.enabled": False})
    assert (config.loss.kl, config.replay.enabled) == (0.0, False)
    assert config == load_config("desk", ["--loss.kl=0", "--replay.enabled=false"])
    longer = load_config(config, {"train.epochs": 99})
    assert longer == load_config("desk", ["--loss.kl=0", "--replay.enabled=false", "--train.epochs=99"])
    for settings, reason in {
        ("loss.lk", 0): "settings: loss.lk: unknown key (did you mean loss.kl?)",
        ("loss.kl", "0"): "settings: loss.kl: is '0', must be a number",
        ("loss.kl", -1): "settings: loss.kl: is -1.0, must be >= 0",
        ("train.tasks_per_update", 3): "settings: train.tasks_per_update: is 3, must divide",
    }.items():
        for start in ("desk", config):
            with pytest.raises(UserError) as caught:
                load_config(start, dict([settings]))
            assert str(caught.value).startswith(reason)


def test_a_negative_number_is_a_value():
    assert "loss.kl: is -1.0, must be >= 0" in refusal(None, "--loss.kl", "-1")


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_valid_and_round_trip(name, tmp_path):
    config = load_config(name)
    assert load_config(recipe(tmp_path, to_toml(config))) == config


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith("ablations/")])
def test_an_ablation_differs_from_the_published_method_in_one_key(name):
    paper, ablation = to_toml(load_config("paper")), to_toml(load_config(name))
    assert len(set(ablation.splitlines()) - set(paper.splitlines())) == 1


def test_the_published_run():
    config = load_config("osworld_full")
    assert (config.env.parallel, config.rollout.group_size, config.train.epochs) == (256, 8, 15)
    assert config.train.tasks_per_batch // config.train.tasks_per_update == 4
    assert (config.optim.lr, config.rollout.max_context_tokens) == (1e-6, 65536)


def test_the_published_optimiser_and_intervals():
    """A published step is a batch: in both runs, one epoch lies between two evaluations or checkpoints."""
    full, subset = load_config("osworld_full"), load_config("osworld_subset32")
    for config in (full, subset):
        assert (config.optim.beta2, config.optim.weight_decay) == (0.999, 0.01)
        assert (config.eval.rollouts, config.eval.temperature) == (1, 0.6)
    assert (full.eval.every, full.store.checkpoint_every, full.optim.warmup_updates) == (8, 8, 0)
    assert (subset.eval.every, subset.store.checkpoint_every) == (16, 16)
    updates = subset.train.epochs * 32 // subset.train.tasks_per_update
    assert subset.optim.warmup_updates == 0.05 * updates


@pytest.mark.parametrize("name", ["osworld_full", "osworld_node", "osworld_subset32", "osworld_eval"])
def test_the_published_prompt_offers_finished_with_content_and_no_call_user(name):
    spec = load_config(name).model.prompt
    assert spec.endswith(
        ":UITARS_USR_PROMPT_THOUGHT,action_space=UITARS_NORMAL_ACTION_SPACE,language=English"
    )
    pattern = spec.partition(":")[0]
    if not list(PROJECT.glob(pattern)):
        pytest.skip("desktop-env is not installed")
    user = load_template(spec).user
    assert "finished(content='xxx')" in user
    assert "call_user" not in user
    other = spec.replace("UITARS_NORMAL_ACTION_SPACE", "UITARS_CALL_USR_ACTION_SPACE")
    assert "call_user()" in load_template(other).user


def test_the_command_in_the_header_of_subset32_makes_its_task_list():
    """The command writes the file of tasks.train, and the recipe has all settings that it needs."""
    text = (files("arpo") / "recipes" / "osworld_subset32.toml").read_text("utf-8")
    (command,) = re.findall(r"^# +arpo screen osworld_subset32 (.*)$", text, re.MULTILINE)
    config = load_config("osworld_subset32")
    assert command == f"--tasks osworld:published_128 --count 32 --out {config.tasks.train}"
    assert config.tasks.examples == "evaluation_examples/examples"
    page = (PROJECT / "docs" / "first-real-run.md").read_text("utf-8")
    (shown,) = re.findall(r"arpo screen osworld_subset32 (?:.|\n)*?--out (\S+)", page)
    assert shown == config.tasks.train
    assert "--drop-always" not in page


def test_hostile_text_round_trips(tmp_path):
    text = 'a "quoted" \\ tab\t newline\n del\x7f é 🂡 # [loss]'
    config = load_config(None, ["--run.dir", text, "--optim.lr", "1e-7"])
    assert load_config(recipe(tmp_path, to_toml(config))) == config
    assert config.run.dir == text


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("--loss.cliplow", "loss.clip_low"),
        ("--los.clip_low", "loss.clip_low"),
        ("--training.weight_decay", "optim.weight_decay"),
        ("--rollout.groupsize", "rollout.group_size"),
        ("--optim.learning_rate", "optim.lr"),
        ("--optim.learning-rate", "optim.lr"),
        ("--train.learning_rate", "optim.lr"),
    ],
)
def test_an_unknown_key_suggests_the_nearest_one(word, suggestion):
    message = refusal(None, word, "1")
    assert message == f"command line: {word[2:]}: unknown key (did you mean {suggestion}?)"


def test_errors_name_the_file_and_the_key(tmp_path):
    path = recipe(tmp_path, "[loss]\nclip_lo = 0.1\n")
    assert refusal(path) == f"{path}: loss.clip_lo: unknown key (did you mean loss.clip_low?)"
    path = recipe(tmp_path, "[los]\nclip_low = 0.1\n")
    assert refusal(path) == f"{path}: los: unknown section (did you mean loss?)"
    path = recipe(tmp_path, "loss = 3\n")
    assert refusal(path) == f"{path}: loss: is a value, must be a section: [loss]"
    path = recipe(tmp_path, "[rollout]\ngroup_size = 1\n")
    assert refusal(path) == f"{path}: rollout.group_size: is 1, must be >= 2"
    path = recipe(tmp_path, "[loss\n")
    assert refusal(path).startswith(f"{path}: cannot be read as TOML: ") and "line 1" in refusal(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('[loss]\nclip_low = "0.1"', "loss.clip_low: is '0.1', must be a number"),
        ("[run]\nseed = 1.5", "run.seed: is 1.5, must be an integer"),
        ("[run]\nseed = true", "run.seed: is True, must be an integer"),
        ("[replay]\nenabled = 1", "replay.enabled: is 1, must be true or false"),
        ("[run]\ndir = 3", "run.dir: is 3, must be a string"),
        ('[run]\ndir = ""', "run.dir: is empty, must be the output directory of the run"),
        ('[run]\ndir = "a\\u0000b"', "run.dir: is 'a\\x00b', must be text in UTF-8 without NUL"),
        ("[run.dir]\nx = 3", "run.dir: is {'x': 3}, must be a string"),
        ("[optim]\nlr = inf", "optim.lr: is inf, must be a finite number"),
        ("[loss]\nclip_low = 1", "loss.clip_low: is 1.0, must be < 1"),
        ("[optim]\nlr = 0", "optim.lr: is 0.0, must be > 0"),
        ("[replay]\nthreshold = 1.5", "replay.threshold: is 1.5, must be <= 1"),
        ("[env]\nwidth = 20000", "env.width: is 20000, must be <= 16383"),
        ("[env]\nheight = 16384", "env.height: is 16384, must be <= 16383"),
        (
            "[env]\nwidth = 16383\nheight = 16383",
            "env.width: is 16383, with env.height = 16383: a screen must have at most 33,554,432 pixels",
        ),
        (
            "[env]\nwidth = 6000\nheight = 28",
            "env.width: is 6000, with env.height = 28: a screen must not have one side over 200 times the "
            "other",
        ),
        (
            '[loss]\nratio = "recomputed"',
            "loss.ratio: is 'recomputed', must be one of recompute, behaviour, truncated "
            "(did you mean recompute?)",
        ),
    ],
)
def test_wrong_values(tmp_path, line, reason):
    path = recipe(tmp_path, line)
    assert refusal(path) == f"{path}: {reason}"


def test_bytes_of_the_command_line_that_are_not_utf_8():
    folder = os.fsdecode(b"runs/caf\xe9")
    reason = "command line: run.dir: is 'runs/caf\\udce9', must be text in UTF-8 without NUL"
    assert refusal(None, "--run.dir", folder) == reason


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["--train.tasks_per_batch", "32", "--train.tasks_per_update", "5"], "train.tasks_per_update"),
        (["--train.tasks_per_batch", "8", "--train.tasks_per_update", "16"], "train.tasks_per_update"),
        (["--tasks.heldout", "desk:32", "--tasks.train", "desk:32"], "tasks.heldout"),
        (["--tasks.heldout", "desk:heldout,desk:32", "--tasks.train", "desk:32"], "tasks.heldout"),
        (["--env.partial", "0.6"], "env.partial"),
        (["--env.partial", "0.1", "--env.name", "osworld"], "env.partial"),
        (["--model.min_pixels", "5000", "--model.max_pixels", "4000"], "model.min_pixels"),
        (["--rollout.max_answer_tokens", "4096"], "rollout.max_answer_tokens"),
        (["--train.dynamic_sampling", "true", "--replay.enabled", "true"], "train.dynamic_sampling"),
        (["--train.max_staleness", "1", "--train.method", "dpo"], "train.max_staleness"),
        (
            ["--train.max_staleness", "1", "--train.dynamic_sampling", "true", "--replay.enabled", "false"],
            "train.dynamic_sampling",
        ),
        (["--tasks.train", "desk:fresh"], "train.tasks"),
        (["--tasks.train", "desk:fresh", "--train.tasks", "8"], "replay.enabled"),
        ([*FRESH, "--train.curriculum", "middle"], "train.curriculum"),
        ([*FRESH, "--plugins.curriculum", "mine:order"], "plugins.curriculum"),
    ],
)
def test_impossible_combinations(overrides, key):
    assert refusal(None, *overrides).startswith(f"command line: {key}: ")


def test_tasks_without_end_have_a_length_and_no_replay():
    for words in (["--replay.enabled", "false"], ["--train.method", "rft"]):
        config = load_config(None, ["--tasks.train", "desk:fresh", "--train.tasks", "8", *words])
        assert config.endless and config.planned_tasks(1000) == 8
    config = load_config(
        None, ["--tasks.train", "desk:fresh", "--tasks.distinct", "4", "--train.epochs", "3"]
    )
    assert not config.endless and config.planned_tasks(4) == 12


def test_errors_of_the_command_line():
    assert refusal(None, "--run.seed") == "command line: --run.seed needs a value (int)"
    assert "write --section.key VALUE" in refusal(None, "seed")
    assert refusal(None, "--replay.enabled", "yes").endswith("must be true or false")


def test_an_unknown_recipe_suggests_the_nearest_shipped_one():
    assert refusal("dsek").endswith("(did you mean desk?)")


def test_a_config_made_in_python_is_checked_too():
    with pytest.raises(BadSetting, match=r"rollout\.group_size"):
        Config(rollout=RolloutConfig(group_size=1))
    with pytest.raises(BadSetting, match=r"must divide train\.tasks_per_batch \(6\)"):
        Config(train=TrainConfig(tasks_per_batch=6, tasks_per_update=4))


def test_the_listing_has_every_section_and_every_key_with_help():
    listing = describe()
    for name, kind in get_type_hints(Config).items():
        assert f"\n[{name}]  {kind.__doc__}\n" in listing and not kind.__doc__.startswith(kind.__name__)
    for key in keys():
        assert key.help[0].isupper() and not key.help.endswith("."), key.name
        assert f"--{key.name} " in listing
    assert "--env.partial 0.0  (float, >= 0, < 1)" in listing
    assert '--loss.ratio "recompute"  (recompute | behaviour | truncated)' in listing


def test_each_of_several_held_out_sources_is_relative_to_the_recipe(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    text = '[tasks]\nheldout = "a.json, desk:test,desktop:heldout ,b.json"\n'
    located = [f"{tmp_path}/a.json", "desk:test", "osworld:heldout", f"{tmp_path}/b.json"]
    assert load_config(recipe(tmp_path, text)).tasks.heldout == ",".join(located)


def test_a_recipe_extends_another(tmp_path):
    (tmp_path / "parent.toml").write_text("[loss]\nkl = 0.1\nclip_low = 0.05\n[optim]\nlr = 1e-3\n", "utf-8")
    config = load_config(
        recipe(tmp_path, 'extends = "parent.toml"\n[loss]\nkl = 0.3\n'), ["--optim.lr", "2e-3"]
    )
    assert (config.loss.kl, config.loss.clip_low, config.optim.lr) == (0.3, 0.05, 2e-3)


def test_a_recipe_extends_a_shipped_one(tmp_path):
    config = load_config(recipe(tmp_path, 'extends = "desk"\n[replay]\nenabled = false\n'))
    assert config == replace(load_config("desk"), replay=replace(Config().replay, enabled=False))


def test_invalid_extends(tmp_path):
    path = recipe(tmp_path, 'extends = "mine.toml"\n')
    assert refusal(path) == f"{path}: extends: a recipe cannot extend itself, here through {path}"
    path = recipe(tmp_path, "extends = 3\n")
    assert refusal(path) == f"{path}: extends: is 3, must be the name or the file of a recipe"
    path = recipe(tmp_path, 'extends = "deks"\n')
    assert refusal(path).startswith(
        f"{path}: extends: deks: no such recipe: neither a file nor a shipped recipe"
    )
    assert refusal(path).endswith("(did you mean desk?)")
    path = recipe(tmp_path, f'extends = "../{tmp_path.name}/mine.toml"\n')
    again = f"{tmp_path}/../{tmp_path.name}/mine.toml"
    assert refusal(path) == f"{path}: extends: a recipe cannot extend itself, here through {again}"
    path = recipe(tmp_path, '[train]\nextends = "desk"\n')
    assert refusal(path) == f"{path}: train.extends: unknown key; put extends before the first section"


def test_an_error_names_the_extended_recipe_that_caused_it(tmp_path):
    parent = tmp_path / "parent.toml"
    parent.write_text("[loss]\nkl = -1\n", "utf-8")
    assert (
        refusal(recipe(tmp_path, 'extends = "parent.toml"\n')) == f"{parent}: loss.kl: is -1.0, must be >= 0"
    )


def test_a_program_is_found_here_or_in_the_projects_folder(tmp_path, monkeypatch):
    here, project = tmp_path / "here", tmp_path / "project"
    monkeypatch.setattr("arpo.config.recipe.PROJECT", project)
    for folder in (here / "bin", project / "bin"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert find_program("bin/tool") is None
    for folder in (project, here):
        (folder / "bin" / "tool").write_text("#!/bin/sh\n")
        (folder / "bin" / "tool").chmod(0o755)
        assert find_program("bin/tool") == str(folder / "bin" / "tool")
    assert find_program(str(project / "bin" / "tool")) == str(project / "bin" / "tool")
    assert find_program("sh") in ("/bin/sh", "/usr/bin/sh")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("run.threads=1000000000", "run.threads: is 1000000000, must be <= 1024"),
        ("env.parallel=1000000000", "env.parallel: is 1000000000, must be <= 4096"),
        ("rollout.group_size=100000", "rollout.group_size: is 100000, must be <= 1024"),
        ("rollout.max_steps=1000000000000", "rollout.max_steps: is 1000000000000, must be <= 10000"),
        ("train.tasks_per_batch=100000", "train.tasks_per_batch: is 100000, must be <= 65536"),
        ("optim.ranks=5000", "optim.ranks: is 5000, must be <= 1024"),
        ("eval.every=1000000001", "eval.every: is 1000000001, must be <= 1000000000"),
        ("env.step_seconds=1e300", "env.step_seconds: is 1e+300, must be <= 1000000000"),
        (f"run.seed={2**64}", f"run.seed: is {2**64}, must be <= 4294967295"),
        (f"run.seed={'9' * 5000}", f"run.seed: is '{'9' * 78}…, must be an integer"),
        (f"model.path={'x' * 200_000}", f"model.path: is '{'x' * 78}…, must have at most 100000 characters"),
    ],
    ids=lambda text: text[:30],
)
def test_absurd_values_are_refused_with_the_permitted_range(setting, reason):
    assert refusal(None, f"--{setting}") == f"command line: {reason}"


def test_every_integer_and_every_time_has_an_upper_limit():
    for key in keys():
        if key.type is int or key.name.endswith(("seconds", "minutes", "pause")):
            with pytest.raises(UserError, match=rf"{key.name}: is .*, must be <= \d+$"):
                load_config(None, [f"--{key.name}={10**12}"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[run]\nseed = " + "9" * 5000, "cannot be read as TOML: Exceeds the limit (4300 digits)"),
        ("[optim]\nlr = 1" + "0" * 400, "optim.lr: is inf, must be a finite number"),
        ("x = " + "[" * 100_000, "cannot be read as TOML: nested too deeply"),
        ("[run]\ndir = " + "{a=" * 150 + "1" + "}" * 150, "run.dir: is {'a': {'a': "),
        ("[run]\ndir = " + "[" * 200 + "]" * 200, "run.dir: is [[[["),
        ('[run]\ndir = "a\\u0000b"', "run.dir: is 'a\\x00b', must be text in UTF-8 without NUL"),
        ('[tasks]\ntrain = "\\u0000"', "tasks.train: is '\\x00', must be text in UTF-8 without NUL"),
        ('extends = "\\u0000"', "extends: "),
        ("[run]\n" + "x" * 1_000_000 + " = 1", "run." + "x" * 100),
        ("\x00", "cannot be read as TOML: "),
    ],
    ids=lambda text: text[:20],
)
def test_absurd_recipes_are_refused(tmp_path, text, reason):
    path = recipe(tmp_path, text)
    assert refusal(path).startswith(f"{path}: {reason}")


def test_a_long_chain_of_recipes_is_refused(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"', "utf-8")
    (tmp_path / "100.toml").write_text("", "utf-8")
    assert re.search(r"extends: more than 20 recipes extend each other", refusal(tmp_path / "0.toml"))


def test_a_batch_has_a_limit():
    words = ["--rollout.group_size=1024", "--train.tasks_per_batch=8192", "--train.tasks_per_update=8192"]
    assert "train.tasks_per_batch: is 8192 x 1024 episodes, must be <= 1000000" in refusal(None, *words)


@pytest.mark.parametrize(
    ("word", "meant"), [("false", False), ("False", False), ("true", True), ("True", True)]
)
def test_booleans_on_the_command_line_in_the_spelling_of_toml_and_python(word, meant):
    assert load_config("desk", [f"--replay.enabled={word}"]).replay.enabled is meant
    assert load_config("desk", ["--replay.enabled", word]).replay.enabled is meant
    assert "is 'no', must be true or false" in refusal("desk", "--replay.enabled=no")


def folders(tmp_path, monkeypatch):
    """A recipe folder with files, and another folder as the current one."""
    (tmp_path / "mine" / "tasks").mkdir(parents=True)
    (tmp_path / "mine" / "tasks" / "train.json").write_text("[]")
    (tmp_path / "mine" / "model").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_paths_in_a_recipe_are_relative_to_the_recipe(tmp_path, monkeypatch):
    folders(tmp_path, monkeypatch)
    text = '[tasks]\ntrain = "tasks/train.json"\nheldout = "missing.json"\n[model]\npath = "model"\n'
    text += 'prompt = "prompt.py:TEXT,language=English"\n[run]\ndir = "runs/mine"\n'
    text += '[replay]\nseeds = "taught"\n'
    (tmp_path / "mine" / "prompt.py").write_text("")
    path = recipe(tmp_path / "mine", text)
    config = load_config(path)
    assert config.tasks.train == str(tmp_path / "mine" / "tasks" / "train.json")
    assert config.tasks.heldout == str(tmp_path / "mine" / "missing.json")  # for the error message
    assert config.model.path == str(tmp_path / "mine" / "model")
    assert config.model.prompt == f"{tmp_path / 'mine' / 'prompt.py'}:TEXT,language=English"
    assert config.replay.seeds == str(tmp_path / "mine" / "taught")
    assert config.run.dir == "runs/mine"  # an output: relative to the current folder
    given = load_config("../mine/mine.toml", ["--tasks.train", "tasks/train.json"])
    assert given.tasks.train == "tasks/train.json"
    assert given.model.path == "../mine/model"
    monkeypatch.chdir(tmp_path / "mine")
    assert load_config("mine.toml").tasks.train == "tasks/train.json"


def test_names_in_a_recipe_are_no_paths(tmp_path, monkeypatch):
    folders(tmp_path, monkeypatch)
    for name in ("base", "desk", "off"):
        (tmp_path / "mine" / name).mkdir()
    text = '[tasks]\ntrain = "desk:128"\nheldout = ""\n[model]\npath = "base"\n[osworld]\nnetwork = "off"\n'
    config = load_config(recipe(tmp_path / "mine", text))
    assert (config.tasks.train, config.tasks.heldout) == ("desk:128", "")
    assert (config.model.path, config.model.prompt, config.osworld.network) == ("base", "auto", "off")


def test_a_path_that_exists_in_the_current_folder_only_is_found_there(tmp_path, monkeypatch):
    folders(tmp_path, monkeypatch)
    (tmp_path / "here" / "own.json").write_text("[]")
    path = recipe(tmp_path / "mine", '[tasks]\ntrain = "own.json"\n[model]\npath = "ORG/NAME"\n')
    assert (load_config(path).tasks.train, load_config(path).model.path) == ("own.json", "ORG/NAME")


def test_paths_of_an_extended_recipe_are_relative_to_that_recipe(tmp_path, monkeypatch):
    folders(tmp_path, monkeypatch)
    recipe(tmp_path / "mine", '[tasks]\ntrain = "tasks/train.json"\n')
    path = recipe(tmp_path, 'extends = "mine/mine.toml"\n')
    assert load_config(path).tasks.train == str(tmp_path / "mine" / "tasks" / "train.json")


def test_the_recipe_of_a_run_keeps_its_paths(tmp_path, monkeypatch):
    folders(tmp_path, monkeypatch)
    config = load_config("desk", ["--model.path", "model", "--tasks.train", "gone.json"])
    stored = tmp_path / "mine" / "recipe.toml"
    stored.write_text(to_toml(config))
    assert load_config(stored) == config
    stored.write_text(to_toml(config).replace('paths = "current folder"', ""))  # of an earlier version
    (tmp_path / "mine" / "metrics.jsonl").write_text("")
    assert load_config(stored) == config


def test_the_folder_of_paths_has_two_names(tmp_path):
    path = recipe(tmp_path, 'paths = "here"\n')
    assert refusal(path) == f'{path}: paths: is \'here\', must be "recipe" or "current folder"'


def test_two_paths_of_one_file_are_no_change(tmp_path, monkeypatch):
    folders(tmp_path, monkeypatch)
    one = load_config("desk", ["--tasks.train", "../mine/tasks/train.json", "--model.path", "a"])
    other = load_config("desk", ["--tasks.train", f"{tmp_path}/mine/tasks/train.json", "--model.path", "b"])
    assert changed(one, other) == ["model.path"]


def test_token_statistics_belong_to_online_training():
    with pytest.raises(
        UserError, match=r"store\.token_stats: is true, must be false with train\.method = rft"
    ):
        load_config("desk", ["--store.token_stats=true", "--train.method=rft", "--loss.kl=0"])


def test_the_recipe_of_an_earlier_version_keeps_what_this_version_knows():
    text = to_toml(Config()).replace("[loss]", "[loss]\ndual_clip = 3.0\nkl = 0.5", 1)
    text = text.replace("\nkl = 0.0", "", 1).replace('curriculum = "none"', 'curriculum = "hardest"')
    config, refused = parse_recorded(text + "[pretraining]\nsteps = 3\n")
    assert refused == ["train.curriculum", "loss.dual_clip", "pretraining.steps"]
    assert (config.loss.kl, config.train.curriculum) == (0.5, "none")
    with pytest.raises(UserError, match=r"loss\.clip_low"):
        parse_recorded("[loss]\nclip_low = 7.0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[screen]\ncount = 32\n",
            "screen.count: is an option now: remove it, and use --count of arpo screen",
        ),
        ("[model]\nlora_alpha = 64.0\n", "model.lora_alpha: is always 64.0 now: remove it"),
    ],
)
def test_a_removed_key_says_what_to_do_instead(tmp_path, text, reason):
    path = recipe(tmp_path, text)
    assert refusal(path) == f"{path}: {reason}"
    name = reason.partition(":")[0]
    assert refusal(None, f"--{name}", "1") == f"command line: {reason}"


def test_a_recorded_key_that_was_removed_counts_only_if_its_meaning_changed():
    text = "[screen]\ncount = 32\n[offline]\nbeta = 0.1\n[model]\nlora_alpha = 8.0\n"
    assert parse_recorded(text) == (Config(), ["model.lora_alpha"])


def test_the_adapters_of_a_run_with_another_scale_are_refused(tmp_path):
    for train in ("all", "lora"):
        path = recipe(tmp_path, f'[model]\ntrain = "{train}"\nlora_alpha = 8.0\n')
        if train == "all":
            assert load_recorded_model(path) == Config()
        else:
            with pytest.raises(UserError, match=r"model\.lora_alpha: is always 64\.0 now: .* another scale"):
                load_recorded_model(path)
