#!/usr/bin/env bash
# Everything that a machine with a GPU is asked for, in one package and one command.
#
#   tests/gpu/run.sh build FOLDER            where there is Rust: builds the program into FOLDER
#   tests/gpu/run.sh pack FOLDER FILE        program, goldens, this script as FILE (.tar.xz, at most 16 MiB)
#   tar xf FILE && engraft-gpu/run.sh OUT    where there is a GPU; needs the driver, coreutils, awk and xz
#                                          (or: python3 -m tarfile -e FILE)
#
#   run.sh OUT [--backend NAME] [--parts 1,2,3] [--experiments FOLDER] [--bin FOLDER] [--work FOLDER] [--clean]
#
# OUT gets two files, up to date after every step: `table.txt` (at most 120 lines, a row as soon as a step ends)
# and `all.tar.gz` (each step's output). The work folder (one of the user's below TMPDIR unless --work names
# another) has outputs, compiled kernels and random weights (18 GB); parts may be run by several calls, which
# share it, and --clean takes it away. NAME is `cuda` (the default), `cuda:1`, or `cuda:soft`, which proves this
# script where there is no GPU (the CUDA lane runs it so, from its package).
#
# A part takes at most eight minutes, every step has a limit of its own. What fails loses itself alone. A wait
# for the device ends after WAIT_SECONDS with an error; what hangs, dies or loses the device is run again for a
# short while with every kernel waited for, so that its error names one. A wrong number is not: it is the same
# again.
#
# 1: doctor, a text in every mode, goldens, whole models and op conformance, then speed with and without
# dependent launch and graphs. 2: the experiments of a folder given by --experiments (its `run.sh`, which reads
# OUT). 3: a prompt of 8,192 in every mode, room for 131,072 positions, quantized weights at 64 rows, profilers
# where they are installed.
set -uo pipefail

PART_SECONDS=480
TABLE_LINES=120
WAIT_SECONDS=15
RERUN_SECONDS=30
PACKAGE_BYTES=${PACKAGE_BYTES:-$((16 << 20))}
GOLDENS=(llama gpt2 opt bert mixtral)
# Those that `models` opens besides.
WHOLE=(llama_gqa_llama3 opt_postln_proj)

fail() {
  echo "$*" >&2
  exit 2
}

build() {
  local to=$1 made file
  mkdir -p "$to"
  # What an earlier build left must not be packed after one that fails.
  rm -f "$to"/{gpu,libsoft_cuda.so}
  set -o pipefail
  made=$(
    {
      cargo build --profile gpu --message-format=json -p conformance --no-default-features --features gpu --bin gpu &&
        cargo build --profile gpu --message-format=json -p soft-cuda
    } | grep -o '"\(executable\|filenames\)":\("[^"]*"\|\[[^]]*\]\)' | grep -o '/[^",]*'
  ) || return 1
  for file in $made; do
    case "$(basename "$file")" in
      gpu | libsoft_cuda.so) cp "$file" "$to/" ;;
    esac
  done
  ls -l "$to"
}

pack() {
  local from=$1 to=$2 work golden bytes file
  work=$(mktemp -d)
  mkdir -p "$work/engraft-gpu/bin" "$work/engraft-gpu/tests/golden"
  for file in gpu libsoft_cuda.so; do
    cp -L "$from/$file" "$work/engraft-gpu/bin/" || fail "$from has no $file"
    strip "$work/engraft-gpu/bin/$file" 2>/dev/null
  done
  cp "$here/run.sh" "$work/engraft-gpu/"
  cp -r "$here/../expectations" "$work/engraft-gpu/tests/"
  for golden in "${GOLDENS[@]}" "${WHOLE[@]}"; do
    cp -r "$here/../golden/$golden" "$work/engraft-gpu/tests/golden/"
  done
  tar -C "$work" -c engraft-gpu | xz -T2 "-${XZ_PRESET:-6}" >"$to" || return 1
  rm -rf "$work"
  bytes=$(stat -c %s "$to")
  echo "$to: $bytes bytes"
  [ "$bytes" -le "$PACKAGE_BYTES" ] || fail "the package has $bytes bytes, at most $PACKAGE_BYTES"
}

