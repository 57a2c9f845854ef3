"""Pretrains the base model on `lessons`, on one GPU. An interrupted run resumes from its last checkpoint.

The output is a Hugging Face model folder with a card (`card`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from arpo.algorithms.schedules import decay
from arpo.envs.desk.canvas import LAYOUT_HEIGHT, LAYOUT_WIDTH, PALETTE
from arpo.errors import UserError
from arpo.models.forward import hidden_states
from arpo.models.loading import prepare, resolve_device
from arpo.prompts import vision
from arpo.storage import checkpoint
from tools.pretrain.batches import (
    CELLS_PER_TOKEN,
    TOKENS_PER_SCREEN,
    LessonBatch,
    LessonLoader,
)
from tools.pretrain.card import CARD, card
from tools.pretrain.ladder import LADDER, stage_at
from tools.pretrain.language import LANGUAGES
from tools.pretrain.settings import Settings
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from tools.pretrain.tokenizer import desk_tokenizer, special_ids
from tools.pretrain.word_canvas import readable_words

MODEL = "model"  # folder of the model in the output directory
WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")  # parts of a checkpoint
LOSSES = {"answers": 1.0, "words": 1.0, "places": 1.0, "states": 1.0, "targets": 2.0}  # weights
_STATE_WEIGHT, _TARGET_WEIGHT = 4.0, 8.0  # of a marked cell: few cells are marked
BEFORE_LAST_STAGE = Path(__file__).parent / "before_careless.safetensors"  # weights, half precision
_HEAD = "head."
_MAX_FILE_BYTES = 8_000_000
_REPORT_EVERY, _SAVE_EVERY = 100, 500


def screen_features(model: Any, batch: LessonBatch, palette: Tensor) -> Tensor:
    """The image tokens of all screens."""
    pixels = palette[batch.screens_NHW.int()]
    patches = vision.patchify_pixels(pixels, IMAGE_SETTINGS)
    grid = vision.grid(LAYOUT_WIDTH, LAYOUT_HEIGHT, IMAGE_SETTINGS)
    grids = torch.tensor([grid] * len(pixels))
    features: Tensor = model.model.visual(patches.flatten(0, 1), grid_thw=grids).pooler_output
    return features


def answer_loss(model: Any, batch: LessonBatch, features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy over the tokens of the answers; the image tokens half-way through the text model."""
    tokens, answers = batch.tokens_BT.long(), batch.answers_A
    words = model.model.language_model.embed_tokens(tokens)
    images = features[: len(batch.slots_I)].to(words.dtype)
    embeds = words.flatten(0, 1).index_copy(0, batch.slots_I, images).view_as(words)
    layers, half = model.model.language_model.layers, []
    hook = layers[len(layers) // 2 - 1].register_forward_hook(lambda *call: half.append(call[-1]))
    hidden = hidden_states(model, embeds, batch.positions_3BT.long()).flatten(0, 1)
    hook.remove()
    logits = model.lm_head(hidden.index_select(0, answers - 1))
    images = half[0].flatten(0, 1).index_select(0, batch.slots_I)
    return cross_entropy(logits.float(), tokens.flatten()[answers]), images


class ReadingHead(torch.nn.Module):
    """Trains the model to read and to find; it is not part of the model.

    `places` tells the place of an image token on the screen: the tower itself knows relative places only.
    `cells` tells the word in each cell of an image token. `scale` makes an image token similar to the
    embeddings of its words, so that the text model finds and copies a word on the screen like one in a text.
    `states` tells which cells belong to an element that is on. `targets` tells, half-way through the text
    model, which cells the instruction names: an image token follows the instruction and can compare its words
    with it. After the same 1,200 updates a model found 47% of the items in a list by their names without
    `targets`, and 69% with it; after the whole ladder, 99%.
    """

    token_ids: Tensor

    def __init__(self, hidden: int, tokenizer: Tokenizer) -> None:
        super().__init__()
        words = readable_words()
        self.places = torch.nn.Linear(hidden, TOKENS_PER_SCREEN)
        self.cells = torch.nn.Linear(hidden, CELLS_PER_TOKEN * len(words))
        self.scale = torch.nn.RMSNorm(hidden)
        self.states = torch.nn.Linear(hidden, CELLS_PER_TOKEN)
        self.targets = torch.nn.Linear(hidden, CELLS_PER_TOKEN)
        # A word has two tokens: with and without a space before it. The last piece of " 40" is "40".
        ids = [[tokenizer.encode(f"{space}{word}").ids[-1] for space in ("", " ")] for word in words]
        self.register_buffer("token_ids", torch.tensor(ids), persistent=False)

    def place_loss(self, features: Tensor) -> Tensor:
        """Mean cross-entropy of the places of all image tokens."""
        places = torch.arange(len(features), device=features.device) % TOKENS_PER_SCREEN
        return cross_entropy(self.places(features).float(), places)

    def word_loss(self, model: Any, batch: LessonBatch, features: Tensor) -> Tensor:
        """Mean over all cells with a word: cross-entropy of the cell's word, and of the word's tokens."""
        features = features.index_select(0, batch.readable_R)
        rows, cells, words = batch.words_W3.unbind(-1)
        in_cells = self.cells(features).view(-1, len(self.token_ids))
        in_cells = in_cells.index_select(0, rows * CELLS_PER_TOKEN + cells).float()
        similar = model.lm_head(self.scale(features)).float().log_softmax(-1)
        two_tokens = similar[rows[:, None], self.token_ids[words]].mean(-1)
        return (cross_entropy(in_cells, words, reduction="sum") - two_tokens.sum()) / max(1, len(words))

    def state_loss(self, batch: LessonBatch, features: Tensor) -> Tensor:
        """Mean binary cross-entropy over the cells; those that are on count `_STATE_WEIGHT` times."""
        return _cell_loss(self.states, features, batch.state_tokens_S, batch.states_SC, _STATE_WEIGHT)

    def target_loss(self, batch: LessonBatch, images: Tensor) -> Tensor:
        """The same over the cells of the targets. `images` are the image tokens in the text model."""
        return _cell_loss(self.targets, images, batch.target_tokens_T, batch.targets_TC, _TARGET_WEIGHT)


def _cell_loss(head: torch.nn.Linear, tokens: Tensor, rows: Tensor, cells: Tensor, weight: float) -> Tensor:
    if not len(rows):
        return tokens.new_zeros((), dtype=torch.float32)
    logits = head(tokens.index_select(0, rows)).float()
    return binary_cross_entropy_with_logits(logits, cells, pos_weight=logits.new_tensor(weight))


class Pretraining:
    """Model, optimiser and current step."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.tokenizer = desk_tokenizer(LANGUAGES[settings.dialect].phrases)
        shape = tiny_config(
            self.tokenizer.get_vocab_size(), special_ids(self.tokenizer), family=settings.family,
            hidden=settings.hidden, layers=settings.layers, vision_hidden=settings.vision_hidden,
            vision_layers=settings.vision_layers,
        )  # fmt: skip
        self.model = new_tiny_model(shape, settings.seed).to(resolve_device(settings.device))
        prepare(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.head = ReadingHead(settings.hidden, self.tokenizer).to(self.model.device)
        on_gpu = self.model.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self._parameters().values(),
            lr=settings.lr,
            weight_decay=0.01,
            betas=(0.9, 0.98),
            fused=on_gpu,
        )
        self.step = 0

    def _parameters(self) -> dict[str, Tensor]:
        """All trained weights. The model's folder does not contain the head."""
        head = {f"{_HEAD}{name}": weight for name, weight in self.head.named_parameters()}
        return dict(self.model.named_parameters()) | head

    @property
    def stage(self) -> str:
        """Name of the current stage of the ladder."""
        return stage_at(self.step / self.settings.steps, LANGUAGES[self.settings.dialect].last).name

    @property
    def learning_rate(self) -> float:
        """The rate of the next update: it rises during warm-up, then falls to 0 as a cosine."""
        settings = self.settings
        factor = decay("cosine", done=self.step, total=settings.steps, warmup=settings.warmup)
        return settings.lr * factor * min(1.0, (self.step + 1) / settings.warmup)

    def update(self, batch: LessonBatch, palette: Tensor) -> Tensor:
        """Returns the losses by `LOSSES`."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate
        # Many CPUs emulate bfloat16, which is far slower than float32.
        on_gpu = self.model.device.type == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=on_gpu):
            features = screen_features(self.model, batch, palette)
            answers, images = answer_loss(self.model, batch, features)
            losses = torch.stack(
                (
                    answers,
                    self.head.word_loss(self.model, batch, features),
                    self.head.place_loss(features),
                    self.head.state_loss(batch, features),
                    self.head.target_loss(batch, images),
                )
            )
        (losses * losses.new_tensor(list(LOSSES.values()))).sum().backward()
        torch.nn.utils.clip_grad_norm_(self._parameters().values(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        return losses.detach()

    def begin_last_stage(self) -> None:
        """Load the stored weights of the end of the stage before it, with embeddings for new tokens."""
        stored = load_file(BEFORE_LAST_STAGE)
        if self.settings.family != Settings().family:
            raise UserError(f"--last-stage: the stored weights are those of {Settings().family}")
        with torch.no_grad():
            for name, weight in self._parameters().items():
                weight[: len(stored[name])].copy_(stored[name])
            embedding, base = self.model.get_input_embeddings().weight, desk_tokenizer()
            for phrase, same in LANGUAGES[self.settings.dialect].phrases.items():
                embedding[self.tokenizer.encode(phrase).ids] = embedding[base.encode(same).ids].mean(0)
        self.step = round(LADDER[-2].until * self.settings.steps)

    def save(self) -> None:
        """Write a checkpoint to resume from, and the current model with its card."""
        moments = self.optimiser.state_dict()["state"]
        parts = {WEIGHTS: self._parameters()}
        for key in MOMENTS:  # of weights without a gradient yet: zeros
            parts[key] = {
                name: moments[i][key] if i in moments else torch.zeros_like(weight)
                for i, (name, weight) in enumerate(parts[WEIGHTS].items())
            }

        def write(folder: Path) -> None:
            for part, tensors in parts.items():
                _save_parts(tensors, folder / part)

        checkpoint.save(self.folder / checkpoint.CHECKPOINTS, self.step, write, keep=1)
        save_model_folder(self.model, self.tokenizer, self.folder / MODEL)
        parameters = sum(p.numel() for p in self.model.parameters())
        arithmetic = f"{'bfloat16' if self.model.device.type == 'cuda' else 'float32'} arithmetic"
        text = card(self.settings, self.step, parameters, arithmetic)
        (self.folder / MODEL / CARD).write_text(text, encoding="utf-8")

    def resume(self) -> None:
        """Load the newest complete checkpoint, if there is one."""
        found, _ = checkpoint.latest(self.folder / checkpoint.CHECKPOINTS)
        if found is None:
            return
        parts = {part: _load_parts(found.path / part) for part in (WEIGHTS, *MOMENTS)}
        own = {name: weight.shape for name, weight in self._parameters().items()}
        if own != {name: weight.shape for name, weight in parts[WEIGHTS].items()}:
            raise UserError(f"{found.path}: the checkpoint has a model of another size. Use another --out")
        with torch.no_grad():
            for name, weight in self._parameters().items():
                weight.copy_(parts[WEIGHTS][name])
        self.step = found.step
        moments = {
            i: {"step": torch.tensor(float(self.step)), **{key: parts[key][name] for key in MOMENTS}}
            for i, name in enumerate(own)
        }
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})


def _save_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Safetensors files of at most 8 MB each, unless one tensor is larger."""
    files: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes
        if files[-1] and size > _MAX_FILE_BYTES:
            files.append({})
            size = tensor.nbytes
        files[-1][name] = tensor.detach().contiguous()
    folder.mkdir()
    for number, part in enumerate(files):
        save_file(part, folder / f"{number}.safetensors")


def _load_parts(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for path in folder.iterdir() for name, tensor in load_file(path).items()}


def _moved(batches: Iterator[LessonBatch], device: torch.device) -> Generator[LessonBatch]:
    """The batches on the device. A thread copies the next one during an update."""
    copier = ThreadPoolExecutor(max_workers=1)
    following = copier.submit(lambda: next(batches).to(device))
    try:
        while True:
            batch = following.result()
            following = copier.submit(lambda: next(batches).to(device))
            yield batch
    finally:
        copier.shutdown(wait=False, cancel_futures=True)


def run_pretraining(settings: Settings, out: Path, log: Callable[[str], None] = print) -> bool:
    """Train until `steps` or `minutes` is reached. The same command resumes.

    Returns whether all steps are done.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot create the folder: {error.strerror}") from error
    training = Pretraining(settings, out)
    training.resume()
    if settings.last_stage and not training.step:
        training.begin_last_stage()
    device = training.model.device
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)  # almost every batch has a new shape
    palette = torch.from_numpy(PALETTE).to(device)
    start, first, waited = time.monotonic(), training.step, 0.0
    losses: list[Tensor] = []
    with LessonLoader(settings, training.step) as lessons, closing(_moved(lessons, device)) as batches:
        try:
            while training.step < settings.steps:
                before = time.monotonic()
                batch = next(batches)
                waited += time.monotonic() - before
                losses.append(training.update(batch, palette))
                seconds = time.monotonic() - start
                if training.step % _REPORT_EVERY == 0:
                    means = zip(LOSSES, torch.stack(losses).mean(0).tolist(), strict=True)
                    losses.clear()
                    rate = (training.step - first) / seconds
                    shown = ", ".join(f"{name} {mean:.4f}" for name, mean in means)
                    log(
                        f"step {training.step}/{settings.steps} ({training.stage}) {shown}, {rate:.1f} "
                        f"steps/s {seconds:.0f} s, {waited:.0f} s waiting for lessons"
                    )
                if training.step % _SAVE_EVERY == 0:
                    training.save()
                if settings.minutes and seconds > settings.minutes * 60:
                    break
        finally:
            if training.step > first:
                training.save()
    log(f"{out}: step {training.step} of {settings.steps} saved")
    return training.step >= settings.steps
