"""Seconds to learn from one trajectory: plain transformers, ARPO, and the lower bound of the arithmetic.

With a GPU, a 7B model with random weights learns from trajectories of 1, 5 and 15 screenshots of 1920x1080 in
bfloat16: all weights, and LoRA. `--model qwen3_5` has the size of Qwen3.5-9B, `--model qwen3_5_moe --train
lora` that of Qwen3.5-35B-A3B; install flash-linear-attention for both. Without a GPU, a tiny model of the
family learns from small screenshots.
Plain transformers uses gradient checkpointing, a fused AdamW, and logits at sampled tokens only, because all
logits do not fit. For LoRA it uses adapters of the PEFT library on the same layers, of the same rank, in
float32 under autocast; if PEFT is not installed, it is not measured. ARPO learns from each trajectory three
times, plain transformers twice, and the last time counts. All plain runs come first, because ARPO changes the
rotary function of transformers for the whole process. Prints one JSON line per kind of trajectory; `ratio` is
plain divided by ARPO.

    PYTHONPATH=. python benchmarks/learner.py [--model qwen3_5] [--screenshots 1] [--train lora] [--no-plain]
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from arpo.config import Config, ModelConfig, OptimConfig
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.models.forward import TokenRow
from arpo.models.known_models import known_model
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.models.lora import ADAPTED_LAYERS, ALPHA
from arpo.models.memory_plan import GIB, ModelDimensions, measure_dimensions
from arpo.models.trainable import FEATURES_MEGABYTES, set_trainable
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Sample, Screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids

REPEATS, PLAIN_REPEATS = 3, 2  # the first repetitions compile and allocate
LEARNING_RATE = 1e-6
PROMPT_TOKENS = 400
SEVEN_B = {
    "text_config": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112,
    },
}  # fmt: skip
QWEN3_5 = {"qwen3_5": "Qwen3.5-9B", "qwen3_5_moe": "Qwen3.5-35B-A3B"}  # published models by family
TINY_QWEN3_5 = {
    "text_config": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 512, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
    "vision_config": {
        "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
    },
}  # fmt: skip
TINY_MIXTURE = {
    "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip


def seven_b(folder: Path) -> Path:
    """A folder with the configuration of a 7B model, a small tokenizer and no weights."""
    tokenizer = build_tokenizer(ACTION_PHRASES, ["open", "save"], 20)
    small = new_tiny_model(tiny_config(tokenizer.get_vocab_size(), special_ids(tokenizer)), 0)
    save_model_folder(small, tokenizer, folder)
    config = json.loads((folder / "config.json").read_text())
    for part, values in SEVEN_B.items():
        config[part] |= values
    config["tie_word_embeddings"] = False
    config["text_config"].pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    return folder


def qwen3_5(folder: Path, family: str, tiny: bool) -> Path:
    """A folder with a published configuration, a small tokenizer and no weights; or a tiny model."""
    known = known_model(QWEN3_5[family])
    assert known is not None
    tokenizer = build_tokenizer(ACTION_PHRASES, ["open", "save"], 20)
    ids, config = special_ids(tokenizer), known.config
    for name in ("image_pad", "video_pad", "vision_start", "vision_end"):
        setattr(config, f"{name.removesuffix('_pad')}_token_id", ids[f"<|{name}|>"])
    text = config.text_config
    text.eos_token_id, text.pad_token_id = ids["<|im_end|>"], ids["<|endoftext|>"]
    text.mamba_ssm_dtype = "float32"  # of the states in vLLM, which has them in bfloat16 by default
    text.rope_parameters |= {"rope_theta": 1e7, "mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    small = copy.deepcopy(config)
    small.text_config.update(TINY_QWEN3_5["text_config"])
    if family == "qwen3_5_moe":
        small.text_config.update(TINY_MIXTURE)
    small.vision_config.update(TINY_QWEN3_5["vision_config"])
    model = AutoModelForImageTextToText.from_config(small)
    save_model_folder(model, tokenizer, folder, settings=replace(IMAGE_SETTINGS, patch_size=16))
    if not tiny:
        config.save_pretrained(folder)
        (folder / "model.safetensors").unlink()
    return folder


def draw_screenshot(number: int, size: tuple[int, int]) -> Screenshot:
    """Windows with lines of text, different for each number."""
    import io

    image = Image.new("RGB", size, (44, 93, 124))
    draw = ImageDraw.Draw(image)
    width, height = size
    for window in range(3):
        left, top = (37 * number + 151 * window) % (width // 2), (53 * number + 97 * window) % (height // 2)
        draw.rectangle((left, top, left + width // 3, top + height // 3), (240, 240, 236), (90, 90, 90))
        for line in range(top + 8, top + height // 3 - 8, 14):
            draw.line((left + 8, line, left + 8 + (line * 7 + number) % (width // 4), line), (60, 60, 60), 5)
    png = io.BytesIO()
    image.save(png, "PNG")
    return Screenshot.of(png.getvalue())


def trajectory(
    renderer: Renderer, screenshots: int, answer: int, size: tuple[int, int], first: int
) -> Sample:
    tokens: list[int] = []
    mask: list[bool] = []
    shots = [draw_screenshot(first + number, size) for number in range(screenshots)]

    def add(ids: list[int], sampled: bool) -> None:
        tokens.extend(ids)
        mask.extend([sampled] * len(ids))

    words = list(range(30, 90))
    add((words * 100)[:PROMPT_TOKENS], False)
    for shot in shots:
        add(list(renderer.continuation(Message(role="user", screenshot=shot)).token_ids), False)
        add((words * 100)[:answer], True)
    return Sample(
        token_ids=tuple(tokens),
        mask=tuple(mask),
        images=tuple(shots),
        behaviour_logprobs=(-4.0,) * sum(mask),
        advantage=1.0,
        weight=1.0 / sum(mask),
        replayed=False,
    )


def timed(learn: Callable[[], None], device: str, repeats: int) -> tuple[float, float]:
    """(seconds, peak GiB) of the last repetition."""
    seconds = 0.0
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        learn()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return seconds, torch.cuda.max_memory_allocated() / GIB if device == "cuda" else 0.0


def plain(folder: Path, samples: list[Sample], renderer: Renderer, config: Config) -> Callable[[], None]:
    """One training step of plain transformers."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[config.model.dtype]
    layout = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model: Any = AutoModelForImageTextToText.from_config(layout, dtype=dtype, attn_implementation="sdpa")
    model.train()
    if device == "cuda":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    set_trainable_plain(model, config.model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=device == "cuda")
    mixed = torch.autocast(device, torch.bfloat16, enabled=any(p.dtype != dtype for p in trained))

    def logprobs(sample: Sample) -> Tensor:
        tokens = torch.tensor([sample.token_ids], device=device)
        patches = [torch.from_numpy(vision.patchify(shot, renderer.settings)) for shot in sample.images]
        positions = TokenRow.of(sample.token_ids, sample.images, renderer).positions_3T
        hidden = model.model(
            input_ids=tokens,
            position_ids=torch.from_numpy(positions)[:, None].to(device),
            pixel_values=torch.cat(patches).to(device, dtype),
            image_grid_thw=torch.tensor([renderer.grid(shot) for shot in sample.images], device=device),
            mm_token_type_ids=(tokens == renderer.image_token_id).int(),
            use_cache=False,
        ).last_hidden_state
        sampled = torch.tensor(list(sample.mask[1:]), device=device).bool()
        logps = model.lm_head(hidden[0, :-1][sampled]).float().log_softmax(-1)
        return logps.gather(-1, tokens[0, 1:][sampled][:, None])[:, 0]

    def learn() -> None:
        for sample in samples:
            with mixed:
                logp = logprobs(sample)
            loss = -(sample.weight * (logp - logp.detach()).exp() * sample.advantage).sum()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return learn


