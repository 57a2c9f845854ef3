from dataclasses import replace

import pytest

from arpo.config import BadSetting, Config, LossConfig, RolloutConfig, TrainConfig
from arpo.errors import UserError
from arpo.recipe import describe, keys, load_config, shipped_recipes, to_toml


def refusal(recipe, *overrides):
    with pytest.raises(UserError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


def recipe(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    return path


def test_no_recipe_is_all_defaults():
    assert load_config() == Config()


def test_a_recipe_then_the_overrides(tmp_path):
    path = recipe(tmp_path, "[loss]\nclip_low = 0.05\nkl = 1\n[replay]\nenabled = true\n")
    config = load_config(path, ["--loss.clip_low", "0.1", "--replay.enabled=false", "--run.dir", "a=b"])
    assert config.loss == replace(LossConfig(), clip_low=0.1, kl=1.0)
    assert type(config.loss.kl) is float
    assert config.replay.enabled is False
    assert config.run.dir == "a=b"


def test_a_negative_number_is_a_value():
    assert "loss.kl: is -1.0, must be >= 0" in refusal(None, "--loss.kl", "-1")


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_valid_and_round_trip(name, tmp_path):
    config = load_config(name)
    assert load_config(recipe(tmp_path, to_toml(config))) == config


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith("ablations/")])
def test_an_ablation_is_the_published_method_but_for_one_setting(name):
    paper, ablation = to_toml(load_config("paper")), to_toml(load_config(name))
    assert len(set(ablation.splitlines()) - set(paper.splitlines())) == 1


def test_the_published_run():
    config = load_config("osworld_full")
    assert (config.env.parallel, config.rollout.group_size, config.train.epochs) == (256, 8, 15)
    assert config.train.tasks_per_batch // config.train.tasks_per_update == 4
    assert (config.optim.lr, config.rollout.max_context_tokens) == (1e-6, 65536)


def test_hostile_text_round_trips(tmp_path):
    text = 'a "quoted" \\ tab\t newline\n del\x7f nul\x00 é 🂡 # [loss]'
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
    ],
)
def test_an_unknown_key_gets_the_nearest_name(word, suggestion):
    message = refusal(None, word, "1")
    assert message == f"command line: {word[2:]}: no such key (did you mean {suggestion}?)"


def test_refusals_name_the_file_and_the_key(tmp_path):
    path = recipe(tmp_path, "[loss]\nclip_lo = 0.1\n")
    assert refusal(path) == f"{path}: loss.clip_lo: no such key (did you mean loss.clip_low?)"
    path = recipe(tmp_path, "[los]\nclip_low = 0.1\n")
    assert refusal(path) == f"{path}: los: no such section (did you mean loss?)"
    path = recipe(tmp_path, "loss = 3\n")
    assert refusal(path) == f"{path}: loss: must be a table, [loss], with keys in it"
    path = recipe(tmp_path, "[rollout]\ngroup_size = 1\n")
    assert refusal(path) == f"{path}: rollout.group_size: is 1, must be >= 2"
    path = recipe(tmp_path, "[loss\n")
    assert refusal(path).startswith(f"{path}: cannot be read as TOML: ") and "line 1" in refusal(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('[loss]\nclip_low = "0.1"', "loss.clip_low: is '0.1', must be a number"),
        ("[run]\nseed = 1.5", "run.seed: is 1.5, must be a whole number"),
        ("[run]\nseed = true", "run.seed: is True, must be a whole number"),
        ("[replay]\nenabled = 1", "replay.enabled: is 1, must be true or false"),
        ("[run]\ndir = 3", "run.dir: is 3, must be a text"),
        ('[run]\ndir = ""', "run.dir: is empty, must name the folder that the run writes into"),
        ("[run.dir]\nx = 3", "run.dir: is {'x': 3}, must be a text"),
        ("[optim]\nlr = inf", "optim.lr: is inf, must be a finite number"),
        ("[loss]\nclip_low = 1", "loss.clip_low: is 1.0, must be < 1"),
        ("[optim]\nlr = 0", "optim.lr: is 0.0, must be > 0"),
        ("[replay]\nthreshold = 1.5", "replay.threshold: is 1.5, must be <= 1"),
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


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["--train.tasks_per_batch", "32", "--train.tasks_per_update", "5"], "train.tasks_per_update"),
        (["--train.tasks_per_batch", "8", "--train.tasks_per_update", "16"], "train.tasks_per_update"),
        (["--tasks.heldout", "desk:32", "--tasks.train", "desk:32"], "tasks.heldout"),
        (["--env.partial", "0.6"], "env.partial"),
        (["--env.partial", "0.1", "--env.name", "osworld"], "env.partial"),
        (["--model.min_pixels", "5000", "--model.max_pixels", "4000"], "model.min_pixels"),
        (["--rollout.max_answer_tokens", "4096"], "rollout.max_answer_tokens"),
        (["--train.dynamic_sampling", "true", "--replay.enabled", "true"], "train.dynamic_sampling"),
    ],
)
def test_impossible_combinations(overrides, key):
    assert refusal(None, *overrides).startswith(f"command line: {key}: ")


