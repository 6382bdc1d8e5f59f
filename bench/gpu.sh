#!/usr/bin/env bash
# Says in one call whether the CUDA backend is right on the GPU of this machine, and how fast it is.
#
#   bench/gpu.sh                 builds what it needs (nvcc, and what scripts/setup.sh installs), then runs
#   bench/gpu.sh bundle DEST     makes DEST, a folder or a .tar.gz or .tar.zst, which needs neither on
#                                the machine with the GPU: unpack it there and call its gpu.sh
#
# Parts run one after the other, each with a limit of its own, all together below nine minutes (a
# build not counted). After each, ./gpu-results has its row: gpu.json for programs, gpu.md for people,
# logs/ for whoever looks for the cause. A part that did not run says why.
#
# Exit status 0: every part that could run is right. 1: one failed or timed out, or there is no GPU.
# 2: a mistake in the call.
set -uo pipefail
export LC_ALL=C

self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
home=$(dirname "$self")
out=$PWD/gpu-results
total=525  # seconds of all parts

# A sanitizer takes a hundred times as long: small tests that between them launch every kernel.
sanitizer_filter='CudaLinear.Bf16TokenCounts:CudaLinear.Bf16LargeTiles:CudaLinear.Float32:CudaAttention.DtypesOfQueriesAndResult:CudaAttention.DecodeIsPrefillEverywhere:CudaCacheQkv.*:CudaKvCopy.*:CudaLogSumExp.IsRef:CudaLinearLogprob.LogMass*:CudaRows.*:CudaSample.GivesTheBitsOfTheOtherOps:CudaSample.TiesGoToTheSmallerId:CudaAttentionBackward.BitsAreASequencesOwn:CudaSharedPrefix.HeadsAndDims:CudaRmsNormBackward.*:CudaSwigluBackward.*:CudaEmbeddingBackward.*:CudaScatterRows.*:CudaElementwise.*:CudaGroupByExpert.*:CudaExpertBalance.*:CudaWeightedSum.*:CudaWeightBackward.*:CudaLinearLogprobBackward.*:CudaLinearGradInput.IsRef:CudaLinearGradWeight.IsRef:CudaLinearGradBias.IsRef:CudaGroupedLinear.RowsHaveTheBitsOfLinear:CudaGroupedGradients.*:CudaOptimizer.*:CudaPolicyGradient.*:CudaRope.*:CudaRoute.*:CudaRouteBackward.*:CudaRowDigests.AreTheLibrarysAboutTheEndsOfItsParts'

die() { echo "gpu.sh: $*" >&2; exit 2; }

# ---- build and bundle ---------------------------------------------------------------------------

# The tests with the label gpu, a line each: name, path of the program, filter (cmake/Tailrace.cmake
# writes it). It has no line where nvcc was not found.
gpu_tests=gpu_tests.txt

build() {
  cd "$root" && cmake --preset release || return
  cmake --build build --target tailrace bench_cuda || return
  [[ -s $root/build/$gpu_tests ]] || return 0
  cut -f1 "$root/build/$gpu_tests" | xargs cmake --build build --target
}

# Copies the libraries of a program, but for libc's own, which belong to the machine's kernel and
# loader. libstdc++ goes to a folder of its own: the machine's own is taken where it will do, since
# ours may ask for a newer libc than all the rest.
copy_libraries() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r name path; do
    case $name in
      libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | \
        libutil.so.* | libnsl.so.* | libanl.so.* | ld-linux*) ;;
      libstdc++.so.* | libgcc_s.so.*) cp -Lf "$path" "$2/lib/cxx/$name" ;;
      *) cp -Lf "$path" "$2/lib/$name" ;;
    esac
  done
}

