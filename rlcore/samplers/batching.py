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
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import uses_triton
from rlcore.samplers.base import RunningSequence
from rlcore.samplers.decode_graphs import DecodeGraphs
from rlcore.samplers.drawing import GumbelNoise, Plan, draw, signed, states
from rlcore.types import SampleRequest, Tokenizer

PREFILL_TOKENS = 1 << 14
"""Of prompts that are read together, padding included: bounds the memory that reading them takes."""
TOKENS_AHEAD = 32
"""Room in the cache beyond the longest prompt; doubled when it is used up."""
Drawing = tuple[Plan, Tensor]
"""How the tokens of some rows are drawn, and the keys of their noise, int64 [rows]."""


class ContinuousBatch:
    """Requests on their way through one decoder, up to `concurrency` of them together."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, *, concurrency: int, preempt_every: int = 0) -> None:
        self._decoder, self._tokenizer = decoder, tokenizer
        self._concurrency, self._preempt_every = concurrency, preempt_every
        self._waiting: deque[RunningSequence] = deque()
        self._running: list[RunningSequence] = []
        """Row r is slot r of the cache."""
        self._drawing: Drawing | None = None
        """That of all rows, for as long as they are the same."""
        self._num_put = self._num_admitted = self._num_decoded = 0
        self._most_positions = self._longest_prompt = 0
        self._cache = KeyValueCache.empty(decoder.config, 0, 0, like=decoder.embedding)
        self._device = decoder.embedding.device
        self._noise = GumbelNoise.of(decoder.config.vocab_size, self._device)
        self._graphs = DecodeGraphs(decoder) if self._device.type == "cuda" and uses_triton() else None

    @property
    def has_graphs(self) -> bool:
        """Whether it decodes by CUDA graphs, which take long to capture: worth keeping for the next requests."""
        return self._graphs is not None

    def put(self, request: SampleRequest) -> int:
        """Let a request wait; it is admitted as soon as there is a row. Return its number, by which it is known."""
        self._waiting.append(RunningSequence.of(self._num_put, request, self._tokenizer))
        self._num_put += 1
        num_tokens = len(request.prompt.tokens)
        self._longest_prompt = max(self._longest_prompt, num_tokens)
        self._most_positions = max(self._most_positions, num_tokens + request.params.max_tokens)
        return self._num_put - 1

    def __len__(self) -> int:
        """Return how many requests wait or run."""
        return len(self._waiting) + len(self._running)

    def step(self) -> list[RunningSequence]:
        """Admit what waits into free rows, read one token more of every row, and return the sequences that are done."""
        done = self._admit() if self._waiting and len(self._running) < self._concurrency else []
        if self._running:
            done += self._decode()
            if self._preempt_every and self._num_decoded % self._preempt_every == 0 and self._running:
                youngest = max(range(len(self._running)), key=lambda row: self._running[row].arrival)
                self._waiting.extend(self._remove([youngest]))  # behind all that wait
        return done

    def drop(self, number: int) -> None:
        """Forget a request, wherever it is."""
        self._waiting = deque(each for each in self._waiting if each.number != number)
        self._remove([row for row, each in enumerate(self._running) if each.number == number])

    def run(self, requests: Sequence[SampleRequest]) -> list[RunningSequence]:
        """Put requests and step until no sequence is left -> in the order of the requests."""
        finished: dict[int, RunningSequence] = {}
        numbers = [self.put(request) for request in requests]
        while len(self):
            finished.update((each.number, each) for each in self.step())
        return [finished[number] for number in numbers]

    # ------------------------------------------------------------------------------------- waiting ──prefill──▶ running

    def _admit(self) -> list[RunningSequence]:
        """Read the prompts of as many as there are rows for, draw a token for each, and return those that are done."""
        first, num_rows = len(self._running), min(self._concurrency, len(self))
        if self._cache.keys.shape[1] < num_rows:
            capacity = min(self._most_positions, self._longest_prompt + TOKENS_AHEAD)
            self._cache = self._cache.grown(max(capacity, self._cache.capacity), num_rows)
        new = [self._waiting.popleft() for _ in range(num_rows - first)]
        for sequence in new:
            sequence.arrival = self._num_admitted = self._num_admitted + 1
        self._running += new
        self._drawing = None
        return self._draw(self._prefill([each.so_far for each in new], first), self._drawing_of(new), first)

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

    def _decode(self) -> list[RunningSequence]:
        """Read the last token of every row, draw the next, and return the sequences that are done."""
        lengths = [each.num_tokens - 1 for each in self._running]
        longest = max(lengths)
        self._make_room(longest + 1)
        if self._graphs is not None:
            logits = self._graphs.logits([each.tokens[-1] for each in self._running], lengths, self._cache)
        else:
            at = CachePositions.of(self._cache, torch.tensor(lengths, device=self._device), 1, longest=longest)
            last = torch.tensor([[each.tokens[-1]] for each in self._running], device=self._device)
            hidden = self._decoder.decode(last, at)
            logits = self._decoder.logits(hidden[:, 0])
        self._num_decoded += 1
        self._drawing = self._drawing or self._drawing_of(self._running)
        return self._draw(logits, self._drawing, 0)

    def _draw(self, logits: Tensor, drawing: Drawing, first: int) -> list[RunningSequence]:
        """Draw a token for each row from `first` on; take out those that are done, and return them."""
        rows, (plan, keys) = self._running[first:], drawing
        positions = torch.tensor([len(each.tokens) for each in rows], device=self._device)
        tokens, logprobs = draw(logits, plan, self._noise, states(keys, positions))
        for sequence, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            sequence.put(token, logprob)
        return self._remove([row for row, each in enumerate(rows, first) if each.is_done])

    def _remove(self, rows: Sequence[int]) -> list[RunningSequence]:
        """Take sequences out, and close the gaps with the last ones."""
        removed = [self._running[row] for row in rows]
        if removed:
            num_left = len(self._running) - len(rows)
            sources = [row for row in range(num_left, len(self._running)) if row not in rows]
            targets = [row for row in rows if row < num_left]
            if sources:
                self._cache.move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                self._running[target] = self._running[source]
            del self._running[num_left:]
            self._drawing = None
        return removed

    def _make_room(self, num_positions: int) -> None:
        if num_positions > self._cache.capacity:
            capacity = min(self._most_positions, max(num_positions, 2 * self._cache.capacity))
            self._cache = self._cache.grown(capacity, self._cache.keys.shape[1])

    def _drawing_of(self, sequences: Sequence[RunningSequence]) -> Drawing:
        params = [sequence.request.params for sequence in sequences]
        if len(set(params)) == 1:  # one row's plan is any number of rows'
            params = params[:1]
        keys = torch.tensor([signed(sequence.request.key) for sequence in sequences], device=self._device)
        return Plan.of(params, self._decoder.config.vocab_size, self._device), keys


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