here=$(cd "$(dirname "$0")" && pwd)
case "${1:-}" in
  build) build "${2:?a folder for the program}" && exit ;;
  pack) pack "${2:?the folder of the program}" "${3:?the package}" && exit ;;
  "" | -*) fail "usage: run.sh OUT [--backend NAME] [--parts 1,2,3] [--experiments FOLDER] [--bin FOLDER] [--work FOLDER] [--clean]" ;;
esac

mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
work=${TMPDIR:-/tmp}/engraft-gpu-$(id -u)
name=cuda parts=1,2,3 experiments='' bin=$here/bin clean=''
while [ $# -gt 0 ]; do
  if [ "$1" = --clean ]; then
    clean=yes
    shift
    continue
  fi
  case "$1" in
    --backend) name=${2:?a backend} ;;
    --parts) parts=${2:?parts} ;;
    --experiments) experiments=$(cd "${2:?a folder}" && pwd) ;;
    --bin) bin=$(cd "${2:?a folder}" && pwd) ;;
    --work) work=${2:?a folder} ;;
    *) fail "unknown option $1" ;;
  esac
  shift 2
done
mkdir -p "$work"/{raw,kernels}
work=$(cd "$work" && pwd)
export ENGRAFT_REQUIRE=$name
# Kernels of programs without a cache of their own are linked once. No adapters of Vulkan: `ops` would open
# all of them.
export CUDA_CACHE_PATH=$work/kernels/linked CUDA_CACHE_MAXSIZE=$((4 << 30)) VK_DRIVER_FILES=/nonexistent
export ENGRAFT_TESTS=${ENGRAFT_TESTS:-$(cd "$here" && { [ -d tests ] && cd tests || cd ..; } && pwd)}
soft=''
device=(--backend "${name%%:soft*}" --kernel-cache "$work/kernels")
if [ "${name%%:soft*}" != "$name" ]; then
  soft=yes
  device+=(--cuda-driver "$bin/libsoft_cuda.so")
else
  # Interpreted kernels may take longer than any hang.
  device+=(--wait-limit "$WAIT_SECONDS")
  export ENGRAFT_WAIT_LIMIT=$WAIT_SECONDS
fi

failed=0
row() {
  [ "$(wc -l <"$out/table.txt")" -lt "$TABLE_LINES" ] && printf '%s\n' "$*" >>"$out/table.txt"
  printf '%s\n' "$*"
}

# Figures of a step's output, on one line.
figures() {
  awk '
    /^loaded in/ { sub(/, peak memory.*/, ""); print }
    /^run [0-9]+ of / { runs[++batches] = $0 }
    /^batch / { heads = 1; next }
    heads && $1 ~ /^[0-9]+$/ { print "b" $1 ": prefill " $2 " t/s, decode " $6 " t/s, best " $7 ", " $8 " GB/s" }
    /^trial / { sub(/^trial +/, ""); print }
    /^test result|trials ran|passed, .* skipped/ { print }
    # A bench that was ended has no table, but said what it had measured.
    END { if (!heads) for (i = 1; i <= batches; i++) print runs[i] }
  ' "$1" | paste -sd ';' | cut -c1-360
}

archive() {
  tar -C "$work" -czf "$out/all.tar.gz" -C "$out" table.txt -C "$work" raw $([ -d "$work/experiments" ] && echo experiments)
}

# limited SECONDS FILE COMMAND...: in a session of its own. What a step leaves running ends with it: it would
# hold the device.
child=''
limited() {
  local seconds=$1 file=$2 status=0
  shift 2
  printf '$ %s\n' "$*" >"$file"
  setsid timeout -k 5 "$seconds" "$@" >>"$file" 2>&1 &
  child=$!
  # A builtin: signals to this script are heard at once.
  wait "$child" || status=$?
  end_session
  return "$status"
}
end_session() {
  local stat fields
  [ -n "$child" ] || return 0
  for stat in /proc/[0-9]*/stat; do
    # After the name: state, parent, group, session.
    read -r -a fields <<<"$(sed 's/.*) //' "$stat" 2>/dev/null)"
    [ "${fields[3]:-}" = "$child" ] && kill -KILL "$(basename "$(dirname "$stat")")" 2>/dev/null
  done
  child=''
}

# Whether a step hung, died, or lost the device.
faulty() {
  local status=$1 file=$2
  case "$status" in 124 | 13[0-9]) return 0 ;; esac
  grep -qiE 'device lost|CUDA_ERROR|no end of' "$file"
}

