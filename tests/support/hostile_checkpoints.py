"""The readers of rlcore: checkpoints and tokenizers of others, prompts, and what a server answers.

What a checksum would refuse is given the right one first: nobody who fuzzes guesses a digest of 128 bits, and whoever
means harm computes it.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from xxhash import xxh3_128_hexdigest

from harness.bits.files import parse_object
from rlcore import checkpoint as own_checkpoints
from rlcore.checkpoint import CHECKSUMS, VALUES, read_state, write_state
from rlcore.data.files import read_rows
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models import checkpoints
from rlcore.models.checkpoints import CONFIG, INDEX, WEIGHTS
from rlcore.models.classifier import Classifier, load_classifier, save_classifier
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer, load_tokenizer
from rlcore.weights.completions_api import CompletionsServer
from tests.support.hostile_readers import Read, Reader, json_lines, of_file, write_files

OF_A_MODEL = (CheckpointError, InvalidValueError)
MODEL = DecoderConfig("qwen2", 5, 4, 1, 2, 1, 2, 4, max_length=4, is_tied=False)
VALUES_OF_A_RUN = {"level": "off", "kl_coef": 0.5, "identity": {"seed": 1, "names": ["a"]}}


def readers_of_rlcore() -> list[Reader]:
    """All of them."""
    return [*_readers_of_models(), *_readers_of_tokenizers(), *_readers_of_runs(), *_readers_of_prompts(), _answers()]


def _written(write: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that a function writes into a directory, by their names."""
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        paths = sorted(path for path in Path(directory).rglob("*") if path.is_file())
        return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def _readers_of_models() -> list[Reader]:
    decoder = Decoder(MODEL).initialise(0)
    whole = _written(lambda at: checkpoints.save(decoder, at))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SHARD_BYTES", 100)
        parts = _written(lambda at: checkpoints.save(decoder, at))
    classifier = _written(lambda at: save_classifier(Classifier(MODEL).initialise(0), at, pad_id=0))
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    stretched = {**json.loads(whole[CONFIG]), "rope_scaling": {**llama3, "original_max_position_embeddings": 2}}

    def of(name: str, files: Mapping[str, bytes], read: Callable[[Path], object], *more: bytes) -> Reader:
        title = f"{name} of a {'classifier' if files is classifier else 'model'}"
        return Reader(title, (files[name], *more), of_file(name, read, files), OF_A_MODEL)

    return [
        of(CONFIG, whole, checkpoints.load, json.dumps(stretched).encode()),
        of(WEIGHTS, whole, checkpoints.load),
        of(INDEX, parts, checkpoints.load),
        of(CONFIG, classifier, load_classifier),
    ]


def _readers_of_tokenizers() -> list[Reader]:
    files = _written(CharacterTokenizer("abc").save)
    pairs = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "added_tokens": [
            {"id": 3, "content": "<eos>", "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        ],
    }
    named = {"eos_token": {"content": "<eos>"}, "pad_token_id": 0, "eos_token_id": [3, 1]}
    document, config = "tokenizer.json", "tokenizer_config.json"
    beside = {config: json_lines(named)}
    return [
        Reader(
            "tokenizer.json of a model",
            (json_lines(pairs), files[document]),
            of_file(document, load_tokenizer, beside),
            OF_A_MODEL,
        ),
        Reader(config, (beside[config],), of_file(config, load_tokenizer, {document: json_lines(pairs)}), OF_A_MODEL),
    ]


def _readers_of_runs() -> list[Reader]:
    files = _written(lambda at: own_checkpoints.save(at, 1, VALUES_OF_A_RUN, {}, keep=1))
    files = {Path(name).name: content for name, content in files.items()}

    def resealed(data: bytes, directory: Path) -> object:
        """Read values whose checksums are right."""
        write_files(directory, {VALUES: data})
        entry = {"num_bytes": len(data), "xxh3_128": xxh3_128_hexdigest(data)}
        (directory / CHECKSUMS).write_bytes(own_checkpoints.sealed(1, {VALUES: entry}))
        return own_checkpoints.load(directory)

    return [
        Reader("checksums.json of a run", (files[CHECKSUMS],), _resealed(files), (CheckpointError,)),
        Reader("values.json of a run", (files[VALUES],), resealed, (CheckpointError,)),
        _reader_of_shards(),
    ]


def _resealed(files: Mapping[str, bytes]) -> Read:
    """Read checksums that are damaged, and the same with the digest of themselves that makes them whole again."""

    def read(data: bytes, directory: Path) -> object:
        write_files(directory, {**files, CHECKSUMS: data})
        try:
            return own_checkpoints.load(directory)
        except CheckpointError:
            pass
        try:
            found = json.loads(data)
            whole = own_checkpoints.sealed(found["step"], found["files"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            whole = data
        (directory / CHECKSUMS).write_bytes(whole)
        return own_checkpoints.load(directory)

    return read


def _reader_of_shards() -> Reader:
    weights = {"a": torch.arange(6.0).view(2, 3)}
    state = {**weights, "a.exp_avg": torch.ones(2, 3), "a.step": torch.ones(())}
    (name, content), *_ = _written(lambda at: write_state(at, state, None)).items()
    parameters = {name: torch.nn.Parameter(torch.zeros(tensor.shape)) for name, tensor in weights.items()}
    return Reader(
        "a shard of a trainer",
        (content,),
        of_file(name, lambda at: read_state(at, parameters, None)),
        (CheckpointError,),
    )


def _readers_of_prompts() -> list[Reader]:
    rows = [{"prompt": "1 + 1 =", "answer": "2", "tags": ["a"]}, {"prompt": "2 + 1 =", "answer": "3", "tags": []}]
    found = [
        Reader(
            "prompts.jsonl",
            (json_lines(*rows),),
            of_file("prompts.jsonl", lambda at: read_rows(at / "prompts.jsonl")),
            (InvalidValueError,),
        )
    ]
    return [*found, _reader_of_parquet(rows)]


def _reader_of_parquet(rows: list[dict[str, Any]]) -> Reader:
    import pyarrow
    from pyarrow import parquet

    def write(directory: Path, **options: Any) -> None:
        parquet.write_table(pyarrow.Table.from_pylist(rows), directory / "a", **options)

    documents = [_written(partial(write, compression=kind))["a"] for kind in ("none", "snappy")]
    read = of_file("prompts.parquet", lambda at: read_rows(at / "prompts.parquet"))
    return Reader("prompts.parquet", tuple(documents), read, (InvalidValueError,))


def _answers() -> Reader:
    @dataclass(frozen=True, slots=True)
    class Answered(CompletionsServer):
        """A server that gives one answer to everything."""

        answer: Mapping[str, Any] = field(default_factory=dict)

        def _answer(self, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
            return dict(self.answer)

    def read(data: bytes, directory: Path) -> object:
        try:
            server = Answered("http://localhost", answer=parse_object(data))
        except ValueError:  # as where a server is not one of completions
            return None
        return server.models(), server.score("m", (1, 2), 1), server.collective_rpc("m")

    choice = {
        "prompt_logprobs": [None, {"2": {"logprob": -1.5}}],
        "token_ids": [3],
        "logprobs": {"token_logprobs": [-0.5]},
    }
    answer = {"data": [{"id": "m", "max_model_len": 64}], "choices": [choice], "results": [1]}
    return Reader("an answer of a server", (json_lines(answer),), read, (InvalidValueError,))
