"""An interrupted `arpo eval` plays only the missing episodes. Its result is that of an uninterrupted one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kill_at import Ended, arpo

pytestmark = pytest.mark.slow

SETTINGS = """
    --rollout.max_steps 3 --eval.rollouts 3 --eval.heldout_rollouts 1 --run.threads 1 --env.parallel 4
    --tasks.ids pool-001,pool-010,pool-013,heldout-001,heldout-006
    --tasks.train desk:pool
"""
EPISODES = 3 * 3 + 2


def measure(out: Path, *more: str, at: str = "", signals: tuple[int, ...] = (signal.SIGKILL,)) -> Ended:
    words = ("eval", *SETTINGS.split(), "--out", str(out), *more)
    return arpo(out.with_suffix(".log"), *words, at=at, signals=signals, starts=out.with_suffix(".starts"))


def starts(out: Path) -> int:
    """Environments started since the last call."""
    path = out.with_suffix(".starts")
    count = len(path.read_text().splitlines()) if path.is_file() else 0
    path.unlink(missing_ok=True)
    return count


def stored(out: Path) -> list[str]:
    lines = (out.with_name(f"{out.name}.episodes") / "trajectories.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["episode_id"] for line in lines]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference") / "scores.json"
    assert measure(out).code == 0
    assert starts(out) == EPISODES
    assert not out.with_name("scores.json.episodes").exists()
    return out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_evaluation_plays_only_the_missing_episodes(
    reference: Path, tmp_path: Path, number: int
) -> None:
    out = tmp_path / "scores.json"
    stopped = measure(out, at="after 5 episodes of eval", signals=(number,))
    if number == signal.SIGINT:
        assert stopped.code == 130
        *_, message, last = stopped.output.splitlines()
        assert message.startswith("stopping: finished episodes are stored; closing the environments, ")
        assert last == "arpo: interrupted; to resume, run the same command again"
    else:
        assert stopped.code == -signal.SIGKILL
    assert starts(out) >= 5 and not out.exists()
    kept = stored(out)
    assert 5 <= len(kept) < EPISODES
    ended = measure(out)
    assert ended.code == 0, ended.output
    assert "evaluating, train tasks: 9 episodes, " in ended.output and "already done" in ended.output
    assert starts(out) == EPISODES - len(kept)
    assert out.read_bytes() == reference.read_bytes()
    assert not out.with_name("scores.json.episodes").exists()


def test_episodes_of_another_evaluation_are_refused_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    assert measure(out, at="after 5 episodes of eval").code == -signal.SIGKILL
    kept = stored(out)
    refused = measure(out, "--eval.temperature", "0.9")
    assert refused.code == 2
    assert (
        f"{out}.episodes: has the episodes of an interrupted evaluation with another model, other tasks or "
        "other settings. Remove it, or choose another --out" in refused.output
    )
    assert stored(out) == kept
    starts(out)
    assert measure(out, "--env.parallel", "2").code == 0  # without effect on the episodes
    assert starts(out) == EPISODES - len(kept)


def test_damaged_episodes_are_played_again(reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    assert measure(out, at="after 5 episodes of eval").code == -signal.SIGKILL
    (tmp_path / "scores.json.episodes" / "screenshots.pack").write_bytes(b"")
    starts(out)
    assert measure(out).code == 0
    assert starts(out) == EPISODES and out.read_bytes() == reference.read_bytes()
