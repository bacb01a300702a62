"""Which tokens transformers' filters leave, of [[top_k, top_p, min_p, logits], ...] as JSON: bools as JSON."""

import json
import sys

import torch
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def main() -> None:
    """Print bools for each."""
    told = []
    for top_k, top_p, min_p, logits in json.loads(sys.argv[1]):
        scores = torch.tensor([logits])
        if top_k:
            scores = TopKLogitsWarper(top_k)(None, scores)
        if top_p < 1.0:
            scores = TopPLogitsWarper(top_p)(None, scores)
        if min_p:
            scores = MinPLogitsWarper(min_p)(None, scores)
        told.append(torch.isfinite(scores)[0].tolist())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
