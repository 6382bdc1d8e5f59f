#!/usr/bin/env bash
# The same tasks of lm-eval by `tailrace serve` and by transformers, which must agree.
#
#     bench/peers/lm_eval.sh BINARY MODEL_FOLDER [PYTHON]
#
# PYTHON has lm-eval and the packages of requirements.txt [build/lm-eval/bin/python], as
# bench/results/lm-eval-2026-12.md installs them. Both sides compute in float32 on the
# CPU. Prints a line for each metric: the task, serve's, transformers'. Ends with status 1 where two
# of them differ.
set -euo pipefail
binary=$(realpath "$1") model=$(realpath "$2") python=${3:-build/lm-eval/bin/python}
here=$(realpath "$(dirname "$0")")
scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$scratch"' EXIT

# lm-eval reads the files of a task by the folder that it runs in.
python=$(realpath -s "$python")
cp "$here"/lm_eval_tasks/* "$here"/../../tests/data/prompts/sums20_held_out.jsonl "$scratch"
cd "$scratch"
export HF_DATASETS_OFFLINE=1 HF_HUB_OFFLINE=1 HF_DATASETS_CACHE="$scratch/cache"

"$binary" serve --model "$model" --port 0 --device cpu --compute f32 > said 2> said.err &
server=$!
for _ in $(seq 300); do grep -q http:// said && break; sleep 0.1; done
url=$(grep -o 'http://[^ ]*' said) || { cat said.err >&2; exit 1; }

run() {  # NAME MODEL ARGUMENTS
  "$python" -m lm_eval run --model "$2" --model_args "$3" --include_path . \
    --device cpu --batch_size 8 --tasks tailrace_facts,tailrace_sums --output_path "$1" > "$1.log" 2>&1 || { tail -30 "$1.log" >&2; exit 1; }
}
run serve local-completions \
  "base_url=$url/completions,model=served,tokenizer=$model,tokenizer_backend=huggingface,tokenized_requests=True,num_concurrent=4,max_length=2048"
run hf hf "pretrained=$model,dtype=float32"

"$python" - <<'END'
import glob, json, sys
def metrics(name):
    [file] = glob.glob(f"{name}/**/results_*.json", recursive=True)
    results = json.load(open(file))["results"]
    return {(task, key.split(",")[0]): value for task, values in sorted(results.items())
            for key, value in sorted(values.items()) if "," in key and "stderr" not in key}
ours, theirs = metrics("serve"), metrics("hf")
for key in ours:
    print(*key, f"{ours[key]:.4f}", f"{theirs[key]:.4f}")
sys.exit(ours != theirs)
END
