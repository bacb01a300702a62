"""The sampler of an engine of vLLM: the same contract, and at level invariant the same bits, as the local sampler.

    waiting ──add──▶ vLLM: scheduler, paged cache, prefix cache ──step──▶ tokens ──stop text──▶ done, or abort

Noise goes by a request's key and the count of its tokens, so vLLM may batch, chunk, cache, preempt and restart as it
likes. Stop strings are searched here, by the tokenizer of the run.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from rlcore.data.trajectory import Trajectory
from rlcore.errors import NonFiniteError
from rlcore.samplers.base import DecoderSampler, NextToken, NextTokenRequest, Progress, not_finite
from rlcore.samplers.stopping import StopText
from rlcore.samplers.vllm.draw import draw_argument
from rlcore.samplers.vllm.engine import Drawn, Engine
from rlcore.samplers.vllm.target import VllmTarget
from rlcore.types import SampleRequest, SamplingParams, Tokenizer


@dataclass(slots=True)
class _Running:
    """A request in the engine."""

    number: int
    """Index among the requests of the call."""
    request: SampleRequest
    text: StopText | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def put(self, drawn: Drawn) -> bool:
        """Append what was drawn; return whether a stop string is complete. Tokens after it are dropped."""
        for token, logprob in zip(drawn.tokens, drawn.logprobs, strict=True):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            if self.text is not None and self.text.put(token):
                return True
        return False


class VllmSampler(DecoderSampler):
    """Decodes up to `concurrency` completions together in an engine.

    `preempt_every` lets all running completions begin again after so many passes that draw tokens, as an engine does
    that is short of memory: to show that it changes nothing. 0 is never.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, *, concurrency: int | None = None, preempt_every: int = 0
    ) -> None:
        self.engine, settings = engine, engine.settings
        super().__init__(
            replace(engine.config, max_length=settings.max_length),
            tokenizer,
            VllmTarget(engine),
            concurrency=settings.concurrency if concurrency is None else concurrency,
            preempt_every=preempt_every,
        )

    def _sample(self, requests: Sequence[SampleRequest], progress: Progress | None) -> list[Trajectory]:
        with self._no_nan_stays():
            return self._drawn(requests, progress)

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`: requests of one token, whose contexts the prefix cache keeps."""
        found: list[list[NextToken]] = []
        with self._target.sampling(), torch.inference_mode(), self._no_nan_stays():
            for begin in range(0, len(requests), self._concurrency):
                few = requests[begin : begin + self._concurrency]
                for request, drawn in zip(few, self.engine.first_tokens(list(map(self._rank, few))), strict=True):
                    if any(math.isnan(logprob) for _, logprob in drawn.ranked):
                        raise not_finite(request)
                    falling = sorted(drawn.ranked, key=lambda pair: (-pair[1], pair[0]))
                    found.append([NextToken(*each) for each in falling if each[1] > -math.inf])
        return found

    @contextmanager
    def _no_nan_stays(self) -> Iterator[None]:
        """Clear the engine's cache after NaN: later requests would read it. No request may be left by then."""
        try:
            yield
        except NonFiniteError:
            self.engine.clear_pages()
            raise

    def _rank(self, request: NextTokenRequest) -> str:
        """Queue the question for the most probable next tokens."""
        num_tokens = min(request.num_tokens, self._config.vocab_size)
        params = SamplingParams(1, temperature=request.temperature)
        drawn_by = draw_argument(0, params, num_ranked=num_tokens, num_tokens_known=self._tokenizer.vocab_size)
        # More log-probabilities than the drawn token's tell this request from a completion.
        return self.engine.add(request.sequence, drawn_by, num_logprobs=max(num_tokens, 2))

    def _drawn(self, requests: Sequence[SampleRequest], progress: Progress | None) -> list[Trajectory]:
        waiting = deque(enumerate(requests))
        running: dict[str, _Running] = {}
        done: dict[int, Trajectory] = {}
        num_drawing = num_reported = 0
        try:
            while waiting or running:
                while waiting and len(running) < self._concurrency:
                    number, request = waiting.popleft()
                    stops = request.params.stop_strings
                    text = StopText(self._tokenizer, stops) if stops else None
                    running[self._add(request)] = _Running(number, request, text)
                drawn = self.engine.step()
                for each in drawn:
                    ours = running[each.request_id]
                    has_stop_string = ours.put(each)
                    if has_stop_string or each.is_finished:
                        del running[each.request_id]
                        if not each.is_finished:
                            self.engine.abort([each.request_id])
                        done[ours.number] = self._trajectory(
                            ours.request, ours.tokens, ours.logprobs, by_text=has_stop_string
                        )
                # Passes that only read prompts do not count: a prompt of many chunks would never be read to its end.
                num_drawing += bool(drawn)
                if drawn and running and self._preempt_every and num_drawing % self._preempt_every == 0:
                    self.engine.preempt()
                if progress and len(done) > num_reported:
                    num_reported = len(done)
                    progress(num_reported, len(requests))
        finally:
            if running:
                self.engine.abort(list(running))
        return [done[number] for number in range(len(requests))]

    def _add(self, request: SampleRequest) -> str:
        params, stops = request.params, {self._tokenizer.eos_id, *request.params.stop_ids}
        return self.engine.add(
            request.prompt.tokens,
            draw_argument(request.key, params),
            max_tokens=params.max_tokens,
            stop_ids=sorted(stop for stop in stops if 0 <= stop < self._config.vocab_size),
            is_streamed=bool(params.stop_strings or self._preempt_every),
        )
