"""Logits of transformers, to compare with: of checkpoints it makes itself, or of those it is given.

python hugging_face_logits.py make DIR        # DIR/llama, qwen2, ... with random weights and logits.safetensors
python hugging_face_logits.py small DIR       # DIR/llama, ... of a few kilobytes: tests/rlcore/models/of_transformers
python hugging_face_logits.py read DIR...     # logits.safetensors into each
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama_tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama_stretched": LlamaConfig(**SIZES, rope_parameters=STRETCHED),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "qwen3_untied": Qwen3Config(**SIZES, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
}


SMALL = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
"""Sizes of checkpoints that are committed."""


def small(config: PretrainedConfig) -> PretrainedConfig:
    """Make a configuration of the same family of some thousand parameters."""
    head_width = {"head_dim": 4} if config.model_type == "qwen3" else {}
    return type(config)(**{**SIZES, **SMALL, **head_width, "num_key_value_heads": 1}, tie_word_embeddings=False)


def write_logits(model: torch.nn.Module, directory: Path) -> None:
    """Of 50 tokens of two samples, and the tokens with them."""
    tokens = torch.randint(3, model.config.vocab_size, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(input_ids=tokens).logits.float()
    save_file({"tokens": tokens, "logits": logits.contiguous()}, directory / "logits.safetensors")


def main() -> None:
    """As the usage says."""
    command, *directories = sys.argv[1:]
    if command in ("make", "small"):
        configs = CONFIGS if command == "make" else {name: small(CONFIGS[name]) for name in ("llama", "qwen2", "qwen3")}
        for number, (name, config) in enumerate(configs.items()):
            torch.manual_seed(number)
            model = AutoModelForCausalLM.from_config(config)
            with torch.no_grad():  # norms and biases that are not all 1 and 0
                for parameter in model.parameters():
                    if parameter.dim() == 1:
                        parameter.add_(torch.randn_like(parameter) * 0.3)
            model.save_pretrained(Path(directories[0]) / name, max_shard_size="20KB" if name == "qwen3" else "5GB")
            write_logits(model.eval(), Path(directories[0]) / name)
        return
    for directory in map(Path, directories):
        model, told = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
        write_logits(model.eval(), directory)
        if (directory / "tokenizer.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(directory)
            tokens = tokenizer("ab c")["input_ids"]
            text = tokenizer.decode([tokenizer.bos_token_id, *tokens, tokenizer.eos_token_id], skip_special_tokens=True)
            (directory / "tokens.txt").write_text(f"{tokens} {text}", encoding="utf-8")


if __name__ == "__main__":
    main()
