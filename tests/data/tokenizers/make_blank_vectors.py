# Writes blank_vectors.json beside it: conversations as transformers' apply_chat_template tokenizes
# them, with tokenizers that put a blank in front of a text.
# pip install transformers==5.24 tokenizers jinja2; make_blank_vectors.py
import json
import os
import tempfile
from pathlib import Path
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
EOS = "{{ eos_token if m.role == 'assistant' }}"
BEGIN = "{% for m in messages %}"
USER = "{% if m.role == 'user' %}"
END = "{% endif %}{% endfor %}"
TEMPLATES = {
    "instruct": "{{ bos_token }}" + BEGIN + USER + "[INST] {{ m.content }}[/INST]"
                "{% else %} {{ m.content }}{{ eos_token }}" + END,
    "tight": "{{ bos_token }}" + BEGIN + USER + "[INST]{{ m.content }}[/INST]"
             "{% else %}{{ m.content }}{{ eos_token }}" + END,
    "llama2": BEGIN + USER + "{{ bos_token }}[INST] {{ m.content | trim }} [/INST]"
              "{% else %} {{ m.content | trim }} {{ eos_token }}" + END,
    "roles": BEGIN + "{{ m.role }}: {{ m.content }}" + EOS + "\n{% endfor %}"
             "{% if add_generation_prompt %}assistant: {% endif %}",
    "headings": "{{ bos_token }}" + BEGIN + "### {{ m.role }}:\n{{ m.content }}" + EOS +
                "\n{% endfor %}{% if add_generation_prompt %}### assistant:\n{% endif %}",
}
TALKS = [["Hello there", "It is so."], [" Hello", " Yes, it is."], ["\nOne", "\nTwo\n"], ["a", "b"],
         ["The  house", "  two blanks  "], ["1 + 2?", "3", "Sure?", "Yes."],
         ["Hi", "é漢", "ü", "x y"],
         ["What is it?", "- one\n- two", " and then?", "\n\nthree"]]


def variants(plain):
    always, legacy = json.loads(json.dumps(plain)), json.loads(json.dumps(plain))
    always["pre_tokenizer"]["prepend_scheme"] = "always"
    legacy["pre_tokenizer"] = None
    legacy["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    return {"first": plain, "always": always, "legacy": legacy}


cases = []
for variant, file in variants(json.loads((HERE / "mistral/tokenizer.json").read_text())).items():
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(json.dumps(file))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(
            {"bos_token": "<s>", "eos_token": "</s>",
             "tokenizer_class": "PreTrainedTokenizerFast"}))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for name, template in TEMPLATES.items():
            for talk in TALKS:
                messages = [{"role": ("user", "assistant")[i % 2], "content": content}
                            for i, content in enumerate(talk)]
                ids = lambda said, begins_answer: list(tokenizer.apply_chat_template(
                    said, chat_template=template, tokenize=True,
                    add_generation_prompt=begins_answer, return_dict=False))
                cases.append({"variant": variant, "template": name, "talk": talk,
                              "prompt": ids(messages[:-1], True), "all": ids(messages, False)})
with open(HERE / "blank_vectors.json", "w") as out:
    out.write('{"templates": ' + json.dumps(TEMPLATES, indent=1) + ',\n"cases": [\n')
    out.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]}\n")
