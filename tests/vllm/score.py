"""Run under vLLM's own interpreter, which has nothing of this project: what a model says of given tokens.

python score.py REQUEST ANSWER, two JSON files. The request: a model's `folder`; `adapters`, PEFT folders with "" for
the plain model; `texts`, token ids with one placeholder for each image, and the images as base64 PNG; `chats`, messages
as the chat route takes them. The answer: the `scores` of each adapter, the tokens of each text with the log-probability
of all but the first; and the tokens of each of the `chats`. Everything runs in this process, and nothing listens.
"""

import base64
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, so no ports
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # gigabytes
os.environ["TORCH_COMPILE_DISABLE"] = "1"  # needs no compiler, and is quicker for a few texts
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

from PIL import Image
from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

ONE_TOKEN = SamplingParams(max_tokens=1, prompt_logprobs=0)


def main(request: dict[str, Any]) -> dict[str, Any]:
    adapters = request["adapters"]
    model = LLM(
        model=request["folder"],
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=2,
        limit_mm_per_prompt={"image": 8, "video": 0},
        enable_lora=any(adapters),
        enable_tower_connector_lora=any(adapters),
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


def pictures(encoded: list[str]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB") for png in encoded]


def scored(found: Any) -> dict[str, Any]:
    tokens = found.prompt_token_ids
    pairs = zip(tokens[1:], found.prompt_logprobs[1:], strict=True)
    return {"token_ids": tokens, "logprobs": [place[token].logprob for token, place in pairs]}


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(answer), "utf-8")
