"""Whether completions of vLLM's own Qwen3 depend on their batch: each alone, then all at once, as one line of JSON.

    VLLM_BATCH_INVARIANT=1 python vllm_batch_probe.py

The program is a process of its own, because vLLM reads the variable as it is imported. {"num_different": 0, ...}
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NUM_REQUESTS = 48
NUM_TOKENS = 24


def main() -> None:
    """Print the number of completions whose tokens or log-probabilities differ."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from rlcore.models.checkpoints import save
    from rlcore.models.config import DecoderConfig
    from rlcore.models.decoder import Decoder

    config = DecoderConfig("qwen3", 512, 256, 4, 4, 2, 64, 512, max_length=256)
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as directory:
        from vllm import LLM, SamplingParams

        save(Decoder(config).initialise(1), Path(directory))
        model = LLM(
            directory,
            skip_tokenizer_init=True,
            dtype="float32" if "--float32" in sys.argv else "bfloat16",
            max_model_len=256,
            max_num_seqs=NUM_REQUESTS,
            kv_cache_memory_bytes=256 << 20,
            enforce_eager=True,
            enable_prefix_caching=False,
        )
        wanted = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logprobs=0, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt(number)} for number in range(NUM_REQUESTS)]
        together = [told(each) for each in model.generate(prompts, wanted, use_tqdm=False)]
        alone = [told(model.generate([each], wanted, use_tqdm=False)[0]) for each in prompts[:: NUM_REQUESTS // 8]]
    differs = [one != other for one, other in zip(alone, together[:: NUM_REQUESTS // 8], strict=True)]
    variable = os.environ.get("VLLM_BATCH_INVARIANT", "")
    print(json.dumps({"num_different": sum(differs), "num_compared": len(differs), "VLLM_BATCH_INVARIANT": variable}))


def prompt(number: int) -> list[int]:
    """Return a prompt of 5 to 60 tokens."""
    return [3 + (7 * number + 11 * at) % 500 for at in range(5 + (13 * number) % 56)]


def told(output: Any) -> Sequence[tuple[int, str]]:
    """Return a completion's tokens, with their log-probabilities to the bit."""
    (one,) = output.outputs
    entries = zip(one.token_ids, one.logprobs, strict=True)
    return [(token, float(entry[token].logprob).hex()) for token, entry in entries]


if __name__ == "__main__":
    main()
