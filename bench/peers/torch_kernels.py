"""Peer of `tailrace bench exactness`: the products of a model and their gradients in fp32 PyTorch.

torch.nn.functional.linear and the two products of its backward, at the shapes of the bench. PyTorch's sums have no one
order, so that its rows stand beside the time of our exact ones: compare.py exactness torch_kernels. It has weights as
files store them, we have packed ones; of each layer its own, as decoding meets them.
"""
import time

import peer

COPIES_BYTES = 256 << 20  # as in bench/kernels/exactness.cc
HEAD_ROWS, MAX_HEAD_ROWS, HEAD_BLOCK_FLOATS, VOCAB_BLOCK = 96, 2048, 4 << 20, 512


def products(sizes, tokens):
    """(op, in, out, layers, rows, rows of gradients or None), as in bench/kernels/exactness_bench.cc."""
    hidden, ffn, layers = sizes["hidden"], sizes["ffn"], sizes["layers"]
    head_dim = hidden // sizes["heads"]
    qkv = hidden + 2 * sizes["kv_heads"] * head_dim
    for op, columns, out in (("qkv", hidden, qkv), ("o", hidden, hidden), ("gate_up", hidden, 2 * ffn),
                             ("down", ffn, hidden)):
        yield op, columns, out, layers, (1, 3, 8, 64, tokens), tokens
    yield "head", hidden, sizes["vocab"], 1, (1, 8, 64, HEAD_ROWS), None
    rows = min(tokens, MAX_HEAD_ROWS)
    ids = min(sizes["vocab"], max(HEAD_BLOCK_FLOATS // rows // VOCAB_BLOCK, 1) * VOCAB_BLOCK)
    yield "head block", hidden, ids, -(-sizes["vocab"] // ids), (rows,), rows


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/torch_kernels.py --geometry small")
    parser.measures(models=False)
    parser.add_argument("--pairs", type=peer.positive, default=9, help="how often each is run [9]")
    parser.add_argument("--sequences", type=peer.positive, default=4, help="sequences of the training step [4]")
    parser.add_argument("--length", type=peer.positive, default=128, help="tokens of each [128]")
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    # As the bench: the CPU time of one thread, which others do not lengthen; of several the time on the wall.
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    sizes = peer.GEOMETRIES[options.geometry]
    report = peer.Report("exactness", "pytorch", torch.__version__,
                         {"geometry": options.geometry, **sizes, "dtype": "fp32", "pairs": options.pairs},
                         options.json, options.threads, torch.backends.cpu.get_cpu_capability())

    def run(case, call, copies=1):
        """Milliseconds a call, of rounds over all copies that take 2 ms at least."""
        def seconds(rounds):
            start = clock()
            for _ in range(rounds):
                for copy in range(copies):
                    call(copy)
            return (clock() - start) / rounds
        seconds(1)
        rounds = max(1, round(2e-3 / seconds(1)))
        report.add(case, "exact", "ms", [1e3 * seconds(rounds) / copies for _ in range(options.pairs)])

    def check(actual, expected, terms, what):
        error, largest = (actual.double() - expected).abs().max(), expected.abs().max()
        if not error <= 8 * torch.finfo(torch.float32).eps * terms ** 0.5 * largest:
            raise peer.WrongResult(f"{what} is wrong by {error} of {largest}")

    for op, columns, out, layers, rows, gradient_rows in products(sizes, options.sequences * options.length):
        copies = max(1, min(layers, COPIES_BYTES // (4 * columns * out)))
        weights = [torch.randn(out, columns) for _ in range(copies)]
        for count in rows:
            case = f"{op} [{count}, {columns}] -> {out}"
            if options.only not in case:
                continue
            x = torch.randn(count, columns)
            few = weights[0][:2048]
            check(torch.nn.functional.linear(x, weights[0])[:3, :2048], x[:3].double() @ few.double().T, columns, case)
            with torch.inference_mode():
                run(case, lambda copy: torch.nn.functional.linear(x, weights[copy]), copies)
        if gradient_rows is None:
            continue
        x, dy = torch.randn(gradient_rows, columns), torch.randn(gradient_rows, out)
        sum_of_all = torch.zeros(out, columns)
        case = f"{op} [{gradient_rows}, {columns}] -> {out}"
        if options.only in case + ", dx":
            run(case + ", dx", lambda _: dy @ weights[0])
        if options.only in case + ", dW":
            run(case + ", dW", lambda _: sum_of_all.addmm_(dy.T, x))


if __name__ == "__main__":
    peer.main(measure)
