"""Program of a worker: plays episodes of Gymnasium environments, one after another.

    python worker.py FD

FD is a socket. The Python is that of the environment and need not have ARPO: this file uses the standard
library, numpy and gymnasium only. A message is a JSON value and a PNG, with their lengths first. Calls:

    check, start   {"kind": "gymnasium", "id": …, "seed": …, "make": {}, "options": {}, "actions": ""}
    step           {"actions": […]}

The answer of start and step has the keys instruction, score and terminated. An error becomes an answer with
the key error; the caller ends the worker then.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTHS = struct.Struct(">II")
INSTRUCTIONS = ("goal", "instruction", "mission")  # keys of an observation or of infos
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Unusable(Exception):
    """The environment cannot be played. The message says why."""


class Gymnasium:
    """Pictures by render(); actions by the rule of the user, or clicks on pixels."""

    def __init__(self, call: dict[str, Any]) -> None:
        gymnasium = import_package("gymnasium", "pip install gymnasium")
        options = {"render_mode": "rgb_array", "disable_env_checker": True, **call["make"]}
        self.env = gymnasium.make(call["id"], **options)
        self._rule = import_function(call["actions"]) if call["actions"] else None

    def picture(self, observation: Any) -> Any:
        return self.env.render()

    def instruction(self, observation: Any, infos: Any) -> str:
        return instruction_in(observation) or instruction_in(infos)

    def check(self, width: int, height: int) -> None:
        if self._rule is None:
            pixel = pixel_rule(self.env.action_space, width, height)
            self._rule = lambda action, env: pixel(*to_pixel(action)) if action["do"] == "Click" else None

    def convert(self, action: Any) -> Any:
        assert self._rule is not None
        return self._rule(action, self.env)


class BrowserGym:
    """Pictures of the page; actions are calls of HighLevelActionSet as text."""

    def __init__(self, call: dict[str, Any]) -> None:
        import_benchmark(call["id"].partition(".")[0])
        use_installed_chromium(call["chromium"])
        highlevel = importlib.import_module("browsergym.core.action.highlevel")
        actions = highlevel.HighLevelActionSet(["coord", "nav", "tab", "chat", "infeas"])
        options = {"action_mapping": actions.to_python_code, "disable_env_checker": True, **call["make"]}
        self.env = importlib.import_module("gymnasium").make(f"browsergym/{call['id']}", **options)

    def picture(self, observation: Any) -> Any:
        return observation["screenshot"]

    def instruction(self, observation: Any, infos: Any) -> str:
        return goal_text(observation["goal_object"])

    def check(self, width: int, height: int) -> None:
        pass

    def convert(self, action: Any) -> Any:
        return action


class Player:
    """One environment, reset for each episode; another id or other arguments make a new one."""

    def __init__(self) -> None:
        self._made_from: Any = None
        self._game: Any = None

    def check(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Start an episode. A benchmark of BrowserGym, such as "miniwob", is only imported."""
        if call["kind"] == "browsergym" and "." not in call["id"]:
            import_benchmark(call["id"])
            return {}, b""
        return self.start(call)

    def start(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        made_from = [call[key] for key in ("kind", "id", "make", "actions")]
        if made_from != self._made_from:
            self.close()
            self._game = (BrowserGym if call["kind"] == "browsergym" else Gymnasium)(call)
            self._made_from = made_from
        self._score, self._ended = 0.0, False
        observation, infos = self._game.env.reset(seed=call["seed"], options=call["options"] or None)
        self._png = png_of(self._game.picture(observation))
        self._game.check(*struct.unpack(">II", self._png[16:24]))
        return self._answer(self._game.instruction(observation, infos))

    def step(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        for action in call["actions"]:
            own = None if self._ended else self._game.convert(action)
            if own is None:
                continue
            observation, reward, terminated, truncated, _ = self._game.env.step(own)
            self._score += float(reward)
            self._ended = bool(terminated or truncated)
            self._png = png_of(self._game.picture(observation))
        return self._answer("")

    def close(self) -> None:
        if self._game is not None:
            game, self._game, self._made_from = self._game, None, None
            game.env.close()

    def _answer(self, instruction: str) -> tuple[dict[str, Any], bytes]:
        return {"instruction": instruction, "score": self._score, "terminated": self._ended}, self._png


def to_pixel(action: Any) -> tuple[int, int]:
    return int(action["point"]["x"]), int(action["point"]["y"])


def pixel_rule(space: Any, width: int, height: int) -> Callable[[int, int], Any]:
    """How to write the pixel (x, y) in an action space. Raises Unusable if it has no pixels."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete) and space.n == width * height:
        return lambda x, y: space.start + y * width + x
    if isinstance(space, spaces.MultiDiscrete) and [*space.nvec] == [width, height] and not space.start.any():
        return lambda x, y: space.dtype.type([x, y])
    pair = isinstance(space, spaces.Box) and space.shape == (2,)
    if pair and all(space.low <= 0) and all(space.high >= (width - 1, height - 1)):
        return lambda x, y: space.dtype.type([x, y])
    raise Unusable(
        f"its action space {space} has no pixels of its {width}x{height} pictures: a click needs Box(2) with "
        "pixel bounds, MultiDiscrete([width, height]) or Discrete(width * height); for any other space, set "
        "gymnasium.actions to a function of your own (docs/gymnasium.md)"
    )


def instruction_in(values: Any) -> str:
    """The first text under a usual key; "" if there is none."""
    texts = [values.get(key) for key in INSTRUCTIONS] if isinstance(values, dict) else []
    return next((text for text in texts if isinstance(text, str) and text), "")


def goal_text(goal: Any) -> str:
    """The texts of a goal of BrowserGym. Its key "goal" has a warning instead if the goal has pictures."""
    return "\n".join(part["text"] for part in goal if part["type"] == "text")


def png_of(picture: Any) -> bytes:
    import numpy

    array = numpy.asarray(picture)
    if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] not in (3, 4):
        got = "None" if picture is None else f"an array {array.dtype}{list(array.shape)}"
        raise Unusable(f'render() with render_mode="rgb_array" gave {got}, must give uint8[height, width, 3]')
    height, width = array.shape[:2]
    rows = numpy.zeros((height, 1 + 3 * width), numpy.uint8)  # each begins with its filter type, 0: none
    rows[:, 1:] = array[:, :, :3].reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows.tobytes(), 1), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


def import_package(name: str, remedy: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Unusable(
            f"no module {error.name} in {sys.executable}: {remedy}, or set gymnasium.python"
        ) from None


def import_benchmark(name: str) -> None:
    """Register the tasks of a benchmark of BrowserGym."""
    import_package("browsergym.core", "run `make browsergym`")
    if name == "miniwob":
        set_miniwob_url()
    if name != "openended":  # part of browsergym.core
        import_package(f"browsergym.{name}", f"pip install browsergym-{name}")


def import_function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute, None)
    if not callable(function):
        raise Unusable(f"gymnasium.actions = {name!r}: {module} has no function {attribute}")
    return function


def set_miniwob_url() -> None:
    """The pages of the package miniwob, if the user has no server for them."""
    found = importlib.util.find_spec("miniwob")
    if found is not None and found.origin:
        pages = Path(found.origin).with_name("html") / "miniwob"
        os.environ.setdefault("MINIWOB_URL", f"{pages.as_uri()}/")


def use_installed_chromium(program: str) -> None:
    """Show Playwright the installed Chromium as its own, if it has none.

    BrowserGym has no setting for it: the window of its chat is a browser, too.
    """
    if "PLAYWRIGHT_BROWSERS_PATH" in os.environ:
        return
    with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
    if own.exists():
        return
    if not program:
        raise Unusable("Chromium is missing: on Debian or Ubuntu, install it with: apt-get install chromium")
    folder = Path(tempfile.mkdtemp())
    link = folder.joinpath(*own.parts[-3:])  # such as chromium-1117/chrome-linux/chrome
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(folder)


def place_of(error: BaseException) -> str:
    """The last line of the user's code, such as "my_env.py:14"; "" if there is none."""
    places = [
        f"{os.path.relpath(frame.f_code.co_filename)}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((*LIBRARIES, __file__, "<"))
    ]
    return places[-1] if places else ""


def describe(error: BaseException) -> dict[str, str]:
    own = isinstance(error, Unusable)
    return {"message": str(error) if own else f"{type(error).__name__}: {error}", "place": place_of(error)}


def receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        if not (chunk := connection.recv(size - len(received))):
            raise SystemExit  # the caller has ended
        received += chunk
    return bytes(received)


def serve(connection: socket.socket, player: Player) -> None:
    """Answer calls until the connection ends."""
    while True:
        length, _ = LENGTHS.unpack(receive(connection, LENGTHS.size))
        call = json.loads(receive(connection, length))
        png = b""
        try:
            answer, png = getattr(player, call["call"])(call)
        except Exception as error:
            answer = {"error": describe(error)}
        text = json.dumps(answer).encode()
        connection.sendall(LENGTHS.pack(len(text), len(png)) + text + png)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    sys.path[0] = os.getcwd()  # instead of the folder of this file: modules of the user
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    player = Player()
    try:
        serve(connection, player)
    finally:
        player.close()


if __name__ == "__main__":
    main()