# step NAME SECONDS COMMAND...: within its limit and the part's.
step() {
  local step=$1 limit=$2 left status=0 begin=$SECONDS file=$work/raw/$part-$1.txt
  shift 2
  left=$((part_ends - SECONDS))
  if [ "$left" -le 0 ]; then
    row "$part $step: not run, the part's time is over"
    failed=1
    return
  fi
  [ "$limit" -le "$left" ] || limit=$left
  limited "$limit" "$file" "$@" || status=$?
  row "$part $step: status $status, $((SECONDS - begin)) s; $(figures "$file")"
  [ "$status" = 0 ] || rerun "$step" "$status" "$file" "$@" || failed=1
  archive
  return "$status"
}

# rerun NAME STATUS FILE COMMAND...: after a fault, with every kernel waited for. False: the step has failed.
rerun() {
  local step=$1 status=$2 file=$3 left=$((part_ends - SECONDS))
  shift 3
  [ "$1" = "$bin/gpu" ] && [ "$left" -gt 10 ] && faulty "$status" "$file" || return 1
  # Those take it from the environment.
  case "$2" in write-shape) return 1 ;; goldens | trials | models) ;; *) set -- "$@" --blocking ;; esac
  [ "$left" -lt "$RERUN_SECONDS" ] || left=$RERUN_SECONDS
  status=0
  ENGRAFT_BLOCKING=1 limited "$left" "${file%.txt}-blocking.txt" "$@" || status=$?
  row "$part $step, blocking: status $status; $(grep -m 1 -i 'error\|fault\|panicked' "${file%.txt}-blocking.txt" | cut -c1-240)"
  return 1
}

part() {
  part=$1 part_ends=$((SECONDS + PART_SECONDS))
}

# Random weights are written once and kept for all steps.
weights() {
  local shape=$1
  [ -d "$work/weights/$shape" ] && return
  # Under another name until they are whole: a killed step leaves half of them.
  rm -rf "$work/weights/$shape.part"
  step "write-$shape" 300 "$bin/gpu" write-shape --shape "$shape" --weights bf16 --out "$work/weights/$shape.part" &&
    mv "$work/weights/$shape.part" "$work/weights/$shape"
}

# bench NAME SHAPE SECONDS OPTIONS...
bench() {
  local bench=$1 shape=$2 limit=$3
  shift 3
  step "$bench" "$limit" "$bin/gpu" bench "${device[@]}" --model "$work/weights/$shape" --dtype bf16 "$@"
}

part_1() {
  local shape mode case batch context dtype
  # Keys and values of 256 sequences of 4,096, or of 64 of 32,768, leave no room for the large model.
  local cases=(1,8,64,256/128 1,8,64,256/4096 1,8/32768 64/8192) large_cases=(1,8,64,256/128 1,8,64/4096 1,8/32768)
  local small=llama-1b large=llama-8b tests=(cuda) goldens=("${GOLDENS[@]}") sizes=(--decode 64 --repeat 1)
  local models=()
  if [ -n "$soft" ]; then
    # The machine interprets every instruction: the steps are shown to run, on what is small.
    models=(every_slot_of_the_four_families_is_native)
    small=tiny large='' cases=(1/4) tests=(cuda-soft::rope) goldens=(llama) sizes=(--decode 2 --repeat 1)
  fi
  # Steps of 512 tokens would still read prompts of many sequences when the first of them ends.
  [ -n "$soft" ] || sizes+=(--max-step-tokens 8192)
  step doctor 60 "$bin/gpu" doctor "${device[@]}"
  for mode in reference invariant fast; do
    step "generate-$mode" 60 "$bin/gpu" generate "${device[@]}" --mode "$mode" --prompt "This package provides" \
      --max-new-tokens 16 --temperature 0
  done
  goldens=("${goldens[@]/#/$ENGRAFT_TESTS/golden/}")
  step goldens-reference 60 "$bin/gpu" goldens --backend "$name" --mode reference "${goldens[@]}"
  for dtype in bf16 f16; do
    for mode in invariant fast; do
      step "goldens-$dtype-$mode" 60 "$bin/gpu" goldens --backend "$name" --mode "$mode" --dtype "$dtype" --weights "$dtype" "${goldens[@]}"
    done
  done
  step models 90 "$bin/gpu" models --nocapture "${models[@]}"
  step ops 120 "$bin/gpu" trials "${tests[@]}"
  for shape in $small $large; do
    weights "$shape"
    [ "$shape" = "$large" ] && cases=("${large_cases[@]}")
    for case in "${cases[@]}"; do
      batch=${case%/*} context=${case#*/}
      bench "bench-$shape-$context" "$shape" 90 --batch "$batch" --context "$context" --prompt-tokens "$((context < 512 ? context : 512))" "${sizes[@]}"
    done
    for switch in --in-order --no-graphs; do
      bench "bench-$shape$switch" "$shape" 60 --batch "${cases[0]%/*}" --prompt-tokens "$((${cases[0]#*/}))" "${sizes[@]}" "$switch"
    done
  done
}