bundle() {
  local dest=$1 folder program parent
  [[ -n $dest && $dest != -* ]] || die "gpu.sh bundle takes a folder, a .tar.gz or a .tar.zst; '$dest' is none"
  [[ -d $(dirname "$dest") && -w $(dirname "$dest") ]] || die "$(dirname "$dest") is no folder that can be written"
  [[ -f $home/bundle.txt ]] && die "this is a bundle already; a source tree makes one"
  root=$(dirname "$home")
  # shellcheck disable=SC2064  # the folder that is made now is the one to remove
  case $dest in
    *.tar.gz | *.tar.zst) parent=$(mktemp -d) && trap "rm -rf '$parent'" EXIT && folder=$parent/tailrace-gpu ;;
    *) folder=$dest && [[ ! -e $folder ]] || die "$dest is there already" ;;
  esac
  (build) >"${TMPDIR:-/tmp}/gpu-bundle.$$.log" 2>&1 ||
    { tail -20 "${TMPDIR:-/tmp}/gpu-bundle.$$.log" >&2; die "the build failed"; }
  rm -f "${TMPDIR:-/tmp}/gpu-bundle.$$.log"
  [[ -s $root/build/$gpu_tests ]] || die "nvcc was not found here; a bundle without CUDA would measure nothing"
  (  # whole, or not at all
    set -e
    mkdir -p "$folder"/{bin/bench,lib/cxx,data/models}
    for program in tailrace bench/cuda $(cut -f2 "$root/build/$gpu_tests"); do
      local to=$folder/bin/$program
      [[ $program == */test_* ]] && to=$folder/bin/${program##*/}
      strip -o "$to" "$root/build/$program" || cp "$root/build/$program" "$to"
      copy_libraries "$root/build/$program" "$folder"
    done
    grep '^cuda	' "$root/build/bench/benches.txt" >"$folder/bin/bench/benches.txt"
    awk -F'\t' -v OFS='\t' '{ print $1, $1, $3 }' "$root/build/$gpu_tests" >"$folder/bin/$gpu_tests"
    cp -r "$root/tests/data/golden" "$folder/data/"
    cp -r "$root/tests/data/models/stories260K" "$folder/data/models/"
    mkdir "$folder/configs" && cp "$root/configs/quickstart.yaml" "$folder/configs/"
    cp "$self" "$folder/gpu.sh"
    { echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
      echo "made $(date -u +%Y-%m-%dT%H:%M:%SZ)"; } >"$folder/bundle.txt"
  )
  (($? == 0)) || die "$folder could not be filled"
  if [[ $folder != "$dest" ]]; then
    tar -C "$parent" -caf "$dest" tailrace-gpu || { rm -f "$dest"; die "tar could not write $dest"; }
  fi
  du -sh "$dest"
}

# ---- how parts run and what they leave ----------------------------------------------------------

parts_json=()  # of the parts so far, a JSON object each
failed=()
declare -A status_of=()
started=$SECONDS

# stdin as the inside of a JSON string.
json_text() {
  tr '\t\r' '  ' | tr -cd '\n\040-\176' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' | awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }'
}
# The rows of a bench, as cells of a table: part, case, metric, median, unit, of limit.
row_cells() {
  sed -nE 's/.*"system":"([^"]*)".*"case":"([^"]*)","metric":"([^"]*)","unit":"([^"]*)","median":([^,]*),.*"limit":([^,]*),.*/\1\t\2\t\3\t\5\t\4\t\6/p' |
    awk -F'\t' -v part="$1" '{
      share = $6 == "null" || $6 + 0 == 0 ? "" : sprintf("%.0f %%", 100 * $4 / $6)
      value = $4 >= 1000 ? sprintf("%.0f", $4) : sprintf("%.4g", $4)
      printf "| %s | %s | %s | %s | %s | %s | %s |\n", part, $1, $2, $3, value, $5, share }'
}

# finish NAME STATUS SECONDS DETAIL: keeps a part's result. Both files are whole after each part.
finish() {
  local name=$1 status=$2 seconds=$3 detail=$4 rows="" tail_text=""
  [[ -s $out/logs/$name.rows ]] && rows=$(grep '^{' "$out/logs/$name.rows" | paste -sd,)
  if [[ $status == failed || $status == "timed out" ]]; then
    failed+=("$name")
    tail_text=$(tail -n 15 "$out/logs/$name.log" 2>/dev/null)
  fi
  status_of[$name]=$status
  parts_json+=("{\"part\":\"$name\",\"status\":\"$status\",\"seconds\":$seconds,\"detail\":\"$(json_text <<<"$detail")\",\"log\":\"$(json_text <<<"$tail_text")\",\"rows\":[$rows]}")
  {
    echo "{\"commit\":\"$(json_text <<<"$commit")\",\"host\":\"$(uname -n | json_text)\",\"date\":\"$date\",\"parts\":["
    local i
    for i in "${!parts_json[@]}"; do
      ((i > 0)) && echo ","
      printf '%s' "${parts_json[$i]}"
    done
    printf '\n]}\n'
  } >"$out/gpu.json.new" && mv "$out/gpu.json.new" "$out/gpu.json"
  printf '| %s | %s | %s | %s |\n' "$name" "$status" "$seconds" "$(head -n 1 <<<"$detail")" >>"$out/logs/parts.txt"
  row_cells "$name" <"$out/logs/$name.rows" >>"$out/logs/rows.txt" 2>/dev/null
  if [[ -n $tail_text ]]; then
    printf '\n## %s %s\n\n```\n%s\n```\n' "$name" "$status" "$tail_text" >>"$out/logs/faults.txt"
  fi
  write_table
  printf '%-12s %-10s %4s s  %s\n' "$name" "$status" "$seconds" "$(head -n 1 <<<"$detail")"
}

