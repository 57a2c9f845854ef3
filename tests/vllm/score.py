"""Run under vLLM's own interpreter: what a model says of given tokens.

python score.py REQUEST ANSWER, two JSON files. The request: a model's `folder`; `extension`, a class for
vLLM's worker, "" for plain vLLM; `adapters`, PEFT folders, and "" for the model without any; `processor`,
options of what resizes images; `texts`, token ids with one placeholder for each image, and the images as
base64 PNG; `chats`, messages as the chat route takes them. The answer: `scores`, for each adapter the tokens
of each text with the log-probability of all but the first; and the tokens of each of the `chats`.
"""

import base64
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image
from vllm.entrypoints.llm import LLM  # type: ignore[import-not-found]
from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]
from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]

ONE_TOKEN = SamplingParams(max_tokens=1, prompt_logprobs=0)


def main(request: dict[str, Any]) -> dict[str, Any]:
    adapters = request["adapters"]
    model = LLM(
        model=request["folder"],
        dtype="float32",
        worker_extension_cls=request["extension"],
        enforce_eager=True,
        max_num_seqs=2,
        limit_mm_per_prompt={"image": 8, "video": 0},
        mm_processor_kwargs=request["processor"],
        enable_lora=any(adapters),
        enable_tower_connector_lora=any(adapters),  # else the mergers' adapters are left out, silently
        lora_target_modules=adapted_layers(filter(None, adapters)) or None,
    )
    prompts = [
        {"prompt_token_ids": text["token_ids"], "multi_modal_data": {"image": pictures(text["images"])}}
        for text in request["texts"]
    ]
    scores = []
    for number, folder in enumerate(adapters, 1):
        adapter = LoRARequest(folder, number, folder) if folder else None
        scores.append([scored(found) for found in model.generate(prompts, ONE_TOKEN, lora_request=adapter)])
    chats = [model.chat(messages, ONE_TOKEN)[0].prompt_token_ids for messages in request["chats"]]
    return {"scores": scores, "chats": chats}


def adapted_layers(folders: Iterable[str]) -> list[str]:
    """As vLLM names them. Not told, it wraps the output layer too, and then scores no prompt."""
    configs = (json.loads((Path(folder) / "adapter_config.json").read_text("utf-8")) for folder in folders)
    return sorted({vllm_name(name) for config in configs for name in config["target_modules"]})


def vllm_name(layer: str) -> str:
    """The last part of a name stands for all layers that have it; a number would stand for too many."""
    last = layer.rpartition(".")[2]
    return layer.removeprefix("model.") if last.isdigit() else last


def pictures(encoded: list[str]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB") for png in encoded]


def scored(found: Any) -> dict[str, Any]:
    tokens = found.prompt_token_ids
    pairs = zip(tokens[1:], found.prompt_logprobs[1:], strict=True)
    return {"token_ids": tokens, "logprobs": [place[token].logprob for token, place in pairs]}


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(answer), "utf-8")
