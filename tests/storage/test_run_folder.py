import io
import json
import math
import os
import subprocess
import sys
import zlib
from contextlib import closing, suppress

import numpy as np
import pytest
from PIL import Image

from arpo import actions as act
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import UserError
from arpo.storage.codec import ids_from_json, ids_to_json
from arpo.storage.run_folder import (
    LOGS,
    PACK,
    TRAJECTORIES,
    RunFolder,
    RunFolderReader,
    read_log,
    read_summary,
)
from arpo.storage.screenshots import HEADER, MAGIC, NO_BASE, PATCH, PNG, ScreenshotPack
from arpo.types import Failure, Screenshot, StopReason
from stored_episodes import ALL_ACTIONS, desktop, episode, pixels_of, png, small, turn

RESCUE = {"index": 1, "replaced_episode": "a", "stored_episode": "b", "age": 3}
GROUP = {
    "step": 1, "group": "batch-1-0", "task": "t", "version": 0, "episodes": ["batch-1-0-0", "b"],
    "versions": [0, 0], "rewards": [0.0, 1.0], "advantages": [-1.0, 1.0], "rescues": [RESCUE],
}  # fmt: skip


def contents(folder):
    return {name: (folder / name).read_bytes() for name in (*LOGS, PACK)}


def test_every_action_round_trips():
    assert {type(action) for action in ALL_ACTIONS} == set(act.Action.__args__)
    for action in ALL_ACTIONS:
        assert act.action_from_json(json.loads(json.dumps(act.action_to_json(action)))) == action


def test_an_unknown_action_is_refused():
    with pytest.raises(ValueError, match="unknown action"):
        act.action_from_json({"do": "Point", "x": 1, "y": 2})


def test_runs_of_token_ids_are_written_once():
    assert ids_to_json((5, 7, 7, 7, 7, 9, 9)) == [5, [7, 4], 9, 9]
    assert ids_from_json([5, [7, 4], 9, 9]) == (5, 7, 7, 7, 7, 9, 9)
    assert ids_from_json(ids_to_json(())) == ()


def test_a_trajectory_round_trips_exactly(tmp_path):
    shots = [small(number) for number in range(4)]
    turns = (
        turn(shots[0], images=(), actions=ALL_ACTIONS),
        turn(shots[1], restart=False, images=(shots[0], shots[1])),
        turn(shots[2], actions=(), error="no Action: in the answer"),
    )
    trajectory = episode('e"1', shots, turns=turns, score=0.25, malformed=True, stop=StopReason.PARSE_ERROR)
    store = RunFolder(tmp_path)
    store.add_trajectory(trajectory)
    assert store.load_trajectory('e"1') == trajectory
    store.close()
    again = RunFolderReader(tmp_path)
    assert again.episode_ids() == ['e"1']
    assert again.load_trajectory('e"1') == trajectory


def test_a_screenshot_is_stored_once(tmp_path):
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", [small(1), small(2), small(1)]))
    size = store.offsets()[PACK]
    store.add_trajectory(episode("b", [small(2), small(1), small(2)]))
    assert store.offsets()[PACK] == size


@pytest.mark.slow
def test_large_screenshots_are_stored_as_lossless_patches(tmp_path):
    shots = [desktop(0), *[desktop(0, window=shade) for shade in range(0, 250, 10)]]
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", shots))
    whole = len(shots[0].png)
    assert store.offsets()[PACK] < 2.5 * whole  # 26 screenshots; two whole, for no chain is longer than 15
    loaded = store.load_trajectory("a")
    for got, wanted in zip(loaded.turns, shots[:-1], strict=True):
        assert got.screenshot.sha256 == wanted.sha256
        assert np.array_equal(pixels_of(got.screenshot), pixels_of(wanted))
    assert np.array_equal(pixels_of(loaded.final), pixels_of(shots[-1]))