write_table() {
  {
    echo "# CUDA backend on $(uname -n), $date, $commit"
    printf '\n| part | result | seconds | |\n| --- | --- | --- | --- |\n'
    cat "$out/logs/parts.txt"
    if [[ -s $out/logs/rows.txt ]]; then
      printf '\n| part | system | case | metric | median | unit | of limit |\n| --- | --- | --- | --- | --- | --- | --- |\n'
      cat "$out/logs/rows.txt"
    fi
    [[ ! -f $out/logs/faults.txt ]] || cat "$out/logs/faults.txt"
  } >"$out/gpu.md.new" && mv "$out/gpu.md.new" "$out/gpu.md"
}

# Seconds that are left to the part, for `timeout`.
left() {
  local part=$((part_ends - SECONDS))
  echo $((part > 1 ? part : 1))
}
limited() { timeout -k 5 "$(left)" "$@"; }

# part NAME SECONDS FUNCTION: the function prints its log to both streams, rows to descriptor 3, and
# what a reader wants to know to descriptor 4. Its status: 0 right, 75 it cannot run here, 124 or 137
# timed out.
part() {
  local name=$1 limit=$2 function=$3 begin=$SECONDS rest detail status
  rest=$((total - (SECONDS - started)))
  : >"$out/logs/$name.rows"
  if [[ -n $no_gpu && $name != facts ]]; then
    finish "$name" "not run" 0 "$no_gpu"
    return
  fi
  if ((rest < 5)); then
    finish "$name" "not run" 0 "the $total s of all parts are over"
    return
  fi
  part_ends=$((SECONDS + (limit < rest ? limit : rest)))
  $function >"$out/logs/$name.log" 2>&1 3>"$out/logs/$name.rows" 4>"$out/logs/$name.detail"
  status=$?
  detail=$(cat "$out/logs/$name.detail")
  case $status in
    0) finish "$name" ok $((SECONDS - begin)) "$detail" ;;
    75) finish "$name" "not run" $((SECONDS - begin)) "$detail" ;;
    124 | 137) finish "$name" "timed out" $((SECONDS - begin)) "after $((part_ends - begin)) s${detail:+; $detail}" ;;
    *) finish "$name" failed $((SECONDS - begin)) "${detail:-exit status $status}" ;;
  esac
}

# One of our programs, with the libraries of the bundle.
ours() {
  local program=$1
  shift
  limited env ${libraries:+LD_LIBRARY_PATH="$libraries"} TAILRACE_TEST_DATA="$data" "$program" "$@"
}

# ---- the parts ----------------------------------------------------------------------------------

bench() {
  local status
  ours "$bin/bench/cuda" --json --parts "$@" >&3
  status=$?
  ((status == 0)) || grep '^error: ' "$out/logs/$name.log" >&4
  return $status
}

facts() {
  if command -v nvidia-smi >/dev/null; then
    limited nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,clocks.sm,power.limit,persistence_mode,mig.mode.current --format=csv
  fi
  ours "$bin/tailrace" doctor
  bench facts || return
  local fault gpu
  fault=$(sed -nE 's/.*"fault":"([^"]*)".*/\1/p' "$out/logs/facts.rows" | head -n 1)
  gpu=$(sed -nE 's/.*"gpu":"([^"]*)".*/\1/p' "$out/logs/facts.rows" | head -n 1)
  if [[ -z $gpu ]]; then
    echo "no GPU: ${fault:-unknown}" >&4
    return 75
  fi
  echo "$gpu" >&4
}

limits() { bench limits; }
decode() { bench decode; }
prefill() { bench prefill; }
training() { bench training; }
products() { bench products; }

