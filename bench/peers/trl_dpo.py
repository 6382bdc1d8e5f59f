"""Peer of `tailrace bench dpo-step`: DPO of TRL on PyTorch, one update on fresh pairs of random tokens.

The same model, rows, learning rate, beta and optimizer as the bench. Rows are token ids, which go past the tokenizer.
The reference's log-probabilities are computed once before the training, as TRL advises for its memory; with
--live-reference a second copy of the weights computes them in every step. --accumulate cuts an update into passes.
"""
import contextlib
import copy
import io
import logging
import math
import os
import tempfile
import time
import warnings

import peer
from trl_grpo import make_tokenizer

LR = 1e-5
MASK = (1 << 64) - 1


def mix(*parts):
    """That of core/base/random.cc."""
    state = 0x243F6A8885A308D3
    for part in parts:
        state = ((state ^ part) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def make_row(row, prompt, completion, vocab):
    """The formula of bench/run/dpo_step_bench.cc."""
    sizes = {"prompt_ids": prompt, "chosen_ids": completion, "rejected_ids": completion}
    return {name: [mix(13, row, part, i) % vocab for i in range(tokens)]
            for part, (name, tokens) in enumerate(sizes.items())}


def check(options, first, last):
    """The policy is its own reference at first. Steps of 1e-5 are mostly lost in weights of bf16."""
    if not math.isclose(first, math.log(2), abs_tol=1e-4 if options.dtype == "fp32" else 1e-2):
        raise peer.WrongResult(f"the first loss is {first} in place of log 2")
    if not (last < first or options.dtype == "bf16-weights"):
        raise peer.WrongResult(f"the first pairs were not learned: their loss went from {first} to {last}")


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/trl_dpo.py --geometry small --dtype bf16")
    parser.measures(("tiny", "small"))
    parser.add_argument("--pairs", type=peer.positive, default=16, help="pairs of an update [16]")
    parser.add_argument("--prompt", type=peer.positive, default=128, help="tokens of a prompt [128]")
    parser.add_argument("--completion", type=peer.positive, default=64, help="tokens of each completion [64]")
    parser.add_argument("--steps", type=peer.positive, default=10, help="measured steps [10]")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them that are not measured [2]")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "bf16-weights"), default="fp32",
                        help="fp32, bf16 autocast, or weights in bf16 [fp32]")
    parser.add_argument("--checkpointing", action="store_true", help="activations are computed again, as TRL's default")
    parser.add_argument("--accumulate", type=peer.positive, default=1, help="passes of an update [1]")
    parser.add_argument("--live-reference", action="store_true", help="precompute_ref_log_probs=False")
    options = parser.parse_args()
    if options.pairs % options.accumulate:
        raise peer.Mistake(f"--accumulate {options.accumulate} does not divide {options.pairs} pairs")
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is loaded from anywhere
    os.environ["TQDM_DISABLE"] = "1"
    import datasets
    import torch
    import trl
    from transformers import TrainerCallback
    from transformers import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    model, name, sizes = peer.torch_model(options, max(256, options.prompt + options.completion))
    if options.dtype == "bf16-weights":
        model = model.to(torch.bfloat16)
    updates = options.warmup + options.steps
    rows = [make_row(row, options.prompt, options.completion, sizes["vocab"])
            for row in range(updates * options.pairs)]
    seconds, references, losses, first_inputs = [], [], [], []

    class Trainer(trl.DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

        def compute_ref_log_probs(self, *inputs):
            start = time.perf_counter()
            logps = super().compute_ref_log_probs(*inputs)
            references.append(time.perf_counter() - start)
            return logps

        def compute_loss(self, model, inputs, *others, **named):
            if len(first_inputs) < options.accumulate:
                first_inputs.append(inputs)
            loss = super().compute_loss(model, inputs, *others, **named)
            losses.append(loss.item())
            return loss

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds.append(time.perf_counter() - self.start)

    with tempfile.TemporaryDirectory() as folder:
        config = trl.DPOConfig(
            output_dir=folder, use_cpu=True, bf16=options.dtype == "bf16",
            per_device_train_batch_size=options.pairs // options.accumulate,
            gradient_accumulation_steps=options.accumulate, train_sampling_strategy="sequential", max_steps=updates,
            learning_rate=LR, lr_scheduler_type="constant", max_length=None,
            precompute_ref_log_probs=not options.live_reference, gradient_checkpointing=options.checkpointing,
            save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no")
        trainer = Trainer(
            model=model, ref_model=copy.deepcopy(model) if options.live_reference else None, args=config,
            processing_class=make_tokenizer(sizes["vocab"]), callbacks=[Clock()],
            train_dataset=datasets.Dataset.from_list(rows))
        with contextlib.redirect_stdout(io.StringIO()):  # rows only
            trainer.train()
        with torch.no_grad(), trainer.compute_loss_context_manager():
            last = sum(trainer.compute_loss(trainer.model, inputs).item() for inputs in first_inputs)

    passes = options.accumulate
    last /= passes
    losses = [sum(losses[i * passes:(i + 1) * passes]) / passes for i in range(updates)]
    report = peer.Report(
        "dpo-step", "trl", f"{trl.__version__}, pytorch {torch.__version__}",
        sizes | {"dtype": options.dtype, "pairs": options.pairs, "prompt_tokens": options.prompt,
                 "completion_tokens": options.completion},
        options.json, options.threads, torch.backends.cpu.get_cpu_capability())
    check(options, losses[0], last)
    seconds = seconds[options.warmup:]
    tokens = 2 * options.pairs * (options.prompt + options.completion)
    if references:
        report.add(name, "reference", "ms", [1e3 * sum(references) / updates])
    report.add(name, "step", "ms", [1e3 * s for s in seconds])
    report.add(name, "tokens", "tokens/s", [tokens / s for s in seconds])
    report.add(name, "first loss", "nats", [losses[0]])
    if len(losses) > 1:
        report.add(name, "second loss", "nats", [losses[1]])
    report.add(name, "first pairs at the end", "nats", [last])
    report.add(name, "peak memory", "MB", [peer.peak_memory_mb()])


if __name__ == "__main__":
    peer.main(measure)
