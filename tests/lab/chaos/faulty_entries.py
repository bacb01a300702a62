"""Small trainings in which one thing is wrong, as it is wrong in real ones: what must not matter gets into the bits.

A policy of a few logits learns to choose actions that tools rate highly. `sound` is right; each of the other entries
has one of its functions replaced. What must not matter: concurrency, arrival_seed, microbatch_size, training_threads,
world_size, tool_threads, how long `ask` takes, and a crash.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NUM_ACTIONS, NUM_PROMPTS, GROUP_SIZE, WIDTH = 8, 4, 6, 96
FRUIT = ("apple", "pear", "plum", "quince", "cherry", "fig", "grape", "lemon")


class RefusedError(ValueError):
    """An error that the user can mend."""

    def __init__(self, what: str, legal: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.legal, self.remedy = what, legal, remedy


@dataclass(frozen=True)
class Request:
    """One completion that is wanted."""

    prompt: str
    index: int
    step: int


def features(request: Request) -> Tensor:
    """[WIDTH]: what the policy sees of a prompt."""
    seed = random.Random(f"{request.prompt} {request.step}").getrandbits(60)
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------------- as it ought to be


def drawn_prompts(step: int) -> list[str]:
    return [FRUIT[(step + i) % len(FRUIT)] for i in range(NUM_PROMPTS)]


def logits_alone(seen: Tensor, weight: Tensor) -> Tensor:
    """Each row by itself: whoever is computed beside it changes nothing."""
    return torch.stack([torch.mv(weight, row) for row in seen])


def keyed_noise(request: Request) -> Tensor:
    """It follows from the request alone."""
    seed = random.Random(f"{request}").getrandbits(60)
    return torch.rand(NUM_ACTIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_canonical_order(order: Sequence[int], values: Sequence[Any]) -> list[Any]:
    return [value for _, value in sorted(zip(order, values, strict=True), key=lambda pair: pair[0])]


def rate(action: int) -> float:
    """A tool that takes its time."""
    return sum(1.0 / (action + k) for k in range(1, 300)) / 8


async def ask(action: int) -> float:
    """A judge, who answers at once unless somebody lets him wait."""
    return rate(action)


def waited_for(answers: Coroutine[Any, Any, list[float]]) -> list[float]:
    """In a loop of its own, also where one is running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, answers).result()


def ratings_by_request(actions: Sequence[int], num_threads: int) -> list[float]:
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(rate, actions))


def mean_over_all(gradients: Tensor, microbatch_size: int) -> Tensor:
    return torch.stack([part.sum(0) for part in gradients]).sum(0) / len(gradients)


def sum_of_rows(values: Tensor) -> Tensor:
    """In rows of one size, each too small to be divided among threads."""
    return torch.stack([row.sum() for row in values.view(64, -1)]).sum()


def sum_over_all(lanes: Tensor, world_size: int) -> Tensor:
    return lanes.double().sum(0).float()


@dataclass(frozen=True)
class Parts:
    """What a training is made of."""

    prompts: Callable[[int], list[str]] = drawn_prompts
    logits: Callable[[Tensor, Tensor], Tensor] = logits_alone
    noise: Callable[[Request], Tensor] = keyed_noise
    arrange: Callable[[Sequence[int], Sequence[Any]], list[Any]] = in_canonical_order
    ratings: Callable[[Sequence[int], int], list[float]] = ratings_by_request
    mean: Callable[[Tensor, int], Tensor] = mean_over_all
    total: Callable[[Tensor], Tensor] = sum_of_rows
    add: Callable[[Tensor, int], Tensor] = sum_over_all


def train(parts: Parts, config: Mapping[str, Any], directory: Path, recorder: Any) -> None:
    """The steps of a run; from the last checkpoint of another, where it goes on from one."""
    settings, output = config["runtime"], config["output"]
    if settings["concurrency"] < 1:
        raise RefusedError(f"concurrency {settings['concurrency']}", "1 or more", "decode something")
    torch.set_num_threads(settings["training_threads"])
    weight, first = torch.zeros(NUM_ACTIONS, WIDTH), 0
    if output.get("resume"):
        newest = max((Path(output["resume"]) / "checkpoints").iterdir())
        saved = json.loads((newest / "weight.json").read_text("utf-8"))
        weight, first = torch.tensor(saved["weight"]), saved["step"]
    for step in range(first, config["num_steps"]):
        recorder.begin_step(step)
        weight = _step(parts, step, weight, settings, recorder)
        recorder.end_step(norm=weight.norm())
        if output["checkpoint_every"] and (step + 1) % output["checkpoint_every"] == 0:
            place = directory / "checkpoints" / f"step-{step + 1:06}"
            place.mkdir(parents=True)
            saved = {"weight": weight.tolist(), "step": step + 1}
            (place / "weight.json").write_text(json.dumps(saved), "utf-8")


