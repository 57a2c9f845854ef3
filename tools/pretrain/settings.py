"""Settings of a pretraining run. The defaults are those of the shipped base model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    steps: int = 8200  # updates
    tokens_per_step: int = 65536  # padding included
    lr: float = 1.5e-3  # after warm-up; it then falls to 0 as a cosine
    warmup: int = 200  # updates
    carelessness: float = 1.3  # level of the demonstrator's faults; 0: no faults, 2: twice as many
    last_stage: bool = False  # begin with the last stage, from stored weights of this size
    hidden: int = 128  # hidden size of the text model
    layers: int = 4
    vision_hidden: int = 128
    vision_layers: int = 4
    family: str = "qwen2_5_vl"  # a key of `FAMILIES` in `tiny`
    dialect: str = "ui_tars"  # language of the answers: a key of `LANGUAGES`
    seed: int = 0
    device: str = "auto"
    workers: int = 0  # processes that make lessons; 0: number of cores - 1
    minutes: float = 0.0  # time limit; 0: none
