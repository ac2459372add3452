#!/usr/bin/env bash
# `make demo`: the whole path on this machine. It starts `heteroflow dev` with simulated cards of every brand, runs
# the example jobs, streams a chat completion through the gateway, shows what runs where and who used what, and stays
# up until Ctrl-C. DEMO_EXIT=1 ends it at once. Nothing is left running; run it again as often as you like.
set -uo pipefail
cd "$(dirname "$0")/.."

hf=$PWD/bin/heteroflow
data=$PWD/.demo
addr=127.0.0.1:${DEMO_PORT:-3333}
gateway=127.0.0.1:${DEMO_GATEWAY_PORT:-8080}
export HETEROFLOW_ADDR=http://$addr NOMAD_ADDR=http://$addr
export HETEROFLOW_TOKEN= NOMAD_TOKEN=

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

dev=
finish() {
  trap '' INT TERM HUP
  if [ -n "$dev" ] && kill -0 "$dev" 2>/dev/null; then
    say "stopping"
    kill -INT "$dev" 2>/dev/null
    wait "$dev" 2>/dev/null
  fi
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

command -v node >/dev/null || die "node is not on PATH: the chat needs Node 20 or later"

# Containers where a Docker daemon answers, plain processes otherwise.
jobvars=()
if docker=$(command -v docker) && "$docker" version >/dev/null 2>&1; then
  say "a Docker daemon answers: the examples run in containers"
  static=$(mktemp -d)
  CGO_ENABLED=0 go build -o "$static/heteroflow-sim-inference" ./cmd/heteroflow-sim-inference || die "the simulated engine was not built"
  for tag in dev nvidia ascend; do
    tar -C "$static" -c heteroflow-sim-inference | "$docker" import - "heteroflow/sim-inference:$tag" >/dev/null || die "the image was not made"
  done
  rm -rf "$static"
  containers=1
else
  say "no Docker daemon answers: the examples run as plain processes"
  jobvars=(-var runtime=process -var "command=$PWD/bin/heteroflow-sim-inference")
  containers=
fi

say "starting: heteroflow dev, with simulated cards of every brand"
mkdir -p "$data"
"$hf" dev -data-dir "$data" -addr "$addr" -gateway-addr "$gateway" -process >"$data/dev.log" 2>&1 &
dev=$!
for i in $(seq 1 120); do
  kill -0 "$dev" 2>/dev/null || { cat "$data/dev.log"; die "heteroflow dev ended; its log is above. Other ports: DEMO_PORT=3334 DEMO_GATEWAY_PORT=8081 make demo"; }
  "$hf" gpus >/dev/null 2>&1 && [ "$("$hf" gpus -json | grep -c '"uuid"')" -ge 8 ] && break
  sleep 0.5
  [ "$i" -lt 120 ] || { tail -n 20 "$data/dev.log"; die "no cards were seen within a minute"; }
done
sed -n '/./p' "$data/dev.log" | head -n 12

say "what is free now"
run "$hf" gpus

# Cards begin whole: the first share waits some moments for one to be opened for shares, and says so.
say "a shared inference service, a batch job on a whole card, and a plain process"
submit() { run "$hf" job run -wait 60s "$@"; local code=$?; [ "$code" -eq 0 ] || [ "$code" -eq 2 ] || die "the job was refused"; }
submit ${jobvars[@]+"${jobvars[@]}"} jobspecs/shared-inference.nomad.hcl
submit ${jobvars[@]+"${jobvars[@]}"} jobspecs/whole-card-batch.nomad.hcl
submit jobspecs/process.nomad.hcl
[ -z "$containers" ] || submit jobspecs/two-brand-service.nomad.hcl

say "a streamed chat completion through the gateway"
run node jobspecs/chat.mjs "http://$gateway/v1" sim-7b "What runs here?" || die "the gateway did not answer; see $data/dev.log"

say "what runs where"
run "$hf" job status
run "$hf" gpus
say "why it runs there"
run "$hf" explain sim-llm
say "who used what"
sleep 1 # usage is written in batches
run "$hf" usage

again=$(printf '%q ' "$hf" job run ${jobvars[@]+"${jobvars[@]}"} jobspecs/shared-inference.nomad.hcl)
where="in another terminal, in $PWD"
[ "${DEMO_EXIT:-}" != 1 ] || where="with make demo running, without DEMO_EXIT, in another terminal in $PWD"
cat <<TEXT

Try next, $where:
  export HETEROFLOW_ADDR=http://$addr NOMAD_ADDR=http://$addr
  $hf job status sim-llm        # or, with the Nomad CLI: nomad job status sim-llm
  $hf job logs sim-llm
  node jobspecs/chat.mjs http://$gateway/v1 sim-7b "hello"
  $again  # the same again: nothing restarts
  $hf job stop sim-llm
  $hf doctor
All of this is simulated: no card is used and no model runs. docs/jobs.md says what to write for real cards.
TEXT

if [ "${DEMO_EXIT:-}" = 1 ]; then
  exit 0
fi
printf '\nIt stays up; Ctrl-C ends it.\n'
wait "$dev"