def test_the_command_line_is_refused_where_it_is_wrong():
    assert refusal(None, "--run.seed") == "command line: --run.seed needs a value (int)"
    assert "write --section.key value" in refusal(None, "seed")
    assert refusal(None, "--replay.enabled", "yes").endswith("must be true or false")


def test_an_unknown_recipe_names_the_nearest_shipped_one():
    assert refusal("dsek").endswith("(did you mean desk?)")


def test_a_tree_made_in_python_is_checked_too():
    with pytest.raises(BadSetting, match=r"rollout\.group_size"):
        Config(rollout=RolloutConfig(group_size=1))
    with pytest.raises(BadSetting, match=r"must divide train\.tasks_per_batch \(6\)"):
        Config(train=TrainConfig(tasks_per_batch=6, tasks_per_update=4))


def test_every_key_has_help_and_is_listed():
    listing = describe()
    for key in keys():
        assert key.help, key.name
        assert f"--{key.name} " in listing
    assert '--loss.ratio "recompute"  (recompute | behaviour | truncated)' in listing


def test_a_recipe_stands_on_another(tmp_path):
    (tmp_path / "under.toml").write_text("[loss]\nkl = 0.1\nclip_low = 0.05\n[optim]\nlr = 1e-3\n", "utf-8")
    config = load_config(
        recipe(tmp_path, 'extends = "under.toml"\n[loss]\nkl = 0.3\n'), ["--optim.lr", "2e-3"]
    )
    assert (config.loss.kl, config.loss.clip_low, config.optim.lr) == (0.3, 0.05, 2e-3)


def test_a_recipe_stands_on_a_shipped_one(tmp_path):
    config = load_config(recipe(tmp_path, 'extends = "desk"\n[replay]\nenabled = false\n'))
    assert config == replace(load_config("desk"), replay=replace(Config().replay, enabled=False))


def test_what_a_recipe_cannot_stand_on(tmp_path):
    path = recipe(tmp_path, 'extends = "mine.toml"\n')
    assert refusal(path) == f"{path}: extends: leads back to {path}: a recipe cannot stand on itself"
    path = recipe(tmp_path, "extends = 3\n")
    assert refusal(path) == f"{path}: extends: is 3, must be the name of a recipe, or its file"
    path = recipe(tmp_path, 'extends = "deks"\n')
    assert refusal(path).startswith(f"{path}: extends: deks: no such recipe file")
    assert refusal(path).endswith("(did you mean desk?)")
    path = recipe(tmp_path, f'extends = "../{tmp_path.name}/mine.toml"\n')
    again = f"{tmp_path}/../{tmp_path.name}/mine.toml"
    assert refusal(path) == f"{path}: extends: leads back to {again}: a recipe cannot stand on itself"
    path = recipe(tmp_path, '[train]\nextends = "desk"\n')
    assert refusal(path) == f"{path}: train.extends: no such key: put extends before the first section"


def test_a_refusal_names_the_recipe_that_said_it(tmp_path):
    under = tmp_path / "under.toml"
    under.write_text("[loss]\nkl = -1\n", "utf-8")
    assert refusal(recipe(tmp_path, 'extends = "under.toml"\n')) == f"{under}: loss.kl: is -1.0, must be >= 0"
