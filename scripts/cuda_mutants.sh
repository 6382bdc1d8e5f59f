#!/usr/bin/env bash
# Plants the mistakes of tests/kernels/cuda/mutants.txt in the sources of the CUDA kernels, one at a
# time, and asks whether the tests of the emulated GPU see each: with the fast emulation in its two
# orders, then with the checked one, and no further than the first failure. A mutant that hangs is
# seen too. Exit status 1: one is not seen, or one is seen that the list says cannot be.
#
#   scripts/cuda_mutants.sh [WORD]     # those alone with WORD in the file's name or the description
#
# Compilers and linkers are called as a build calls them, with other paths, in build/mutants. What is
# there afterwards is that of the mutants that went wrong. The build is one that compiles each source
# alone (build/apart): an object of several would bring the true ones along. nvcc too compiles each
# alone there, which nothing else does.
set -euo pipefail
cd "$(dirname "$0")/.."
word=${1:-}
list=tests/kernels/cuda/mutants.txt
work=$PWD/build/mutants
export kMostSeconds=300  # of a test program's CPU time: a busy machine makes no test hang

cmake --preset release -B build/apart -DCMAKE_UNITY_BUILD=OFF >/dev/null
cmake --build build/apart --target tailrace_kernels_cuda test_cuda_emulated \
  test_cuda_checked >/dev/null
rm -rf "$work"
mkdir -p "$work"
ninja -C build/apart -t commands test_cuda_emulated test_cuda_checked >"$work/commands"
ninja -C build/apart -t deps >"$work/deps"

# NUMBER/kernels/cuda/FILE, the mutated source; NUMBER/{name,file,survives,sources}.
perl -Iscripts - "$list" "$work" "$word" <<'PERL'
use strict;
use mutants;
my ($list, $work, $word) = @ARGV;

my (%sources, $source);  # of a header or source: the sources whose objects it is in
for (split /\n/, slurp("$work/deps")) {
  $source = m{cuda_ops_emulated\.dir/(\S+)\.o:} ? $1 : undef if /^\S/;
  $sources{$1}{$source} = 1 if defined $source && m{^ .*kernels/cuda/([^/]+)$};
}
my @mutants = read_mutants($list, 'kernels/cuda', 'survives');
my %mutated = map { $_->{file} => 1 } @mutants;
for my $file (keys %mutated) { die "$list: $file is in no object\n" unless $sources{$file} }
for my $file (map { keys %$_ } values %sources) {
  die "$list: no mutant of $file\n" unless $mutated{$file};
}
@mutants = grep { index("$_->{file}: $_->{what}", $word) >= 0 } @mutants;
die "no such mutant\n" unless @mutants;
for my $i (0 .. $#mutants) {
  my %mutant = %{$mutants[$i]};
  my $folder = sprintf '%s/%03d', $work, $i + 1;
  system('mkdir', '-p', "$folder/kernels/cuda") == 0 or die;
  spill("$folder/kernels/cuda/$mutant{file}", $mutant{text});
  spill("$folder/name", "$mutant{file}: $mutant{what}");
  spill("$folder/$_", $mutant{$_}) for qw(file survives);
  spill("$folder/sources", join ' ', sort keys %{$sources{$mutant{file}}});
}
PERL

# The tests that see an op, for speed alone.
filter_of() {  # file
  case $1 in
    attention_backward*) echo 'CudaAttentionBackward.*' ;;
    attention.cuh) echo 'CudaAttention*:CudaSharedPrefix.*' ;;
    attention*) echo 'CudaAttention.*:CudaSharedPrefix.*' ;;
    cache_qkv*) echo 'CudaCacheQkv.*' ;;
    kv_copy*) echo 'CudaKvCopy.*' ;;
    gemm_grad* | linear_backward* | groups* | product*) echo 'CudaLinear*:CudaGroup*' ;;
    gemm_f32*) echo 'CudaLinear*' ;;
    gemm*) echo 'CudaLinear.Bf16*:CudaGroup*' ;;
    linear*) echo 'CudaLinear.Float32*:CudaLinear.Pack*' ;;
    sequences*) echo 'CudaCacheQkv.*:CudaAttention*:CudaRoute*' ;;
    rope*) echo 'CudaRope.*' ;;
    log_softmax*) echo '*Log*:CudaSample.*' ;;
    sample*) echo 'CudaSample.*' ;;
    rms_norm*) echo '*RmsNorm*' ;;
    swiglu*) echo '*Swiglu*' ;;
    embedding_backward*) echo '*EmbeddingBackward*:*ScatterRows*' ;;
    end_drawn*) echo '*DrawnTokensEnd*' ;;
    embedding*) echo '*RowsAreTaken*' ;;
    elementwise*) echo 'CudaElementwise.*' ;;
    adamw*) echo 'CudaOptimizer.*' ;;
    rows*) echo 'CudaRows.*:CudaSample.*' ;;
    *) echo '*' ;;
  esac
}

