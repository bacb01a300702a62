"""Asynchronous runs with a mistake that others made, each in one or two lines, and with a check switched off.

    python -m tests.support.planted_run DIRECTORY CASE...

prints a line of JSON for each case: how the run ended, what its processes said, and what the audit says. The mistakes
are those of `shared/facts/faults`: o03 (trl 5224, rllm 816), o09 (vllm 42125 and 48352), o11 (trl 4159, marin 1741).

A case is MISTAKES,SETTINGS,CHECKS: names of PLANTS, SETTINGS and OFF, with + between those of one kind.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlcore.asynchronous import orchestrator, trainer
from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.client import Client
from rlcore.asynchronous.directory import BATCHES, steps
from rlcore.asynchronous.infer import Inference, LocalBackend
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.asynchronous.trainer import AsynchronousTrainer
from rlcore.types import SampleRequest
from tests.support.asynchronous_run import (
    ENVIRONMENT,
    PRODUCTS,
    ROLES,
    TALKING,
    WITH_TOOLS,
    WORDS,
    complete,
    make_talking_model,
    prepare,
    write_files,
)


class Echo:
    """Answers every turn, also one that has ended with the end of sequence: a text lacks it, and tokens have it."""

    def reset(self, **_: Any) -> tuple[str, Any]:
        return "", {}

    def step(self, text: str) -> tuple[str, float, bool, bool, Any]:
        return "=", 0.0, False, False, {}


def again(tokens: Any) -> tuple[int, ...]:
    """Tokenise the text of tokens again."""
    return tuple(WORDS.encode(WORDS.decode(tokens)))


def patch(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    """Put `changed(original, ...)` in the place of a function."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: changed(original, *args, **kwargs))


# ---------------------------------------------------------------------------------------------------- o03, tokens again


def prompt_of_text() -> None:
    """The prompt of a later turn is the text so far, tokenised again."""

    def changed(original: Any, episode: Any) -> SampleRequest | None:
        wanted: SampleRequest | None = original(episode)
        if wanted is None or not episode.drawn:
            return wanted
        return replace(wanted, prompt=replace(wanted.prompt, tokens=again(wanted.prompt.tokens)))

    patch(orchestrator, "next_request", changed)


def asked_by_text() -> None:
    """The client sends a text, which the server tokenises again."""
    patch(Client, "complete", lambda sent, me, at, asked: sent(me, at, {**asked, "prompt": again(asked["prompt"])}))


def trained_by_text() -> None:
    """A row has the tokens of its text, and its log-probabilities are cut, or padded with 0."""

    def changed(original: Any, *args: Any) -> dict[str, Any]:
        row: dict[str, Any] = original(*args)
        tokens = again(row["tokens"])
        count = len(tokens) - row["num_prompt"]
        logprobs, mask = (
            [*row[name], *[filler] * count][:count] for name, filler in (("logprobs", 0.0), ("mask", True))
        )
        return {**row, "tokens": tokens, "logprobs": logprobs, "mask": mask}

    patch(Orchestrator, "_row", changed)


# ------------------------------------------------------------------------------------------------------- o09, adapters


def keeps_the_first() -> None:
    """A new adapter under an old name: the first of this name is served."""
    first = list[Any]()

    def changed(original: Any, me: Any, weights: Any) -> str:
        first.append(weights)
        return str(original(me, first[0]))

    patch(LocalBackend, "load", changed)


def keeps_the_first_and_answers_for_the_new() -> None:
    """The same beneath the digest, as in a cache of an engine: the answer names the new weights."""
    first = list[Any]()

    def changed(original: Any, me: Any, weights: Any) -> str:
        first.append(weights)
        digest = str(original(me, weights))
        me._decoder.load_state_dict(first[0], strict=False)
        return digest

    patch(LocalBackend, "load", changed)


def never_loads() -> None:
    """The base decodes alone, and the answer names the adapters."""

    def changed(original: Any, me: Any, weights: Any) -> str:
        digest = str(original(me, weights))
        me._decoder.load_state_dict({name: torch.zeros_like(each) for name, each in weights.items()}, strict=False)
        return digest

    patch(LocalBackend, "load", changed)


# ---------------------------------------------------------------------------------------------------- o11, temperatures


def sampler_at_one() -> None:
    """The sampler draws at another temperature than is asked for."""
    patch(Inference, "_read", lambda read, me, asked: read(me, asked.model_copy(update={"temperature": 1.0})))


