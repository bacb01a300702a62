"""Continuous batching: a finished sequence leaves at once, and the next one that waits takes its row.

    put ─▶ waiting ──prefill──▶ running: rows 0 .. n-1, decoded together ──▶ finished
              ▲                        │
              └──────── preempted ─────┘   begins again from its prompt and what it has said so far

One thread; `step` admits what waits and reads one token more of what runs. What is drawn for a request depends on
nothing here: noise goes by its key and the count of its tokens, and at level invariant logits are those of the sequence
alone. So neither the order, nor the time of admission, nor who shares a batch, nor when a sequence has to begin again,
changes a bit.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import RunningSequence
from rlcore.samplers.drawing import GumbelNoise, Plan, draw, signed, states
from rlcore.types import SampleRequest, SamplingParams, Tokenizer

PREFILL_TOKENS = 1 << 14
"""Of prompts that are read together, padding included: bounds the memory that reading them takes."""
TOKENS_AHEAD = 32
"""Room in the cache beyond the longest prompt; doubled when it is used up."""
NO_TOKEN = -1


class ContinuousBatch:
    """Requests on their way through one decoder, up to `concurrency` of them together."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, *, concurrency: int, preempt_every: int = 0) -> None:
        self._decoder, self._tokenizer = decoder, tokenizer
        self._concurrency, self._preempt_every = concurrency, preempt_every
        self._waiting: deque[RunningSequence] = deque()
        device = decoder.embedding.device
        self._running = Rows(device)
        self._finished: list[RunningSequence] = []
        self._num_put = 0
        self._params = set[SamplingParams]()
        self._most_positions = self._longest_prompt = 0
        self._cache = KeyValueCache.empty(decoder.config, 0, 0, like=decoder.embedding)
        self._noise = GumbelNoise.of(decoder.config.vocab_size, device)
        self._plan: Plan | None = None

    def put(self, request: SampleRequest) -> int:
        """Let a request wait; it is admitted as soon as there is a row. Return its number, by which it is known."""
        params = request.params
        self._params.add(params)
        self._waiting.append(RunningSequence.of(self._num_put, request, self._tokenizer))
        self._num_put += 1
        num_tokens = len(request.prompt.tokens)
        self._longest_prompt = max(self._longest_prompt, num_tokens)
        self._most_positions = max(self._most_positions, num_tokens + params.max_tokens)
        return self._num_put - 1

    def __len__(self) -> int:
        """Return how many requests wait or run."""
        return len(self._waiting) + len(self._running)

    def step(self) -> list[RunningSequence]:
        """Admit what waits into free rows, read one token more of every row, and return the sequences that are done."""
        if self._waiting:
            self._admit()
        if len(self._running):
            self._decode()
            if self._preempt_every and self._running.clock % self._preempt_every == 0 and len(self._running):
                self._waiting.extend(self._remove([self._running.youngest()]))  # behind all that wait
        finished, self._finished = self._finished, []
        return finished

    def run(self, requests: Sequence[SampleRequest]) -> list[RunningSequence]:
        """Put requests and step until no sequence is left -> in the order of the requests."""
        finished: dict[int, RunningSequence] = {}
        numbers = [self.put(request) for request in requests]
        while len(self):
            finished.update((each.number, each) for each in self.step())
        return [finished[number] for number in numbers]

    # ------------------------------------------------------------------------------------- waiting ──prefill──▶ running

    def _admit(self) -> None:
        """Read the prompts of as many as there are rows for, and draw a token for each."""
        self._make_rows()
        first = len(self._running)
        sequences = [self._waiting.popleft() for _ in range(min(self._running.num_free, len(self._waiting)))]
        if sequences:
            logits = self._prefill([sequence.so_far for sequence in sequences], first)
            self._running.admit(sequences, self._tokenizer.eos_id)
            self._plan = None
            self._draw(logits, self._plan_of(sequences), first)

    def _make_rows(self) -> None:
        """Have rows and slots of the cache for all that wait, up to `concurrency`."""
        num_rows = min(self._concurrency, max(len(self), self._running.num_rows))
        max_tokens = max(params.max_tokens for params in self._params)
        self._running.grow(num_rows, max_tokens, 1 + max(len(params.stop_ids) for params in self._params))
        if self._cache.keys.shape[1] < num_rows:
            capacity = min(self._most_positions, self._longest_prompt + TOKENS_AHEAD)
            self._cache = self._cache.grown(max(capacity, self._cache.capacity), num_rows)

    def _prefill(self, sequences: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Read sequences into the slots from `first` on -> what comes next, logits [sequences, vocabulary].

        One that several share is read once: its keys and values are copied.
        """
        distinct = list(dict.fromkeys(sequences))
        longest = max(map(len, distinct))
        self._make_room(longest)
        logits = self._decoder.logits(read_prompts(self._decoder, distinct, self._cache, first))
        if len(distinct) == len(sequences):
            return logits
        slots = {sequence: slot for slot, sequence in enumerate(distinct)}
        which = torch.tensor([slots[sequence] for sequence in sequences], device=logits.device)
        self._cache.spread(first, which, longest)
        return logits[which]

    # -------------------------------------------------------------------------- running: a token more, until it is done

    def _decode(self) -> None:
        """Read the last token of every row, and draw the next."""
        rows = self._running
        self._make_room(rows.longest + 1)
        at = CachePositions.of(rows.lengths, 1, self._cache, longest=rows.longest)
        hidden = self._decoder.read(rows.last.unsqueeze(1), self._cache, at)
        rows.read()
        if self._plan is None:
            self._plan = self._plan_of(rows.sequences)
        self._draw(self._decoder.logits(hidden[:, 0]), self._plan, 0)

    def _draw(self, logits: Tensor, plan: Plan, first: int) -> None:
        """Draw a token for each row from `first` on, and take out those that are done."""
        rows = self._running
        tokens, logprobs = draw(logits, plan, self._noise, rows.states(first))
        rows.put(first, tokens, logprobs)
        done = set(self._stopped_by_text(first)) | set(rows.at_an_end(first))
        if done:
            self._finished += self._remove(sorted(done))

    def _stopped_by_text(self, first: int) -> Iterator[int]:
        """Yield the rows from `first` on in which the last token completes a stop string."""
        if any(params.stop_strings for params in self._params):
            last = self._running.last.tolist()
            for row, sequence in enumerate(self._running.sequences[first:], first):
                if sequence.text is not None and sequence.text.put(last[row]):
                    yield row

    def _remove(self, rows: Sequence[int]) -> list[RunningSequence]:
        sequences, sources, targets = self._running.remove(rows)
        if sources:
            self._cache.move(sources, targets)
        self._plan = None
        return sequences

    def _make_room(self, num_positions: int) -> None:
        if num_positions > self._cache.capacity:
            capacity = min(self._most_positions, max(num_positions, 2 * self._cache.capacity))
            self._cache = self._cache.grown(capacity, self._cache.keys.shape[1])

    def _plan_of(self, sequences: Sequence[RunningSequence]) -> Plan:
        params = [sequence.request.params for sequence in sequences]
        if len(self._params) == 1:  # one row's plan is any number of rows'
            params = params[:1]
        return Plan.of(params, self._decoder.config.vocab_size, self._noise.ids.device)


def read_prompts(
    decoder: Decoder, sequences: Sequence[tuple[int, ...]], cache: KeyValueCache, first: int = 0
) -> Tensor:
    """Read sequences into the slots from `first` on, some at a time -> the stream at the end of each."""
    at_once = max(1, PREFILL_TOKENS // max(map(len, sequences)))
    ends = []
    for start in range(0, len(sequences), at_once):
        some = sequences[start : start + at_once]
        ends.append(read_together(decoder, some, cache.slots(first + start, first + start + len(some))))
    return torch.cat(ends)


def read_together(
    decoder: Decoder, parts: Sequence[tuple[int, ...]], cache: KeyValueCache, starts: Sequence[int] | None = None
) -> Tensor:
    """Read a part of each sequence into its slot -> the stream at its last token: [parts, width]."""
    lengths = [len(part) for part in parts]
    longest = max(lengths)
    tokens = torch.tensor([(*part, *(0,) * (longest - len(part))) for part in parts])
    hidden = decoder.extend(tokens.to(decoder.embedding.device), cache, starts or [0] * len(parts))
    return hidden[torch.arange(len(parts)), torch.tensor(lengths) - 1]


@dataclass(frozen=True, slots=True)
class _Row:
    """A running sequence in its row."""

    sequence: RunningSequence
    arrival: int
    """How many were admitted before it."""
    ends_at: int
    """What the clock shows when its length is reached."""
    lead: int
    """How many positions it has read beyond what the clock shows."""


class Rows:
    """The sequences that run, dense in rows 0 to n - 1: row r is slot r of the cache.

    All of them advance together, a token at a time: what is known of each is a column of tensors, and when the next one
    reaches its length follows from a clock of steps, so that a step costs no Python for each of them.
    """

    def __init__(self, device: torch.device) -> None:
        self.clock = 0
        """Tokens that were read after admission, by whoever was there all the time."""
        self._rows: list[_Row] = []
        self._num_admitted = 0
        self._next_end = 0
        self._most_lead = 0
        self._columns = torch.zeros((3, 0), dtype=torch.int64, device=device)
        """Of each row: tokens drawn, positions in the cache, newest token, and the tokens that stop it."""
        self._states = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self._tokens = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros((0, 0), dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_rows(self) -> int:
        """Rows that there are, in use or not."""
        return self._columns.shape[1]

    @property
    def num_free(self) -> int:
        """Rows that are not in use."""
        return self.num_rows - len(self)

    @property
    def sequences(self) -> list[RunningSequence]:
        """Row by row."""
        return [row.sequence for row in self._rows]

    @property
    def lengths(self) -> Tensor:
        """Positions that the cache holds: int64 [rows]."""
        return self._columns[1, : len(self)]

    @property
    def last(self) -> Tensor:
        """The newest token, which has not been read yet: int64 [rows]."""
        return self._columns[2, : len(self)]

    @property
    def longest(self) -> int:
        """The most positions that the cache holds of one."""
        return self._most_lead + self.clock

    def states(self, first: int) -> Tensor:
        """What the noise of the next token begins with, for the rows from `first` on: int64 [rows - first]."""
        rows = slice(first, len(self))
        return self._states[rows].gather(1, self._columns[0, rows].unsqueeze(1)).squeeze(1)

    def grow(self, num_rows: int, max_tokens: int, num_stops: int) -> None:
        """Have at least so many rows, tokens of each, and tokens that stop it."""
        rows = max(0, num_rows - self.num_rows)
        stops = max(0, 3 + num_stops - self._columns.shape[0])
        tokens = max(0, max_tokens - self._states.shape[1])
        if rows or stops or tokens:
            self._columns = F.pad(self._columns, (0, rows, 0, stops), value=NO_TOKEN)
            by_token = (F.pad(each, (0, tokens, 0, rows)) for each in (self._states, self._tokens, self._logprobs))
            self._states, self._tokens, self._logprobs = by_token

    def admit(self, sequences: Sequence[RunningSequence], eos_id: int) -> None:
        """Put sequences into the next rows; all they say so far has been read."""
        first, num_stops = len(self), self._columns.shape[0] - 3
        columns = []
        for sequence in sequences:
            num_drawn, length = len(sequence.tokens), len(sequence.so_far)
            stops = (eos_id, *sequence.request.params.stop_ids)
            stops += (NO_TOKEN,) * (num_stops - len(stops))
            columns.append((num_drawn, length, NO_TOKEN, *stops))
            ends_at = self.clock + sequence.request.params.max_tokens - num_drawn - 1
            self._rows.append(_Row(sequence, self._num_admitted, ends_at, length - self.clock))
            self._num_admitted += 1
        self._columns[:, first : len(self)] = torch.tensor(columns).t()
        keys = torch.tensor([[signed(sequence.request.key)] for sequence in sequences], device=self._states.device)
        positions = torch.arange(self._states.shape[1], device=self._states.device)
        self._states[first : len(self)] = states(keys, positions)
        for row, sequence in enumerate(sequences, first):
            if sequence.tokens:
                self._tokens[row, : len(sequence.tokens)] = torch.tensor(sequence.tokens)
                self._logprobs[row, : len(sequence.tokens)] = torch.tensor(sequence.logprobs)
        self._look_ahead()

    def read(self) -> None:
        """Every row's last token has been read."""
        self.clock += 1
        self.lengths.add_(1)

    def put(self, first: int, tokens: Tensor, logprobs: Tensor) -> None:
        """Write what was drawn for the rows from `first` on: [rows - first] each."""
        rows = slice(first, len(self))
        counts = self._columns[0, rows]
        place = counts.unsqueeze(1)
        self._tokens[rows].scatter_(1, place, tokens.unsqueeze(1))
        self._logprobs[rows].scatter_(1, place, logprobs.unsqueeze(1))
        self._columns[2, rows] = tokens
        counts.add_(1)

    def at_an_end(self, first: int) -> list[int]:
        """Rows from `first` on whose last token stops them, or which have their length; what they say is not read."""
        stopped = self._columns[3:, first : len(self)] == self.last[first:]
        found = stopped.any(0).nonzero().flatten().tolist() if bool(stopped.any()) else []
        rows = {first + row for row in found}
        if self.clock >= self._next_end:
            rows |= {row for row in range(first, len(self)) if self._rows[row].ends_at <= self.clock}
        return sorted(rows)

    def youngest(self) -> int:
        """The row that was admitted last."""
        return max(range(len(self)), key=lambda row: self._rows[row].arrival)

    def remove(self, rows: Sequence[int]) -> tuple[list[RunningSequence], list[int], list[int]]:
        """Take sequences out with what was drawn for them, and close the gaps -> (sequences, moved from, moved to)."""
        index = torch.tensor(rows, device=self._columns.device)
        drawn = (self._columns[0, index], self._tokens[index], self._logprobs[index])
        sequences = [self._rows[row].sequence for row in rows]
        for sequence, count, tokens, logprobs in zip(sequences, *(values.tolist() for values in drawn), strict=True):
            sequence.tokens, sequence.logprobs = tokens[:count], logprobs[:count]
        num_left, gone = len(self) - len(rows), set(rows)
        sources = [row for row in range(num_left, len(self)) if row not in gone]
        targets = [row for row in sorted(gone) if row < num_left]
        if sources:
            self._columns[:, targets] = self._columns[:, sources]
            for held in (self._states, self._tokens, self._logprobs):
                held[targets] = held[sources]
        for source, target in zip(sources, targets, strict=True):
            self._rows[target] = self._rows[source]
        del self._rows[num_left:]
        self._look_ahead()
        return sequences, sources, targets

    def _look_ahead(self) -> None:
        self._next_end = min((row.ends_at for row in self._rows), default=0)
        self._most_lead = max((row.lead for row in self._rows), default=-self.clock)
