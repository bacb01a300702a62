"""TRL's GRPOTrainer on a tiny language model: more of the letter "a" is better.

python grpo.py --out DIR [--steps 4] [--weights FILE]
"""

import argparse
from typing import Any

import torch
from datasets import Dataset
from tiny_language import LETTERS, tiny_model, tiny_tokenizer
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer


def share_of_a(completions: list[str], **_: Any) -> list[float]:
    """The reward: how much of a completion is the letter "a"."""
    return [text.count("a") / max(1, len(text)) for text in completions]


def main() -> None:
    """Train, and save the weights where that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--weights")
    arguments = parser.parse_args()

    set_seed(5)
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    prompts = Dataset.from_dict({"prompt": [LETTERS[start : start + 6] for start in range(10)]})
    options = GRPOConfig(
        output_dir=arguments.out,
        max_steps=arguments.steps,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        seed=5,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=share_of_a, args=options, train_dataset=prompts, processing_class=tokenizer
    )
    trainer.train()
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
