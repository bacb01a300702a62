"""Continuous batching: a finished sequence leaves at once, and the next one that waits takes the row.

    waiting ──prefill──▶ rows 0 .. n-1, decoded together ──▶ done
       ▲                        │
       └──────── preempted ─────┘   begins again from its prompt and what it has said so far

One thread, one loop. What is drawn for a request depends on nothing here: noise goes by its key and the count of its
tokens, and at level invariant logits are those of the sequence alone. So neither the order, nor who shares a batch,
nor when a sequence has to begin again, changes a bit.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.errors import NonFiniteError
from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import Progress
from rlcore.samplers.drawing import Plan, draw
from rlcore.samplers.gumbel import GumbelNoise
from rlcore.samplers.requests import named
from rlcore.samplers.rows import Rows, RunningSequence
from rlcore.samplers.stopping import StopText, reason
from rlcore.types import SampleRequest, StopReason, Tokenizer

PREFILL_TOKENS = 1 << 14
"""Of prompts that are read together, padding included: bounds the memory that reading them takes."""
TOKENS_AHEAD = 32
"""Room in the cache beyond the longest prompt; doubled when it is used up."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A draft that is done, and why."""

    running: RunningSequence
    reason: StopReason


class ContinuousBatch:
    """Some requests on their way through one decoder."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        requests: Sequence[SampleRequest],
        *,
        concurrency: int,
        preempt_every: int,
    ) -> None:
        self._decoder, self._tokenizer, self._preempt_every = decoder, tokenizer, preempt_every
        distinct = {request.params: request.params for request in requests}
        self._waiting = deque(
            RunningSequence(number, request, distinct[request.params], self._text(request))
            for number, request in enumerate(requests)
        )
        vocab_size, device = decoder.config.vocab_size, decoder.embedding.device
        num_rows = min(concurrency, len(requests))
        self._looks_at_text = any(params.stop_strings for params in distinct)
        num_stops = 1 + max(len(params.stop_ids) for params in distinct)
        self._rows = Rows(num_rows, max(params.max_tokens for params in distinct), num_stops, device)
        self._most_positions = max(len(each.prompt.tokens) + each.params.max_tokens for each in requests)
        longest_prompt = max(len(each.prompt.tokens) for each in requests)
        capacity = min(self._most_positions, longest_prompt + TOKENS_AHEAD)
        self._cache = KeyValueCache.empty(decoder.config, num_rows, capacity, like=decoder.embedding)
        self._noise = GumbelNoise.of(vocab_size, device)
        # One row's plan is any number of rows': no need to make it again when somebody comes or goes.
        self._only_plan = Plan.of(list(distinct), vocab_size, device) if len(distinct) == 1 else None
        self._plan = self._only_plan
        self._finished: list[Finished | None] = [None] * len(requests)
        self._num_done = 0

    def run(self, progress: Progress | None) -> list[Finished]:
        """Decode until no sequence is left -> in the order of the requests."""
        num_told = 0
        while self._waiting or len(self._rows):
            if self._waiting and self._rows.num_free:
                self._admit()
            if len(self._rows):
                self._decode()
                if self._preempt_every and self._rows.clock % self._preempt_every == 0 and len(self._rows):
                    self._preempt()
            if progress and self._num_done > num_told:
                num_told = self._num_done
                progress(num_told, len(self._finished))
        return [finished for finished in self._finished if finished is not None]

    def _text(self, request: SampleRequest) -> StopText | None:
        stops = request.params.stop_strings
        return StopText(self._tokenizer, stops) if stops else None

    def _admit(self) -> None:
        """Read the prompts of as many as there are rows for, and draw a token for each."""
        running_sequences = [self._waiting.popleft() for _ in range(min(self._rows.num_free, len(self._waiting)))]
        first = len(self._rows)
        logits = self._prefill([running.so_far for running in running_sequences], first)
        self._rows.admit(running_sequences, self._tokenizer.eos_id)
        self._plan = self._only_plan
        self._draw(logits, self._only_plan or self._plan_of(running_sequences), first)

    def _prefill(self, sequences: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Read sequences into the slots from `first` on -> what comes next, logits [sequences, vocabulary].

        One that several share is read once: its keys and values are copied.
        """
        distinct = list(dict.fromkeys(sequences))
        longest = max(map(len, distinct))
        self._make_room(longest)
        at_once = max(1, PREFILL_TOKENS // longest)
        ends = [
            self._read(distinct[start : start + at_once], first + start) for start in range(0, len(distinct), at_once)
        ]
        logits = self._decoder.logits(torch.cat(ends))
        if len(distinct) == len(sequences):
            return logits
        slots = {sequence: slot for slot, sequence in enumerate(distinct)}
        which = torch.tensor([slots[sequence] for sequence in sequences], device=logits.device)
        self._cache.spread(first, which, longest)
        return logits[which]

    def _read(self, sequences: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Read some together -> the last stream at the end of each: [sequences, width]."""
        lengths = [len(sequence) for sequence in sequences]
        longest = max(lengths)
        tokens = torch.tensor([(*sequence, *(0,) * (longest - len(sequence))) for sequence in sequences])
        slots = self._cache.slots(first, first + len(sequences))
        hidden = self._decoder.extend(tokens.to(self._noise.ids.device), slots, [0] * len(sequences))
        return hidden[torch.arange(len(sequences)), torch.tensor(lengths) - 1]

    def _decode(self) -> None:
        """Read the last token of every row, and draw the next."""
        rows = self._rows
        self._make_room(rows.longest + 1)
        at = CachePositions.of(rows.lengths, 1, self._cache, longest=rows.longest)
        hidden = self._decoder.read(rows.last.unsqueeze(1), self._cache, at)
        rows.read()
        if self._plan is None:
            self._plan = self._plan_of(rows.running_sequences)
        self._draw(self._decoder.logits(hidden[:, 0]), self._plan, 0)

    def _draw(self, logits: Tensor, plan: Plan, first: int) -> None:
        """Draw a token for each row from `first` on, and take out those that are done."""
        rows = self._rows
        tokens, logprobs = draw(logits, plan, self._noise, rows.states(first))
        rows.put(first, tokens, logprobs)
        done = self._told(first) | set(rows.at_an_end(first))
        if done:
            self._finish(sorted(done))

    def _told(self, first: int) -> set[int]:
        """Rows from `first` on in which the last token completes a stop string."""
        if not self._looks_at_text:
            return set()
        running_sequences, last = self._rows.running_sequences, self._rows.last.tolist()
        texts = [(row, running_sequences[row].text) for row in range(first, len(running_sequences))]
        return {row for row, text in texts if text is not None and text.put(last[row])}

    def _finish(self, rows: Sequence[int]) -> None:
        for running in self._remove(rows):
            _check_finite(running)
            by_text = running.text is not None and running.text.is_found
            why = reason(running.tokens, running.params, self._tokenizer.eos_id, by_text=by_text)
            self._finished[running.number] = Finished(running, why)
            self._num_done += 1

    def _preempt(self) -> None:
        """The youngest has to begin again, behind all that wait."""
        self._waiting.extend(self._remove([self._rows.youngest()]))

    def _remove(self, rows: Sequence[int]) -> list[RunningSequence]:
        running_sequences, sources, targets = self._rows.remove(rows)
        if sources:
            self._cache.move(sources, targets)
        self._plan = self._only_plan
        return running_sequences

    def _make_room(self, num_positions: int) -> None:
        if num_positions > self._cache.capacity:
            self._cache = self._cache.grown(min(self._most_positions, max(num_positions, 2 * self._cache.capacity)))

    def _plan_of(self, running_sequences: Sequence[RunningSequence]) -> Plan:
        vocab_size = self._decoder.config.vocab_size
        return Plan.of([running.params for running in running_sequences], vocab_size, self._noise.ids.device)


def _check_finite(running: RunningSequence) -> None:
    if math.isfinite(sum(running.logprobs)):
        return
    position = next(position for position, value in enumerate(running.logprobs) if not math.isfinite(value))
    raise NonFiniteError(
        f"token {position} of {named(running.request)} has log-probability {running.logprobs[position]}",
        remedy="check the weights that the sampler received: logits are NaN or infinite",
        phases=("rollout",),
    )
