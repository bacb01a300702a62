"""Trajectories of one completion, as a sampler hands them on, made of their texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason

PARAMS = SamplingParams(max_tokens=8)


def completion(
    text: str,
    columns: Mapping[str, Any] | None = None,
    *,
    prompt: str = "p",
    sample_index: int = 0,
    stop_reason: StopReason = StopReason.EOS,
) -> Trajectory:
    """One, whose tokens are the numbers of its characters, and 0 for its end."""
    tokens = (*map(ord, text), 0)
    request = SampleRequest(Prompt(f"id-{prompt}", prompt, (1,), dict(columns or {})), sample_index, 0, PARAMS)
    return build_single_turn(
        request,
        tokens,
        [0.0] * len(tokens),
        text=text,
        stop_reason=stop_reason,
        policy_version=0,
        weights_digest="digest",
    )


def completions(texts: Sequence[str], **columns: Sequence[Any]) -> list[Trajectory]:
    """One for each text, with the values of `columns` in their order."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [
        completion(text, row, prompt=f"prompt {index}", sample_index=index)
        for index, (text, row) in enumerate(zip(texts, rows or [{} for _ in texts], strict=True))
    ]