def test_large_screenshots_that_are_not_rgb_are_stored_unchanged(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (200, 300, 4), np.uint8)
    shots = [Screenshot.of(png(noise, mode)) for mode in ("RGBA", "L", "RGBA")]
    other_size = desktop(2)
    store = RunFolder(tmp_path)
    trajectory = episode("a", [*shots[:2], other_size, shots[2]])
    store.add_trajectory(trajectory)
    loaded = store.load_trajectory("a")
    assert [t.screenshot.png for t in loaded.turns[:2]] == [shot.png for shot in shots[:2]]
    assert np.array_equal(pixels_of(loaded.turns[2].screenshot), pixels_of(other_size))


def run_to(store, steps):
    for step in steps:
        store.add_trajectory(episode(f"e{step}", [desktop(step), desktop(step, window=9), small(step)]))
        store.log_metrics(step, {"loss": step / 3})
        store.log_timing(step, {"seconds": 0.5})
        store.add_failure(failure(step))


def failure(step):
    return Failure(
        episode_id=f"f{step}", task_id="t", kind="EnvTimeout", where="step", message="late", attempts=3
    )


@pytest.mark.slow
def test_a_rewound_run_leaves_the_same_files_as_an_uninterrupted_one(tmp_path):
    calm = RunFolder(tmp_path / "calm")
    run_to(calm, range(4))
    calm.close()

    killed = RunFolder(tmp_path / "killed")
    run_to(killed, range(2))
    offsets = json.loads(json.dumps(killed.offsets()))
    run_to(killed, range(2, 3))
    killed.close()
    for name in (*LOGS, PACK):  # the kill came in the middle of a write
        with (tmp_path / "killed" / name).open("ab") as file:
            file.write(b"SHOT torn")
    resumed = RunFolder(tmp_path / "killed")
    resumed.rewind(offsets)
    assert resumed.episode_ids() == ["e0", "e1"]
    run_to(resumed, range(2, 4))
    assert resumed.load_trajectory("e3").final == small(3)
    resumed.close()
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")


def test_rewinding_to_empty(tmp_path):
    store = RunFolder(tmp_path)
    run_to(store, range(2))
    store.rewind({})
    assert all(content == b"" for content in contents(tmp_path).values())
    run_to(store, range(2))
    assert store.episode_ids() == ["e0", "e1"]


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_truncated_pack_keeps_its_complete_records(tmp_path, cut):
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", [small(1), small(2)]))
    kept = store.offsets()
    store.add_trajectory(episode("b", [small(3), small(4)]))
    store.close()
    os.truncate(tmp_path / PACK, max(kept[PACK], (tmp_path / PACK).stat().st_size - cut))
    again = RunFolder(tmp_path)
    again.rewind(kept)
    assert again.load_trajectory("a").final == small(2)
    again.add_trajectory(episode("b", [small(3), small(4)]))
    assert again.load_trajectory("b").final == small(4)
    again.close()


def test_files_shorter_than_in_the_checkpoint_are_refused(tmp_path):
    store = RunFolder(tmp_path)
    run_to(store, range(1))
    offsets = store.offsets()
    store.close()
    for name in (PACK, TRAJECTORIES):
        whole = (tmp_path / name).read_bytes()
        os.truncate(tmp_path / name, len(whole) - 1)
        broken = RunFolder(tmp_path)
        with pytest.raises(
            UserError, match=f"{name}: .*: restore the file, or start a run in another run.dir"
        ):
            broken.rewind(offsets)
        broken.close()
        (tmp_path / name).write_bytes(whole)


def test_a_flipped_bit_is_detected(tmp_path):
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", [small(1), small(2)]))
    store.close()
    damaged = bytearray((tmp_path / PACK).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / PACK).write_bytes(damaged)
    with pytest.raises(UserError, match=r"at byte \d+ is damaged: restore the file, or remove the run"):
        RunFolderReader(tmp_path).load_trajectory("a")


def test_a_flipped_bit_of_a_header_is_detected(tmp_path):
    """Also in the field of the base, which a PNG does not have."""
    with closing(RunFolder(tmp_path)) as store:
        store.add_trajectory(episode("a", [small(1), small(2)]))
        offsets = store.offsets()
    whole = (tmp_path / PACK).read_bytes()
    for byte in range(HEADER.size):
        damaged = bytearray(whole)
        damaged[byte] ^= 1
        (tmp_path / PACK).write_bytes(damaged)
        with (
            closing(RunFolderReader(tmp_path)) as reader,
            pytest.raises(UserError, match=r"screenshots\.pack: .*damaged"),
        ):
            reader.load_outline("a")
        in_base = 37 <= byte < 69
        with (
            closing(RunFolder(tmp_path)) as store,
            pytest.raises(UserError) if in_base else suppress(UserError),
        ):
            store.rewind(offsets)
        assert (tmp_path / PACK).read_bytes() == damaged


