"""Completions as a sampler hands them on, made of their texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlcore.types import Completion, Prompt, SampleRequest, SamplingParams, StopReason

PARAMS = SamplingParams(max_tokens=8)


def completion(
    text: str,
    columns: Mapping[str, Any] | None = None,
    *,
    prompt: str = "p",
    sample_index: int = 0,
    stop_reason: StopReason = StopReason.EOS,
) -> Completion:
    """One, whose tokens are the numbers of its characters, and 0 for its end."""
    tokens = (*map(ord, text), 0)
    request = SampleRequest(Prompt(f"id-{prompt}", prompt, (1,), dict(columns or {})), sample_index, 0, PARAMS)
    return Completion(request, tokens, torch.zeros(len(tokens)), text, stop_reason, 0, "digest")


def completions(texts: Sequence[str], **columns: Sequence[Any]) -> list[Completion]:
    """One for each text, with the values of `columns` in their order."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [
        completion(text, row, prompt=f"prompt {index}", sample_index=index)
        for index, (text, row) in enumerate(zip(texts, rows or [{} for _ in texts], strict=True))
    ]
