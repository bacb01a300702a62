"""TRL's GRPOTrainer, a step at a time, for engine_vs_trl.py: python trl_step.py MODEL [--no-checkpointing]

All settings are TRL's defaults but for what the comparison fixes: the batch, the length of completions, fp32, the
processor, and no files. The whole batch is one pass: by its default of 8 samples a pass TRL would be slower here.
"""

import argparse
import tempfile
from importlib.metadata import version
from typing import Any

import torch

from tests.benchmarks.one_step.turns import Turns

NUM_REPEATS = 10_000
"""So that no epoch ends: its end costs TRL time that is not a step's."""


class NoMoreTurns(Exception):
    """The parent is done."""


def trainer_of(arguments: argparse.Namespace, turns: Turns, directory: str) -> Any:
    """A trainer whose steps begin when the parent says so."""
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
        TrainerCallback,
    )
    from trl import GRPOConfig, GRPOTrainer

    class ByTurns(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """A step begins when the parent says so."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not turns.begin():
                raise NoMoreTurns

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.end()

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """Vowels are good; every completion has the length that was asked for."""
        if {len(tokens) for tokens in completion_ids} != {arguments.num_tokens}:
            raise SystemExit("a completion of another length")
        return [sum(character in "aeiou" for character in text) / arguments.num_tokens for text in completions]

    options = GRPOConfig(
        output_dir=directory,
        max_steps=NUM_REPEATS,
        per_device_train_batch_size=len(arguments.prompts) * arguments.group_size,
        num_generations=arguments.group_size,
        max_completion_length=arguments.num_tokens,
        generation_kwargs={"min_new_tokens": arguments.num_tokens},
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **({"gradient_checkpointing": False} if arguments.no_checkpointing else {}),
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
        reward_funcs=reward,
        args=options,
        train_dataset=Dataset.from_dict({"prompt": arguments.prompts * NUM_REPEATS}),
        processing_class=AutoTokenizer.from_pretrained(arguments.model, padding_side="left"),
        callbacks=[ByTurns()],
    )
    rollout = trainer._generate_and_score_completions

    def timed(*given: Any) -> Any:
        with turns.part("rollout"):
            return rollout(*given)

    trainer._generate_and_score_completions = timed
    return trainer


def main() -> None:
    """Make a trainer, then step when told to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--num-tokens", type=int, required=True)
    parser.add_argument("--no-checkpointing", action="store_true")
    arguments = parser.parse_args()
    turns = Turns()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        trainer = trainer_of(arguments, turns, directory)
        turns.say(versions=f"trl {version('trl')}, transformers {version('transformers')}, torch {torch.__version__}")
        try:
            trainer.train()
        except NoMoreTurns:
            return


if __name__ == "__main__":
    main()