part_2() {
  if [ -z "$experiments" ]; then
    row "2: no --experiments"
    return
  fi
  mkdir -p "$work/experiments"
  OUT=$work/experiments KIT_TOTAL=$((PART_SECONDS - 30)) step experiments "$PART_SECONDS" bash "$experiments/run.sh"
}

part_3() {
  local shape=llama-1b prompt=8192 room=131072 rows=64 kernels mode check
  [ -n "$soft" ] && shape=tiny prompt=8 room=512 rows=2
  local sizes=(--decode 8 --repeat 1)
  weights "$shape"
  for mode in invariant fast; do
    bench "prefill-$prompt-$mode" "$shape" 60 --batch 1 --prompt-tokens "$prompt" --mode "$mode" "${sizes[@]}"
  done
  bench "prefill-$prompt-steps" "$shape" 60 --batch 1 --prompt-tokens "$prompt" --max-step-tokens 4096 "${sizes[@]}"
  bench "room-$room" "$shape" 90 --batch 1 --prompt-tokens 4 --max-context "$room" "${sizes[@]}"
  for format in int8 int4:64 w8a8; do
    bench "bench-${format%:*}-$rows" "$shape" 60 --batch "$rows" --prompt-tokens 4 --quantize "$format" "${sizes[@]}"
  done
  if command -v compute-sanitizer >/dev/null && [ -z "$soft" ]; then
    # A linker's refusal of a text, which the backend expects, is no error of a kernel.
    check=(compute-sanitizer --error-exitcode 1 --report-api-errors no)
    step sanitizer 120 "${check[@]}" "$bin/gpu" generate "${device[@]}" --prompt a --max-new-tokens 2
    # Attention and matmuls on tensor cores, by the kernels of the default mode and by Hopper's.
    for kernels in the_default_mode_attends_on_tensor_cores many_rows_take_the_kernels_of_hopper; do
      step "sanitizer-$kernels" 100 "${check[@]}" "$bin/gpu" models "$kernels"
    done
  fi
  if command -v ncu >/dev/null && [ -z "$soft" ]; then
    # Clocks stay as they are; the launches are those of decode steps, behind the warm-up's prompt.
    step ncu 120 ncu --clock-control none --set basic --launch-skip 300 --launch-count 134 "$bin/gpu" bench "${device[@]}" \
      --model "$work/weights/$shape" --dtype bf16 --batch 1 --prompt-tokens 64 --decode 4 --repeat 1 --no-graphs
    # Hopper's own kernels: the launches of a prompt's step.
    step ncu-fast 120 ncu --clock-control none --set basic --kernel-name 'regex:gemmw|flashw' --launch-count 32 "$bin/gpu" bench \
      "${device[@]}" --model "$work/weights/$shape" --dtype bf16 --mode fast --batch 1 --prompt-tokens 2048 --decode 1 --repeat 1
  fi
}

{
  date -u +%FT%TZ
  uname -srm
  grep -m 1 'model name' /proc/cpuinfo
  timeout 10 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>/dev/null
} >>"$out/table.txt"
# Also when the machine takes the script away in the middle of a step.
trap 'end_session; archive; exit 1' TERM INT
for number in ${parts//,/ }; do
  part "$number"
  "part_$number"
done
archive
[ -z "$clean" ] || rm -rf "$work"
echo "results: $out/table.txt, $out/all.tar.gz"
exit "$failed"
