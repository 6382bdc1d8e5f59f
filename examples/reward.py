"""A reward in Python: half for each required word that occurs, a quarter each for the end and length."""
import json
import sys

for line in sys.stdin:
    episode = json.loads(line)
    text, row = episode["response"].strip(), episode["row"]
    words = text.lower().replace(".", " ").replace(",", " ").replace("!", " ").split()
    found = sum(w.lower() in words for w in row["words"]) / max(1, len(row["words"]))
    ends, fits = text.endswith((".", "!", "?")), row["min_words"] <= len(words) <= row["max_words"]
    reward = found / 2 + ends / 4 + fits / 4 if len(words) >= row["min_words"] else 0
    print(json.dumps({"id": episode["id"], "reward": reward, "metrics": {"words_found": found}}))