# googletest FILTER PROGRAM [COMMAND...]: COMMAND runs the program. A fault of the device ends it, and
# the tests behind the one that met it would tell nothing: then each is run alone.
googletest() {
  local filter=$1 program=$2 status log
  shift 2
  [[ -f $program && -x $program ]] || { echo "this build has no ${program##*/}" >&4; return 75; }
  log=$(mktemp)
  ours "$@" "$program" --gtest_filter="$filter" --gtest_color=no 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  if grep -q "there is no GPU to test" "$log"; then
    grep -m 1 "there is no GPU to test" "$log" >&4
    status=1  # `facts` found one
  elif ((status == 0)); then
    sed -nE 's/^\[  PASSED  \] //p' "$log" >&4
  elif ((status > 124)); then
    local alone
    alone=$(ours "$program" --gtest_list_tests --gtest_filter="$filter" |
      awk '/^[^ ].*\.$/ { suite = $1 } /^  / { print suite $1 }' | while read -r test; do
      ours "$@" "$program" --gtest_filter="$test" --gtest_color=no </dev/null >"$log" 2>&1 && continue
      cat "$log" >&2
      echo "$test"
    done)
    echo "exit status $status; alone these fail: $(paste -sd' ' <<<"$alone")" >&4
  else
    sed -nE 's/^\[  FAILED  \] ([A-Za-z0-9_/]+\.[^ ,]+).*/\1/p' "$log" | sort -u | head -n 8 | paste -sd' ' | sed 's/^./failed: &/' >&4
    sed -nE 's/^=+ ((ERROR|RACECHECK) SUMMARY.*)/\1/p' "$log" >&4
  fi
  rm -f "$log"
  return "$status"
}
# listed NAME FIELD: the path (2) or the filter (3) of a test.
listed() { awk -F'\t' -v name="$1" -v field="$2" '$1 == name { print $field }' "$bin/$gpu_tests" 2>/dev/null; }
gpu_test() { googletest "$(listed "$1" 3)" "$bin/$(listed "$1" 2)"; }
# The part of a test: its name without what all of them have.
part_of() {
  case $1 in
    test_cuda_gpu) echo parity ;;
    test_cuda_model_gpu) echo golden ;;
    *) sed -e 's/^test_cuda_//' -e 's/_gpu$//' <<<"$1" ;;
  esac
}
no_tests() { echo "this build has no tests for a GPU: nvcc was not found" >&4; return 75; }

# Greedy texts are equal, and log-probabilities are closer than 1e-3. What was compared stays in logs/.
same_as_cpu() {
  local model=$data/models/stories260K work=$out/logs/same_as_cpu device
  mkdir -p "$work"
  printf '{"prompt": "%s"}\n' "Once upon a time" "One day, a little girl named Lily" "Tim had a big red ball." >"$work/prompts"
  for device in cpu cuda; do
    ours "$bin/tailrace" model generate --model "$model" --device $device --temperature 0 --max-new-tokens 100 \
      <"$work/prompts" >"$work/generate.$device" || return
  done
  # What was generated, and ids that follow each other by no rule.
  { sed -E 's/.*"output_ids": ?\[([^]]*)\].*/{"input_ids": [1, \1]}/' "$work/generate.cpu"
    awk 'BEGIN { printf "{\"input_ids\": [1"; for (i = 1; i < 300; ++i) printf ", %d", 3 + (i * i * 7 + i * 31) % 500; print "]}" }'
  } >"$work/ids"
  for device in cpu cuda; do
    ours "$bin/tailrace" model score --model "$model" --device $device <"$work/ids" >"$work/score.$device" || return
  done
  local worst count
  worst=$(for device in cpu cuda; do
    sed -e 's/.*\[//' -e 's/\].*//' "$work/score.$device" | tr ',' '\n' >"$work/numbers.$device"
  done; paste "$work/numbers.cpu" "$work/numbers.cuda" |
    awk '{ if ($1 !~ /[0-9]/ || $2 !~ /[0-9]/ || $1 ~ /[a-z]/ && $1 !~ /e/ || $2 ~ /nan|inf/) bad = 1
           d = $1 > $2 ? $1 - $2 : $2 - $1; if (d > worst) worst = d }
         END { if (bad || NR == 0) print "no numbers"; else printf "%.3g\n", worst }')
  count=$(wc -l <"$work/numbers.cpu")
  echo "largest difference of $count log-probabilities: $worst"
  local status=0
  for device in cpu cuda; do sed -E 's/","output_ids".*//; s/", "output_ids".*//' "$work/generate.$device" >"$work/text.$device"; done
  if ! diff "$work/text.cpu" "$work/text.cuda"; then
    echo "greedy text differs" >&4
    status=1
  elif ! awk -v worst="$worst" 'BEGIN { exit !(worst ~ /^[0-9]/ && worst + 0 <= 1e-3) }'; then
    status=1
  fi
  echo "3 greedy texts, $count log-probabilities, largest difference $worst" >&4
  return $status
}

