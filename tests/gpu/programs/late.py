"""A program that sets CUDA_VISIBLE_DEVICES after `import torch`: in time while CUDA is not initialised."""

import os
import sys

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = ""
print("GPUs that torch sees:", torch.cuda.device_count(), "(0 is right)")
sys.exit(torch.cuda.is_available())
