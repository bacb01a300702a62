"""A real OpenAI server of vLLM, compared with a trainer by receipts over HTTP.

Its weights are sent as TRL's trainers do: under the names of a transformers model.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.models.checkpoints import save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.weights.arrivals import Canary, VllmWorkers, receipt_for
from rlcore.weights.completions_api import CompletionsServer
from rlcore.weights.receipts import Check
from tests.support.samplers import TOKENIZER
from tests.support.vllm_engines import need_vllm

need_vllm()
pytestmark = pytest.mark.full
CONFIG = DecoderConfig("qwen3", 96, 64, 2, 4, 2, 32, 128, max_length=256, is_tied=False)
START_S = 120.0
ROOT = Path(__file__).resolve().parents[4]
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # its endpoints reload weights
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
EXTENSION = "tests.support.unpacked_workers.UnpackedWeightAnswers"
OPTIONS = (
    f"--worker-extension-cls={EXTENSION}",
    "--dtype=float32",
    "--enforce-eager",
    "--max-num-seqs=4",
    "--kv-cache-memory-bytes=33554432",
)


def checkpoint(directory: Path, seed: int) -> Path:
    decoder = Decoder(CONFIG).initialise(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    save(decoder, directory)
    TOKENIZER.save(directory)
    return directory


@contextmanager
def serving(model: Path, log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", f"--port={port}"]
    words += ["--served-model-name=tiny", "--block-size=32", *OPTIONS]
    with log.open("wb") as file:
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            yield started(f"http://127.0.0.1:{port}", process, log)
        finally:
            process.terminate()
            try:
                process.wait(20)
            finally:
                if any_left(process.pid):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def any_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def started(url: str, process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait for the server; return its address."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            CompletionsServer(url).models()
        except InvalidValueError:
            time.sleep(0.2)
        else:
            return url
    pytest.fail(f"the server has not started: {log.read_text('utf-8', 'replace')[-3000:]}")


def post(url: str, body: dict[str, Any] | None = None) -> None:
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body or {}).encode(), headers)) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("checkpoints")
    return checkpoint(directory / "m1", 1), checkpoint(directory / "m2", 2)


@pytest.fixture(scope="module")
def url(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(checkpoints[0], tmp_path_factory.mktemp("server") / "log") as url:
        yield url


def reload(url: str, directory: Path) -> None:
    post(f"{url}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}})


def test_a_trainer_of_a_transformers_model_gets_receipts(
    checkpoints: tuple[Path, Path], url: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model, server = AutoModelForCausalLM.from_pretrained(checkpoints[0]), CompletionsServer(url)
    prompt, receipt = [(7 * at) % 96 for at in range(40)], None

    def canary() -> Canary:
        score = server.score("tiny", prompt, 1)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *score.decoded_tokens]])).logits[0, :-1]
        tokens = torch.tensor([*prompt, *score.decoded_tokens])[1:]
        return Canary(
            logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0], torch.tensor([*score.prompt, *score.decoded])
        )

    for version in (1, 2):
        model.save_pretrained(tmp_path / str(version))
        reload(url, tmp_path / str(version))
        post(f"{url}/reset_prefix_cache")
        receipt = receipt_for(
            model.named_parameters(),
            VllmWorkers(server.collective_rpc),
            version,
            previous=receipt,
            has_learned=receipt is not None,
            canary=canary(),
        )
        with torch.no_grad():
            model.model.layers[1].self_attn.v_proj.weight.add_(0.01)
    assert receipt is not None
    assert receipt.num_changed == 1 and receipt.canary
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(model.named_parameters(), VllmWorkers(server.collective_rpc), 3, previous=receipt)
    assert caught.value.check == Check.LIVENESS
    assert caught.value.parameter == "model.layers.1.self_attn.v_proj.weight"
