"""Build the tokenizer and the decoder that a configuration names: new ones for the task, or those of a checkpoint."""

from pathlib import Path
from string import printable

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
    # What an environment says is not known before: it may be any printable character.
    of_environment = f"\n{printable[:95]}" if config.task.environment else ""
    tokenizer = CharacterTokenizer(alphabet(config.task.name, config.task.path) + of_environment)
    sizes = section.model_dump(exclude={"path", "dtype", "device"})
    decoder = Decoder(DecoderConfig(vocab_size=tokenizer.vocab_size, **sizes))
    return tokenizer, decoder.initialise(config.seed).to(section.device, dtype)