def test_pruning_keeps_named_screenshots_and_their_bases(tmp_path):
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", [desktop(0), desktop(0, window=1)]))
    store.add_trajectory(episode("b", [desktop(0, window=1), desktop(0, window=2), small(5)]))
    store.add_trajectory(episode("c", [desktop(3), small(6)]))
    kept = store.offsets()
    used = (tmp_path / PACK).stat().st_blocks
    store.prune(["b"])
    store.offsets()  # waits for it
    assert np.array_equal(
        pixels_of(store.load_trajectory("b").turns[1].screenshot), pixels_of(desktop(0, window=2))
    )
    assert (tmp_path / PACK).stat().st_blocks < used
    with pytest.raises(UserError, match="contains no screenshot"):
        store.load_trajectory("c")
    store.add_trajectory(episode("d", [desktop(3), small(6)]))
    assert store.load_trajectory("d").final == small(6)
    store.rewind(kept)
    assert store.offsets() == kept
    assert store.load_trajectory("b").final == small(5)
    store.close()


def test_one_writer_and_several_readers(tmp_path):
    store = RunFolder(tmp_path)
    run_to(store, range(1))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from arpo.storage.run_folder import RunFolder, RunFolderReader\n"
        "assert RunFolderReader(Path(sys.argv[1])).episode_ids() == ['e0']\n"
        "RunFolder(Path(sys.argv[1]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "another process is writing this run" in other.stderr
    store.close()
    RunFolder(tmp_path).close()


def test_a_reader_needs_a_run_folder(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        RunFolderReader(tmp_path)


def test_metrics_recipe_and_summary(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    store.log_metrics(1, {"loss": 0.1 + 0.2, "entropy": math.nan})
    store.add_failure(failure(0))
    evaluation = {"step": 2, "episodes": 8, "landmark": "", "sets": {"train": {"a": [1.0, 0.5]}}}
    store.log_evaluation(evaluation)
    assert list(store.read_log("evaluations.jsonl")) == [evaluation]
    assert store.read_summary() == {}
    store.write_summary({"success": {"base": {"train": 0.25, "heldout": math.nan}}})
    assert load_config(tmp_path / "recipe.toml") == Config()
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"step":1,"loss":0.30000000000000004,"entropy":null}\n'
    assert [record["kind"] for record in store.read_log("failures.jsonl")] == ["EnvTimeout"]
    assert store.read_summary() == {"success": {"base": {"train": 0.25, "heldout": None}}}


def test_opening_changes_nothing(tmp_path):
    """A file may be damaged. Its remains are needed to restore it."""
    store = RunFolder(tmp_path)
    run_to(store, range(2))
    store.close()
    for name in (*LOGS, PACK):
        path = tmp_path / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"!") + b"torn")
    (tmp_path / TRAJECTORIES).write_bytes(b"")
    before = contents(tmp_path)
    RunFolder(tmp_path).close()
    assert contents(tmp_path) == before


def test_a_file_with_other_lines_than_at_the_checkpoint_is_refused_and_kept(tmp_path):
    store = RunFolder(tmp_path)
    run_to(store, range(2))
    offsets = store.offsets()
    run_to(store, range(2, 4))
    store.close()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":-1}\n' + path.read_bytes())
    before, broken = contents(tmp_path), RunFolder(tmp_path)
    with pytest.raises(
        UserError, match=r"metrics\.jsonl: damaged, no line ends at byte \d+, its size in the ch"
    ):
        broken.rewind(offsets)
    broken.close()
    assert contents(tmp_path) == before


