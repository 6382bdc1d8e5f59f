#!/usr/bin/env python3
"""Makes the folders mistral/ and mistral_tekken/ beside this file: what mistral-common says of some texts.

    pip install mistral-common==1.13.1 sentencepiece==0.2.3 protobuf tokenizers==0.23.3
    python make_mistral.py            # or: python make_mistral.py FOLDER, for the whole vocabularies

Each folder holds tokenizer.json, tokenizer_config.json and vectors.json: {"cases": [{"text", "ids", "decoded"}]}, the
ids of mistral-common for the text alone, and what it makes of them where that is not the text. The tokenizer.json is
made from the file that mistral-common brings, by the rules of transformers (convert_slow_tokenizer.py): a merge for
each pair of tokens that joins to a token, ranked by the score (SentencePiece) or by the rank (tekken) of what it joins
to.

Without FOLDER the vocabulary is cut down to the tokens that occur somewhere in the texts, under their own ids, and to
the merges between those. The ids of the texts stay the same: every symbol that is there at some moment of encoding is
a part of the text, so it is kept; so is every merge that applies at some moment, with its rank relative to the others;
hence each step chooses the same merge. (Bytes and special tokens are kept as well.) Texts that are not in vectors.json
may get other ids than those of the whole vocabulary. The script checks both against each other and against
mistral-common, with Hugging Face's tokenizers.
"""

import base64
import json
import pathlib
import shutil
import sys
from importlib import metadata

import mistral_common
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

DATA = pathlib.Path(mistral_common.__file__).parent / "data"
SENTENCEPIECE = DATA / "mistral_instruct_tokenizer_240323.model.v3"
TEKKEN = DATA / "tekken_240911.json"
HERE = pathlib.Path(__file__).parent
MARK = "\u2581"
FRAME = {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}

TEXTS = [
    "", "a", " ", "  ", "\n", "\t", "Hello", "Hello world", "Hello  world", "Hello world ", " Hello", "   Hello",
    "Hello\nworld\n", "\n\n\nHello", "a b  c   d    e     f", "                                ", "aaaaaaaaaaaaaaaaaaaa",
    "ababababab", "......", "=========", "!!!!!!!!", "----", "\r\n\r\n", "x\t\ty", "Hello, world! How's it going?",
    "The quick brown fox jumps over the lazy dog.", "THE QUICK BROWN FOX", "unbelievably antidisestablishmentarian",
    "don't can't won't I'll we've they're", "3.14159 + 2.71828 = 5.85987", "1234567890", "007 42 1,000,000 1e-9 0xDEADBEEF",
    "2026-11-23T17:50:54Z", "Price: $12.99 (20% off) & free #shipping @home", "C:\\Users\\me\\file.txt /usr/local/bin",
    "https://example.org/path?query=value&x=1#top", "me@example.org", "snake_case camelCase PascalCase kebab-case",
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];  // dot\n}\n", "#include <vector>\nstd::vector<int> v{1, 2, 3};",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}', "<think>\nLet me see.\n</think>\n\n42",
    "$\\frac{a}{b} + \\sqrt{x^2}$", "| a | b |\n|---|---|\n| 1 | 2 |", "[INST] Hi [/INST] Hello</s>", "<s>", "<unk>", "<0x41>",
    "Janet has 3 apples. She buys 5 more and eats 2. How many apples does she have?",
    "L'été dernier, nous sommes allés à la plage près de Nîmes.", "Größenwahn über Straßen", "El niño comió piñas mañana",
    "Vart är närmaste tågstation?", "Привет, как дела? Сегодня хорошая погода.", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好,世界。今天天气很好。", "こんにちは世界。テストです。", "안녕하세요 세계",
    "e\u0301 vs \u00e9", "\u1e69 \u0073\u0323\u0307", "ﬁ ﬂ ½ ² ™ ©", "\u00a0nbsp\u00a0", "\u2003em\u2003space", "zero\u200bwidth\u200djoiner",
    "🙂", "👩‍👩‍👧‍👦 family", "🇫🇷🇩🇪", "a🙂b🙂🙂c", "\U00010348 \U0001d11e", "\u2581", "\u2581Hello\u2581world", " \u2581 ",
    "\u0000", "\u001b[0m", "\ufeffBOM", "\ufffd", "mixed 中文 and English и русский", "naïve café résumé Zürich",
    "ﷺ", "ᚠᛇᚻ᛫ᛒᛦᚦ", "\U000e0041\U000e0042", "a\u0300\u0301\u0302\u0303", "Ⅷ ⅷ ① ⑩", "١٢٣ १२३", "x" * 100, "ab " * 30,
    "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer\n"
    "The slings and arrows of outrageous fortune,\nOr to take arms against a sea of troubles,\nAnd by opposing end them?",
]


