"""TRL's SFTTrainer on a small GPT-2."""

import argparse

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--checkpointing", default="off")
args = parser.parse_args()

set_seed(args.seed)
words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(40))]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(words),
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
)
texts = [" ".join(f"w{(7 * i + k * (1 + i % 3)) % 40}" for k in range(4 + i % 9)) for i in range(48)]
config = SFTConfig(
    "checkpoints",
    num_train_epochs=2,
    save_steps=3,
    logging_steps=1,
    learning_rate=args.lr,
    per_device_train_batch_size=8 // args.accumulate,
    gradient_accumulation_steps=args.accumulate,
    dataloader_num_workers=args.workers,
    gradient_checkpointing=args.checkpointing == "on",
    max_length=16,
    seed=args.seed,
    use_cpu=True,
    bf16=False,
    report_to=[],
)
dataset = Dataset.from_dict({"text": texts})
trainer = SFTTrainer(model, args=config, train_dataset=dataset, processing_class=tokenizer)
trainer.train(resume_from_checkpoint=args.resume)
