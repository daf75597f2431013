#!/usr/bin/env bash
# Everything that a machine with a GPU is asked for, from prebuilt binaries: conformance, goldens, bench.
#
#   tests/gpu/run.sh build FOLDER    where there is Rust: builds the binaries into FOLDER
#   tests/gpu/run.sh FOLDER [NAME]   where there is a GPU: runs them, writes bench/runs/<date>-<machine>/
#
# NAME is the backend: `cuda` (the default), `cuda:1`, or `cuda:soft`, which proves this script where there is no GPU
# (the CUDA lane runs it so). ENGRAFT_RUNS is another folder than bench/runs. The programs read goldens and expectations
# from `tests` below the folder that they are started in, which is this checkout's root (ENGRAFT_TESTS: elsewhere).
# Needs nothing but the driver. Each part leaves its output, its exit status and its time, whatever the others did.
set -uo pipefail
cd "$(dirname "$0")/../.."

build() {
  local to=$1
  mkdir -p "$to"
  local made
  made=$(
    {
      cargo test --profile gpu --no-run --message-format=json -p conformance --test ops --test cuda
      cargo build --profile gpu --message-format=json -p conformance --bin goldens
      cargo build --profile gpu --message-format=json -p engraft-cli --features cuda
      cargo build --profile gpu --message-format=json -p soft-cuda
    } | grep -o '"\(executable\|filenames\)":\("[^"]*"\|\[[^]]*\]\)' | grep -o '/[^",]*'
  ) || return 1
  local file
  for file in $made; do
    case "$(basename "$file")" in
      ops-*) cp "$file" "$to/ops" ;;
      cuda-*) cp "$file" "$to/models" ;;
      goldens | engraft | libsoft_cuda.so) cp "$file" "$to/" ;;
    esac
  done
  ls -l "$to"
}

if [ "${1:-}" = build ]; then
  build "${2:?a folder to put binaries into}"
  exit
fi

bin=$(cd "${1:?the folder of the binaries}" && pwd)
name=${2:-cuda}
driver=()
machine=$( (nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || echo gpu) | head -n 1 | tr ' /' '--' | tr '[:upper:]' '[:lower:]')
if [ "${name%%:soft*}" != "$name" ]; then
  machine=soft-cuda
  driver=(--cuda-driver "$bin/libsoft_cuda.so")
fi
out=${ENGRAFT_RUNS:-bench/runs}/$(date +%F)-$machine
mkdir -p "$out"
{
  date -u +%FT%TZ
  git rev-parse HEAD 2>/dev/null
  uname -srm
  grep -m 1 'model name' /proc/cpuinfo
  nvidia-smi 2>/dev/null
} >"$out/machine.txt"

failed=0
part() {
  local part=$1 start=$SECONDS status=0
  shift
  printf '%s ... ' "$part"
  printf '$ %s\n' "$*" | sed "s|$bin/||g" >"$out/$part.txt"
  "$@" >>"$out/$part.txt" 2>&1 || status=$?
  printf '\nexit status %s, %s s\n' "$status" "$((SECONDS - start))" >>"$out/$part.txt"
  printf 'exit status %s, %s s\n' "$status" "$((SECONDS - start))"
  [ "$status" = 0 ] || failed=1
}

export ENGRAFT_REQUIRE=$name
backend=${name%%:soft*}
golden=(tests/golden)
shape=llama-1b
bench=(--batch 1,8,64 --prompt 512 --decode 128)
if [ "$machine" = soft-cuda ]; then
  # The machine interprets every instruction: the parts are shown to run, on what is small.
  golden=(tests/golden/llama tests/golden/bert)
  shape=tiny
  bench=(--batch 1 --prompt 4 --decode 2 --repeat 1)
fi
tests=(cuda)
[ "$machine" = soft-cuda ] && tests=(cuda-soft::norm)
part conformance "$bin/ops" "${tests[@]}"
[ "$machine" = soft-cuda ] || part models "$bin/models" --nocapture
part goldens-reference "$bin/goldens" --backend "$name" --mode reference "${golden[@]}"
part goldens-invariant "$bin/goldens" --backend "$name" --mode invariant "${golden[@]}"
for dtype in bf16 f16; do
  part "goldens-$dtype" "$bin/goldens" --backend "$name" --mode invariant --dtype "$dtype" --weights "$dtype" \
    "${golden[@]}"
done
part doctor "$bin/engraft" doctor
part generate "$bin/engraft" generate --backend "$backend" "${driver[@]}" --prompt "This package provides" \
  --max-new-tokens 16 --seed 1
part "bench-$shape" "$bin/engraft" bench --backend "$backend" "${driver[@]}" --shape "$shape" --weights bf16 \
  --dtype bf16 "${bench[@]}"
part "bench-$shape-fast" "$bin/engraft" bench --backend "$backend" "${driver[@]}" --mode fast --shape "$shape" \
  --weights bf16 --dtype bf16 "${bench[@]}"
for format in int8 int4:64 w8a8; do
  part "bench-$shape-${format%:*}" "$bin/engraft" bench --backend "$backend" "${driver[@]}" --shape "$shape" \
    --weights bf16 --quantize "$format" --dtype bf16 "${bench[@]}"
done
[ "$machine" = soft-cuda ] || part bench-llama-8b "$bin/engraft" bench --backend "$backend" --shape llama-8b \
  --weights bf16 --dtype bf16 "${bench[@]}"
echo "results: $out"
exit "$failed"
