#!/usr/bin/env bash
# Runs a command in the background, where it outlives the terminal; follows and stops it by its recorded pid.
#
#   scripts/launch/background.sh start digits -- tinygen train --config=dit_digits
#   scripts/launch/background.sh follow digits
#   scripts/launch/background.sh stop digits
#
# scripts/launch/background.sh start NAME [--dry-run] -- COMMAND [ARGUMENTS]
#   follow NAME          show its log from its start until it ends; Ctrl-C leaves it running
#   status NAME          exit status 0 if it runs, 1 if it has ended
#   stop NAME [--kill]   send it SIGTERM and wait: tinygen saves and leaves. --kill: SIGKILL if it still runs after --grace S (30)
#
# The pid is kept with the process's start time, so a process that was given the same pid later is never taken for it.
# Records and logs are in $TINYGEN_BACKGROUND (runs/background).
set -euo pipefail
# shellcheck source=scripts/launch/launching.sh
source "$(dirname "${BASH_SOURCE[0]}")/launching.sh"

action=${1-} name=${2-}
case $action in
  -h | --help) usage && exit ;;
  start | follow | status | stop) ;;
  *) refuse "give start, follow, status or stop, and a name; --help shows how" ;;
esac
[[ $name =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]*$ ]] || refuse "'$name' is no name for a run: use letters, digits, '_', '-' and '.'"
shift 2
[ "$action" = stop ] || [ "$action" = start ] || [ $# = 0 ] || refuse "$action takes a name alone, not '$1'"

folder=${TINYGEN_BACKGROUND:-runs/background}
record=$folder/$name.pid log=$folder/$name.log

# Prints when process $1 started, in the system's own terms; nothing if it does not run or is a zombie.
started() {
  local text fields
  if [ -r /proc/self/stat ]; then
    text=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    read -ra fields <<<"${text##*) }" # what follows the program's name, which may hold anything
    [ "${fields[0]}" = Z ] || echo "${fields[19]}"
  else
    text=$(LC_ALL=C ps -o state=,lstart= -p "$1" 2>/dev/null) || return 0
    case $text in Z*) ;; *) echo "${text#* }" ;; esac
  fi
}

# Reads what was recorded: pid, start time, the log's length at the start.
recall() {
  [ -r "$record" ] || refuse "$name was not started from here: there is no $record"
  { read -r pid && read -r since && read -r offset; } <"$record" || true
  [[ ${pid-} =~ ^[1-9][0-9]*$ && -n ${since-} && ${offset-} =~ ^[0-9]+$ ]] || refuse "$record is damaged: find the process yourself"
}

runs() {
  [ "$(started "$pid")" = "$since" ]
}

start() {
  local dry="" detach=(nohup)
  if [ "${1-}" = --dry-run ]; then dry=1 && shift; fi
  [ "${1-}" = -- ] || refuse "give the command after --: ${0##*/} start $name -- tinygen train --config=..."
  shift
  [ $# -gt 0 ] || refuse "no command after --"
  command -v setsid >/dev/null && detach=(setsid nohup) # macOS has none
  if [ -n "$dry" ]; then
    echo "$(quoted "${detach[@]}" "$@") </dev/null >>$(quoted "$log") 2>&1 &"
    exit
  fi
  command -v "$1" >/dev/null || refuse "$1 is not there, or cannot be run"
  mkdir -p "$folder" || refuse "$folder cannot be made"
  # Only one of two that start the same name at once makes this folder.
  mkdir "$record.starting" 2>/dev/null || refuse "$name is being started by another process; if none is, remove $record.starting"
  trap 'rmdir "$record.starting"' EXIT
  if [ -e "$record" ]; then
    recall
    if runs; then refuse "$name runs already (pid $pid): stop it first, or give another name"; fi
  fi
  touch "$log" || refuse "$log cannot be written"
  offset=$(wc -c <"$log")
  "${detach[@]}" "$@" </dev/null >>"$log" 2>&1 &
  pid=$!
  since=$(started "$pid")
  printf '%s\n' "$pid" "${since:-ended at once}" "$((offset))" >"$record"
  echo "$name: started, pid $pid, log $log"
}

follow() {
  recall
  local ended=""
  exec 3<"$log"
  tail -c "+$((offset + 1))" <&3
  until [ -n "$ended" ]; do
    runs || ended=1 # asked before the rest is read, so that nothing of it is missed
    cat <&3
    [ -n "$ended" ] || sleep 0.2
  done
  echo "$name: ended, log $log" >&2
}

status() {
  recall
  runs || { echo "$name: not running (it was pid $pid), log $log" && exit 1; }
  echo "$name: running, pid $pid, log $log"
}

stop() {
  local deadline="" grace=30 kill="" used
  while [ $# -gt 0 ]; do
    used=1
    case $1 in
      --kill) kill=1 ;;
      --grace | --grace=*) option "$@" && positive --grace "$value" && grace=$value ;;
      *) refuse "stop takes a name, --kill and --grace, not '$1'" ;;
    esac
    shift "$used"
  done
  recall
  runs || { echo "$name: not running (it was pid $pid): nothing was signalled" && return; }
  kill -s TERM "$pid" || refuse "pid $pid could not be signalled"
  echo "$name: SIGTERM sent to pid $pid; waiting for it to save and end"
  [ -z "$kill" ] || deadline=$((SECONDS + grace))
  while runs; do
    if [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
      kill -s KILL "$pid" 2>/dev/null || true
      echo "$name: still there after $grace s: SIGKILL sent to pid $pid"
      deadline=""
    fi
    sleep 0.2
  done
  echo "$name: ended"
}

"$action" "$@"