def set_trainable_plain(model: Any, settings: ModelConfig) -> None:
    """Freeze untrained parameters; for LoRA, add PEFT adapters to the same layers as ARPO."""
    if settings.train == "language":
        model.model.visual.requires_grad_(False)
    if settings.train == "lora":
        import peft

        linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
        adapters = peft.LoraConfig(
            r=settings.lora_rank,
            lora_alpha=ALPHA,
            target_modules=[name for name in linear if ADAPTED_LAYERS.search(f".{name}.")],
        )
        peft.get_peft_model(model, adapters)  # changes the model in place and returns a wrapper


def plain_seconds(folder: Path, samples: list[Sample], renderer: Renderer, config: Config) -> float | None:
    """None, with a note on stderr, if PEFT is needed and missing."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        learn = plain(folder, samples, renderer, config)
    except ModuleNotFoundError as missing:
        print(f"{missing.name} is not installed: plain LoRA is not measured", file=sys.stderr, flush=True)
        return None
    return timed(learn, device, PLAIN_REPEATS)[0]


def ours(
    samples: list[Sample], renderer: Renderer, config: Config
) -> tuple[Callable[[], None], ModelDimensions]:
    model = load_model(config.model, seed=0)
    dims = used_dimensions(measure_dimensions(model, config.model.lora_rank), model.config)
    set_trainable(model, config.model, seed=0)
    learner = LocalLearner(model, renderer, config)
    batch = Batch(updates=(tuple(samples),))

    def learn() -> None:
        if hasattr(model.model.visual, "feature_cache"):  # no screenshot may be cached
            clear_feature_cache(model, config)
        metrics = learner.train(batch)
        assert metrics["skipped"] == 0

    return learn, dims


def clear_feature_cache(model: Any, config: Config) -> None:
    model.model.visual.feature_cache = type(model.model.visual.feature_cache)(FEATURES_MEGABYTES)


def measured_flops() -> float:
    """Operations per second of a large bfloat16 matrix product."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        left @ right
    torch.cuda.synchronize()
    return 20 * 2 * 8192**3 / (time.perf_counter() - began)


