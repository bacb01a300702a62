"""Our engine's whole GRPO step, one at a time, for engine_vs_trl.py: python rlcore_step.py MODEL --level invariant

Rollout, reward, update, optimizer, sync with its receipt: `make_step` as a run has it, with no recorder.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlcore.checks import Checks
from rlcore.config import read_config
from rlcore.data.rewards import Reward
from rlcore.data.tasks import Task
from rlcore.determinism import at_level
from rlcore.log import Clock, NullRecorder, Record
from rlcore.memory import keep_freed_memory
from rlcore.models.checkpoints import load
from rlcore.models.tokenizer import CharacterTokenizer, load_tokenizer
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.seeds import prompt_ids
from rlcore.train import TrainState, make_step
from rlcore.trainers.trainer import Trainer
from rlcore.types import Prompt
from rlcore.weights.proven_sync import sync
from tests.benchmarks.one_step.turns import Turns


class Endless(CharacterTokenizer):
    """Nothing ends a completion but its length."""

    def __init__(self, alphabet: Iterable[str]) -> None:
        super().__init__(alphabet)
        self.eos_id = -2


class TimedPhases(Clock):
    """Tells the parent, too; each phase begins a new peak of memory, so the highest is noted before."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.turns.note_peak()
        with super().__call__(name), self.turns.part(name):
            yield


def vowels(completions: Sequence[str], **_: Any) -> list[float]:
    """The reward of trl_step.py."""
    return [sum(character in "aeiou" for character in text) / max(1, len(text)) for text in completions]


def state_of(arguments: argparse.Namespace, turns: Turns) -> TrainState:
    """Everything a step needs, at TRL's learning rate."""
    decoder = load(Path(arguments.model))
    own = load_tokenizer(Path(arguments.model))
    assert isinstance(own, CharacterTokenizer)
    tokenizer = Endless(own.alphabet)
    prompts = tuple(
        Prompt(number, text, tuple(tokenizer.encode(text)))
        for number, text in zip(prompt_ids(arguments.prompts), arguments.prompts, strict=True)
    )
    config = read_config(
        {
            "task": {"name": "reverse_text"},
            "sampling": {"max_tokens": arguments.num_tokens},
            "algorithm": {"name": "grpo"},
            "optimizer": {"learning_rate": 1e-6},
            "training": {"prompts_per_step": len(prompts), "group_size": arguments.group_size},
        }
    )
    rate = config.optimizer.learning_rate
    state = TrainState(
        config=config,
        level=arguments.level,
        task=Task("vowels", prompts, (), (Reward("vowels", vowels),)),
        tokenizer=tokenizer,
        policy=Trainer("policy", decoder, rate, section=config.optimizer, runtime=config.runtime),
        sampler=TorchSampler(decoder, tokenizer, concurrency=len(prompts) * arguments.group_size),
        record=Record(NullRecorder()),
        clock=TimedPhases(turns),
    )
    state.checks = Checks(state)
    return state


def main() -> None:
    """Build a state, then step when told to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--num-tokens", type=int, required=True)
    parser.add_argument("--level", choices=["off", "invariant"], required=True)
    arguments = parser.parse_args()
    turns = Turns()
    torch.set_num_threads(1)
    keep_freed_memory()
    state = state_of(arguments, turns)
    config = state.decoder.config
    held = at_level(arguments.level, config, length=config.max_length)
    with held as invariance_report:
        state.receipt = sync(state.decoder, state.sampler.weight_target, 0, None)
        turns.say(
            versions=f"torch {torch.__version__}",
            strategy=invariance_report.strategy.name if invariance_report else "off",
        )
        step = 0
        while turns.begin():
            metrics = make_step(state, step)
            assert metrics["completion_length"] == arguments.num_tokens
            turns.end()
            step += 1


if __name__ == "__main__":
    main()
