"""Scores ids by a reward model's folder with transformers.

    build/peers/bin/python bench/peers/reward_model.py DIR < rows.jsonl

A row is {"input_ids": [...]}, and may have the "score" that another program gave it. Prints a score for
each, in float32, and at the end the largest difference to those given. Ends with status 1 where one differs
by more than 5e-5 of max(1, |score|).
"""
import argparse
import json
import sys

import torch
from transformers import AutoModelForSequenceClassification

TOLERANCE = 5e-5  # transformers has angles of positions in float32, an error that grows with the length


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    model = AutoModelForSequenceClassification.from_pretrained(parser.parse_args().folder, dtype=torch.float32).eval()
    largest = None
    for line in sys.stdin:
        row = json.loads(line)
        with torch.no_grad():
            score = model(torch.tensor([row["input_ids"]])).logits
        if score.shape != (1, 1):
            sys.exit(f"the model has {score.shape[-1]} outputs; a reward model has 1")
        score = score.item()
        print(json.dumps({"score": score}))
        if "score" in row:
            difference = abs(score - row["score"]) / max(1, abs(score))
            largest = max(largest or 0.0, difference)
    if largest is None:
        return 0
    print(f"largest difference: {largest:.3g}", file=sys.stderr)
    return 0 if largest <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
