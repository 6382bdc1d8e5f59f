"""Peer of `tailrace bench rl-step`: GRPO of TRL on PyTorch, 64 samples of one turn a step.

The same model, samples, prompt, limit and reward as the bench, and a learning rate that changes nothing. A bias on
the end token gives it the share that the bench gives its stop ids (1 of 64) under random weights, so that answers are
as long; with --full-length nothing ends one. The prompts of a folder's model are problems in its chat template.
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

PROMPTS, GROUP = 8, 8


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


def words(tokenizer, vocab, tokens, draw):
    return [" ".join(f"w{draw.randrange(3, vocab)}" for _ in range(tokens)) for _ in range(4096)]


def problems(tokenizer, vocab, tokens, draw):
    """Of one-digit numbers, so that all have one length; a few words more where that is less than `tokens`."""
    def text(filler):
        a, b = draw.randint(1, 9), draw.randint(1, 9)
        question = f"What is {a} + {b}? Answer with just the number." + " Please" * filler
        return tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False,
                                             add_generation_prompt=True)
    missing = tokens - len(tokenizer(text(0))["input_ids"])
    if missing < 0:
        raise peer.Mistake(f"--prompt {tokens}: the shortest problem has {tokens - missing} tokens")
    return [text(missing) for _ in range(4096)]


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/trl_grpo.py --steps 20")
    parser.measures(("tiny", "small"))
    parser.add_argument("--steps", type=peer.positive, default=20, help="measured steps [20]")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them that are not measured [3]")
    parser.add_argument("--prompt", type=peer.positive, default=21, help="tokens of a prompt [21]")
    parser.add_argument("--new", type=peer.positive, default=32, help="most tokens of an answer [32]")
    parser.add_argument("--full-length", action="store_true", help="nothing ends an answer")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "bf16-weights"), default="fp32",
                        help="fp32, bf16 autocast, or weights in bf16 [fp32]")
    parser.add_argument("--checkpointing", action="store_true", help="activations are computed again, as TRL's default")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is loaded from anywhere
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from transformers import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    model, name, sizes = peer.torch_model(options, 256)
    if options.dtype == "bf16-weights":
        model = model.to(torch.bfloat16)
    vocab = sizes["vocab"]
    tokenizer = (AutoTokenizer.from_pretrained(options.model, padding_side="left") if options.model
                 else make_tokenizer(vocab))
    prompts = (problems if options.model else words)(tokenizer, vocab, options.prompt, random.Random(7))
    if {len(tokenizer(prompt)["input_ids"]) for prompt in prompts} != {options.prompt}:
        raise peer.WrongResult(f"a prompt is not {options.prompt} tokens")
    # P(end) = 1/64 where all logits are alike.
    ends = ({"min_new_tokens": options.new} if options.full_length
            else {"sequence_bias": [[[2], math.log((vocab - 1) / 63)]]})

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
            output_dir=folder, use_cpu=True, bf16=options.dtype == "bf16",
            per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_completion_length=options.new,
            max_steps=options.warmup + options.steps, learning_rate=1e-6, beta=0.0, temperature=1.0, loss_type="dapo",
            gradient_checkpointing=options.checkpointing, save_strategy="no", report_to=[], disable_tqdm=True,
            logging_strategy="no", generation_kwargs=ends)
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=even_ids, args=config, processing_class=tokenizer, callbacks=[Clock()],
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]))
        with contextlib.redirect_stdout(io.StringIO()):  # rows only
            trainer.train()

    report = peer.Report(
        "rl-step", "trl", f"{trl.__version__}, pytorch {torch.__version__}",
        sizes | {"dtype": options.dtype, "prompts": PROMPTS, "group_size": GROUP, "prompt_tokens": options.prompt,
                 "max_new_tokens": options.new},
        options.json, options.threads, torch.backends.cpu.get_cpu_capability())
    seconds, lengths = seconds[options.warmup:], lengths[options.warmup:]
    if options.full_length and set(lengths) != {options.new}:
        raise peer.WrongResult(f"an answer is not {options.new} tokens")
    report.add(name, "step", "ms", [1e3 * s for s in seconds])
    report.add(name, "samples", "samples/s", [PROMPTS * GROUP / s for s in seconds])
    report.add(name, "new tokens a sample", "tokens", lengths)
    report.add(name, "peak memory", "MB", [peer.peak_memory_mb()])


if __name__ == "__main__":
    peer.main(measure)