def _step(parts: Parts, step: int, weight: Tensor, settings: Mapping[str, int], recorder: Any) -> Tensor:
    wanted = [Request(prompt, index, step) for prompt in parts.prompts(step) for index in range(GROUP_SIZE)]
    order = list(range(len(wanted)))
    if settings["arrival_seed"]:
        random.Random(settings["arrival_seed"]).shuffle(order)
    logits, actions = [], []
    for begin in range(0, len(order), settings["concurrency"]):
        batch = [wanted[index] for index in order[begin : begin + settings["concurrency"]]]
        for request, row in zip(batch, parts.logits(torch.stack([features(r) for r in batch]), weight), strict=True):
            logits.append(row)
            actions.append(int((row.double() - torch.log(-torch.log(parts.noise(request)))).argmax()))
    logits, actions = parts.arrange(order, logits), parts.arrange(order, actions)
    wanted = parts.arrange(order, [wanted[index] for index in order])
    recorder.record("rollout", "prompts", [request.prompt for request in wanted])
    recorder.record("rollout", "actions", torch.tensor(actions))
    recorder.record("rollout", "logits", torch.stack(logits))
    rewards = torch.tensor(parts.ratings(actions, settings["tool_threads"]))
    recorder.record("reward", "rewards", rewards)
    taken = torch.nn.functional.one_hot(torch.tensor(actions), NUM_ACTIONS) - torch.stack(logits).softmax(-1)
    seen = torch.stack([features(request) for request in wanted])
    lanes = (rewards - rewards.double().mean().float())[:, None, None] * taken[:, :, None] * seen[:, None, :]
    gradient = parts.mean(lanes, settings["microbatch_size"]) + parts.add(lanes, settings["world_size"]) / 1e3
    recorder.record("backward", "weight", gradient)
    noise = torch.randn(64 * 1563, generator=torch.Generator().manual_seed(step))
    penalty = parts.total(noise)
    recorder.record("loss", "penalty", penalty)
    weight = weight * (1 - 1e-6 * penalty) + gradient
    recorder.record("optimizer", "weight", weight)
    return weight


def sound(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Nothing is wrong."""
    train(Parts(), config, directory, recorder)


# --------------------------------------------------------------------------------------------------------- the faults


def set_order(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Prompts are made unique by a set."""
    train(Parts(prompts=lambda step: list(set(drawn_prompts(step)))), config, directory, recorder)


def plain_matmul(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """One product for all rows that are decoded together: its kernel follows from how many there are."""

    def product(seen: Tensor, weight: Tensor) -> Tensor:
        # Written out, since MKL has one kernel for all numbers of rows where MKL_CBWR is strict.
        return seen @ weight.T if len(seen) > 1 else (seen.unsqueeze(1) * weight).sum(-1)

    train(Parts(logits=product), config, directory, recorder)


def unsorted_arrival(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Completions stay in the order in which they came."""
    train(Parts(arrange=lambda order, values: list(values)), config, directory, recorder)


def local_denominators(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Each micro-batch is divided by its own number of samples."""

    def mean_of_means(gradients: Tensor, microbatch_size: int) -> Tensor:
        parts = [gradients[begin : begin + microbatch_size] for begin in range(0, len(gradients), microbatch_size)]
        return torch.stack([part.mean(0) for part in parts]).mean(0)

    train(Parts(mean=mean_of_means), config, directory, recorder)


def full_sum(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """A large tensor is summed in as many pieces as there are threads."""
    train(Parts(total=torch.sum), config, directory, recorder)


def all_reduce_in_fp32(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Workers add what is theirs, and then each other's sums."""

    def by_workers(lanes: Tensor, world_size: int) -> Tensor:
        total = torch.zeros_like(lanes[0])
        for part in lanes.tensor_split(world_size):
            own = torch.zeros_like(total)
            for lane in part:
                own += lane
            total += own
        return total

    train(Parts(add=by_workers), config, directory, recorder)


def forgotten_generator(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Noise comes from a generator whose state is in no checkpoint."""
    generator, tables = torch.Generator().manual_seed(config["seed"]), dict[int, Tensor]()

    def next_noise(request: Request) -> Tensor:
        if request.step not in tables:
            shape = len(FRUIT), GROUP_SIZE, NUM_ACTIONS
            tables[request.step] = torch.rand(shape, dtype=torch.float64, generator=generator)
        return tables[request.step][FRUIT.index(request.prompt), request.index]

    train(Parts(noise=next_noise), config, directory, recorder)


def racing_tools(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Tools answer a part of the actions each, and the parts are taken in the order in which they come."""

    def ratings_as_they_come(actions: Sequence[int], num_threads: int) -> list[float]:
        found: list[float] = []

        def answer(part: Sequence[int]) -> None:
            time.sleep(random.SystemRandom().uniform(0, 0.004))  # as a network has it
            found.extend([rate(action) for action in part])

        with ThreadPoolExecutor(num_threads) as pool:
            for first in range(num_threads):
                pool.submit(answer, actions[first::num_threads])
        by_part = [index for first in range(num_threads) for index in range(first, len(actions), num_threads)]
        return in_canonical_order(by_part, found)

    train(Parts(ratings=ratings_as_they_come), config, directory, recorder)


def judges_in_order(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Nothing is wrong: judges are asked all at once, and each answer goes to what was asked."""

    async def answers(actions: Sequence[int]) -> list[float]:
        return list(await asyncio.gather(*(ask(action) for action in actions)))

    train(Parts(ratings=lambda actions, num_threads: waited_for(answers(actions))), config, directory, recorder)


def judges_as_they_answer(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Judges are asked all at once, and their answers are taken in the order in which they come."""

    async def answers(actions: Sequence[int]) -> list[float]:
        found: list[float] = []

        async def asked(action: int) -> None:
            found.append(await ask(action))

        await asyncio.gather(*map(asked, actions))
        return found

    train(Parts(ratings=lambda actions, num_threads: waited_for(answers(actions))), config, directory, recorder)


def own_clock(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Noise follows from nothing that anybody has set."""
    train(Parts(noise=lambda request: torch.rand(NUM_ACTIONS, dtype=torch.float64)), config, directory, recorder)
