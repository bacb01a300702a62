"""The sampler of an engine of vLLM: the same contract, and at level invariant the same bits, as the local sampler.

    waiting ──add──▶ vLLM: scheduler, paged cache, prefix cache ──step──▶ tokens ──stop text──▶ done, or abort

Noise goes by a request's key and the count of its tokens, so vLLM may batch, chunk, cache, preempt and restart as it
likes. Stop strings are searched here, by the tokenizer of the run.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import torch

from rlcore.data.trajectory import Trajectory
from rlcore.samplers.base import DecoderSampler, NextToken, NextTokenRequest, RunningSequence, not_finite
from rlcore.samplers.vllm.draw import draw_argument
from rlcore.samplers.vllm.engine import Engine
from rlcore.samplers.vllm.target import VllmTarget
from rlcore.types import SampleRequest, SamplingParams, Tokenizer


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

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`: requests of one token, whose contexts the prefix cache keeps."""
        found: list[list[NextToken]] = []
        with self.weight_target.sampling(), torch.inference_mode():
            for begin in range(0, len(requests), self._concurrency):
                few = requests[begin : begin + self._concurrency]
                for request, drawn in zip(few, self.engine.first_tokens(list(map(self._rank, few))), strict=True):
                    if any(math.isnan(logprob) for _, logprob in drawn.ranked):
                        raise not_finite(request)
                    falling = sorted(drawn.ranked, key=lambda pair: (-pair[1], pair[0]))
                    found.append([NextToken(*each) for each in falling if each[1] > -math.inf])
        return found

    def _rank(self, request: NextTokenRequest) -> str:
        """Queue the question for the most probable next tokens."""
        num_tokens = min(request.num_tokens, self._config.vocab_size)
        params = SamplingParams(1, temperature=request.temperature)
        drawn_by = draw_argument(0, params, num_ranked=num_tokens, num_tokens_known=self._tokenizer.vocab_size)
        # More log-probabilities than the drawn token's tell this request from a completion.
        return self.engine.add(request.sequence, drawn_by, num_logprobs=max(num_tokens, 2))

    def _sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        waiting = deque(enumerate(requests))
        running: dict[str, RunningSequence] = {}
        done: dict[int, Trajectory] = {}
        num_drawing = 0
        try:
            while waiting or running:
                while waiting and len(running) < self._concurrency:
                    number, request = waiting.popleft()
                    running[self._add(request)] = RunningSequence.of(number, request, self._tokenizer)
                drawn = self.engine.step()
                for each in drawn:
                    ours = running[each.request_id]
                    for token, logprob in zip(each.tokens, each.logprobs, strict=True):
                        ours.put(token, logprob)
                    if ours.is_done or each.is_finished:
                        del running[each.request_id]
                        if not each.is_finished:
                            self.engine.abort([each.request_id])
                        done[ours.number] = self._trajectory(ours)
                # Passes that only read prompts do not count: a prompt of many chunks would never be read to its end.
                num_drawing += bool(drawn)
                if drawn and running and self._preempt_every and num_drawing % self._preempt_every == 0:
                    self.engine.preempt()
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
