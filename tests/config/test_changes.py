"""Settings on resume: every one may change, or has a reason why not. Changes are noted with their batch."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from arpo.config import Config
from arpo.config.changes import (
    ON_RESUME,
    REASONS,
    Change,
    add_changes,
    describe_refusals,
    find_changes,
    reason,
)
from arpo.config.recipe import Key, changed, keys, load_config, value
from arpo.config.settings import OnResume
from arpo.errors import UserError

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes.md"
BASE = load_config("desk", {"train.max_staleness": 2})
FIXED = sorted(name for name, allowed in ON_RESUME.items() if allowed is OnResume.FIXED)
# Values and companions of keys for which no simple other value is valid.
OTHERS: Mapping[str, tuple[Mapping[str, object], object]] = {
    "cluster.hosts": ({"cluster.ray": "auto"}, 2),
    "loss.teacher": ({"replay.seeds": "taught"}, 0.1),
    "train.method": ({"train.max_staleness": 0, "loss.kl": 0}, "rft"),
    "train.dynamic_sampling": ({"train.max_staleness": 0, "replay.enabled": False}, True),
}


def changed_value(key: Key) -> tuple[Config, Config]:
    """Two configs that differ in this key."""
    companions, other = OTHERS.get(key.name, ({}, None))
    recorded = load_config(BASE, companions)
    own = value(recorded, key.name)
    if other is not None:
        return recorded, load_config(recorded, {key.name: other})
    if isinstance(own, bool):
        return recorded, load_config(recorded, {key.name: not own})
    if isinstance(own, str):
        literals = [text for text in key.type_name.split(" | ") if text != own and " | " in key.type_name]
        return recorded, load_config(recorded, {key.name: (literals or [f"{own}-other"])[0]})
    for number in (own - 1, own + 1, own * 2, own / 2, 0.5):
        with suppress(UserError):
            config = load_config(recorded, {key.name: type(own)(number)})
            if config != recorded:
                return recorded, config
    raise AssertionError(f"{key.name}: no other value is valid")


def test_every_setting_may_change_or_has_a_reason() -> None:
    for key in keys():
        recorded, config = changed_value(key)
        assert changed(recorded, config) == [key.name]
        refused = describe_refusals(recorded, config)
        if key.on_resume is OnResume.FIXED:
            assert f"{key.name} = " in refused and reason(key.name) in refused
        else:
            assert not refused


def test_the_page_names_exactly_the_settings_that_may_change() -> None:
    section = RECIPES.read_text("utf-8").partition("## Resume a run")[2].partition("\n## ")[0]
    listed = section[section.index("\n- ") : section.rindex("\n\n")]
    whole = {f"{name}." for name in re.findall(r"`\[(\w+)\]`", listed)}
    named = set(re.findall(r"`(\w+\.\w+)`", listed))
    meant = named | {name for name in ON_RESUME if name.startswith(tuple(whole))}
    assert meant == ON_RESUME.keys() - FIXED


# Advice to resume with another value, or to change one while the run goes on.
ADVISED = {
    "docs/cluster.md": ("env.parallel", "store.checkpoint_every", "optim.ranks"),
    "docs/recipes.md": ("optim.tokens_per_microbatch", "env.attempts", "env.quarantine_after"),
    "docs/tutorial.md": ("train.epochs",),
    "src/arpo/cli/entry_point.py": ("env.parallel",),
    "src/arpo/cluster/nodes.py": ("cluster.wait_seconds",),
    "src/arpo/cluster/ranks.py": ("model.device",),
    "src/arpo/models/memory_plan.py": ("engine.cache_gigabytes",),
    "src/arpo/reporting/metrics.py": ("train.max_staleness",),
    "src/arpo/reporting/tracking.py": ("store.wandb_project",),
    "src/arpo/training/trainer.py": ("train.engine_kl_skip",),
}


def test_settings_that_a_text_advises_to_change_may_change() -> None:
    for path, advised in ADVISED.items():
        text = (ROOT / path).read_text("utf-8")
        assert [key for key in advised if key not in text or key in FIXED] == []


def test_every_reason_is_used() -> None:
    refusable = [name for name in ON_RESUME if ON_RESUME[name] not in (OnResume.FREE, OnResume.REMEDY)]
    used = {name if name in REASONS else name.partition(".")[0] for name in refusable}
    assert used == REASONS.keys()


def test_staleness_may_only_fall() -> None:
    lower, higher = (load_config(BASE, {"train.max_staleness": number}) for number in (0, 3))
    assert not describe_refusals(BASE, lower)
    assert "train.max_staleness = 2 (it may only be lowered" in describe_refusals(BASE, higher)


def test_the_length_is_fixed_if_the_learning_rate_decays() -> None:
    decaying = load_config(BASE, {"optim.schedule": "linear"})
    assert "train.epochs" in describe_refusals(decaying, load_config(decaying, {"train.epochs": 99}))


def test_a_judge_must_stay() -> None:
    assert not describe_refusals(BASE, load_config(BASE, {"server.model": "other"}))
    judged = load_config(BASE, {"reward.judge": 0.5, "server.model": "mine"})
    refused = describe_refusals(judged, load_config(judged, {"server.model": "other"}))
    assert refused == 'server.model = "mine" (another judge would score the rest of the run (reward.judge))'


def test_settings_with_the_same_reason_are_named_together() -> None:
    config = load_config(BASE, {"loss.clip_low": 0.1, "loss.clip_high": 0.4, "optim.lr": 0.5})
    refused = describe_refusals(BASE, config)
    assert refused.count("objective") == 1 and "optim.lr = 0.0001 (" in refused
    assert not describe_refusals(BASE, config, ("loss.", "optim."))


def test_changes_are_found_with_their_values() -> None:
    config = load_config(BASE, {"env.parallel": 8, "engine.gpus": "1-7", "run.dir": "moved"})
    assert find_changes(BASE, config, 6) == [
        Change(batch=6, key="env.parallel", before="32", after="8"),
        Change(batch=6, key="engine.gpus", before='""', after='"1-7"'),
    ]


def change(batch: int, before: str, after: str, key: str = "env.parallel") -> Change:
    return Change(batch=batch, key=key, before=before, after=after)


def test_changes_of_batches_that_are_trained_again_apply_from_the_first_of_them() -> None:
    noted = [change(3, "32", "16"), change(6, "16", "8")]
    assert add_changes(noted, [change(9, "8", "4")], 9) == [*noted, change(9, "8", "4")]
    assert add_changes(noted, [change(5, "8", "4")], 5) == [change(3, "32", "16"), change(5, "16", "4")]
    assert add_changes(noted, [change(6, "8", "16")], 6) == [change(3, "32", "16")]  # taken back
    assert add_changes(noted, [], 2) == [change(2, "32", "8")]
