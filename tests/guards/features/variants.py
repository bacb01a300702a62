"""Features of the engine's configuration: each key is set and left out in two trainings, of which one thing differs."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen

_BASE: dict[str, Any] = {
    "seed": 3,
    "model": {"width": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_width": 8, "ffn_width": 16},
    "task": {"name": "sorting", "num_prompts": 8, "num_heldout": 1, "max_length": 5, "rewards": ["rewards:of_text"]},
    "warm_start": {"num_steps": 0},
    "sampling": {"max_tokens": 6},
    "algorithm": {"name": "grpo"},
    "optimizer": {"learning_rate": 0.01},
    "training": {"num_steps": 2, "prompts_per_step": 2, "group_size": 4, "microbatch_size": 4},
    "output": {"shows_progress": False},
}
_REWARDS = """\
import asyncio

def of_text(completions, **columns):
    return [float(len(each) + sum(map(ord, each)) % 7) for each in completions]

async def slow(completions, **columns):
    await asyncio.sleep(0.5)
    return [1.0 for each in completions]
"""
_PROMPTS = "".join(f'{{"prompt": "{prompt}", "answer": "b"}}\n' for prompt in ("ab", "cd", "abc", "abe"))
_CHECKPOINT = "run-0/checkpoints/step-000002/policy"
_EPOCHS = {"training.num_epochs": 2}
_PPO = {"algorithm.name": "ppo", "training.num_steps": 3}
_PENALTY = {**_PPO, "algorithm.kl_coef": 0.1}
_MASKED = {"algorithm.loss": "dppo_tv", "training.num_epochs": 3}
_WEIGHTS = {"correction.weights": "token"}
_SCORED = {"task.reward_model.max_length": 64}
_ON_RAY = {"deployment.backend": "ray", "deployment.num_ranks": 2}
_RANKS = {**_ON_RAY, "deployment.num_ranks": 4}
_STAGES = {
    "task.name": "recommendation",
    "task.rewards": [],
    "sampling.stop_strings": [";"],
    "sampling.two_stage.num_beams": 2,
    "sampling.two_stage.max_item_tokens": 3,
}
Settings = dict[str, Any]
Holds = Callable[[Settings, Settings], object]
"""Takes what came of the variant, and of it without its key."""


def _differs(one: Settings, other: Settings) -> bool:
    return not one["error"] + other["error"] and one["values"] != other["values"]


def _runs_otherwise(one: Settings, other: Settings) -> bool:
    """Whether other operations have made the variant."""
    return not one["error"] + other["error"] and one["operations"] != other["operations"]


def _refused(text: str) -> Holds:
    return lambda one, other: text in one["error"] and text not in other["error"]


def _says(text: str) -> Holds:
    return lambda one, other: text in one["said"] and text not in other["said"]


def _needed(one: Settings, other: Settings) -> bool:
    """Whether the run is refused without the key alone."""
    return not one["error"] and "InvalidValueError" in other["error"]


def _vllm(one: Settings, other: Settings) -> bool:
    """Whether vLLM was asked for."""
    return "vllm" in one["error"] or one["has_vllm"]


Variant = tuple[str, Any, Mapping[str, Any], str, Holds]


def _values(section: str, also: Mapping[str, Any] | None = None, **settings: Any) -> list[Variant]:
    """Variants of which values differ."""
    return [(f"{section}.{key}", value, also or {}, "other values", _differs) for key, value in settings.items()]


def _operations(key: str, value: Any, also: Mapping[str, Any] | None = None) -> Variant:
    return key, value, also or {}, "the same values, by other operations", _runs_otherwise


_ALGORITHMS: list[Variant] = [
    *_values("algorithm", advantage="rloo", aggregation="seq-mean-token-mean", entropy_coef=0.1, kl_coef=0.1),
    *_values("algorithm", _EPOCHS, clip_eps_high=0.001, clip_eps_low=0.001),
    *_values("algorithm", {"training.num_epochs": 3, "optimizer.learning_rate": 0.3}, dual_clip=1.01),
    *_values("algorithm", {"algorithm.kl_coef": 0.1}, kl_estimator="k2", weighs_kl=True),
    *_values("algorithm", _EPOCHS, loss="cispo"),
    *_values("algorithm", _MASKED, mask_low=0.0001, mask_high=0.0001, proximal_coef=0.5),
    *_values("algorithm", {"training.num_steps": 3}, name="ppo"),
    *_values("algorithm", _PPO, gamma=0.5, lam=0.5, critic_learning_rate=0.1, num_critic_warmup_steps=1),
    *_values("algorithm", _PPO, whitens_advantages=False),
    *_values("algorithm", {**_PPO, **_EPOCHS}, value_clip_eps=0.0001),
    *_values("algorithm", _PENALTY, kl_target=0.001),
    *_values("algorithm", {**_PENALTY, "algorithm.kl_target": 0.001}, kl_horizon=10),
    *_values("correction", weights="token", max_mean_k3=1e-30),
    *_values("correction", _WEIGHTS, high=0.9),
    *_values("correction", {**_WEIGHTS, "correction.outside": "icepop"}, low=1.5),
    *_values("correction", {**_WEIGHTS, "correction.high": 0.99}, outside="icepop"),
]
_OPTIMIZERS: list[Variant] = [
    *_values("optimizer", beta1=0.1, beta2=0.1, eps=0.1, max_gradient_norm=0.001, num_warmup_steps=2),
    *_values("optimizer", schedule="linear", weight_decay=0.5),
    *_values("optimizer", {"optimizer.schedule": "linear"}, final_ratio=0.5),
    *_values("training", num_epochs=2, num_minibatches=2),
]
_OTHERS: list[Variant] = [
    *_values("sampling", temperature=0.3, top_k=2, top_p=0.5, min_p=0.99, stop_strings=["a"]),
    *_values("evaluation", temperature=0.0, num_samples=2),
    ("evaluation.pass_reward", 1000.0, {"evaluation.num_samples": 2}, "that nothing passes", _says("pass@2 0.000")),
    *_values("model", {f"model.{key}": None for key in _BASE["model"]}, path=_CHECKPOINT),
    *_values("model", dtype="bfloat16"),
    *_values("task", num_prompts=2, shuffles_rewards=True),
    *_values("sampling.two_stage", _STAGES, forced_text=":"),
    ("sampling.two_stage.max_item_tokens", 2, _STAGES, "that it is needed", _needed),
    ("sampling.two_stage.num_beams", 3, _STAGES, "that it is needed", _needed),
    *_values("task.reward_model", _SCORED, weight=0.5),
    ("task.reward_model.path", _CHECKPOINT, _SCORED, "a refusal of a policy", _refused("task.reward_model.path")),
    *_values("warm_start", {"warm_start.num_steps": 2, "warm_start.target_reward": 0.0}, check_every=1),
    _operations("runtime.arrival_seed", 5, {"runtime.concurrency": 2}),
    *(_operations(f"runtime.{key}", 1) for key in ("concurrency", "preempt_every")),
    *(_operations(f"runtime.{key}", 2) for key in ("sampling_threads", "training_threads")),
    _operations("runtime.token_budget", 16),
    _operations("sampler.replicas", 2),
    ("sampler.name", "vllm", {}, "vLLM, or that it is not installed", _vllm),
    ("sampler.model", "stock", {}, "a refusal without vLLM", _refused("sampler.model is 'stock'")),
    ("task.reward_model.backend", "vllm", _SCORED, "vLLM, or that it is not installed", _vllm),
    ("task.reward_model.max_length", 2, {"task.reward_model.weight": 0.5}, "a refusal", _refused("max_length")),
    ("task.path", "prompts.jsonl", {"task.name": "file", "task.num_prompts": 3}, "a task that needs it", _needed),
    ("task.reward_timeout_s", 0.1, {"task.rewards": ["rewards:slow"]}, "an error", _refused("reward_timeout_s")),
    ("model.device", "nowhere", {}, "a refusal", _refused("model.device 'nowhere'")),
    (
        "output.shows_mismatch",
        True,
        {},
        "a line for each step",
        lambda one, other: len(one["said"]) > len(other["said"]),
    ),
    (
        *("output.tensorboard", True, {}, "a directory of it, or that it is not installed"),
        lambda one, other: "tensorboard" in f"{one['files']}{one['error']}" and "tensorboard" not in other["files"],
    ),
    ("deployment.num_ranks", 2, {}, "ranks that are simulated", _says("2 ranks, simulated")),
    ("deployment.backend", "ray", _RANKS, "actors of Ray", _says("4 ranks in actors of Ray")),
    ("deployment.sharding", "full", _RANKS, "shards", _says("each with a shard of the weights")),
    ("deployment.num_copies", 2, {**_RANKS, "deployment.sharding": "hybrid"}, "two copies", _says("2 copies")),
    *(
        (f"deployment.{key}", value, _ON_RAY, "a refusal", _refused(text))
        for key, value, text in (
            ("address", "127.0.0.1:1", "deployment.address"),
            ("num_nodes", 2, "on 2 nodes"),
            ("gpus_per_rank", 99, "of 99 GPUs"),
            ("cpus_per_rank", 9999.0, "and 9999 CPUs"),
        )
    ),
    ("deployment.offload", ["policy"], {"deployment.offload_directory": "disk"}, "that it is needed", _needed),
    ("deployment.offload_directory", "disk", {"deployment.offload": ["policy"]}, "that it is needed", _needed),
]


def _group(name: str, variants: list[Variant], *, is_quick: bool = False) -> list[Feature]:
    """Return the features of variants that one process trains."""
    run = _run(name, {key: {**also, key: value} for key, value, also, *_ in variants}, is_quick=is_quick)
    return [_feature(run, *variant) for variant in variants]


def _run(name: str, variants: Mapping[str, Settings], *, is_quick: bool) -> Run:
    return Run(
        name=name,
        program=(sys.executable, "-m", "tests.guards.features.each_variant"),
        command=(),
        files={
            "base.json": json.dumps(_BASE),
            "variants.json": json.dumps(variants),
            "rewards.py": _REWARDS,
            "prompts.jsonl": _PROMPTS,
            "disk/.keep": "",
        },
        env={"OMP_NUM_THREADS": "1"},
        is_quick=is_quick,
        package="torch",
    )


def _feature(run: Run, key: str, _: Any, also: Mapping[str, Any], sees: str, holds: Holds) -> Feature:
    def is_seen(seen: Seen) -> object:
        return holds(*seen.load("seen.json")[key])

    def without(run: Run) -> Run:
        settings = {name: value for name, value in also.items() if name != key}
        return replace(run, files={**run.files, "variants.json": json.dumps({key: settings})})

    return Feature(f"engine {key}", run, sees, is_seen, without)


FEATURES = (
    *_group("engine-algorithms", _ALGORITHMS),
    *_group("engine-optimizers", _OPTIMIZERS, is_quick=True),
    *_group("engine-others", _OTHERS),
)
