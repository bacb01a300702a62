"""Tokenizers: of single characters, made here, which transformers and vLLM load; and those of users' checkpoints.

Nothing is downloaded.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from harness.bits.files import parse_object, read_regular
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.config import read_json
from rlcore.types import Messages

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL = (PAD, BOS, EOS)
"""Tokens 0, 1 and 2."""
FILE = "tokenizer.json"
GENERATION = "generation_config.json"
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json", GENERATION, "config.json")
"""Where special tokens are named; the first that names one is right."""
FILES = (
    FILE,
    *CONFIGS[:-1],
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.json",
)
"""What belongs to a checkpoint's tokenizer."""


class HubTokenizer:
    """The tokenizer of a checkpoint, as its files say: byte-pair or another, by the library tokenizers.

    A special token that stands in a text, as chat templates write them, is read as that token.
    """

    def __init__(self, files: Mapping[str, bytes], *, eos_id: int, pad_id: int, stop_ids: Sequence[int] = ()) -> None:
        self.files = files
        """Those of its checkpoint, by name."""
        self.backend = backend = Tokenizer.from_buffer(files[FILE])
        self.backend.no_truncation()
        self.backend.no_padding()
        # Decoding leaves out what is marked so, and not every tokenizer.json marks its end.
        self.backend.add_special_tokens([backend.id_to_token(number) for number in (eos_id, pad_id)])
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.eos_id = eos_id
        self.pad_id = pad_id
        self.stop_ids = tuple(stop_ids)
        """Other tokens that one of its files names as an end: for SamplingParams.stop_ids."""

    def encode(self, text: str) -> list[int]:
        """The tokens that are in the text, none added."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, prompt: str | Messages) -> tuple[str, list[int]]:
        """Return the text of a prompt and its tokens.

        A text gets the tokens that the tokenizer's post-processor adds, such as a first one; if it begins with them, it
        does not get them again. Messages are rendered by the chat template, which writes all of them; as transformers
        does, without what is null. Raises InvalidValueError for messages without a template, or that it refuses.
        """
        if not isinstance(prompt, str):
            given = [{name: value for name, value in each.items() if value is not None} for each in prompt]
            try:
                text = self._template.render(messages=given, add_generation_prompt=True) if self._template else None
            except Exception as error:  # a template may do anything
                raise InvalidValueError(f"the chat template refuses a prompt: {error}") from error
            if text is None:
                raise InvalidValueError(
                    "messages for a tokenizer without a chat template",
                    legal="chat_template.jinja, or chat_template in tokenizer_config.json",
                    remedy="model.path: a checkpoint that has one; or write prompts as texts",
                )
            return text, self.encode(text)
        own, added = self.encode(prompt), list(self.backend.encode(prompt).ids)
        first = next((at for at in range(len(added)) if added[at : at + len(own)] == own), 0)
        return prompt, own if first and own[:first] == added[:first] else added

    @cached_property
    def _template(self) -> Template | None:
        """The chat template as transformers compiles it, without its clock: tokens are the same every day."""
        configs = [parse_object(self.files[name]) for name in CONFIGS[:2] if name in self.files]
        found = [config["chat_template"] for config in configs if config.get("chat_template")]
        if "chat_template.jinja" in self.files:
            found.insert(0, self.files["chat_template.jinja"].decode())
        if not found:
            return None
        text = found[0]
        if not isinstance(text, str):  # several, by name
            text = next((each["template"] for each in text if each["name"] == "default"), "")

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        roles = [(f"{role}_token", config) for role in ("bos", "eos", "pad", "unk") for config in reversed(configs)]
        names = {key: token for key, config in roles for token in _tokens(config, key) if isinstance(token, str)}
        return environment.from_string(text, {"raise_exception": refuse, "tools": None, "documents": None, **names})

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, without special tokens."""
        return self.backend.decode(list(tokens), skip_special_tokens=True)

    def save(self, directory: Path) -> None:
        """Write the files it was loaded from, chat template and all, and what ends a completion where they do not say.

        config.json is the model's, and is not written: an end that stood there alone goes to generation_config.json.
        """
        directory.mkdir(parents=True, exist_ok=True)
        ends = {"eos_token_id": [self.eos_id, *self.stop_ids], "pad_token_id": self.pad_id}
        for name, content in {GENERATION: json.dumps(ends, indent=2).encode(), **self.files}.items():
            (directory / name).write_bytes(content)

    def is_saved_in(self, directory: Path) -> bool:
        """Return whether a directory has the files it was loaded from, byte for byte. OSError where one is missing."""
        return self.files == {name: read_regular(directory / name, follows_links=True) for name in self.files}


