"""The orchestrator: from the number of a group to its rollouts, their rewards, and the batch of a step.

    plan ─▶ group g with version v ─▶ rollouts, one request each ─▶ rewards ─▶ batches/step_S: samples and ledger

A group's prompt, nominal step (g // groups of a step) and every key follow from its number, so that work that was lost
is done again with equal bits. It alone decides what is trained:

    strict   step s trains groups s P .. s P + P-1, drawn with version max(0, s - A)
    free     groups are drawn with the newest version, if their nominal step is at most A ahead of it; a step trains
             the first P that are done; what is too old when a batch is closed is discarded whole, done or not
    replay   versions and groups are those of the batches of an earlier run
"""

import asyncio
import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import torch

from harness.bits.files import parse_object
from rlcore.algorithms.advantages import dr_grpo
from rlcore.asynchronous.directory import (
    BATCH,
    BATCHES,
    BROADCASTS,
    FAILED,
    METRICS,
    POLL_S,
    ROLLOUTS_LOG,
    TOO_OLD,
    TRAINED,
    Ledger,
    append,
    publish,
    read,
    read_batch,
    read_ledgers,
    steps,
)
from rlcore.asynchronous.settings import Orch
from rlcore.data.scoring import score
from rlcore.data.tasks import Task
from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.errors import CheckpointError, InvalidValueError, PlacementError, WeightSyncError, WorkerError
from rlcore.seeds import completion_key, epoch_items
from rlcore.types import SampleRequest, SamplingParams, StopReason, Tokenizer

MOST_DEATHS = 2
"""How often a server may end while it works on one request alone."""


@dataclass(slots=True)
class Flying:
    """A group on its way."""

    version: int
    work: "asyncio.Task[list[dict[str, Any]]]"
    """Its rows."""


