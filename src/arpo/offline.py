"""The offline loop: it learns from stored episodes by RFT, DPO or KTO, and plays only to be measured.

The episodes are those of the training tasks in offline.source, a folder that `arpo collect` filled or that a
run left; what a run played in evaluations is left out, and what cannot be trained on. They are read when
their update comes. A batch is one update, and who is in it is keyed by (seed, pass).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched, chain
from pathlib import Path
from random import Random
from typing import Any

from arpo import vision
from arpo.config import Config
from arpo.display import Display
from arpo.errors import UserError
from arpo.evaluate import load_sets
from arpo.learner.base import Batch, Metrics
from arpo.models.loading import load_renderer
from arpo.preference import Verdict, dpo, kto, mismatched, pairs, rft, samples_for
from arpo.run import EVALUATED, Progress, Run
from arpo.samples import trajectory_samples
from arpo.store import TRAJECTORIES, Store, StoreReader
from arpo.types import Trajectory