class CharacterTokenizer(HubTokenizer):
    """One token a character; token numbers follow from the alphabet alone."""

    def __init__(self, alphabet: Iterable[str]) -> None:
        characters = sorted(set(alphabet))
        vocabulary = {token: number for number, token in enumerate((*SPECIAL, *characters))}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token=None))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(list(SPECIAL))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
        }
        files = {FILE: backend.to_str(pretty=True).encode(), CONFIGS[0]: json.dumps(config, indent=2).encode()}
        super().__init__(files, eos_id=SPECIAL.index(EOS), pad_id=SPECIAL.index(PAD))
        self.alphabet = frozenset(characters)

    def encode(self, text: str) -> list[int]:
        """Never a special token. Raises InvalidValueError for a character that is not of the alphabet."""
        if unknown := sorted(set(text) - self.alphabet):
            raise InvalidValueError(
                f"{unknown[0]!r} in a text", legal=repr("".join(sorted(self.alphabet))), remedy="add it to the alphabet"
            )
        numbers = self.backend.get_vocab()
        return [numbers[character] for character in text]


def load_tokenizer(directory: Path) -> HubTokenizer:
    """Return the tokenizer of a checkpoint, one of single characters or any other.

    The end is what tokenizer_config.json, special_tokens_map.json, generation_config.json or config.json names, the
    first that does; so is the padding, which is the end where no file names one. Raises CheckpointError for a file that
    is missing or broken, InvalidValueError where no end is named or a token is not in the vocabulary.
    """
    path = directory / FILE
    if not path.is_file():
        raise CheckpointError(
            f"{directory} holds no {FILE}",
            remedy="write one: transformers.AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
        )
    try:
        backend = Tokenizer.from_buffer(read_regular(path, follows_links=True))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path} cannot be read: {error}", remedy="copy the checkpoint again") from error
    characters = set(backend.get_vocab()) - set(SPECIAL)
    if all(len(character) == 1 for character in characters):
        own = CharacterTokenizer(characters)
        if own.backend.to_str() == backend.to_str():
            return own
    numbers = backend.get_vocab(with_added_tokens=True)
    ends = _named(directory, numbers, "eos")
    if not ends:
        raise InvalidValueError(
            f"{directory} names no token that ends a completion",
            legal=f"eos_token in {CONFIGS[0]}, or eos_token_id in {CONFIGS[-1]}",
        )
    pads = _named(directory, numbers, "pad") or ends
    present = [name for name in FILES if (directory / name).is_file()]
    files = {name: read_regular(directory / name, follows_links=True) for name in present}
    return HubTokenizer(files, eos_id=ends[0], pad_id=pads[0], stop_ids=ends[1:])


def _named(directory: Path, numbers: Mapping[str, int], role: str) -> list[int]:
    """The tokens that have this role, without repeats, those of the file that is asked first in front."""
    found: dict[int, None] = {}
    legal = set(numbers.values())
    for path in [directory / name for name in CONFIGS if (directory / name).is_file()]:
        for token in _tokens(read_json(path), f"{role}_token", f"{role}_token_id"):
            number = numbers.get(token) if isinstance(token, str) else token
            if type(number) is not int or number not in legal:
                what = f"{role}_token {token!r:.300} of {path}"
                raise InvalidValueError(what, legal=f"a token of {FILE}, 0 to {max(legal, default=-1)}")
            found[number] = None
    return list(found)


def _tokens(config: Mapping[str, Any], *keys: str) -> Iterator[object]:
    """Texts of tokens, or their numbers: one or several, a text also as {"content": text}."""
    for value in map(config.get, keys):
        for token in value if isinstance(value, list) else [value]:
            if token not in (None, -1):  # as older checkpoints say that there is none
                yield token.get("content") if isinstance(token, dict) else token
