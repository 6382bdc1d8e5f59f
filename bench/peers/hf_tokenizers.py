"""Peer of `tailrace bench tokenizer`: the Rust library behind transformers, on one thread.

It keeps the ids of words that it has met (10,000 of them) from call to call; ours keeps nothing.
"""
import pathlib
import time

import peer


def digest(ids):
    """FNV-1a over the ids, each as a little-endian int32."""
    value = 0xcbf29ce484222325
    for byte in b"".join(one.to_bytes(4, "little") for one in ids):
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/hf_tokenizers.py --tokenizer MODEL --text book.txt")
    parser.add_argument("--tokenizer", required=True, help="a folder with tokenizer.json")
    parser.add_argument("--text", required=True, help="a file of UTF-8 text")
    parser.add_argument("--runs", type=peer.positive, default=9, help="measured runs of each case [9]")
    options = parser.parse_args()
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(options.tokenizer + "/tokenizer.json")
        text = pathlib.Path(options.text).read_bytes().decode()
    except Exception as error:  # the library raises nothing narrower
        raise peer.Mistake(f"{options.tokenizer}, {options.text}: {error}")
    size = len(text.encode())
    lines = text.splitlines(keepends=True)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if tokenizer.decode(ids) != text:
        raise peer.WrongResult(f"{options.text} does not come back from its ids")
    report = peer.Report("tokenizer", "tokenizers", tokenizers.__version__,
                         {"text": pathlib.Path(options.text).name, "bytes": size, "tokens": len(ids),
                          "digest": digest(ids)}, options.json, 1)

    def run(case, metric, work):
        work()
        rates = []
        for _ in range(options.runs):
            start = time.thread_time()
            work()
            rates.append(1e-6 * size / (time.thread_time() - start))
        report.add(case, metric, "MB/s", rates)

    run("whole", "encode", lambda: tokenizer.encode(text, add_special_tokens=False))
    run("whole", "decode", lambda: tokenizer.decode(ids))
    run("lines", "encode", lambda: [tokenizer.encode(line, add_special_tokens=False) for line in lines])


if __name__ == "__main__":
    peer.main(measure)