# The test program of a kind with a mutant's objects before the archive that has the true ones: a
# linker takes from an archive only what is missing.
compile() {  # kind, folder
  local kind=$1 folder=$2 source from objects=()
  for source in $(cat "$folder/sources"); do
    from=$PWD/kernels/cuda/$source
    [[ -e $folder/kernels/cuda/$source ]] && from=$folder/kernels/cuda/$source
    perl -ne 'BEGIN { ($kind, $source, $from, $folder) = splice @ARGV, 0, 4 }
      next unless m{ -c \S*/kernels/cuda/\Q$source\E$} && m{/cuda_ops_$kind\.dir/};
      s{ -o \S+ -c \S+$}{ -o $folder/$source.$kind.o -c $from};
      s{ -MF \S+}{ -MF $folder/$source.d};
      s{ -I}{ -I$folder -I}; print' \
      "$kind" "$source" "$from" "$folder" "$work/commands" >"$folder/command"
    [[ -s $folder/command ]] || { echo "no command for $source" >"$folder/log"; return 1; }
    (cd build/apart && bash "$folder/command") >"$folder/log" 2>&1 || return 1
    objects+=("$folder/$source.$kind.o")
  done
  perl -ne 'BEGIN { ($kind, $objects, $folder) = splice @ARGV, 0, 3 }
    next unless s{^(.* )-o \S*/test_cuda_$kind (.*?) && cd .*}
                 {$1$objects -o $folder/test_$kind $2 && :}; print' \
    "$kind" "${objects[*]}" "$folder" "$work/commands" >"$folder/command"
  (cd build/apart && bash "$folder/command") >"$folder/log" 2>&1
}

passes() {  # program, filter, order, log
  (ulimit -c 0; ulimit -t $kMostSeconds
   EMU_ORDER=$3 exec timeout -k 1 $((10 * kMostSeconds)) \
     "$1" --gtest_filter="$2" --gtest_fail_fast --gtest_brief=1) >"$4" 2>&1
}

try() {  # folder; writes `verdict`
  local folder=$1 kind order status file
  file=$(cat "$folder/file")
  for kind in emulated checked; do
    compile $kind "$folder" || { echo "does not compile" >"$folder/verdict"; return; }
    for order in forward reverse; do
      status=0
      passes "$folder/test_$kind" "$(filter_of "$file")" $order "$folder/log" 2>/dev/null ||
        status=$?
      case $status in
        0) ;;
        124 | 137 | 152) echo "seen $kind $order, by time" >"$folder/verdict"; return ;;
        *) echo "seen $kind $order" >"$folder/verdict"; return ;;
      esac
    done
  done
  echo "not seen" >"$folder/verdict"
}

judge() {  # folder
  local folder=$1 verdict survives wrong=""
  try "$folder"
  verdict=$(cat "$folder/verdict")
  survives=$(cat "$folder/survives")
  case $verdict in
    seen*) [[ -z $survives ]] || wrong="WRONG: the list says: $survives" ;;
    not*) [[ -n $survives ]] && verdict="not seen: $survives" || wrong="WRONG" ;;
    *) wrong="WRONG" ;;
  esac
  printf '%-26s  %s  %s\n' "${verdict%%:*}" "$(cat "$folder/name")" "$wrong"
  if [[ -n $wrong ]]; then
    touch "$folder/wrong"
  else
    rm -rf "$folder"/test_* "$folder"/*.o "$folder/kernels"
  fi
}

started=$SECONDS
# Else everything would be seen.
for kind in emulated checked; do
  for order in forward reverse; do
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
    (passes "build/apart/kernels/cuda/test_cuda_$kind" '*' $order "$work/$kind-$order.log" ||
      touch "$work/broken-$kind-$order") &
  done
done
wait
if compgen -G "$work/broken-*" >/dev/null; then
  echo "the tests fail without a mutant: $work/*.log"
  exit 1
fi

for folder in "$work"/[0-9]*/; do
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
  judge "${folder%/}" &
done
wait

count() { cat "$work"/[0-9]*/verdict | grep -c "$1" || true; }
total=$(ls "$work"/[0-9]*/verdict | wc -l)
wrong=$(find "$work" -mindepth 2 -maxdepth 2 -name wrong | wc -l)
echo "$total mutants: seen by the fast emulation $(count '^seen emulated forward'), reversed" \
  "$(count '^seen emulated reverse'); checked $(count '^seen checked forward'), reversed" \
  "$(count '^seen checked reverse'); not seen $(count '^not seen'); wrong $wrong;" \
  "$((SECONDS - started)) s"
exit $((wrong > 0))