def trainer_at_one() -> None:
    """The trainer reads at another temperature than the samples have."""
    patch(trainer, "read_tokens", lambda read, temperatures, *rest: read([1.0] * len(temperatures), *rest))


def sampler_at_the_first() -> None:
    """The sampler keeps the temperature of the first request."""
    first = list[float]()

    def changed(original: Any, me: Any, asked: Any) -> Any:
        first.append(asked.temperature)
        return original(me, asked.model_copy(update={"temperature": first[0]}))

    patch(Inference, "_read", changed)


# -------------------------------------------------------------------------------------------------- checks that are off


def no_check_of_logprobs() -> None:
    """No log-probabilities are compared."""
    patch(AsynchronousTrainer, "_check_sampled", lambda *_: None)


def no_reading_of_earlier_versions() -> None:
    """Log-probabilities of the present weights alone are compared."""

    def changed(original: Any, me: Any, *args: Any) -> Any:
        me._next_reading = 1 << 30
        return original(me, *args)

    patch(AsynchronousTrainer, "step", changed)


def no_check_of_digests() -> None:
    """A sampler's weights are what it says."""
    patch(Orchestrator, "_check_digest", lambda *_: None)


PLANTS: Mapping[str, tuple[str, Callable[[], None]]] = {
    "": ("", lambda: None),
    "prompt_of_text": ("orch", prompt_of_text),
    "asked_by_text": ("orch", asked_by_text),
    "trained_by_text": ("orch", trained_by_text),
    "keeps_the_first": ("infer", keeps_the_first),
    "keeps_and_answers": ("infer", keeps_the_first_and_answers_for_the_new),
    "never_loads": ("infer", never_loads),
    "sampler_at_one": ("infer", sampler_at_one),
    "sampler_at_the_first": ("infer", sampler_at_the_first),
    "trainer_at_one": ("train", trainer_at_one),
    "-logprobs": ("train", no_check_of_logprobs),
    "-earlier": ("train", no_reading_of_earlier_versions),
    "-digests": ("orch", no_check_of_digests),
}
"""Role of the process, and what is done to it; a name with - is a check that is switched off."""
LORA = {"lora": True, "lora_rank": 4, "learning_rate": 0.01}
SCHEDULE = {"temp_scheduler": {"type": "linear", "start_temperature": 1.0, "end_temperature": 0.5}}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "": {},
    "lora": {"train": LORA},
    "A=0": {"max_async_level": 0},
    "free": {"mode": "free"},
    "off": {"train": {"level": "off"}, "levels": "off"},
    "cooler": {"sampling": {"max_tokens": 12, "temperature": 0.7}},
    "cooling": {"sampling": {"max_tokens": 12, **SCHEDULE}},
}


def run_case(directory: Path, model: Path, case: str) -> dict[str, Any]:
    """Make the run of a case, and return what is to be seen of it."""
    plants, settings = (part.split("+") for part in case.split(","))
    env = {**ENVIRONMENT, "name": "tests.support.planted_run:Echo", "arguments": {}, "max_turns": 2}
    orch = {**WITH_TOOLS, "env": [{"id": "products", "args": {**PRODUCTS, "environment": env}}], "num_steps": 3}
    train: dict[str, Any] = {"learning_rate": 3e-4}
    for name in settings:
        train |= SETTINGS[name].get("train", {})
        orch |= {key: value for key, value in SETTINGS[name].items() if key not in ("train", "levels")}
    files = write_files(directory, model, train=train, **orch)
    if "off" in settings:
        for role in ("infer", "orch"):
            with files[role].open("a") as file:
                file.write("level: off\n")

    def plant(role: str) -> None:
        for where, do in (PLANTS[name] for name in plants):
            if where == role:
                do()

    ended = ""
    try:
        complete(files, plant=plant)
    except AssertionError as error:
        ended = str(error)
    said = "".join(files[role].with_suffix(".log").read_text("utf-8") for role in ROLES)
    run = directory / "run_default"
    return {"case": case, "ended": ended, "said": said, "audit": audit(run).lines()[1:] if steps(run / BATCHES) else []}


def main() -> None:
    directory = Path(sys.argv[1])
    prepare(TALKING)
    if (pid := os.fork()) == 0:  # autograd has threads
        make_talking_model(directory / "model")
        os._exit(0)
    os.waitpid(pid, 0)
    for number, case in enumerate(sys.argv[2:]):
        print(json.dumps(run_case(directory / str(number), directory / "model", case)), flush=True)


if __name__ == "__main__":
    main()
