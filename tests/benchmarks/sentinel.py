"""What the sentinel costs a training of two ranks that is not changed, on a transformer over Gloo.

    python tests/benchmarks/sentinel.py                 # 10M parameters, cadence 10, plain data parallelism and FSDP2

Two processes train with the sentinel at work. Its cost is the processor time of its hooks over whole cadences, against
that of the rest of the steps; wall time, which also holds waiting for a rank that is behind, stands beside it. Then
both train without it, and the weights must be the same. Exit status 1 where the hooks take 3 % of a step or more, or
the weights differ.
"""

import argparse
import os
import platform
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.03


def train(args: argparse.Namespace, directory: Path) -> int:
    """A measured rank."""
    import torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from harness.recording.sentinel import start_sentinel
    from tests.benchmarks.op_level import Training

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    def begin() -> Training:
        training = Training(args)
        if args.layout == "fsdp2":
            fully_shard(training.model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
            training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-3)
        else:
            training.model = nn.parallel.DistributedDataParallel(training.model)  # type: ignore[assignment]
        training.tokens = training.tokens.roll(rank, 0)
        return training

    inside_s = inside_wall_s = 0.0
    if args.with_sentinel:
        sentinel = start_sentinel(args.every, directory)
        guarded = sentinel._guarded

        def timed(*arguments: object) -> None:
            nonlocal inside_s, inside_wall_s
            began_s, began_wall_s = time.thread_time(), time.perf_counter()
            guarded(*arguments)  # type: ignore[arg-type]
            inside_s += time.thread_time() - began_s
            inside_wall_s += time.perf_counter() - began_wall_s

        sentinel._guarded = timed  # type: ignore[assignment,method-assign]
    training = begin()
    for _ in range(args.every):  # warms up: the ranks meet
        training.step()
    inside_s = inside_wall_s = 0.0
    began_s, began_wall_s = time.process_time(), time.perf_counter()
    num_steps = args.cadences * args.every
    for _ in range(num_steps):
        training.step()
    whole_s, whole_wall_s = time.process_time() - began_s, time.perf_counter() - began_wall_s
    torch.save([getattr(each, "_local_tensor", each) for each in training.weights()], directory / f"{rank}.pt")
    num_parameters = sum(each.numel() for each in training.model.parameters())
    if rank == 0:
        seconds = (whole_s - inside_s, inside_s, whole_wall_s - inside_wall_s, inside_wall_s)
        print(num_parameters, *(each / num_steps for each in seconds), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo aborts now and then when an interpreter ends


def measured(args: argparse.Namespace, layout: str, directory: Path, *, with_sentinel: bool) -> list[float]:
    """Number of parameters, then milliseconds of a step: (processor, wall) each without the hooks and in the hooks."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    directory.mkdir(parents=True)
    words = [f"--{name}={getattr(args, name)}" for name in ("width", "layers", "batch", "length", "every", "cadences")]
    words += [f"--layout={layout}", f"--directory={directory}", *(["--with-sentinel"] if with_sentinel else [])]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *words],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank ended with {[rank.returncode for rank in ranks]}")
    parameters, *seconds = map(float, outputs[0].split())
    return [parameters, *(1e3 * each for each in seconds)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=320, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--cadences", type=int, default=2)
    parser.add_argument("--layout", choices=["ddp", "fsdp2"])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--with-sentinel", action="store_true")
    args = parser.parse_args()
    if args.directory is not None:
        return train(args, args.directory)

    import tempfile

    import torch

    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, torch {torch.__version__},"
        f" {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; 2 ranks over Gloo,"
        f" a thread each, {args.batch} x {args.length} tokens a rank, cadence {args.every}"
    )
    is_good = True
    with tempfile.TemporaryDirectory() as scratch:
        for layout in [args.layout] if args.layout else ["ddp", "fsdp2"]:
            watched, plain = Path(scratch, layout, "watched"), Path(scratch, layout, "plain")
            parameters, step_ms, hooks_ms, wall_ms, hooks_wall_ms = measured(args, layout, watched, with_sentinel=True)
            measured(args, layout, plain, with_sentinel=False)
            is_same = all(
                torch.equal(a, b)
                for rank in range(2)
                for a, b in zip(torch.load(watched / f"{rank}.pt"), torch.load(plain / f"{rank}.pt"), strict=True)
            )
            share = hooks_ms / step_ms
            is_good = is_good and is_same and share < LIMIT
            print(
                f"{layout}, {parameters / 1e6:.1f}M parameters: a step {step_ms:,.0f} ms of processor time, in hooks"
                f" {hooks_ms:.1f} ms, {100 * share:.2f} %; wall {wall_ms:,.0f} ms and {hooks_wall_ms:.1f} ms;"
                f" {'weights bit-identical' if is_same else 'WEIGHTS DIFFER'}"
            )
    print("PASS" if is_good else f"FAIL: {LIMIT:.0%} or more, or other weights")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
