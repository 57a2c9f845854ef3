"""The result of `arpo doctor --gap RUN`: why engine and learner disagree. Terminal and report show it."""

from __future__ import annotations

from dataclasses import dataclass

EXPLAINED = 0.25  # share of the disagreement that a cause may leave
SAMPLING, PICTURES, TEMPLATE, WEIGHTS, DTYPE = "sampling", "pictures", "template", "weights", "dtype"
ADVICE = {
    SAMPLING: "Compare rollout.temperature with the sampling settings of the server. Its probabilities must "
    "be those after the temperature, before top-p and top-k.",
    PICTURES: "Compare model.min_pixels and model.max_pixels with the image settings that the server reads "
    "(preprocessor_config.json), and the order of the pictures in its requests.",
    TEMPLATE: "The server must take the tokens of the prompt as they are: no chat template, no added or "
    "removed tokens.",
    WEIGHTS: "The server has not loaded the weights of this version completely: restart it, and look for a "
    "message about checksums in its log.",
    DTYPE: "Start the server with the dtype of the recipe (model.dtype).",
}
NO_CAUSE = (
    "None of the tried differences explains it. Look at the worst tokens below: only the first token of "
    "answers, or numbers of coordinates, or all of them? Then compare the versions of the inference packages."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One difference between engine and learner that was tried. `kl` is what is left of the disagreement."""

    part: str
    what: str
    kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGap:
    """A sampled token with its probability in the engine and in the learner."""

    episode: str
    step: int  # of the episode, counted from 1
    token: int  # of the answer, counted from 1
    text: str
    engine: float
    learner: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The disagreement of a run: `kl` is the mean over the compared tokens, as engine_kl."""

    version: int  # of the weights: the number of batches before
    answers: int
    tokens: int
    kl: float
    limit: float
    tried: tuple[Tried, ...]  # the best of each part, the best one first
    worst: tuple[TokenGap, ...]

    @property
    def disagrees(self) -> bool:
        """Whether the threshold is exceeded."""
        return not self.kl <= self.limit

    @property
    def cause(self) -> Tried | None:
        """What the engine does differently; None if nothing explains the disagreement, or there is none."""
        best = self.tried[0] if self.tried else None
        return best if best and self.disagrees and best.kl <= max(self.limit, EXPLAINED * self.kl) else None

    @property
    def conclusion(self) -> str:
        where = f"version {self.version:,} of the weights, {self.tokens:,} tokens"
        if not self.disagrees:
            return (
                f"Engine and learner agree ({where}): engine_kl is {self.kl:.2g}, at most {self.limit:g}. An "
                "earlier disagreement is over, or belongs to weights that no checkpoint has any more."
            )
        found = f"Engine and learner disagree ({where}): engine_kl is {self.kl:.2g}, above {self.limit:g}."
        if self.cause is None:
            return f"{found} {NO_CAUSE}"
        return f"{found} Cause: {self.cause.part}: {self.cause.what}. {ADVICE[self.cause.part]}"


def describe_gap(gap: Gap) -> list[str]:
    """Lines for the terminal: the conclusion, what was tried, the worst tokens."""
    lines = [gap.conclusion, "", "engine_kl if the learner did the same:"]
    lines += [f"  {one.part:<9} {one.kl:>8.2g}  {one.what}" for one in gap.tried]
    lines += ["", "probabilities of the worst tokens:", "    engine  learner  token"]
    lines += [
        f"  {_probability(one.engine)} {_probability(one.learner)}  {one.text!r}, token {one.token} of "
        f"step {one.step} of {one.episode}"
        for one in gap.worst
    ]
    return lines


def _probability(value: float) -> str:
    return f"{value:8.5f}" if value >= 1e-4 else f"{value:8.1e}"
