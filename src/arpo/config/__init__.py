"""The config of a run: all sections, and the checks of their values.

Constructing a `Config` with a bad value raises `BadSetting`, so every `Config` is valid. `config/settings.py`
defines the keys, `config/checks.py` checks them, `config/recipe.py` reads and writes TOML.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from arpo.config.checks import FRESH, check_combinations, check_ranges
from arpo.config.settings import (
    BrowserConfig,
    ClusterConfig,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    GymnasiumConfig,
    LossConfig,
    ModelConfig,
    OfflineConfig,
    OptimConfig,
    OSWorldConfig,
    PluginsConfig,
    ReplayConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    ServerConfig,
    StoreConfig,
    TasksConfig,
    TrainConfig,
)

# Prefixes of keys that do not change the episodes of a given model.
LEARNING = ("train.", "loss.", "reward.", "replay.", "offline.", "optim.", "eval.", "plugins.")
# Requests at once beyond one per environment, in asynchronous training: they compare engine and learner.
CHECK_ANSWERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    osworld: OSWorldConfig = field(default_factory=OSWorldConfig)
    browser: BrowserConfig = field(default_factory=BrowserConfig)
    gymnasium: GymnasiumConfig = field(default_factory=GymnasiumConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    plugins: PluginsConfig = field(default_factory=PluginsConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        for section in fields(self):
            check_ranges(section.name, getattr(self, section.name))
        check_combinations(self)

    @property
    def compares_with_base(self) -> bool:
        """Whether training needs the base model in addition to the trained one."""
        return self.loss.kl > 0 or self.train.method in ("dpo", "kto")

    @property
    def trains_a_copy(self) -> bool:
        """Whether learner and engine work at the same time in one process, each with its own weights."""
        return self.train.max_staleness > 0 and self.samples_in_process

    @property
    def engine_episodes(self) -> int:
        """Number of episodes that an engine in this process holds at once."""
        return self.env.parallel + (CHECK_ANSWERS if self.trains_a_copy else 0)

    def engine_kl_limit(self, surprise: float) -> float:
        """Threshold of engine_kl at tokens with this mean of −log π: train.engine_kl_alarm, or its default.

        Rounding hardly changes the probability of a token that is almost certain. So the default of bfloat16
        is in proportion to the surprise. Rounding gave at most 60% of it (a 7B model behind vLLM); in float32
        it gives 1e-6.
        """
        rounding = 0.02 * surprise if self.model.dtype != "float32" else 0.0
        return self.train.engine_kl_alarm or max(1e-5, rounding)

    @property
    def endless(self) -> bool:
        """Whether every group plays a new task."""
        return self.tasks.train == FRESH and not self.tasks.distinct

    def planned_tasks(self, listed: int) -> int:
        """Number of tasks (groups) of the whole run, with so many different training tasks."""
        return self.train.tasks or self.train.epochs * listed

    @property
    def samples_in_process(self) -> bool:
        """Whether the engine samples from a model in this process. Otherwise it needs published weights."""
        return self.engine.name != "vllm"
