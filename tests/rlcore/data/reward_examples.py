"""Reward functions as users write them, in each library's signature."""

from typing import Any

import torch

NOT_CALLED = 3


def length(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> Any:
    if solution_str == "dict":
        return {"score": 0.5, "acc": True}
    if solution_str == "wrong":
        return {"acc": True}
    extra_info["seen"] = True
    return float(data_source == "here" and solution_str == ground_truth)


async def compute_score_async(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> Any:
    if solution_str == "fails":
        raise KeyError(solution_str)
    return float(solution_str == ground_truth)


def reward_func(queries: list[str], prompts: list[str], labels: list[Any], **kwargs: Any) -> Any:
    (query,), (prompt,), (label,) = queries, prompts, labels
    matches = torch.tensor([float(query == prompt + str(label))])
    if query.endswith("list"):
        return [0.25]
    if query.endswith("wrong"):
        return torch.zeros(2)
    return {"rewards": matches, "scores": matches, "extra_logs": {}} if query.endswith("dict") else matches
