#!/usr/bin/env bash
# Plants the mistakes of tests/scheduler/decide/mutants.txt in the sources of scheduler, one at a
# time, and asks whether the random driver sees each: first with the seed of the list, then with
# all of its seeds. Exit status 1: one is not seen.
#
#   scripts/decide_mutants.sh [WORD]     # those alone with WORD in the file's name or the description
#
# The compiler and the linker are called as the build calls them, with other paths, in
# build/decide_mutants. What is there afterwards is that of the mutants that went wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
word=${1:-}
list=tests/scheduler/decide/mutants.txt
work=$PWD/build/decide_mutants

cmake --preset release >/dev/null
cmake --build --preset release --target test_scheduler >/dev/null
rm -rf "$work"
mkdir -p "$work"
ninja -C build -t commands test_scheduler >"$work/commands"

# NUMBER/FILE, the mutated source; NUMBER/{name,room,seed}; NUMBER/all.cc, which includes all sources
# of the room and this one in the place of the true one.
perl -Iscripts - "$list" "$work" "$word" <<'PERL'
use strict;
use mutants;
my ($list, $work, $word) = @ARGV;
my @mutants = grep { index("$_->{file}: $_->{what}", $word) >= 0 }
  read_mutants($list, 'scheduler', 'seed');
die "no such mutant\n" unless @mutants;
for my $i (0 .. $#mutants) {
  my %mutant = %{$mutants[$i]};
  my ($room, $file) = $mutant{file} =~ m{^(\w+)/(\w+\.cc)$} or die "$list: $mutant{file}?\n";
  my $folder = sprintf '%s/%03d', $work, $i + 1;
  mkdir $folder or die "$folder: $!\n";
  spill("$folder/$file", $mutant{text});
  spill("$folder/name", "$mutant{file}: $mutant{what}");
  spill("$folder/room", $room);
  spill("$folder/seed", $mutant{seed});
  spill("$folder/all.cc", join '', map {
    my ($name) = m{([^/]+)$};
    '#include "' . ($name eq $file ? "$folder/$file" : $_) . qq{"\n} } glob("scheduler/$room/*.cc"));
}
PERL

# The test program with the room's mutated object before the archive that has the true ones: a linker
# takes from an archive only what is missing.
compile() {  # folder
  local folder=$1 room
  room=$(cat "$folder/room")
  perl -ne 'BEGIN { ($folder, $room) = splice @ARGV, 0, 2 }
    next unless m{/tailrace_scheduler_$room\.dir/\S+\.o -c } && !$done++;
    s{ -o \S+ -c \S+$}{ -o $folder/all.o -c $folder/all.cc};
    s{ -MF \S+}{ -MF $folder/all.d}; print' "$folder" "$room" "$work/commands" >"$folder/command"
  [[ -s $folder/command ]] || { echo "no command for the room" >"$folder/log"; return 1; }
  perl -ne 'BEGIN { ($folder) = splice @ARGV, 0, 1 }
    next unless s{^(.* )-o \S*/test_scheduler (.*?) && cd .*}
                 {$1$folder/all.o -o $folder/test $2 && :}; print' \
    "$folder" "$work/commands" >>"$folder/command"
  (cd build && bash -e "$folder/command") >"$folder/log" 2>&1
}

passes() {  # program, log, seed or nothing
  (ulimit -c 0; ulimit -t 600
   [[ -z ${3:-} ]] || export TAILRACE_SEED=$3
   exec timeout -k 1 3000 "$1" --gtest_filter='SchedulerRandom.*' --gtest_brief=1) >"$2" 2>&1
}

judge() {  # folder
  local folder=$1 seed verdict wrong="" seen
  seed=$(cat "$folder/seed")
  if ! compile "$folder"; then
    verdict="does not compile" wrong=WRONG
  elif [[ -n $seed ]] && ! passes "$folder/test" "$folder/log" "$seed" 2>/dev/null; then
    verdict="seen at seed $seed"
  elif ! passes "$folder/test" "$folder/log" 2>/dev/null; then
    # A run that crashes or hangs tells no seed.
    seen=$(sed -n 's/^TAILRACE_SEED=\([0-9]*\).*/\1/p' "$folder/log" | head -1)
    verdict="seen at seed ${seen:-?}${seed:+, not at $seed}"
  else
    verdict="not seen" wrong=WRONG
  fi
  printf '%s\n' "$verdict" >"$folder/verdict"
  printf '%-18s  %s  %s\n' "$verdict" "$(cat "$folder/name")" "$wrong"
  if [[ -n $wrong ]]; then
    touch "$folder/wrong"
  else
    rm -f "$folder"/test "$folder"/*.o
  fi
}

started=$SECONDS
# Else everything would be seen.
passes build/scheduler/decide/test_scheduler "$work/plain.log" ||
  { echo "the random driver fails without a mutant: $work/plain.log"; exit 1; }

for folder in "$work"/[0-9]*/; do
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
  judge "${folder%/}" &
done
wait

total=$(ls "$work"/[0-9]*/verdict | wc -l)
wrong=$(find "$work" -mindepth 2 -maxdepth 2 -name wrong | wc -l)
echo "$total mutants of the scheduler: $((total - wrong)) seen, wrong $wrong; $((SECONDS - started)) s"
exit $((wrong > 0))
