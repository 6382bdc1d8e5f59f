#!/usr/bin/env python3
"""Makes the folder reward-tiny beside this file: a tiny random reward model as transformers writes it, with
the tokenizer of stories260K, and scores.json: its scores of some ids in float32, and "exact", the same model in
float64, angles of positions as well, which transformers keeps in float32 otherwise.

    build/peers/bin/python tests/data/models/make_reward_tiny.py
"""
import json
import pathlib
import shutil

import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "reward-tiny"
PADDING = 0
# As a reward model reads a conversation: no prompt for an answer at its end.
TEMPLATE = ("{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}"
            "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}")


def randomise(model, generator):
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=generator)
        scale = 0.15 if tensor.ndim < 2 else (1.0 if "embed" in name else 1.6) / tensor.shape[-1] ** 0.5
        tensor.data = scale * noise + (1.0 if name.endswith("norm.weight") else 0.0)


# In the place of the float32 angles, whose error grows with the position.
def exact_angles(config):
    size = config.head_dim
    inverse = 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(x, position_ids):
        angles = position_ids[:, :, None].double() * inverse
        both = torch.cat((angles, angles), -1)
        return both.cos(), both.sin()

    return forward


def scores_of(model, rows):
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0, 0].item() for row in rows]


def main():
    generator = torch.Generator().manual_seed(11)
    config = LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                         bos_token_id=1, eos_token_id=2, pad_token_id=PADDING, num_labels=1)
    model = LlamaForSequenceClassification(config)
    randomise(model, generator)
    model.save_pretrained(FOLDER)
    shutil.copy(HERE / "stories260K" / "tokenizer.json", FOLDER)
    settings = json.loads((HERE / "stories260K" / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATE
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")

    model = AutoModelForSequenceClassification.from_pretrained(FOLDER, dtype=torch.float32).eval()
    rows = [torch.randint(1, 512, (n,), generator=generator).tolist() for n in (1, 2, 7, 33, 130, 512, 700)]
    # Padding at the end is passed over, and in the middle it is not.
    rows += [rows[2] + [PADDING] * 3, rows[2][:3] + [PADDING] + rows[2][3:]]
    scores = scores_of(model, rows)
    model.double().model.rotary_emb.forward = exact_angles(config)
    exact = scores_of(model, rows)
    scores = [{"input_ids": row, "score": a, "exact": b} for row, a, b in zip(rows, scores, exact)]
    (FOLDER / "scores.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in scores) + "\n]\n")


if __name__ == "__main__":
    main()
