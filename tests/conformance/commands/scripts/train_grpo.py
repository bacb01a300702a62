"""TRL's GRPOTrainer on a small Qwen2: short completions with many different words are rewarded."""

import argparse

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--checkpointing", default="off")
args = parser.parse_args()


def reward(completions, **_):
    return [len(set(text.split())) / 6 for text in completions]


set_seed(args.seed)
words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(40))]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
)
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
)
config = GRPOConfig(
    "checkpoints",
    max_steps=8,
    save_steps=2,
    logging_steps=1,
    learning_rate=args.lr,
    per_device_train_batch_size=8 // args.accumulate,
    gradient_accumulation_steps=args.accumulate,
    dataloader_num_workers=args.workers,
    gradient_checkpointing=args.checkpointing == "on",
    num_generations=4,
    max_completion_length=6,
    seed=args.seed,
    use_cpu=True,
    bf16=False,
    report_to=[],
)
prompts = Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(24)]})
trainer = GRPOTrainer(model, reward, args=config, train_dataset=prompts, processing_class=tokenizer)
trainer.train(resume_from_checkpoint=args.resume)
