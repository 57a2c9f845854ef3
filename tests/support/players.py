"""A player for tests: a scripted engine behind a real renderer."""

from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import PromptTemplate
from arpo.prompts.vision import ImageSettings
from arpo.testing import FakeEnv, ScriptedEngine
from arpo.types import Observation
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer

TOKENIZER = build_tokenizer(ACTION_PHRASES, [], 300)
RENDERER = Renderer(
    TOKENIZER,
    ImageSettings(
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=784,
        max_pixels=784 * 4,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    ),
)
TEMPLATE = PromptTemplate(system="You use a computer.", user="{instruction}")
CLICK = "Thought: a\nAction: click(start_box='(28,14)')"
WAIT = "Action: wait()"
DONE = "Action: finished()"


def scripted(script):
    return ScriptedEngine(script, RENDERER.encode, RENDERER.end_of_turn_id)


class Asking(FakeEnv):
    """Gives its instruction itself."""

    async def start(self, task):
        return Observation(screenshot=(await super().start(task)).screenshot, instruction="ring the bell")
