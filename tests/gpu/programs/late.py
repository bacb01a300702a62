"""A program that sets CUDA_VISIBLE_DEVICES after `import torch`: in time while CUDA is not initialised."""

import os
import sys

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = ""
model = torch.nn.Linear(4, 1)
model(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()  # on the host: a recording without a step is an error
print("GPUs that torch sees:", torch.cuda.device_count(), "(0 is right)")
sys.exit(torch.cuda.is_available())