# The first run of a newcomer, with trainer and rollout workers on the GPU: it must learn, and no
# sampled log-probability may differ from the trainer's by a bit.
quickstart() {
  local run=$out/logs/quickstart_run last worst
  rm -rf "$run"
  ours "$bin/tailrace" launch "$configs/quickstart.yaml" model.device=cuda run.dir="$run" || return
  last=$(grep '^quickstart: success' "$out/logs/$name.log" | tail -n 1)
  worst=$(sed -nE 's/.*"mismatch\/max_logprob_diff": ?([^,}]*).*/\1/p' "$run/metrics.jsonl" | sort -g | tail -n 1 | sed 's/\.0$//')
  echo "${last%, run:*}; largest mismatch of a log-probability: ${worst:-none was measured}" >&4
  awk -v worst="${worst:-x}" 'BEGIN { exit !(worst ~ /^[0-9]/ && worst + 0 == 0) }'
}

# The median over the steps of a run: medians RUN CASE, of "METRIC NAME UNIT" lines.
medians() {
  local run=$1 case=$2 metric name unit value
  while read -r metric name unit; do
    value=$(sed -nE "s#.*\"$metric\": ?([^,}]*).*#\\1#p" "$run/metrics.jsonl" | sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }')
    [[ -z $value ]] || echo "{\"system\":\"tailrace\",\"case\":\"$case\",\"metric\":\"${name//_/ }\",\"unit\":\"$unit\",\"median\":$value,\"limit\":null,\"of\":\"\"}" >&3
  done
}