DEEP = "[" * 100_000
WRONG = {
    "score": ['"1"', "null", "true", "NaN", "1.5", "1" + "0" * 400, "9" * 5000, DEEP],
    "task_id": ["3", "null", "{}"],
    "malformed": ["0", '"false"'],
    "stop": ['"unknown"', "[]"],
    "final": ['"' + "0" * 64 + '"', "null", "[]"],
    "turns": ["[]", "3", '"abc"', "[[]]", "[{}]", '[{"completion": 3}]'],
}
WRONG_IN_TURN = {
    "context": ['"12"', '["a"]', "[[1, 1000000000000]]", "[[1]]", "[1.5]", "3", "[true]"],
    "images": ["[3]", "null"],
    "restart": ["1"],
    "completion": ["null", '{"text": ""}'],
    "actions": [
        '[{"do": "Point", "x": 1, "y": 2}]',
        '[{"do": "Click", "point": {"x": "1", "y": 2}}]',
        "[{}]",
    ],
    "error": ["null", "3"],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for fields in (WRONG, WRONG_IN_TURN) for key, values in fields.items() for value in values],
    ids=lambda text: text[:20],
)
def test_a_wrong_value_in_an_episode_names_the_file_and_the_episode(tmp_path, key, value):
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", [small(1), small(2)]))
    store.close()
    path = tmp_path / TRAJECTORIES
    record = json.loads(path.read_text())
    (record if key in WRONG else record["turns"][0])[key] = "HERE"
    path.write_text(json.dumps(record, separators=(",", ":")).replace('"HERE"', value) + "\n")
    with pytest.raises(
        UserError,
        match=r"trajectories\.jsonl: .*damaged, .*: restore the file, or remove the run|"
        r"screenshots\.pack: damaged, contains no screenshot",
    ):
        RunFolderReader(tmp_path).load_trajectory("a")


@pytest.mark.parametrize(
    "line", [b"\xff\xfe", b"{}", b'{"episode_id":[],"task_id":"t"}', b'{"episode_id":"a']
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path, line):
    store = RunFolder(tmp_path)
    run_to(store, range(1))
    store.close()
    with (tmp_path / TRAJECTORIES).open("ab") as file:
        file.write(line + b'\n{"torn')
    with pytest.raises(UserError, match=r"trajectories\.jsonl: byte \d+: damaged, .*: restore the file"):
        RunFolderReader(tmp_path)


def test_a_damaged_failure_is_named(tmp_path):
    store = RunFolder(tmp_path)
    store.add_failure(failure(0))
    store.close()
    assert [one.message for one in RunFolderReader(tmp_path).failures()] == ["late"]
    for line in ("{}", '{"episode_id": 3}', json.dumps({**vars_of(failure(0)), "task_id": 3})):
        (tmp_path / "failures.jsonl").write_text(line + "\n")
        with pytest.raises(UserError, match=r"failures\.jsonl: line 1: damaged"):
            list(RunFolderReader(tmp_path).failures())


def vars_of(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def write_pack(folder, *records):
    """A run with one episode and a pack with the given records: (kind, name, base, payload)."""
    RunFolder(folder).close()
    packed = [
        HEADER.pack(MAGIC, kind, name, base, len(payload), zlib.crc32(payload)) + payload
        for kind, name, base, payload in records
    ]
    (folder / PACK).write_bytes(b"".join(packed))


def webp(width, height):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "WEBP", lossless=True, method=0, quality=0)
    return buffer.getvalue()


ONE, TWO = b"\1" * 32, b"\2" * 32


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (PNG, lambda: small(1).png),  # a correct checksum, but the name of another picture
        (PATCH, lambda: b"no picture"),
        (PATCH, lambda: webp(8, 8)[:-9]),
        (PATCH, lambda: webp(16_000, 4_000)),
    ],
    ids=["name", "text", "truncated", "bomb"],
)
def test_a_false_screenshot_is_named(tmp_path, kind, payload):
    write_pack(tmp_path, (kind, ONE, NO_BASE, payload()))
    pack = ScreenshotPack(tmp_path / PACK, writable=False)
    with pytest.raises(
        UserError, match=r"screenshots\.pack: screenshot 0101.* at byte 0 is damaged: restore"
    ):
        pack.read([ONE.hex()])
    pack.close()


