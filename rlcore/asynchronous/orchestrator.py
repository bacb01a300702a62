"""The orchestrator: from the number of a group to its rollouts, their rewards, and the batch of a step.

    plan ─▶ group g with version v ─▶ rollouts, one request each ─▶ rewards ─▶ batches/step_S: samples and ledger

A group's prompt, nominal step (g // groups drawn for a step) and every key follow from its number and version, so that
work that was lost is done again with equal bits. It alone decides what is trained:

    strict   step s trains of groups s Q .. s Q + Q-1, drawn with version max(0, s - A)
    free     groups are drawn with the newest version, if their nominal step is at most A ahead of it; a step trains
             the first P that are done; what is too old when a batch is closed is discarded whole, done or not
    replay   versions and groups are those of the batches of an earlier run

A step trains the first P that no filter leaves out. Evaluations are of a version, and have keys of their own.
"""

import asyncio
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.bits.files import parse_object
from rlcore.algorithms.advantages import dr_grpo, length_weighted
from rlcore.algorithms.schedules import temperature
from rlcore.asynchronous.client import Client
from rlcore.asynchronous.directory import (
    BATCH,
    BATCHES,
    BROADCASTS,
    EVALUATIONS,
    FAILED,
    FILTERED,
    METRICS,
    POLL_S,
    ROLLOUTS_LOG,
    SURPLUS,
    TOO_OLD,
    TRAINED,
    Ledger,
    append,
    is_there,
    ledger_of,
    publish,
    read,
    read_batch,
    read_batches,
    steps,
)
from rlcore.asynchronous.prompts import Prompts
from rlcore.asynchronous.settings import AdvantageSection, FilterSection, Orch
from rlcore.data.environments import NUM_THREADS, advance, begin, finish, first_error, next_request
from rlcore.data.filters import is_gibberish, is_repetitive
from rlcore.data.rewards import load_function
from rlcore.data.scoring import score
from rlcore.data.tasks import Task
from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.errors import CheckpointError, InvalidValueError, PlacementError, RewardError, WeightSyncError
from rlcore.log import mean
from rlcore.seeds import completion_key, key
from rlcore.types import SampleRequest, SamplingParams, StopReason, Tokenizer

Row = dict[str, Any]
Teacher = Callable[[Sequence[int], float], Sequence[float]]
"""Log-probabilities of all tokens but the first, at a temperature."""


@dataclass(slots=True)
class Flying:
    """A group on its way."""

    version: int
    work: "asyncio.Task[list[Row]]"
    """Its rows."""


