"""A language model and a tokenizer small enough to be made on the spot: nothing is fetched from anywhere."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnop"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each letter, and four special ones."""
    words = {word: number for number, word in enumerate((*SPECIAL, " ", *LETTERS))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def tiny_model(num_words: int) -> LlamaForCausalLM:
    """Two layers of 32; its weights are drawn from torch's generator."""
    config = LlamaConfig(
        vocab_size=num_words,
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
