#!/usr/bin/env bash
# What a page that watches a run costs it: pairs of one training, without and with a reader of the
# page's events. Prints for each pair the seconds of both and the processor time of the page's process,
# then the medians. Only the wall time of the steps counts, from the first row of metrics to the last.
#
#   bench/live_page.sh [PAIRS] [CONFIG] [KEY=VALUE...]
set -euo pipefail
cd "$(dirname "$0")/.."
pairs=${1:-5}
config=${2:-configs/quickstart.yaml}
shift $(($# < 2 ? $# : 2))
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
key=$folder/key
(umask 077; echo bench-of-the-live-page >"$key")

# The seconds between the first row of a step and the last one.
seconds_of() {
  python3 - "$1" <<'PYTHON'
import json, sys
times = [row["time"] for row in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "time/step" in row]
print(f"{times[-1] - times[0]:.2f}")
PYTHON
}

# Clock ticks of a process, its own and those of the kernel for it.
ticks_of() { awk '{print $14 + $15}' "/proc/$1/stat"; }

run() {  # NAME WATCHED ARGUMENTS...
  local name=$1 watched=$2 page reader launch ticks=0
  shift 2
  build/tailrace launch "$config" run.dir="$folder/$name" "$@" >"$folder/$name.log" 2>&1 &
  launch=$!
  if [ "$watched" = 1 ]; then
    until compgen -G "$folder/$name/journal/journal-*.log" >/dev/null; do sleep 0.1; done
    rm -f "$folder/url"
    build/tailrace status "$folder/$name" --web --key-file "$key" >"$folder/url" 2>/dev/null &
    page=$!
    until [ -s "$folder/url" ]; do sleep 0.05; done
    curl -sN "$(sed 's,/?,/events?,' "$folder/url")" >"$folder/events" &
    reader=$!
    while kill -0 "$launch" 2>/dev/null; do
      ticks=$(ticks_of "$page" || echo "$ticks")
      sleep 0.2
    done
    kill "$reader" "$page"
    [ "$(grep -c '^event: rows' "$folder/events")" -gt 1 ] || { echo "no rows came" >&2; exit 1; }
  fi
  wait "$launch"
  echo "$(seconds_of "$folder/$name") $(awk -v t="$ticks" -v hz="$(getconf CLK_TCK)" 'BEGIN {print t / hz}')"
}

printf '%6s %12s %12s %14s\n' pair "alone, s" "watched, s" "page's CPU, s"
for pair in $(seq "$pairs"); do
  # Each goes first in turn: a machine may become slower or faster.
  if ((pair % 2)); then
    read -r alone _ < <(run "alone-$pair" 0 "$@")
    read -r watched cpu < <(run "watched-$pair" 1 "$@")
  else
    read -r watched cpu < <(run "watched-$pair" 1 "$@")
    read -r alone _ < <(run "alone-$pair" 0 "$@")
  fi
  printf '%6s %12s %12s %14s\n' "$pair" "$alone" "$watched" "$cpu"
  echo "$alone $watched $cpu" >>"$folder/pairs"
done
python3 - "$folder/pairs" "$(nproc)" <<'PYTHON'
import statistics, sys
rows = [list(map(float, line.split())) for line in open(sys.argv[1])]
ratio = statistics.median(watched / alone for alone, watched, _ in rows)
share = statistics.median(cpu / watched for _, watched, cpu in rows)
print(f"watched / alone, median of pairs: {ratio:.3f}")
print(f"the page's CPU, of one core: {100 * share:.2f} %; of this machine's {sys.argv[2]}: {100 * share / int(sys.argv[2]):.2f} %")
PYTHON