class Orchestrator:
    """What makes the batches of one run."""

    def __init__(
        self,
        section: Orch,
        run: Path,
        tasks: Sequence[Task],
        tokenizer: Tokenizer,
        say: Callable[[str], None] = print,
        *,
        evaluated: Sequence[Task] = (),
        teacher: Teacher | None = None,
    ) -> None:
        """Draw from `tasks`, and evaluate on the held-out prompts of others; None as the teacher is a served one."""
        self._section, self._run, self._tasks, self._tokenizer, self._say = section, run, tasks, tokenizer, say
        self._evaluated, self._teacher = evaluated, teacher
        self._size = section.rollouts_per_example
        self._per_step = section.batch_size // self._size
        self._drawn_per_step = int(self._per_step * section.oversampling_factor)
        ratios = section.buffer.env_ratios
        self._prompts = Prompts(tasks, ratios, seed=section.seed, per_step=self._drawn_per_step)
        self._threads = ThreadPoolExecutor(NUM_THREADS, "environments")
        self._oldest = section.max_async_level if section.mode == "strict" else section.max_off_policy_steps
        self._digests: dict[int, str] = {}
        self._rollout_s: list[float] = []
        path = section.advantage.import_path
        self._own = load_function(path[::-1].replace(".", ":", 1)[::-1], "advantages") if path else None
        self._flags = Counter[str]()
        self._has_failed = False
        self._num_tokens = self._places = 0
        self._scoring = asyncio.Lock()

    async def work(self) -> None:
        """Make batches, from where the run is to its last step. Raises as scoring does, and CheckpointError."""
        section, ledgers, flying = self._section, list[Ledger](), dict[int, Flying]()
        for batch in read_batches(self._run):
            ledgers.append(ledger_of(batch))
            self._prompts.leave_out(batch["left_out"])
            self._flags.update(flag for row in batch["rows"] for flag in row["flags"])
        step, discarded, began_s, idle_s = len(ledgers), list[tuple[int, int, str]](), time.monotonic(), 0.0
        num_discarded = sum(fate == TOO_OLD for ledger in ledgers for _, _, fate in ledger)
        recorded = [*map(ledger_of, read_batches(Path(section.schedule)))] if section.mode == "replay" else []
        if section.mode == "replay" and not recorded:
            raise CheckpointError(f"{section.schedule} has no batches", remedy="name the directory of a recorded run")
        last = len(recorded) if recorded else step if self._prompts.is_over() else section.max_steps
        plan = self._plan(ledgers, recorded)
        group, version = next(plan, (-1, None))
        evaluations: dict[int, asyncio.Task[None]] = {}
        self._client = Client(section.client, self._say)
        teacher = section.teacher_model
        self._teacher_client = Client(teacher.client, self._say) if teacher and teacher.client else None
        try:
            for client in filter(None, (self._client, self._teacher_client)):
                await client.check()
            if not steps(self._run / BROADCASTS):
                self._say(f"waits for weights in {self._run / BROADCASTS}")
            newest = -1
            while last is None or step < last:
                before, newest = newest, max(steps(self._run / BROADCASTS), default=-1)
                if newest > before:
                    self._begin_evaluations(evaluations)
                nominal = step + len(flying) // self._drawn_per_step
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
                waited, num_wanted = [*flying], self._drawn_per_step
                if section.mode == "strict":
                    waited = waited[:num_wanted]
                elif recorded:
                    waited = [g for g, _, fate in recorded[step] if fate != TOO_OLD]
                    num_wanted = len(waited)
                done = {g: flying[g].work.result() for g in waited if g in flying and flying[g].work.done()}
                fates = self._fates(done)
                num_trained = sum(fate in {TRAINED, FAILED} for fate in fates.values())
                if num_trained < self._per_step if section.mode == "free" else len(done) < num_wanted:
                    idle_s += POLL_S * (not self._client.num_waiting)
                    await asyncio.sleep(POLL_S)
                    continue
                if section.mode == "free":  # what is left over is for the next step
                    fates = {g: fate for g, fate in fates.items() if fate != SURPLUS}
                if recorded:
                    discarded = [row for row in recorded[step] if row[2] == TOO_OLD]
                if (behind := evaluations.get(step - self._oldest)) is not None:
                    await behind  # the trainer removes this version as soon as it has the batch
                ledger = [(g, flying.pop(g).version, fate) for g, fate in fates.items()] + discarded
                rows = self._publish(step, ledger, done, is_last=last is not None and step + 1 == last)
                if self._prompts.is_over():
                    last = step + 1
                    self._say(f"every prompt of a task is too easy or too hard: the run ends after {last} steps")
                num_discarded += len(discarded)
                counts = {
                    "in_flight": len(flying),
                    "discarded": len(discarded),
                    "discarded_share": num_discarded / (num_discarded + (step + 1) * self._per_step),
                    "filtered": [*fates.values()].count(FILTERED),
                }
                self._log(step, rows, counts, seconds=time.monotonic() - began_s, idle_s=idle_s)
                step, discarded, began_s, idle_s = step + 1, [], time.monotonic(), 0.0
            while self._is_evaluated(last) and not is_there(self._run / BROADCASTS, last):
                await asyncio.sleep(POLL_S)
            self._begin_evaluations(evaluations)
            await asyncio.gather(*evaluations.values())
            for silent in (each.type for each in section.filters if not self._flags[each.type]):
                self._say(f"the filter {silent} has found nothing in this run")
            if recorded and not read_batch(Path(section.schedule), step - 1)["is_last"]:
                self._say(f"{section.schedule} was broken off after {step} steps: this run ends there")
        finally:
            for work in (running := [*(each.work for each in flying.values()), *evaluations.values()]):
                work.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for client in filter(None, (self._client, self._teacher_client)):
                await client.close()

    def _plan(self, ledgers: Sequence[Ledger], recorded: Sequence[Ledger]) -> Iterator[tuple[int, int | None]]:
        """Yield groups in the order in which they begin, each with its version; None: the newest."""
        first, ahead = len(ledgers) * self._drawn_per_step, self._section.max_async_level
        if self._section.mode == "strict":
            return ((g, max(0, g // self._drawn_per_step - ahead)) for g in itertools.count(first))
        if self._section.mode == "replay":
            rows = (row for ledger in recorded[len(ledgers) :] for row in ledger)
            return ((g, version) for g, version, fate in rows if fate != TOO_OLD)
        taken = {g for ledger in ledgers for g, _, _ in ledger}
        return ((g, None) for g in itertools.count() if g not in taken)

    # ------------------------------------------------------------------------------------------------ one group

    def requests(self, group: int, version: int) -> list[SampleRequest]:
        """Return the requests of a group: what the synchronous page asks for in its nominal step."""
        step = group // self._drawn_per_step
        task, prompt, num_before = self._prompts.of(group, version)
        first = self._size * num_before  # a prompt that comes twice in a step counts on
        params = self._params(self._tasks[task], self._temperature(step))
        keys = partial(completion_key, seed=self._section.seed, step=step, prompt_id=prompt.id)
        indexes = range(first, first + self._size)
        return [SampleRequest(prompt, index, keys(sample_index=index), params) for index in indexes]

    def _params(self, task: Task, temperature: float) -> SamplingParams:
        return SamplingParams(
            max_tokens=self._section.sampling.max_tokens,
            temperature=temperature,
            stop_ids=self._tokenizer.stop_ids,
            stop_strings=task.environments.stop_strings if task.environments else (),
        )

    def _temperature(self, step: int) -> float:
        sampling, num_steps = self._section.sampling, self._section.max_steps
        if (scheduler := sampling.temp_scheduler) is None:
            return sampling.temperature
        start, end = scheduler.start_temperature, scheduler.end_temperature
        return temperature(step, shape=scheduler.type, start=start, end=end, num_steps=num_steps or 1)

    async def _group(self, group: int, version: int) -> list[Row]:
        """Sample and score a group -> its rows."""
        wanted, (number, _, _) = self.requests(group, version), self._prompts.of(group, version)
        task = self._tasks[number]
        drawn = await asyncio.gather(*(self._rollout(task, each, version, place=group) for each in wanted))
        if not (found := [each for each in drawn if each is not None]):
            return []
        rewards: list[float | None] = [0.0] * len(found)
        if not self._section.buffer.skip_verification:
            async with self._scoring:  # one at a time, as on the page: a user's functions may share what they like
                step = group // self._drawn_per_step
                rewards = (await asyncio.to_thread(score, task.rewards, found, step=step)).rewards
        rows = [self._row(group, version, number, *each) for each in zip(rewards, found, strict=True)]
        if self._section.teacher_model is not None:
            await asyncio.gather(*map(self._teach, rows))
        return rows

    async def _rollout(self, task: Task, request: SampleRequest, version: int, *, place: int) -> Trajectory | None:
        """Draw a trajectory by the server of this place; None if one of its requests ends servers."""
        if (shared := task.environments) is None:
            return await self._complete(request, version, place)
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)  # an environment may wait
        episode = await in_thread(begin, shared, request)
        while (wanted := next_request(episode)) is not None:
            if (completion := await self._complete(wanted, version, place)) is None:
                return None
            episode = await in_thread(advance, episode, completion)
        return finish(episode)

    async def _complete(self, request: SampleRequest, version: int, place: int) -> Trajectory | None:
        """Draw one completion."""
        params = request.params
        asked = {
            "model": f"step_{version}",
            "prompt": list(request.prompt.tokens),
            "seed": request.key,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "logprobs": 0,
        } | ({"stop": params.stop_strings} if params.stop_strings else {})
        answer = await self._client.complete(place, asked)
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

    def _row(self, group: int, version: int, task: int, reward: float | None, drawn: Trajectory) -> Row:
        first, vocab_size = drawn.num_prompt_tokens, self._tokenizer.vocab_size
        if not self._has_failed and (error := first_error(drawn)):
            self._has_failed = True
            self._say(f"group {group}: an answer of its environment is an error, which is said once: {error:.300}")
        of_policy = drawn.loss_tokens, [*itertools.compress(drawn.logprobs, drawn.loss_mask)]
        found = [each for each in self._section.filters if _finds(each, *of_policy, vocab_size)]
        is_learned = not any(each.enforce for each in found)
        return {
            "group": group,
            "sample": drawn.request.sample_index,
            "version": version,
            "task": task,
            "prompt": drawn.request.prompt.id,
            "num_prompt": first,
            "tokens": drawn.tokens,
            "logprobs": drawn.logprobs[first:],
            "mask": [each and is_learned for each in drawn.loss_mask[first:]],
            "temperature": drawn.request.params.temperature,
            "flags": [each.type for each in found],
            "text": drawn.completion_text,
            "stop": drawn.stop_reason.value,
            "reward": reward,
        }

    async def _teach(self, row: Row) -> None:
        """Add the teacher's log-probabilities to a row."""
        if self._teacher is not None:
            given = await asyncio.to_thread(self._teacher, row["tokens"], row["temperature"])
        else:
            assert self._teacher_client is not None
            asked = {"model": "base", "prompt": row["tokens"], "temperature": row["temperature"], "echo": True}
            answer = await self._teacher_client.complete(row["group"], asked | {"seed": 0, "max_tokens": 1})
            if answer is None:
                raise PlacementError(f"group {row['group']} has ended the teacher's server", remedy="see what it says")
            given = answer["choices"][0]["prompt_logprobs"]
        row["teacher"] = list(given[-len(row["logprobs"]) :])

    # ------------------------------------------------------------------------------------------------ one batch

    def _fates(self, done: Mapping[int, Sequence[Row]]) -> dict[int, str]:
        """Return what becomes of groups that are done: the first P that are not filtered are trained."""
        fates, num_trained = dict[int, str](), 0
        for group, rows in sorted(done.items()):
            rewards = [row["reward"] for row in rows if row["reward"] is not None]
            if self._section.buffer.online_difficulty_filtering and rewards and mean(rewards) in {0.0, 1.0}:
                fates[group] = FILTERED
            elif num_trained == self._per_step:
                fates[group] = SURPLUS
            else:
                fates[group] = TRAINED if len(rows) == self._size else FAILED
                num_trained += 1
        return fates

    def _publish(self, step: int, ledger: Ledger, done: Mapping[int, Sequence[Row]], *, is_last: bool) -> list[Row]:
        """Write the batch of a step, with each row's advantage; return its rows."""
        section, named = self._section, {group: fate for group, _, fate in ledger if group in done}
        rows = [row for group, fate in named.items() if fate in {TRAINED, FAILED} for row in done[group]]
        if not rows and FILTERED not in named.values():
            raise PlacementError(f"step {step}: each of its requests has ended a server", remedy="see what infer says")
        if rows:
            for row, advantage in zip(rows, self._advantages(rows), strict=True):
                row["advantage"] = advantage
        else:
            self._say(f"step {step}: every group is filtered, and nothing is trained")
        left_out = sorted({each for group in named if (each := self._too_easy_or_hard(done[group]))})
        self._prompts.leave_out(left_out)
        is_over = self._prompts.is_over()
        batch: dict[str, Any] = {
            "step": step,
            "ledger": ledger,
            "left_out": left_out,
            "needs_from": max(0, step + 1 - self._oldest),
            "is_last": is_last or is_over,
            "is_over": is_over,
            "in_order": section.mode == "strict",
            "group_size": self._size,
            "is_by_mean": section.advantage == AdvantageSection(),
            "ckpt": {name: getattr(section.ckpt, name) for name in ("interval", "keep_last", "keep_interval")},
            "rows": rows,
        }
        publish(self._run / BATCHES, step, {BATCH: json.dumps(batch).encode()})
        self._flags.update(flag for row in rows for flag in row["flags"])
        return rows

    def _advantages(self, rows: Sequence[Row]) -> list[float]:
        """Return what each reward is worth: less the mean of its group, or as a function of the user says."""
        section = self._section.advantage
        lengths = [sum(row["mask"]) or len(row["mask"]) for row in rows]
        if section.type == "custom":
            return self._own_advantages(rows, lengths)
        included = torch.tensor([row["reward"] is not None for row in rows])
        rewards = torch.tensor([row["reward"] or 0.0 for row in rows], dtype=torch.float64)
        groups = torch.tensor([row["group"] for row in rows])
        if section.length_weighted_mean:
            return length_weighted(rewards, torch.tensor(lengths), groups, included).tolist()
        return dr_grpo(rewards, groups, included).tolist()

    def _own_advantages(self, rows: Sequence[Row], lengths: Sequence[int]) -> list[float]:
        """Ask the user's function for each group's; a row without a reward has 0. Raises InvalidValueError."""
        section, found = self._section.advantage, [0.0] * len(rows)
        assert self._own is not None
        for group in dict.fromkeys(row["group"] for row in rows):
            own = [at for at, row in enumerate(rows) if row["group"] == group and row["reward"] is not None]
            try:
                given = [rows[at]["reward"] for at in own], [lengths[at] for at in own]
                values = [*map(float, self._own(*given, **section.kwargs))]
            except Exception as error:  # whatever it raises
                what = f"{section.import_path} for group {group}: {type(error).__name__}: {error}"
                raise InvalidValueError(what, legal="a function (rewards, lengths) -> a number for each") from error
            if len(values) != len(own) or not all(map(math.isfinite, values)):
                what = f"{section.import_path} for group {group} returned {values!r:.200}"
                raise InvalidValueError(what, legal=f"{len(own)} finite numbers")
            for at, value in zip(own, values, strict=True):
                found[at] = value
        return found

    def _too_easy_or_hard(self, rows: Sequence[Row]) -> tuple[int, str] | None:
        """Return the name of a group's prompt if it shall not be drawn again."""
        buffer, rewards = self._section.buffer, [row["reward"] for row in rows if row["reward"] is not None]
        easy, hard = buffer.easy_threshold, buffer.hard_threshold
        if not rewards or (easy is None and hard is None):
            return None
        reached = mean(rewards)
        is_out = (easy is not None and reached >= easy) or (hard is not None and reached <= hard)
        return (rows[0]["task"], rows[0]["prompt"]) if is_out else None

    # ---------------------------------------------------------------------------------------------- evaluation

    def _is_evaluated(self, version: int) -> bool:
        section = self._section.eval
        return section is not None and version % section.interval == 0 and (version > 0 or section.eval_base_model)

    def _begin_evaluations(self, evaluations: "dict[int, asyncio.Task[None]]") -> None:
        for version in steps(self._run / BROADCASTS):
            is_new = version not in evaluations and not is_there(self._run / EVALUATIONS, version)
            if is_new and self._is_evaluated(version):
                evaluations[version] = asyncio.create_task(self._evaluate(version))

    async def _evaluate(self, version: int) -> None:
        """Sample held-out prompts by a version, with the same noise for each version, and publish the mean rewards."""
        section, found = self._section.eval, dict[str, float]()
        assert section is not None
        for number, (env, task) in enumerate(zip(section.env, self._evaluated, strict=True)):
            params = self._params(task, self._section.sampling.temperature)
            prompts = task.heldout if section.num_examples < 0 else task.heldout[: section.num_examples]
            wanted = [
                SampleRequest(prompt, at, key("evaluation", self._section.seed, prompt.id, *[at][:at]), params)
                for prompt in prompts
                for at in range(section.rollouts_per_example)
            ]
            drawn = [self._rollout(task, each, version, place=place) for place, each in enumerate(wanted)]
            judged = [each for each in await asyncio.gather(*drawn) if each is not None]
            async with self._scoring:
                scores = await asyncio.to_thread(score, task.rewards, judged, step=version)
            rewards = [reward for reward in scores.rewards if reward is not None]
            if not rewards:
                raise RewardError(f"no completion of {env.id} has a reward in the evaluation of version {version}")
            found[env.name or f"{env.id}.{number}"] = mean(rewards)
        publish(self._run / EVALUATIONS, version, {METRICS: json.dumps(found).encode()})
        said = ", ".join(f"{name} {reward:.3f}" for name, reward in found.items())
        self._say(f"version {version}: held-out reward {said}")

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


def _finds(section: FilterSection, tokens: Sequence[int], logprobs: Sequence[float], vocab_size: int) -> bool:
    """Return whether a filter finds what it looks for in a completion."""
    if section.type == "repetition":
        return is_repetitive(logprobs, window=section.window, prob_threshold=section.prob_threshold)
    threshold, offset = section.token_id_threshold, section.logprob_offset
    return is_gibberish(tokens, logprobs, vocab_size, token_id_threshold=threshold, logprob_offset=offset)
