"""Build the tokenizer and the decoder that a configuration names: new ones for the task, or those of a checkpoint."""

from pathlib import Path
from string import printable

from rlcore.config import LoraSection, RunConfig
from rlcore.data.tasks import alphabet
from rlcore.models import adapters
from rlcore.models.checkpoints import DTYPES, load
from rlcore.models.config import DecoderConfig, LoraConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer, load_tokenizer
from rlcore.types import Tokenizer


def build_model(config: RunConfig) -> tuple[Tokenizer, Decoder]:
    """Load a checkpoint's tokenizer and decoder, or build new ones for the task."""
    section = config.model
    dtype = DTYPES[section.dtype]
    tokenizer: Tokenizer
    if section.path:
        tokenizer = load_tokenizer(Path(section.path))
        decoder = load(Path(section.path), dtype=dtype, device=section.device)
    else:
        # What an environment says is not known before: it may be any printable character.
        of_environment = f"\n{printable[:95]}" if config.task.environment else ""
        tokenizer = CharacterTokenizer(alphabet(config.task.name, config.task.path) + of_environment)
        sizes = section.model_dump(exclude={"path", "dtype", "device", "lora"})
        decoder = Decoder(DecoderConfig(vocab_size=tokenizer.vocab_size, **sizes))
        decoder = decoder.initialise(config.seed).to(section.device, dtype)
    return tokenizer, decoder if section.lora is None else _with_lora(decoder, section.lora, config.seed)


def _with_lora(base: Decoder, section: LoraSection, seed: int) -> Decoder:
    """Attach adapters to a base, new or a directory's. Raises InvalidValueError if these are not as configured."""
    decoder = adapters.attach(base, LoraConfig(section.rank, section.alpha, frozenset(section.target_modules)), seed)
    if section.path:
        adapters.read(decoder, Path(section.path))
    return decoder
