"""Build the tokenizer and the decoder that a configuration names: new ones for the task, or those of a checkpoint."""

from pathlib import Path

from rlcore.config import RunConfig
from rlcore.data.tasks import alphabet
from rlcore.models.checkpoints import DTYPES, load
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer, load_tokenizer
from rlcore.types import Tokenizer


def build_model(config: RunConfig) -> tuple[Tokenizer, Decoder]:
    """Load a checkpoint's tokenizer and decoder, or build new ones for the task."""
    section = config.model
    dtype = DTYPES[section.dtype]
    if section.path:
        return load_tokenizer(Path(section.path)), load(Path(section.path), dtype=dtype, device=section.device)
    tokenizer = CharacterTokenizer(alphabet(config.task.name, config.task.path))
    sizes = section.model_dump(exclude={"path", "dtype", "device"})
    decoder = Decoder(DecoderConfig(vocab_size=tokenizer.vocab_size, **sizes))
    return tokenizer, decoder.initialise(config.seed).to(section.device, dtype)
