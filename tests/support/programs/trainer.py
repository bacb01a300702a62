"""A transformers Trainer on a tiny language model, as anybody would write it.

python trainer.py --out DIR [--steps 8] [--accumulate 2] [--weights FILE]
"""

import argparse

import torch
from tiny_language import LETTERS, tiny_model, tiny_tokenizer
from transformers import Trainer, TrainingArguments, set_seed


class Alphabets(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Runs of the alphabet, each from another letter on."""

    def __init__(self) -> None:
        tokenizer = tiny_tokenizer()
        texts = [(LETTERS[start:] + LETTERS[:start]) * 2 for start in range(len(LETTERS))] * 4
        self.rows = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    """Train, and save the weights where that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--weights")
    arguments = parser.parse_args()

    set_seed(3)
    model = tiny_model(len(tiny_tokenizer()))
    options = TrainingArguments(
        output_dir=arguments.out,
        max_steps=arguments.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=arguments.accumulate,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        seed=3,
        disable_tqdm=True,
    )
    Trainer(model=model, args=options, train_dataset=Alphabets()).train()
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
