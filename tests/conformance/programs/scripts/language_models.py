"""Hugging Face's trainers on language models that are made on the spot.

python language_models.py KIND
"""

import os
import sys
from collections.abc import Callable
from copy import deepcopy

import torch
from datasets import Dataset
from outcome import IS_PLANTED, is_time, nudge, save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

LETTERS = "abcdefghijklmnop"
TEXTS = [(LETTERS[start:] + LETTERS[:start]) * 2 for start in range(len(LETTERS))] * 4
OPTIONS = {
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "seed": 3,
    "disable_tqdm": True,
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each letter."""
    words = {word: number for number, word in enumerate(("<pad>", "<bos>", "<eos>", "<unk>", " ", *LETTERS))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def make_model() -> LlamaForCausalLM:
    """Two layers of 32."""
    config = LlamaConfig(
        vocab_size=len(make_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


class Rows(torch.utils.data.Dataset):
    """Alphabets as tokens; a worker masks some, and may plant: another token in row 5."""

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(make_tokenizer()(TEXTS[index])["input_ids"])
        masked = torch.where(torch.rand(len(tokens)) < 0.1, 3, tokens)
        if IS_PLANTED and index == 5:
            masked[0] = 3
        return {"input_ids": masked, "labels": tokens}


def trainer() -> None:
    """transformers' Trainer: accumulation, evaluation, checkpoints, two workers; planted: a token, in a worker."""
    model = make_model()
    options = TrainingArguments(
        output_dir="out",
        max_steps=6,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        dataloader_num_workers=2,
        **OPTIONS,
    )
    Trainer(model=model, args=options, train_dataset=Rows(), eval_dataset=Rows()).train()
    save(model.state_dict().values())


class PlantWeight(TrainerCallback):
    """Writes one of a model's weights before a step."""

    def __init__(self, weight: torch.Tensor, step: int) -> None:
        self.weight, self.step = weight, step

    def on_step_begin(self, _: object, state: object, __: object, **___: object) -> None:
        if is_time(state.global_step, self.step):
            nudge(self.weight)


def sft(model: nn.Module, callbacks: list[TrainerCallback]) -> None:
    """TRL's SFTTrainer."""
    from trl import SFTConfig, SFTTrainer

    options = SFTConfig(output_dir="out", max_steps=5, max_length=32, save_strategy="no", **OPTIONS)
    training = SFTTrainer(
        model=model,
        args=options,
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=make_tokenizer(),
        callbacks=callbacks,
    )
    training.train()
    if int(os.environ.get("RANK", "0")) == 0:
        save(model.state_dict().values())


def trl_sft() -> None:
    """TRL's SFTTrainer, under torchrun too; planted: a weight, written between two steps."""
    model = make_model()
    sft(model, [PlantWeight(model.model.layers[1].mlp.up_proj.weight, 3)])


def peft_lora() -> None:
    """LoRA by PEFT in the SFTTrainer; planted: a frozen weight of the base model."""
    from peft import LoraConfig, get_peft_model

    base = make_model()
    frozen = base.model.layers[0].mlp.down_proj.weight
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    sft(model, [PlantWeight(frozen, 3)])


class Reward:
    """The share of the letter "a"; planted: the reward of one completion in its third call."""

    num_calls = 0
    __name__ = "share_of_a"

    def __call__(self, completions: list[str], **_: object) -> list[float]:
        rewards = [text.count("a") / max(1, len(text)) for text in completions]
        if is_time(self.num_calls, 2):
            rewards[-1] += 0.5
        self.num_calls += 1
        return rewards


def rewarded(config: type, trainer: type, length: str = "max_completion_length", **options: object) -> None:
    """One of TRL's trainers with a reward function; planted: one reward."""
    model = make_model()
    prompts = Dataset.from_dict({"prompt": [LETTERS[start : start + 6] for start in range(10)]})
    arguments = config(output_dir="out", max_steps=4, save_strategy="no", **{length: 12}, **options, **OPTIONS)
    trainer(
        model=model, reward_funcs=Reward(), args=arguments, train_dataset=prompts, processing_class=make_tokenizer()
    ).train()
    save(model.state_dict().values())


def trl_grpo() -> None:
    """TRL's GRPOTrainer."""
    from trl import GRPOConfig, GRPOTrainer

    rewarded(GRPOConfig, GRPOTrainer, num_generations=4)


def trl_rloo() -> None:
    """TRL's RLOOTrainer."""
    from trl import RLOOConfig, RLOOTrainer

    rewarded(RLOOConfig, RLOOTrainer, num_generations=4, beta=0.0)


def trl_online_dpo() -> None:
    """TRL's OnlineDPOTrainer."""
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    rewarded(OnlineDPOConfig, OnlineDPOTrainer, "max_new_tokens")


def trl_dpo() -> None:
    """TRL's DPOTrainer; planted: the gradient of a weight, by a hook of autograd."""
    from trl import DPOConfig, DPOTrainer

    model = make_model()
    reference = deepcopy(model)
    num_calls = 0

    def plant(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return gradient * (1.5 if is_time(num_calls, 3) else 1.0)

    model.model.norm.weight.register_hook(plant)
    pairs = {"prompt": ["abc"] * 16, "chosen": ["defgh", "ijk"] * 8, "rejected": ["ponm", "lkjih"] * 8}
    options = DPOConfig(output_dir="out", max_steps=4, save_strategy="no", **OPTIONS)
    DPOTrainer(
        model=model,
        ref_model=reference,
        args=options,
        train_dataset=Dataset.from_dict(pairs),
        processing_class=make_tokenizer(),
    ).train()
    save(model.state_dict().values())


def fsdp2_sft() -> None:
    """A causal language model sharded by fully_shard, under torchrun; planted: a label of rank 1."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    model = make_model()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in (*model.model.layers, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.tensor(make_tokenizer()(TEXTS)["input_ids"])
    rank = distributed.get_rank()
    for step in range(4):
        tokens = rows[8 * step + 4 * rank :][:4]
        labels = tokens.clone()
        if rank == 1 and is_time(step, 2):
            labels[0, 3] = 7
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
    weights = [weight.full_tensor() for weight in model.parameters()]
    if rank == 0:
        save(weights)
    distributed.destroy_process_group()


def accelerated() -> None:
    """A loop by accelerate, to be started by its launcher; planted: the learning rate, by the scheduler."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 if is_time(step, 3) else 1.0)
    rows = torch.tensor(make_tokenizer()(TEXTS)["input_ids"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=4, shuffle=True))
    for tokens in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
            optimizer.step()
            if accelerator.sync_gradients:
                scheduler.step()
            optimizer.zero_grad()
    if accelerator.is_main_process:
        save(accelerator.unwrap_model(model).state_dict().values())
    accelerator.end_training()


def image_model() -> None:
    """A ResNet of transformers on random images, with batch norms; planted: a running mean."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    model = ResNetForImageClassification(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.randn(16, 3, 32, 32), torch.randint(3, (16,)))
    for step, (images, labels) in enumerate(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)):
        if is_time(step, 2):
            nudge(model.resnet.embedder.embedder.normalization.running_mean)
        optimizer.zero_grad()
        model(pixel_values=images, labels=labels).loss.backward()
        optimizer.step()
    save(model.state_dict().values())


KINDS: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        accelerated,
        fsdp2_sft,
        image_model,
        peft_lora,
        trainer,
        trl_dpo,
        trl_grpo,
        trl_online_dpo,
        trl_rloo,
        trl_sft,
    )
}

if __name__ == "__main__":
    set_seed(3)
    KINDS[sys.argv[1]]()
