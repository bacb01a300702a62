"""A loop over torch alone, of four steps; the variable CAUSE names what differs from step 2 on, RESUME a checkpoint.

The causes are no arguments, so that the command lines of two runs are equal.
"""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CAUSE, RESUME, SAVE = (os.environ.get(name, "") for name in ("CAUSE", "RESUME", "SAVE"))
NUM_STEPS, AT = 4, 2


def main() -> None:
    """Train a perceptron with a batch norm."""
    if CAUSE == "numerics":
        torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(4 * NUM_STEPS, 3), torch.randn(4 * NUM_STEPS, 1)
    if CAUSE in ("batch", "numerics"):
        inputs[4 * AT, 0] += 0.01
    begin = 0
    if RESUME:
        kept = torch.load(RESUME)
        begin = kept["step"]
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        if CAUSE == "momentum":
            next(iter(optimizer.state.values()))["momentum_buffer"][0, 0] += 0.01
    for step, (x, y) in enumerate(DataLoader(TensorDataset(inputs, targets), batch_size=4)):
        cause = CAUSE if step == AT else ""
        if step < begin or (CAUSE == "shorter" and step > AT):
            continue
        if RESUME and step == begin and CAUSE != "noise":
            torch.set_rng_state(kept["random"])
        if cause == "weight":
            with torch.no_grad():
                model[3].weight[0, 0] += 0.01
        if cause == "random":
            torch.rand(1)
        noise = 0.1 * torch.randn(4, 6)
        optimizer.zero_grad()
        output = model[3](torch.tanh(model[1](model[0](x))) + noise)
        loss = nn.functional.mse_loss(output, y) * (1.01 if cause == "loss" else 1.0)
        if cause == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if cause in ("gradient", "nan"):
            gradient = model[0].weight.grad
            assert gradient is not None
            gradient[0, 0] = torch.nan if cause == "nan" else gradient[0, 0] + 0.01
        if cause == "rate":
            optimizer.param_groups[0]["lr"] = 0.2
        if cause == "error":
            raise RuntimeError("the program fails within step 2")
        optimizer.step()
        print(f"score={step + (0.5 if cause == 'score' else 0)}", flush=True)
        if SAVE and step + 1 == AT:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"step": AT, "random": torch.get_rng_state(), **state}, SAVE)


if __name__ == "__main__":
    main()
