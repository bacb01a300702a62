"""The draw of a token inside vLLM: rlcore's own, by a logits processor.

    logits ──temperature, filters, noise of (key, position)──▶ token, log-probability ──▶ logits: that token alone
    logits ──temperature──▶ the most probable tokens, log-probabilities ────────────────▶ logits: those tokens

Every other token gets -inf, and these their log-probabilities. vLLM then takes the largest, and reports "processed
logits": the log-probabilities that rlcore computed, to the bit, through whatever processes they pass.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.drawing import GumbelNoise, Plan, draw, logprobs_at, ranked, signed, states
from rlcore.types import SamplingParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate


def draw_argument(
    key: int, params: SamplingParams, forced: int | None = None, num_ranked: int = 0, num_tokens_known: int = 0
) -> dict[str, Any]:
    """Return what a request carries for its draws, as plain values; see `_Row`."""
    drawn_by = [params.temperature, params.top_k, params.top_p, params.min_p]
    return {"rlcore": [drawn_by, signed(key), forced, num_ranked, num_tokens_known]}


@dataclass(frozen=True, slots=True)
class _Row:
    """A request of the batch."""

    output: list[int]
    """Tokens that it has, which vLLM extends."""
    params: SamplingParams
    key: int
    forced: int | None
    """Token that it takes, whatever its draw would be; of the canary."""
    num_ranked: int
    """Most probable tokens that are wanted in place of a draw; 0: a draw."""
    num_tokens_known: int
    """Tokens among which they are sought."""


class KeyedDraw(LogitsProcessor):
    """Draws the token of each row by the noise of its request's key and of how many tokens it has."""

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool) -> None:
        model = vllm_config.model_config
        self._noise = GumbelNoise.of(model.get_vocab_size(), device)
        self._dtype: torch.dtype = model.dtype
        self._rows: dict[int, _Row] = {}
        self._plan: Plan | None = None
        self._keys: Tensor | None = None

    def is_argmax_invariant(self) -> bool:
        """Return False: it decides which token is the largest."""
        return False

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        """Follow the rows of vLLM's batch: removed, added, moved, in this order."""
        if batch_update is None:
            return
        self._plan = self._keys = None
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, output in batch_update.added:
            drawn_by, *others = params.extra_args["rlcore"]
            self._rows[row] = _Row(output, SamplingParams(1, *drawn_by), *others)
        for first, second, direction in batch_update.moved:
            moved, met = self._rows.pop(first, None), self._rows.pop(second, None)
            if moved is not None:
                self._rows[second] = moved
            if met is not None and direction == MoveDirectionality.SWAP:
                self._rows[first] = met

    def apply(self, logits: Tensor) -> Tensor:
        """Leave one token of each row, or those that are ranked: logits fp32 [rows, vocabulary], changed in place."""
        if not self._rows:
            return logits
        rows = [self._rows[row] for row in range(len(logits))]
        if self._plan is None or self._keys is None:
            self._plan = Plan.of([row.params for row in rows], logits.shape[1], logits.device)
            self._keys = torch.tensor([row.key for row in rows], device=logits.device)
        positions = torch.tensor([len(row.output) for row in rows], device=logits.device)
        own = logits.to(self._dtype)  # vLLM converts to fp32, which is exact, and so is the way back
        tokens, logprobs = draw(own, self._plan, self._noise, states(self._keys, positions))
        if forced := [number for number, row in enumerate(rows) if row.forced is not None]:
            tokens[forced] = torch.tensor([rows[number].forced for number in forced], device=logits.device)
            logprobs[forced] = token_logprobs(own[forced], tokens[forced])
        ranking = [number for number, row in enumerate(rows) if row.num_ranked]
        all_logprobs = logprobs_at(own[ranking], [rows[number].params.temperature for number in ranking])
        # Where a log-probability is NaN, so is the row: whatever vLLM takes for the largest, NaN is reported.
        logits.fill_(-torch.inf).masked_fill_(logprobs.isnan().unsqueeze(1), torch.nan)
        logits.scatter_(1, tokens.unsqueeze(1), logprobs.unsqueeze(1))
        for number, each in zip(ranking, all_logprobs, strict=True):
            best, values = ranked(each[None], rows[number].num_tokens_known, rows[number].num_ranked)
            logits[number] = torch.nan if bool(each.isnan().any()) else -torch.inf
            logits[number, best[0]] = values[0]
        return logits