def used_dimensions(dims: ModelDimensions, config: Any) -> ModelDimensions:
    """Without the parameters of the experts that a token does not choose."""
    text = config.text_config
    if not hasattr(text, "num_experts"):
        return dims
    idle = 3 * text.hidden_size * text.moe_intermediate_size * (text.num_experts - text.num_experts_per_tok)
    return replace(
        dims,
        language_parameters=dims.language_parameters - dims.layers * idle,
        layer_parameters=dims.layer_parameters - idle,
    )


def needed_flops(dims: ModelDimensions, sample: Sample, renderer: Renderer, train: str) -> float:
    """Operations of one forward and one backward pass without recomputation.

    Without attention in windows and the states of linear attention: this is a lower bound.
    """
    tokens, sampled = len(sample.token_ids), sum(sample.mask)
    grids = [renderer.grid(shot) for shot in sample.images]
    patches = [rows * columns for _, rows, columns in grids]
    embeddings = 2 * dims.vocabulary * dims.hidden
    language = (
        2 * (dims.language_parameters - embeddings) * tokens + 2 * dims.vocabulary * dims.hidden * sampled
    )
    language += 2 * tokens**2 * dims.query_width * dims.key_layers
    tower = 2 * dims.vision_parameters * sum(patches)
    tower += sum(4 * count**2 * dims.vision_hidden for count in patches) * dims.vision_full_layers
    # Backward: gradients of inputs and weights. LoRA has no gradients of weights and none in the tower.
    return {"all": 3 * (language + tower), "language": 3 * language + tower, "lora": 2 * language + tower}[
        train
    ]


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("qwen2_5_vl", *QWEN3_5), default="qwen2_5_vl", help="family")
    parser.add_argument("--screenshots", default="1,5,15", help="screenshots per trajectory (%(default)s)")
    parser.add_argument(
        "--train", default="all,lora", help="trained parameters: all, language, lora (%(default)s)"
    )
    parser.add_argument(
        "--answer-tokens", type=int, default=150, help="answer tokens per screenshot (%(default)s)"
    )
    parser.add_argument(
        "--plain", action=argparse.BooleanOptionalAction, default=True, help="also measure plain transformers"
    )
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    peak_flops = measured_flops() if gpu else 0.0
    with tempfile.TemporaryDirectory() as scratch:
        if options.model in QWEN3_5:
            folder = qwen3_5(Path(scratch), options.model, tiny=not gpu)
        else:
            folder = seven_b(Path(scratch)) if gpu else resolve_model("base")
        settings = ModelConfig(
            path=str(folder),
            weights="random" if gpu else "load",
            dtype="bfloat16" if gpu else "float32",
            min_pixels=IMAGE_SETTINGS.min_pixels,
            max_pixels=IMAGE_SETTINGS.max_pixels,
        )
        optim = OptimConfig(lr=LEARNING_RATE)
        if gpu:
            optim = replace(optim, moments="bfloat16", tokens_per_microbatch=65536)
        renderer = load_renderer(settings)
        size, count = ((1920, 1080), 1) if gpu else ((224, 168), 8)
        kinds = [
            (screenshots, replace(Config(), model=replace(settings, train=train), optim=optim))
            for screenshots in map(int, options.screenshots.split(","))
            for train in options.train.split(",")
        ]
        samples_by_count = {
            screenshots: [
                trajectory(renderer, screenshots, options.answer_tokens, size, 100 * n) for n in range(count)
            ]
            for screenshots, _ in kinds
        }
        plain_times: list[float | None] = []
        for screenshots, config in kinds:
            measured = (
                plain_seconds(folder, samples_by_count[screenshots], renderer, config)
                if options.plain
                else None
            )
            plain_times.append(measured)
            free()
        for (screenshots, config), plain_time in zip(kinds, plain_times, strict=True):
            samples, train = samples_by_count[screenshots], config.model.train
            learn, dims = ours(samples, renderer, config)
            seconds, peak = timed(learn, device, REPEATS)
            del learn
            free()
            flops = sum(needed_flops(dims, sample, renderer, train) for sample in samples)
            print(
                json.dumps(
                    {
                        "device": torch.cuda.get_device_name() if gpu else "cpu",
                        "model": options.model,
                        "screenshots": screenshots,
                        "tokens": sum(len(sample.token_ids) for sample in samples),
                        "train": train,
                        "seconds": round(seconds, 3),
                        "plain_seconds": plain_time and round(plain_time, 3),
                        "ratio": plain_time and round(plain_time / seconds, 2),
                        "floor_seconds": round(flops / peak_flops, 2) if gpu else None,
                        "over_floor": round(seconds * peak_flops / flops, 2) if gpu else None,
                        "peak_gib": round(peak, 1) if gpu else None,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