class Client:
    """Asks servers for completions until there is an answer: who answers, and how often one asks, moves no bit."""

    def __init__(self, section: Orch, say: Callable[[str], None]) -> None:
        self._urls, self._say = [url.rstrip("/") for url in section.client.base_url], say
        unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        key, self._timeout_s = os.environ.get(section.client.api_key_var), section.client.timeout
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(timeout=self._timeout_s, limits=unlimited, headers=headers)
        self._alone, self._is_waiting = asyncio.Lock(), False
        self.num_waiting = 0
        """Requests that have no answer yet."""

    async def check(self) -> None:
        """Check that each address that answers is of inference as `rlcore.asynchronous.infer` has it."""
        for url in self._urls:
            with contextlib.suppress(httpx2.TransportError):
                found = await self._http.get(f"{url}/models")
                if "places" not in found.text:
                    raise InvalidValueError(
                        f"{url} is a server that serves no versions of weights",
                        legal="the address of rlcore grpo-infer, with /v1",
                        remedy="start it there, or change client.base_url",
                    )

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def complete(self, group: int, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return an answer; None for a request that has ended the server, twice while it was asked for alone."""
        self.num_waiting += 1
        try:
            num_deaths = 0
            for attempt in itertools.count():
                url = self._urls[(group + attempt) % len(self._urls)]
                try:
                    if num_deaths < MOST_DEATHS:
                        return await self._ask(url, asked)
                    async with self._alone:
                        return await self._ask(url, asked)
                except httpx2.ConnectError:
                    if not self._is_waiting:
                        self._say(f"waits for inference at {url}")
                    self._is_waiting = True
                    await asyncio.sleep(0.1)
                except httpx2.TimeoutException as error:  # what becomes of a group must not follow from a clock
                    what = f"{url} has not answered a request of group {group} within {self._timeout_s:g} s"
                    raise WorkerError(what, role="infer", remedy="a larger client.timeout, or look after it") from error
                except httpx2.TransportError:  # a server that has ended
                    num_deaths += 1
                    if num_deaths == 2 * MOST_DEATHS:
                        self._say(f"group {group}: a request has ended {url} {num_deaths} times, and is given up")
                        return None
            raise AssertionError
        finally:
            self.num_waiting -= 1

    async def _ask(self, url: str, asked: dict[str, Any]) -> dict[str, Any]:
        answer = await self._http.post(f"{url}/completions", json=asked)
        if answer.status_code != 200:
            said = answer.json().get("error", {}) if answer.text.startswith("{") else {"message": answer.text[:300]}
            raise InvalidValueError(
                f"{url} answers {answer.status_code}: {said.get('message', said)}",
                legal=said.get("legal", ""),
                remedy=said.get("remedy", ""),
            )
        found: dict[str, Any] = answer.json()
        return found


class Orchestrator:
    """What makes the batches of one run."""

    def __init__(
        self, section: Orch, run: Path, task: Task, tokenizer: Tokenizer, say: Callable[[str], None] = print
    ) -> None:
        self._section, self._run, self._task, self._tokenizer, self._say = section, run, task, tokenizer, say
        self._size = section.rollouts_per_example
        self._per_step = section.batch_size // self._size
        self._params = SamplingParams(
            max_tokens=section.sampling.max_tokens,
            temperature=section.sampling.temperature,
            stop_ids=tokenizer.stop_ids,
        )
        self._digests: dict[int, str] = {}
        self._rollout_s: list[float] = []
        self._num_tokens = self._places = 0
        self._scoring = asyncio.Lock()

    async def work(self) -> None:
        """Make batches, from where the run is to its last step. Raises as scoring does, and CheckpointError."""
        section, ledgers, flying = self._section, read_ledgers(self._run), dict[int, Flying]()
        step, discarded, began_s, idle_s = len(ledgers), list[tuple[int, int, str]](), time.monotonic(), 0.0
        num_discarded = sum(fate == TOO_OLD for ledger in ledgers for _, _, fate in ledger)
        self._client = Client(section, self._say)
        recorded = read_ledgers(Path(section.schedule)) if section.mode == "replay" else []
        if section.mode == "replay" and not recorded:
            raise CheckpointError(f"{section.schedule} has no batches", remedy="name the directory of a recorded run")
        last = len(recorded) if recorded else section.max_steps
        plan = self._plan(ledgers, recorded)
        group, version = next(plan, (-1, None))
        try:
            if not section.client.skip_model_check:
                await self._client.check()
            if not steps(self._run / BROADCASTS):
                self._say(f"waits for weights in {self._run / BROADCASTS}")
            while last is None or step < last:
                newest = max(steps(self._run / BROADCASTS), default=-1)
                nominal = step + len(flying) // self._per_step
                needed = max(0, nominal - section.max_async_level) if version is None else version
                if newest >= needed and group >= 0 and (last is None or nominal < last):
                    uses = newest if version is None else version
                    flying[group] = Flying(uses, asyncio.create_task(self._group(group, uses)))
                    group, version = next(plan, (-1, None))
                    continue
                if section.mode == "free":
                    for old in [g for g, each in flying.items() if step - each.version > section.max_off_policy_steps]:
                        each = flying.pop(old)
                        each.work.cancel()
                        discarded.append((old, each.version, TOO_OLD))
                members = sorted(
                    [g for g, each in flying.items() if each.work.done() or section.mode != "free"][: self._per_step]
                )
                if len(members) < self._per_step or not all(flying[g].work.done() for g in members):
                    idle_s += POLL_S * (not self._client.num_waiting)
                    await asyncio.sleep(POLL_S)
                    continue
                by_group = {g: flying[g].work.result() for g in members}
                rows = [row for own in by_group.values() for row in own]
                if recorded:
                    discarded = [row for row in recorded[step] if row[2] == TOO_OLD]
                fates = {g: TRAINED if len(own) == self._size else FAILED for g, own in by_group.items()}
                ledger = [(g, flying.pop(g).version, fates[g]) for g in members] + discarded
                self._publish(step, ledger, rows, is_last=last is not None and step + 1 == last)
                num_discarded += len(discarded)
                share = num_discarded / (num_discarded + (step + 1) * self._per_step)
                counts = {"in_flight": len(flying), "discarded": len(discarded), "discarded_share": share}
                self._log(step, rows, counts, seconds=time.monotonic() - began_s, idle_s=idle_s)
                step, discarded, began_s, idle_s = step + 1, [], time.monotonic(), 0.0
            if recorded and not read_batch(Path(section.schedule), step - 1)["is_last"]:
                self._say(f"{section.schedule} was broken off after {step} steps: this run ends there")
        finally:
            for each in flying.values():
                each.work.cancel()
            await asyncio.gather(*(each.work for each in flying.values()), return_exceptions=True)
            await self._client.close()

    def _plan(self, ledgers: Sequence[Ledger], recorded: Sequence[Ledger]) -> Iterator[tuple[int, int | None]]:
        """Yield groups in the order in which they begin, each with its version; None: the newest."""
        first, ahead = len(ledgers) * self._per_step, self._section.max_async_level
        if self._section.mode == "strict":
            return ((g, max(0, g // self._per_step - ahead)) for g in itertools.count(first))
        if self._section.mode == "replay":
            rows = (row for ledger in recorded[len(ledgers) :] for row in ledger)
            return ((g, version) for g, version, fate in rows if fate != TOO_OLD)
        taken = {g for ledger in ledgers for g, _, _ in ledger}
        return ((g, None) for g in itertools.count() if g not in taken)

    def requests(self, group: int) -> list[SampleRequest]:
        """Return the requests of a group: what the synchronous page asks for in its nominal step."""
        seed, step, train = self._section.seed, group // self._per_step, self._task.train
        chosen = epoch_items(step * self._per_step, self._per_step, len(train), seed, "prompts")
        place = group % self._per_step
        prompt, num_before = train[chosen[place]], chosen[:place].count(chosen[place])
        first = self._size * num_before  # a prompt that comes twice in a step counts on
        wanted = []
        for index in range(first, first + self._size):
            noise = completion_key(seed=seed, step=step, prompt_id=prompt.id, sample_index=index)
            wanted.append(SampleRequest(prompt, index, noise, self._params))
        return wanted

    async def _group(self, group: int, version: int) -> list[dict[str, Any]]:
        """Sample and score a group -> its rows."""
        wanted = self.requests(group)
        drawn = await asyncio.gather(*(self._rollout(group, each, version) for each in wanted))
        if not (found := [each for each in drawn if each is not None]):
            return []
        async with self._scoring:  # one at a time, as on the page: a user's functions may share what they like
            scores = await asyncio.to_thread(score, self._task.rewards, found, step=group // self._per_step)
        return [self._row(group, version, *each) for each in zip(scores.rewards, found, strict=True)]

    async def _rollout(self, group: int, request: SampleRequest, version: int) -> Trajectory | None:
        params = request.params
        asked = {
            "model": f"step_{version}",
            "prompt": list(request.prompt.tokens),
            "seed": request.key,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "logprobs": 0,
        }
        answer = await self._client.complete(group, asked)
        if answer is None:
            return None
        self._rollout_s.append(answer["usage"]["seconds"])
        self._places = answer["usage"]["places"]
        self._check_digest(version, answer["system_fingerprint"])
        (choice,) = answer["choices"]
        self._num_tokens += len(choice["token_ids"])
        return build_single_turn(
            request,
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
            text=choice["text"],
            stop_reason=StopReason(choice["stop_reason"]),
            policy_version=version,
            weights_digest=answer["system_fingerprint"],
        )

    def _check_digest(self, version: int, found: str) -> None:
        """Check that a sampler answers with the weights that the trainer has published. Raises WeightSyncError."""
        if version not in self._digests:
            about = parse_object(read(self._run / BROADCASTS, version, METRICS))
            self._digests[version] = about["weights_digest"]
        if found != self._digests[version]:
            raise WeightSyncError(
                f"a sampler has answered for version {version} with weights {found}",
                legal=f"{self._digests[version]}, as the trainer has published them",
                remedy="start the sampler again, over the run's own directory",
            )

    def _row(self, group: int, version: int, reward: float | None, drawn: Trajectory) -> dict[str, Any]:
        return {
            "group": group,
            "sample": drawn.request.sample_index,
            "version": version,
            "prompt": drawn.request.prompt.id,
            "num_prompt": drawn.num_prompt_tokens,
            "tokens": drawn.tokens,
            "logprobs": drawn.logprobs[drawn.num_prompt_tokens :],
            "text": drawn.completion_text,
            "stop": drawn.stop_reason.value,
            "reward": reward,
        }

    def _publish(self, step: int, ledger: Ledger, rows: list[dict[str, Any]], *, is_last: bool) -> None:
        """Write the batch of a step, with each row's advantage: its reward less the mean of its group."""
        section, oldest = self._section, self._section.max_off_policy_steps
        if section.mode == "strict":
            oldest = section.max_async_level
        if not rows:
            raise PlacementError(f"step {step}: each of its requests has ended a server", remedy="see what infer says")
        included = torch.tensor([row["reward"] is not None for row in rows])
        rewards = torch.tensor([row["reward"] or 0.0 for row in rows], dtype=torch.float64)
        groups = torch.tensor([row["group"] for row in rows])
        for row, advantage in zip(rows, dr_grpo(rewards, groups, included).tolist(), strict=True):
            row["advantage"] = advantage
        batch = {
            "step": step,
            "ledger": ledger,
            "temperature": section.sampling.temperature,
            "needs_from": max(0, step + 1 - oldest),
            "is_last": is_last,
            "in_order": section.mode == "strict",
            "group_size": self._size,
            "ckpt": {name: getattr(section.ckpt, name) for name in ("interval", "keep_last", "keep_interval")},
            "rows": rows,
        }
        publish(self._run / BATCHES, step, {BATCH: json.dumps(batch).encode()})

    def _log(
        self, step: int, rows: list[dict[str, Any]], counts: Mapping[str, float], *, seconds: float, idle_s: float
    ) -> None:
        """Append what was measured, which no bit depends on, to rollouts.jsonl."""
        line = {
            "step": step,
            "groups_per_step": self._per_step,
            "group_size": self._size,
            "places": self._places,
            **counts,
            "waiting": self._client.num_waiting,
            "versions_apart": max((step - row["version"] for row in rows), default=0),
            "tokens_per_s": self._num_tokens / max(seconds, 1e-9),
            "seconds": seconds,
            "idle": idle_s / max(seconds, 1e-9),
            "rollout_s": self._rollout_s,
        }
        self._rollout_s, self._num_tokens = [], 0
        append(self._run / ROLLOUTS_LOG, line)
        if step % self._section.report_to.interval == 0:
            names = ("in_flight", "waiting", "discarded_share", "versions_apart", "tokens_per_s", "idle")
            self._say(f"step {step}: " + ", ".join(f"{name}={line[name]:.3g}" for name in names))
