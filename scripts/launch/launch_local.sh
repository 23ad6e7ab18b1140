#!/usr/bin/env bash
# Runs one command of tinygen as N processes on this machine: several-process training without a cluster.
#
#   scripts/launch/launch_local.sh 2 --devices 4 -- train --config=dit_digits:smoke --workdir=runs/two
#
# scripts/launch/launch_local.sh N [options] -- train|check|sample|eval|eval-fid [flags]
#   --devices D   each process has D fake CPU devices; otherwise what JAX finds
#   --port P      of the coordinator on 127.0.0.1; by default a free one
#   --logs DIR    a file a process, process-I.log; by default a new folder in runs/logs
#   --grace S     how long the others may take to end when one has failed, in seconds (60); then they are killed
#   --dry-run     print the commands and leave
#
# The output of process 0 is shown. When one fails, the others get SIGTERM, and the exit status is that of the first that failed.
# Ctrl-C and SIGTERM are passed on to all, which save and leave. $TINYGEN names another executable than tinygen.
set -euo pipefail
# shellcheck source=scripts/launch/launching.sh
source "$(dirname "${BASH_SOURCE[0]}")/launching.sh"

processes="" devices="" port="" logs="" grace=60 dry=""
while [ $# -gt 0 ]; do
  used=1
  case $1 in
    -h | --help) usage && exit ;;
    --) shift && break ;;
    --dry-run) dry=1 ;;
    --devices | --devices=*) option "$@" && positive --devices "$value" && devices=$value ;;
    --port | --port=*) option "$@" && positive --port "$value" && port=$value ;;
    --logs | --logs=*) option "$@" && logs=$value ;;
    --grace | --grace=*) option "$@" && positive --grace "$value" && grace=$value ;;
    -*) refuse "unknown option '$1'; --help shows the options, tinygen's own flags stand after --" ;;
    *) [ -z "$processes" ] || refuse "unexpected '$1'; tinygen's command and flags stand after --"
      positive "the number of processes" "$1" && processes=$1 ;;
  esac
  shift "$used"
done
[ -n "$processes" ] || refuse "how many processes? For example: ${0##*/} 2 -- train --config=dit_digits:smoke"
flag=$(distributed_flag "$@")

# Below the ports that systems give to outgoing connections, so that none of those takes it before the coordinator does.
free_port() {
  local candidate
  for _ in {1..50}; do
    candidate=$((20000 + RANDOM % 12000))
    (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null || { echo "$candidate" && return; }
  done
  refuse "no free port was found between 20000 and 32000: give one with --port"
}
[ -n "$port" ] || port=$(free_port)

# The words of process $1's command.
command_of() {
  words=("$tinygen" "${arguments[@]}" "$flag=127.0.0.1:$port,$processes,$1")
  [ -z "$devices" ] || words=(
    env JAX_PLATFORMS=cpu "XLA_FLAGS=${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=$devices" "${words[@]}"
  )
}
arguments=("$@")

if [ -n "$dry" ]; then
  for ((i = 0; i < processes; i++)); do command_of "$i" && quoted "${words[@]}" && echo; done
  exit
fi
command -v "$tinygen" >/dev/null || refuse "$tinygen is not there: install it (make setup; source .venv/bin/activate), or set TINYGEN"

logs=${logs:-runs/logs/$(date +%Y%m%d-%H%M%S)-$$}
mkdir -p "$logs" || refuse "--logs $logs cannot be made"
echo "$processes processes, 127.0.0.1:$port, logs in $logs" >&2

# Signals those of our processes that run, by the shell's own table: the pid of one that ended may be another's by now.
send() {
  local pid
  for pid in $(jobs -pr); do
    [ "$pid" = "$teller" ] || kill -s "$1" "$pid" 2>/dev/null || true
  done
}

teller="" passed_on=""
trap 'passed_on=1; send INT' INT
trap 'passed_on=1; send TERM' TERM HUP

# Shows and keeps what process 0 says.
pipe=$logs/.pipe-$$
mkfifo "$pipe"
set -m # children in process groups of their own: Ctrl-C reaches them only from here, once
tee "$logs/process-0.log" <"$pipe" &
teller=$!
exec 3>"$pipe"
rm "$pipe"
pids=()
for ((i = 0; i < processes; i++)); do
  [ -z "$passed_on" ] || break
  command_of "$i"
  if [ "$i" = 0 ]; then
    "${words[@]}" </dev/null >&3 2>&1 3>&- &
  else
    "${words[@]}" </dev/null >"$logs/process-$i.log" 2>&1 3>&- &
  fi
  pids+=("$!")
done
exec 3>&-
set +m

# The first that failed decides the status, and ends the others unless all were told to end anyway.
status=0 deadline="" left=" ${!pids[*]} "
while [ "$left" != " " ]; do
  alive=$(jobs -pr)
  for i in $left; do
    [[ $'\n'$alive$'\n' != *$'\n'"${pids[i]}"$'\n'* ]] || continue
    left=${left/ $i / }
    ended=0
    wait "${pids[i]}" 2>/dev/null || ended=$?
    if [ "$ended" != 0 ] && [ "$status" = 0 ]; then
      status=$ended
      echo "process $i ended with status $ended; its log: $logs/process-$i.log" >&2
      if [ -z "$passed_on" ] && [ "$left" != " " ]; then
        echo "ending the others" >&2
        send TERM
        deadline=$((SECONDS + grace))
      fi
    fi
  done
  if [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
    send KILL
  fi
  [ "$left" = " " ] || sleep 0.1 || true # Ctrl-C ends the sleep too
done
wait "$teller" || true
exit "$status"
