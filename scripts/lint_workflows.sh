#!/usr/bin/env bash
# Reads .github/ as its linters do: yamllint for the form of the files, zizmor for rights and
# injections (offline), actionlint for the words of GitHub, and shellcheck for each `run:` of a job
# and for the scripts of the repository. A linter that is not installed is named and skipped.
#
#   apt-get install yamllint shellcheck
#   pip install zizmor
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0 ran=0

# lint NAME COMMAND...: NAME is the program that has to be here.
lint() {
  local name=$1
  shift
  if ! command -v "$name" >/dev/null; then
    echo "skipped: $name is not installed"
    return
  fi
  ran=$((ran + 1))
  if "$@"; then echo "passed: $name"; else failed=1; echo "FAILED: $name"; fi
}

# Debian's Python has the YAML that yamllint came with; another one may not.
python_with_yaml() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import yaml" 2>/dev/null; then echo "$python"; return; fi
  done
}

# Writes each `run:` of the workflows into a file of the folder $1, with an expression of GitHub as
# a word.
write_steps() {
  "$python" - "$1" <<'EOF'
import pathlib, re, sys, yaml

folder = pathlib.Path(sys.argv[1])
for workflow in sorted(pathlib.Path(".github/workflows").glob("*.y*ml")):
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    for job, parts in jobs.items():
        for number, step in enumerate(parts.get("steps", []), 1):
            if "run" in step:
                text = re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", step["run"])
                name = f"{workflow.stem}.{job}.step{number}.sh"
                (folder / name).write_text("#!/bin/bash\nset -eo pipefail\n" + text)
EOF
}

lint_shell() {
  local scripts
  mapfile -t scripts < <(git ls-files .ci "*.sh")
  shellcheck "$steps"/*.sh && shellcheck -S warning "${scripts[@]}"
}

lint yamllint yamllint --strict .github .yamllint.yml
lint zizmor zizmor --offline --quiet --no-progress .github/workflows
lint actionlint actionlint
python=$(python_with_yaml)
if [[ -z $python ]]; then
  echo "skipped: shellcheck needs a Python with PyYAML"
else
  steps=$(mktemp -d)
  trap 'rm -rf "$steps"' EXIT
  write_steps "$steps"
  lint shellcheck lint_shell
fi
((ran > 0)) || { echo "nothing was linted" >&2; exit 2; }
exit "$failed"
