"""Labels of the parts of a batch's time, by their names in timing.jsonl."""

ENVIRONMENTS = {
    "env_start": "starting",
    "env_step": "stepping",
    "env_evaluate": "evaluating",
    "env_engine": "waiting for an answer",
    "env_idle": "idle or closing",
}
LANES = {
    "start": "starting",
    "step": "stepping",
    "evaluate": "evaluating",
    "engine": "waiting for an answer",
}
STAGES = {
    "rollout": "rollouts",
    "wait": "waiting for groups",
    "learn": "learning",
    "evaluate": "evaluation",
    "save": "saving",
    "judge": "log-probabilities of offline data",
}
