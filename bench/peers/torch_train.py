"""Peer of `tailrace bench train-step`: one AdamW step of PyTorch on 16 x 128 tokens.

Eager and fused AdamW, as PyTorch is used; --compile and --dtype show its other ways. --dtype bf16 trains what
`tailrace bench train-step --model FOLDER` does: float32 weights whose products are of bf16.
"""
import time

import peer


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/torch_train.py --geometry small --dtype bf16")
    parser.measures()
    parser.add_argument("--sequences", type=peer.positive, default=16, help="sequences of the batch [16]")
    parser.add_argument("--length", type=peer.positive, default=128, help="tokens of each [128]")
    parser.add_argument("--steps", type=peer.positive, default=15, help="measured steps [15]")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "bf16-weights"), default="fp32",
                        help="fp32, bf16 autocast, or weights in bf16 [fp32]")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    model, name, sizes = peer.torch_model(options, max(512, options.length))
    if options.dtype == "bf16-weights":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    forward = torch.compile(model) if options.compile else model
    ids = torch.randint(0, sizes["vocab"], (options.sequences, options.length))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = forward(input_ids=ids, labels=ids).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    report = peer.Report(
        "train-step", "pytorch", torch.__version__,
        sizes | {"dtype": options.dtype, "sequences": options.sequences, "length": options.length,
                 "mode": "compiled" if options.compile else "eager"},
        options.json, options.threads, torch.backends.cpu.get_cpu_capability())
    losses = [step() for _ in range(4)]  # warm up
    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    if not losses[-1] < losses[0]:
        raise peer.WrongResult(f"one fixed batch was not learned: its loss went from {losses[0]} to {losses[-1]}")
    tokens = options.sequences * options.length
    report.add(name, "step", "ms", [1e3 * s for s in seconds])
    report.add(name, "tokens", "tokens/s", [tokens / s for s in seconds])
    report.add(name, "arithmetic", "GFLOP/s", [6e-9 * sizes["parameters"] * tokens / s for s in seconds])


if __name__ == "__main__":
    peer.main(measure)