def test_records_after_a_damaged_header_are_not_trusted(tmp_path):
    intact = (PNG, ONE, NO_BASE, small(1).png)
    for damaged in [
        (PATCH, TWO, b"\3" * 32, webp(8, 8)),
        (PNG, TWO, b"\1" + NO_BASE[1:], small(2).png),
        (PNG, TWO, ONE, small(2).png),
        (7, TWO, NO_BASE, b""),
    ]:
        write_pack(tmp_path, intact, damaged, (PNG, b"\4" * 32, NO_BASE, b""))
        pack = ScreenshotPack(tmp_path / PACK, writable=False)
        assert (ONE.hex() in pack, TWO.hex() in pack, ("04" * 32) in pack) == (True, False, False)
        pack.close()


def test_a_chain_of_patches_longer_than_any_of_ours_is_damage(tmp_path):
    names = [number.to_bytes(32, "big") for number in range(1, 1200)]
    bases = [NO_BASE, *names[:-1]]
    patch = webp(8, 8)
    write_pack(tmp_path, *[(PATCH, name, base, patch) for name, base in zip(names, bases, strict=True)])
    pack = ScreenshotPack(tmp_path / PACK, writable=False)
    assert [name.hex() in pack for name in names[14:18]] == [True, True, False, False]
    pack.close()


EVALUATION = {"step": 2, "episodes": 8, "landmark": "", "sets": {"train": {"a": [1.0]}}}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *[("metrics.jsonl", line) for line in ("{}", '{"step":-1}', '{"step":1.5}', '{"step":true}')],
        *[
            ("metrics.jsonl", f'{{"step":1,"loss":{value}}}')
            for value in ('"1"', "[]", "NaN", "9" * 400, "true")
        ],
        ("timing.jsonl", '{"step":1,"rollout":null,"learn":{}}'),
        *[
            ("evaluations.jsonl", json.dumps(EVALUATION | change))
            for change in (
                {"sets": 3},
                {"sets": {"train": [1]}},
                {"sets": {"train": {"a": 1}}},
                {"landmark": 3},
            )
        ],
        ("evaluations.jsonl", "{}"),
        *[
            ("groups.jsonl", json.dumps(GROUP | change))
            for change in (
                {"step": "1"},
                {"episodes": ["batch-1-0-0", 7]},
                {"rewards": [1.0]},
                {"advantages": [1.0, None]},
                {"rescues": [{"index": 0}]},
                {"rescues": [RESCUE | {"index": 2}]},
                {"rescues": 5},
            )
        ],
    ],
    ids=lambda text: text[:30],
)
def test_a_record_of_a_wrong_form_is_named(tmp_path, name, line):
    (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(UserError, match=rf"{name}: line 1: damaged, .*: restore the file, or remove the run"):
        list(read_log(tmp_path, name))


@pytest.mark.parametrize(
    "summary",
    [
        {"success": []},
        {"success": {"base": {"train": "1"}}},
        {"counts": {"final": {"train": [1]}}},
        {"counts": {"final": {"train": [1, 0.5]}}},
        {"episodes": "many"},
        {"seconds": []},
        {"groups": {"total": {}}},
        {"training_episodes": {"batches": 1, "first": [1, 4], "last": [1, 0]}},
        {"training_episodes": {"batches": 1, "first": [1, 4], "last": [1, 4, 5]}},
        {"training_episodes": {"batches": 1, "first": [1, 4]}},
    ],
    ids=str,
)
def test_a_summary_of_a_wrong_form_is_named(tmp_path, summary):
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"summary\.json: damaged, .*: restore the file, or remove the run"):
        read_summary(tmp_path)


def test_a_folder_of_another_format_is_refused_with_the_version_that_wrote_it(tmp_path):
    with closing(RunFolder(tmp_path)) as store:
        store.write_recipe(Config())
    with closing(RunFolder(tmp_path)):
        pass
    path = tmp_path / "format.json"
    path.write_text('{"format": 99, "arpo": "7.0"}')
    with pytest.raises(UserError, match=r"version 7\.0.*another --run\.dir"):
        RunFolder(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="earlier version"):
        RunFolder(tmp_path)
    assert RunFolderReader(tmp_path).episode_ids() == []