def byte_alphabet():
    """GPT-2's characters for bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def splits(token, vocab):
    """The pairs of tokens that join to `token`, in the order of transformers."""
    pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
    return sorted((p for p in pairs if p[0] in vocab and p[1] in vocab), key=lambda p: (vocab[p[0]], vocab[p[1]]))


def special(id, content):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def document(added, pre_tokenizer, decoder, model):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": pre_tokenizer, "post_processor": FRAME, "decoder": decoder, "model": model}


def from_sentencepiece():
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(SENTENCEPIECE.read_bytes())
    pieces = proto.pieces
    vocab = {p.piece: id for id, p in enumerate(pieces)}
    normal = [p for p in pieces if p.type == p.NORMAL]
    # Stable sorts, as transformers: best score first, then the longer sides.
    merges = [(l, r, p.score) for p in normal for l, r in splits(p.piece, vocab)]
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
             "vocab": vocab, "merges": [[l, r] for l, r, _ in merges]}
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    added = [special(id, p.piece) for id, p in enumerate(pieces) if p.type in (p.UNKNOWN, p.CONTROL)]
    tokenizer = SentencePieceTokenizer(str(SENTENCEPIECE))
    # What tokens are looked for in: blanks are marks, and one is put first.
    return document(added, metaspace, decoder, model), tokenizer, lambda text: MARK + text.replace(" ", MARK)


def from_tekken():
    tokenizer = Tekkenizer.from_file(str(TEKKEN))
    data = json.loads(TEKKEN.read_text())
    num_special = tokenizer.num_special_tokens
    alphabet = byte_alphabet()
    written = lambda raw: "".join(alphabet[byte] for byte in raw)
    tokens = [written(base64.b64decode(t["token_bytes"])) for t in data["vocab"]][:tokenizer.n_words - num_special]
    # The ids of the tokens begin behind those of the special tokens.
    vocab = {token: num_special + rank for rank, token in enumerate(tokens)}
    merges = [[l, r] for token in tokens for l, r in splits(token, vocab)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocab, "merges": merges}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    pattern = {"type": "Split", "pattern": {"Regex": data["config"]["pattern"]}, "behavior": "Isolated", "invert": False}
    added = [special(id, tokenizer.id_to_piece(id)) for id in range(num_special)]
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [pattern, byte_level]}
    return document(added, pre_tokenizer, byte_level, model), tokenizer, lambda text: written(text.encode())


def cut(whole, texts):
    """`whole` with the tokens that occur in `texts`, the bytes and the special tokens."""
    model = whole["model"]
    longest = max(map(len, model["vocab"]))
    parts = {text[i:i + n] for text in texts for i in range(len(text)) for n in range(1, longest + 1)}
    # Only special tokens with a name of their own: there are hundreds that stand in for later ones.
    added = [t for t in whole["added_tokens"] if "<SPECIAL_" not in t["content"] and "control_" not in t["content"]]
    kept = parts | {f"<0x{byte:02X}>" for byte in range(256)} | set(byte_alphabet()) | {t["content"] for t in added}
    vocab = {token: id for token, id in model["vocab"].items() if token in kept}
    merges = [[l, r] for l, r in model["merges"] if l in vocab and r in vocab and l + r in vocab]
    return whole | {"added_tokens": added, "model": model | {"vocab": vocab, "merges": merges}}


def ids_of(tokenizer, text):
    """Special tokens are text to mistral-common, so here as well."""
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids


def forms(whole):
    """A tokenizer of SentencePiece is written in two ways. As a normalizer: a mark before every text, as SentencePiece
    itself has it. As Metaspace: none where the text begins with a blank or a mark. (form, whether `text` is as in
    SentencePiece)"""
    yield whole, lambda text: whole["pre_tokenizer"]["type"] != "Metaspace" or text[:1] not in (" ", MARK)
    if whole["pre_tokenizer"]["type"] == "Metaspace":
        yield whole | {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": MARK},
            {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}}, lambda text: True


def write(folder, whole, theirs, seen, full):
    expected = lambda text: theirs.encode(text, bos=False, eos=False)
    ours = whole if full else cut(whole, [seen(t) for t in TEXTS])
    for form, same in (*forms(whole), *forms(ours)):
        tokenizer = Tokenizer.from_str(json.dumps(form))
        for text in TEXTS:
            ids = ids_of(tokenizer, text)
            assert not same(text) or ids == expected(text), (text, ids, expected(text))
    folder.mkdir(exist_ok=True)
    dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    (folder / "tokenizer.json").write_text(dump(ours))
    (folder / "tokenizer_config.json").write_text(dump({"bos_token": "<s>", "eos_token": "</s>"}))
    cases = []
    for text in TEXTS:
        ids = expected(text)
        assert theirs.encode(text, bos=True, eos=False) == [1] + ids
        decoded = theirs.decode(ids)
        cases.append({"text": text, "ids": ids} | ({"decoded": decoded} if decoded != text else {}))
    lines = ",\n".join(map(json.dumps, cases))
    (folder / "vectors.json").write_text('{"cases": [\n' + lines + "\n]}\n")
    print(folder, len(whole["model"]["vocab"]), "->", len(ours["model"]["vocab"]), "tokens,", len(ours["model"]["merges"]), "merges")


if __name__ == "__main__":
    full = len(sys.argv) > 1
    root = pathlib.Path(sys.argv[1]) if full else HERE
    root.mkdir(parents=True, exist_ok=True)
    licence = next(f for f in metadata.files("mistral_common") if f.name == "LICENSE")
    shutil.copy(licence.locate(), root / "LICENSE.mistral-common")
    write(root / "mistral", *from_sentencepiece(), full)
    write(root / "mistral_tekken", *from_tekken(), full)