# Steps of GRPO of a policy with the layers of Qwen2.5-0.5B and few words, trainer and rollout worker
# beside each other and in turn: how long a step and a switch of weights take. Both end with the same
# weights.
grpo() {
  local how run digest=()
  for how in apart in_turn; do
    run=$out/logs/grpo_$how
    rm -rf "$run"
    ours "$bin/tailrace" launch "$configs/quickstart.yaml" model.device=cuda model.compute=bf16 run.dir="$run" \
      model.create.hidden_size=896 model.create.intermediate_size=4864 model.create.layers=24 model.create.heads=14 \
      run.steps=4 rollout.workers=1 rollout.max_sequences=256 sft.demonstrations=512 sft.epochs=1 eval.prompts=0 algo.filter_zero_signal=none \
      optim.lr=1e-6 run.colocate="$([[ $how == in_turn ]] && echo true || echo false)" || return
    medians "$run" "GRPO, 0.5B, ${how//_/ }" <<-'METRICS'
	time/step step s
	time/rollout generation s
	time/train training s
	weights/apply_ms switch_of_weights ms
	weights/pause_ms pause_of_sampling ms
	METRICS
    digest+=("$(sed -n 's/.*"master": *"\([^"]*\)".*/\1/p' "$run"/weights/p0-v*.json | sort -u | paste -sd' ')")
  done
  if [[ ${digest[0]} != "${digest[1]}" || -z ${digest[0]} ]]; then
    echo "the weights differ: ${digest[*]}" >&4
    return 1
  fi
  sed -nE 's/.*(device memory planned.*)/\1/p' "$out/logs/grpo_in_turn/logs/trainer-0.log" | tail -n 1 >&4
}

sanitizer() {
  local tool=$1 program
  program=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer "${CUDA_HOME:-/none}/bin/compute-sanitizer" 2>/dev/null | head -n 1)
  [[ -n $program ]] || { echo "there is no compute-sanitizer" >&4; return 75; }
  [[ -s $bin/$gpu_tests ]] || { no_tests; return; }
  googletest "$sanitizer_filter" "$bin/$(listed test_cuda_gpu 2)" "$program" --tool "$tool" --error-exitcode 9
}
memcheck() { sanitizer memcheck; }
racecheck() { sanitizer racecheck; }

pytorch() {
  local python
  python=$(command -v python3 || command -v python) || { echo "there is no Python" >&4; return 75; }
  limited "$python" -c 'import torch' || { echo "Python has no torch" >&4; return 75; }
  limited "$python" - <<'PY' >&3
import json, sys, time, torch

if not torch.cuda.is_available():
    sys.exit("torch finds no GPU")
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}
print(facts, file=sys.stderr)

def seconds(call, milliseconds=20, runs=5):
    call(0)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(1)
    torch.cuda.synchronize()
    count = max(1, min(1000, int(1e-3 * milliseconds / (time.perf_counter() - begin))))
    found = []
    for run in range(runs):
        begin = time.perf_counter()
        for i in range(count):
            call(i)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / count)
    return found

def row(case, metric, unit, values, limit=None):
    values = sorted(values)
    print(json.dumps({"bench": "cuda", "system": "pytorch", "version": torch.__version__, "case": case,
                      "metric": metric, "unit": unit, "median": values[len(values) // 2], "min": values[0],
                      "max": values[-1], "runs": len(values), "limit": limit, "settings": facts,
                      "machine": {"device": facts["gpu"]}}, separators=(",", ":")), flush=True)
    return values[-1]

def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

with torch.inference_mode():
    a, b = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"), torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy = row("limits", "copy of 1024 MiB", "GB/s", [2e-9 * a.numel() / s for s in seconds(lambda i: b.copy_(a))])
    del a, b
    n = 8192
    x, w, y = random(n, n), random(n, n), random(n, n)
    work = row("limits", "bf16 product of 8192^3", "TFLOP/s", [2e-12 * n ** 3 / s for s in seconds(lambda i: torch.mm(x, w.t(), out=y))])
    del x, w, y
    for name, hidden, qkv, ffn, vocab in (("qwen2.5-0.5b", 896, 1152, 4864, 151936), ("qwen2.5-1.5b", 1536, 2048, 8960, 151936),
                                          ("qwen2.5-7b", 3584, 4608, 18944, 152064)):
        for product, out, inner in (("qkv", qkv, hidden), ("o", hidden, hidden), ("gate_up", 2 * ffn, hidden),
                                    ("down", hidden, ffn), ("head", vocab, hidden)):
            count = max(1, (512 << 20) // (2 * out * inner))
            weights = random(count, out, inner)
            for rows in (1, 8, 64, 512, 4096):
                x = random(rows, inner)
                y = torch.empty(rows, out, device="cuda", dtype=torch.bfloat16)
                taken = seconds(lambda i: torch.mm(x, weights[i % count].t(), out=y))
                moved, flops = 2.0 * (out * inner + rows * (out + inner)), 2.0 * rows * out * inner
                if rows <= 64:
                    row(f"{name}, {rows} rows", product, "GB/s", [1e-9 * moved / s for s in taken], copy)
                else:
                    row(f"{name}, {rows} rows", product, "TFLOP/s", [1e-12 * flops / s for s in taken], work)
            del weights
PY
}

# The loop that people write around transformers: generate() of 64 sequences, and updates of as many
# tokens as ours, at the size of Qwen2.5 0.5B.
transformers() {
  local python
  python=$(command -v python3 || command -v python) || { echo "there is no Python" >&4; return 75; }
  limited "$python" -c 'import torch, transformers' || { echo "Python has no torch with transformers" >&4; return 75; }
  limited "$python" - <<'PY' >&3
import json, sys, time, torch, transformers

if not torch.cuda.is_available():
    sys.exit("torch finds no GPU")
facts = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}

def row(case, metric, values):
    values = sorted(values)
    print(json.dumps({"bench": "cuda", "system": "transformers", "version": transformers.__version__, "case": case,
                      "metric": metric, "unit": "tokens/s", "median": values[len(values) // 2], "min": values[0],
                      "max": values[-1], "runs": len(values), "limit": None, "settings": facts,
                      "machine": {"device": facts["gpu"]}}, separators=(",", ":")), flush=True)

def seconds(call, runs):
    call()
    found = []
    for run in range(runs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found

torch.manual_seed(0)
config = transformers.Qwen2Config(
    hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
    vocab_size=151936, max_position_embeddings=4096, tie_word_embeddings=True)
model = transformers.Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
prompts = torch.randint(0, config.vocab_size, (64, 128), device="cuda")
new = 64
with torch.inference_mode():
    generate = lambda: model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True,
                                      max_new_tokens=new, min_new_tokens=new, pad_token_id=0)
    row("qwen2.5-0.5b, 64 sequences", "generate", [prompts.shape[0] * new / s for s in seconds(generate, 2)])
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
tokens = torch.randint(0, config.vocab_size, (4, 1024), device="cuda")
def update():
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
row("qwen2.5-0.5b, 4 x 1024 tokens", "training, bf16 weights and moments", [tokens.numel() / s for s in seconds(update, 5)])
PY
}

# ---- the run ------------------------------------------------------------------------------------

run() {
  rm -rf "$out"
  mkdir -p "$out/logs" || die "$out cannot be made"
  date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  no_gpu=""
  libraries=""
  if [[ -f $home/bundle.txt ]]; then
    bin=$home/bin data=$home/data configs=$home/configs
    commit=$(sed -n 's/^commit //p' "$home/bundle.txt")
    # The machine's libstdc++ where our programs start with it.
    libraries=$home/lib
    if ! LD_LIBRARY_PATH=$libraries "$bin/tailrace" --version >"$out/logs/start.log" 2>&1; then
      libraries=$home/lib:$home/lib/cxx
      if ! LD_LIBRARY_PATH=$libraries "$bin/tailrace" --version >>"$out/logs/start.log" 2>&1; then
        no_gpu="the programs of this bundle do not start here: $(tail -n 1 "$out/logs/start.log")"
      fi
    fi
  else
    root=$(dirname "$home")
    bin=$root/build data=$root/tests/data configs=$root/configs
    commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
    : >"$out/logs/build.rows"
    echo "building; its log is $out/logs/build.log"
    local begin=$SECONDS
    if (build) >"$out/logs/build.log" 2>&1; then
      finish build ok $((SECONDS - begin)) ""
    else
      finish build failed $((SECONDS - begin)) "$(grep -m 1 -iE 'error' "$out/logs/build.log")"
      no_gpu="the build failed"
    fi
  fi

  started=$SECONDS
  if [[ -n $no_gpu ]]; then
    : >"$out/logs/facts.rows"
    finish facts "not run" 0 "$no_gpu"
  else
    part facts 30 facts
    [[ ${status_of[facts]} == ok ]] || no_gpu=$(cat "$out/logs/facts.detail")
    [[ ${status_of[facts]} == ok || -n $no_gpu ]] || no_gpu="facts failed"
  fi
  part limits 40 limits
  local tests=() test
  [[ ! -f $bin/$gpu_tests ]] || mapfile -t tests < <(cut -f1 "$bin/$gpu_tests")
  ((${#tests[@]} > 0)) || part tests 5 no_tests
  for test in "${tests[@]}"; do part "$(part_of "$test")" 90 "gpu_test $test"; done
  part same_as_cpu 45 same_as_cpu
  part quickstart 90 quickstart
  part grpo 90 grpo
  part decode 120 decode
  part prefill 60 prefill
  part training 90 training
  part products 90 products
  part memcheck 60 memcheck
  part racecheck 60 racecheck
  part pytorch 60 pytorch
  part transformers 60 transformers

  echo
  cat "$out/gpu.md"
  echo
  if ((${#failed[@]} > 0)); then
    echo "gpu.sh: ${failed[*]}: failed or timed out; see $out/gpu.md and $out/logs" >&2
    exit 1
  fi
  if [[ -n $no_gpu ]]; then
    echo "gpu.sh: nothing was measured; $no_gpu" >&2
    exit 1
  fi
  local skipped="" name
  for name in "${!status_of[@]}"; do [[ ${status_of[$name]} == ok ]] || skipped+=" $name"; done
  echo "gpu.sh: all parts that ran are right${skipped:+ (not run:$skipped)}; results in $out"
}

case ${1:-} in
  "") [[ $# == 0 ]] || die "an empty word is no command; gpu.sh alone runs, gpu.sh bundle DEST makes a bundle"; run ;;
  bundle)
    [[ $# == 2 ]] || die "gpu.sh bundle takes one destination: a folder, a .tar.gz or a .tar.zst"
    bundle "$2"
    ;;
  -h | --help) sed -n '2,/^set/p' "$self" | sed -e '/^set/d' -e 's/^# \{0,1\}//' ;;
  *) die "unknown argument '$1'; there is only: bundle DEST" ;;
esac
