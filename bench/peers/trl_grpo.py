"""Peer of `tailrace bench rl-step`: GRPO of TRL on PyTorch, 64 samples of one turn a step.

The same geometry, samples, prompt, limit and reward as the bench, from random weights and with a learning rate
that changes nothing. A bias on the end token gives it the share that the bench gives its stop ids (1 of 64), so
that answers are as long.
"""
import contextlib
import io
import logging
import math
import os
import random
import tempfile
import time
import warnings

import peer

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS, WARMUP = 8, 8, 21, 32, 3


def make_tokenizer(vocab):
    """Words w3, w4, ...: a prompt of 21 words is 21 ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"])


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/trl_grpo.py --steps 20")
    parser.measures(("tiny", "small"))
    parser.add_argument("--steps", type=peer.positive, default=20, help="measured steps [20]")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is loaded from anywhere
    import torch
    import trl
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    model, sizes = peer.torch_model(options.geometry, 256)
    vocab = sizes["vocab"]
    tokenizer = make_tokenizer(vocab)
    draw = random.Random(7)
    prompts = [" ".join(f"w{draw.randrange(3, vocab)}" for _ in range(PROMPT_TOKENS)) for _ in range(4096)]
    if {len(tokenizer(prompt)["input_ids"]) for prompt in prompts} != {PROMPT_TOKENS}:
        raise peer.WrongResult(f"a prompt is not {PROMPT_TOKENS} tokens")

    seconds, lengths = [], []

    def even_ids(completion_ids, **_):
        """The share of even ids: any verifiable property of the text will do."""
        lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return [sum(i % 2 == 0 for i in ids) / max(1, len(ids)) for ids in completion_ids]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds.append(time.perf_counter() - self.start)

    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP, max_prompt_length=PROMPT_TOKENS, max_completion_length=NEW_TOKENS,
            max_steps=WARMUP + options.steps, learning_rate=1e-6, beta=0.0, temperature=1.0, loss_type="dapo",
            gradient_checkpointing=False, save_strategy="no", report_to=[], disable_tqdm=True,
            logging_strategy="no",
            # P(end) = 1/64 where all logits are alike.
            generation_kwargs={"sequence_bias": [[[2], math.log((vocab - 1) / 63)]]})
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=even_ids, args=config, processing_class=tokenizer, callbacks=[Clock()],
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]))
        with contextlib.redirect_stdout(io.StringIO()):  # rows only
            trainer.train()

    report = peer.Report(
        "rl-step", "trl", f"{trl.__version__}, pytorch {torch.__version__}",
        sizes | {"dtype": "fp32", "prompts": PROMPTS, "group_size": GROUP, "prompt_tokens": PROMPT_TOKENS,
                 "max_new_tokens": NEW_TOKENS},
        options.json, options.threads, torch.backends.cpu.get_cpu_capability())
    seconds, lengths = seconds[WARMUP:], lengths[WARMUP:]
    report.add(options.geometry, "step", "ms", [1e3 * s for s in seconds])
    report.add(options.geometry, "samples", "samples/s", [PROMPTS * GROUP / s for s in seconds])
    report.add(options.geometry, "new tokens a sample", "tokens", lengths)


if __name__ == "__main__":
    peer.main(measure)
