"""Whether two sides agree, and batches on which they might not: log-ratios up to where both clamp them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.rlcore.batches import Batch, batch_of

DEPARTURES = Path(__file__).resolve().parents[2] / "data" / "departures.json"
LOGPROBS = ("old_logprobs", "rollout_logprobs", "ref_logprobs")
TOLERANCE = 1e-6
"""Absolute for numbers up to 1, relative beyond. verl adds 1e-8 to denominators that are never 0."""


def assert_close(found: Tensor, theirs: Any, mask: Tensor | None = None) -> None:
    """Equal within the tolerance, where the mask is True if there is one."""
    expected = torch.as_tensor(theirs, dtype=torch.float64)
    found = found.detach().double()
    if mask is not None:
        expected, found = torch.where(mask, expected, 0.0), torch.where(mask, found, 0.0)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def stretched(batch: Batch, factor: float, names: Sequence[str] = LOGPROBS) -> Batch:
    """The same, with the log-probabilities of these names `factor` times as far from the policy's."""
    tokens = dict(batch.tokens)
    for name in names:
        tokens[name] = tokens["logprobs"] + factor * (tokens[name] - tokens["logprobs"])
    tokens["log_ratio"] = factor * tokens["log_ratio"]
    return Batch(batch.loss_mask, tokens, batch.samples)


def judged_right_or_wrong(batch: Batch) -> Batch:
    """The same with rewards of 0 and 1 on the last token, as a verifier gives them."""
    rewards = (batch["rewards"] > 0).double()
    token_rewards = torch.zeros_like(batch["token_rewards"])
    last = batch.loss_mask.shape[1] - 1 - batch.loss_mask.flip(-1).int().argmax(dim=-1)
    token_rewards[torch.arange(len(last)), last] = rewards
    return Batch(batch.loss_mask, batch.tokens | {"token_rewards": token_rewards}, batch.samples)


def live_batches(max_stretch: float = 1.0, names: Sequence[str] = LOGPROBS) -> st.SearchStrategy[Batch]:
    """Batches of 2 to 8 samples of up to 9 positions, some of them stretched, at most by this factor."""
    drawn = st.builds(batch_of, st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(1, 9))
    stretches = st.sampled_from([factor for factor in (1.0, 6.0, 90.0) if factor <= max_stretch])
    return st.builds(stretched, drawn, stretches, st.just(names))


def departures_from(library: str) -> list[str]:
    """Return the names of the departures from this library that `tests/data/departures.json` lists."""
    return list(json.loads(DEPARTURES.read_text("utf-8"))[library])
