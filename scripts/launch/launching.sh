# shellcheck shell=bash
# What the launchers share: their help, their refusals, commands as one can paste them. Sourced, not run.
# shellcheck disable=SC2034 # the scripts that source this read its variables

tinygen=${TINYGEN:-tinygen}

# Prints the comment at the top of the script.
usage() {
  sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
}

# Says what is wrong and what to do, and leaves with the status of a user's mistake.
refuse() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 2
}

# Prints words as a shell reads them back.
quoted() {
  local word separator="" apostrophe="'\"'\"'"
  for word in "$@"; do
    case $word in
      "" | *[!A-Za-z0-9_@%+=:,./-]*) printf "%s'%s'" "$separator" "${word//\'/$apostrophe}" ;;
      *) printf '%s%s' "$separator" "$word" ;;
    esac
    separator=" "
  done
}

# Sets `value` to what an option is given, as `--name value` or `--name=value`, and `used` to the number of words that took.
option() {
  case $1 in
    *=*) value=${1#*=} used=1 ;;
    *)
      [ $# -ge 2 ] && [ "$2" != -- ] || refuse "$1 needs a value; --help shows the options"
      value=$2 used=2
      ;;
  esac
  [ -n "$value" ] || refuse "${1%%=*} needs a value; --help shows the options"
}

# A whole number above 0, for the option $1.
positive() {
  [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || refuse "$1 must be a whole number above 0, not '$2'"
}

# Prints the flag by which a command of tinygen learns of the other processes.
distributed_flag() {
  case ${1-} in
    train | check) echo --config.distributed ;;
    sample | eval | eval-fid) echo --distributed ;;
    "") refuse "no command: give it after --, for example -- train --config=dit_digits" ;;
    *) refuse "'$1' does not run in several processes: give train, check, sample, eval or eval-fid after --" ;;
  esac
}

# Ends with a clear message where a program is missing.
need() {
  command -v "$1" >/dev/null || refuse "$1 is not installed here ($2). --dry-run prints the commands without it"
}
