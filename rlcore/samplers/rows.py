"""The completions that are being decoded, dense in rows 0 to n - 1: row r is slot r of the cache.

All of them advance together, a token at a time: what is known of each is a column of tensors, and when the next one
reaches its length follows from a clock of steps, so that a step costs no Python for each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlcore.samplers.gumbel import signed, states
from rlcore.samplers.stopping import StopText
from rlcore.types import SampleRequest, SamplingParams

NO_TOKEN = -1


@dataclass(slots=True, eq=False)
class RunningSequence:
    """A completion on its way; its tokens are here while it waits, and in a row while it is decoded."""

    number: int
    """Of its request."""
    request: SampleRequest
    params: SamplingParams
    """Those of its request: one object for all that are equal."""
    text: StopText | None
    """None where no text stops it."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def so_far(self) -> tuple[int, ...]:
        """The prompt and what was drawn."""
        return (*self.request.prompt.tokens, *self.tokens)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A draft in its row."""

    running: RunningSequence
    arrival: int
    """How many were admitted before it."""
    ends_at: int
    """What the clock shows when its length is reached."""
    lead: int
    """How many positions it has read beyond what the clock shows."""


class Rows:
    """Room for some drafts."""

    def __init__(self, num_rows: int, max_tokens: int, num_stops: int, device: torch.device) -> None:
        self.clock = 0
        """Tokens that were read after admission, by whoever was there all the time."""
        self._slots: list[_Slot] = []
        self._num_admitted = 0
        self._next_end = 0
        self._most_lead = 0
        self._columns = torch.zeros((3 + num_stops, num_rows), dtype=torch.int64, device=device)
        self._counts: Tensor = self._columns[0]
        self._lengths: Tensor = self._columns[1]
        self._last: Tensor = self._columns[2]
        self._stops = self._columns[3:]
        self._positions = torch.arange(max_tokens, device=device)
        self._states = torch.zeros((num_rows, max_tokens), dtype=torch.int64, device=device)
        self._tokens = torch.zeros((num_rows, max_tokens), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros((num_rows, max_tokens), dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def num_free(self) -> int:
        """Rows that are not in use."""
        return self._columns.shape[1] - len(self)

    @property
    def running_sequences(self) -> list[RunningSequence]:
        """Row by row."""
        return [place.running for place in self._slots]

    @property
    def lengths(self) -> Tensor:
        """Positions that the cache holds: int64 [rows]."""
        return self._lengths[: len(self)]

    @property
    def last(self) -> Tensor:
        """The newest token, which has not been read yet: int64 [rows]."""
        return self._last[: len(self)]

    def states(self, first: int) -> Tensor:
        """What the noise of the next token begins with, for the rows from `first` on: int64 [rows - first]."""
        rows = slice(first, len(self))
        return self._states[rows].gather(1, self._counts[rows].unsqueeze(1)).squeeze(1)

    @property
    def longest(self) -> int:
        """The most positions that the cache holds of one."""
        return self._most_lead + self.clock

    def admit(self, running_sequences: Sequence[RunningSequence], eos_id: int) -> None:
        """Put drafts into the next rows; all they say so far has been read."""
        first, num_stops = len(self), self._stops.shape[0]
        columns = []
        for running in running_sequences:
            num_drawn, length = len(running.tokens), len(running.so_far)
            stops = (eos_id, *running.params.stop_ids)
            stops += (NO_TOKEN,) * (num_stops - len(stops))
            columns.append((num_drawn, length, NO_TOKEN, *stops))
            ends_at = self.clock + running.params.max_tokens - num_drawn - 1
            self._slots.append(_Slot(running, self._num_admitted, ends_at, length - self.clock))
            self._num_admitted += 1
        self._columns[:, first : len(self)] = torch.tensor(columns).t()
        keys = torch.tensor(
            [[signed(running.request.key)] for running in running_sequences], device=self._states.device
        )
        self._states[first : len(self)] = states(keys, self._positions)
        for row, running in enumerate(running_sequences, first):
            if running.tokens:
                self._tokens[row, : len(running.tokens)] = torch.tensor(running.tokens)
                self._logprobs[row, : len(running.tokens)] = torch.tensor(running.logprobs)
        self._look_ahead()

    def read(self) -> None:
        """Every row's last token has been read."""
        self.clock += 1
        self.lengths.add_(1)

    def put(self, first: int, tokens: Tensor, logprobs: Tensor) -> None:
        """Write what was drawn for the rows from `first` on: [rows - first] each."""
        rows = slice(first, len(self))
        counts = self._counts[rows]
        place = counts.unsqueeze(1)
        self._tokens[rows].scatter_(1, place, tokens.unsqueeze(1))
        self._logprobs[rows].scatter_(1, place, logprobs.unsqueeze(1))
        self._last[rows] = tokens
        counts.add_(1)

    def at_an_end(self, first: int) -> list[int]:
        """Rows from `first` on whose last token stops them, or which have their length; what they say is not read."""
        stopped = self._stops[:, first : len(self)] == self._last[first : len(self)]
        found = stopped.any(0).nonzero().flatten().tolist() if bool(stopped.any()) else []
        rows = {first + row for row in found}
        if self.clock >= self._next_end:
            rows |= {row for row in range(first, len(self)) if self._slots[row].ends_at <= self.clock}
        return sorted(rows)

    def youngest(self) -> int:
        """The row that was admitted last."""
        return max(range(len(self)), key=lambda row: self._slots[row].arrival)

    def remove(self, rows: Sequence[int]) -> tuple[list[RunningSequence], list[int], list[int]]:
        """Take drafts out with what was drawn for them, and close the gaps -> (drafts, moved from, moved to)."""
        index = torch.tensor(rows, device=self._columns.device)
        told = (self._counts[index], self._tokens[index], self._logprobs[index])
        running_sequences = [self._slots[row].running for row in rows]
        for running, count, tokens, logprobs in zip(
            running_sequences, *(values.tolist() for values in told), strict=True
        ):
            running.tokens, running.logprobs = tokens[:count], logprobs[:count]
        num_left, gone = len(self) - len(rows), set(rows)
        sources = [row for row in range(num_left, len(self)) if row not in gone]
        targets = [row for row in sorted(gone) if row < num_left]
        if sources:
            self._columns[:, targets] = self._columns[:, sources]
            for held in (self._states, self._tokens, self._logprobs):
                held[targets] = held[sources]
        for source, target in zip(sources, targets, strict=True):
            self._slots[target] = self._slots[source]
        del self._slots[num_left:]
        self._look_ahead()
        return running_sequences, sources, targets

    def _look_ahead(self) -> None:
        self._next_end = min((place.ends_at for place in self._slots), default=0)
        self._most_lead = max((place.lead for place in self._slots), default=-self.clock)
