#!/usr/bin/env bash
# Runs tinygen on a Cloud TPU, one machine or a pod: makes it, installs this repository on all its workers, runs, follows, stops.
#
#   scripts/launch/launch_tpu.sh create  mine --zone us-central1-a --type v5litepod-16 --spot
#   scripts/launch/launch_tpu.sh install mine --zone us-central1-a
#   scripts/launch/launch_tpu.sh run     mine --zone us-central1-a -- train --config=dit_faces_80m --workdir=gs://BUCKET/faces
#   scripts/launch/launch_tpu.sh follow  mine --zone us-central1-a
#   scripts/launch/launch_tpu.sh stop    mine --zone us-central1-a
#   scripts/launch/launch_tpu.sh delete  mine --zone us-central1-a
#
# scripts/launch/launch_tpu.sh ACTION NAME --zone ZONE [options] [-- train|check|sample|eval|eval-fid [flags]]
#   --project P     the Google Cloud project; by default gcloud's own
#   --type TYPE     create: the accelerator (v5litepod-8)
#   --version V     create: the machines' software (v2-alpha-tpuv5-lite)
#   --spot          create: cheaper, and may be taken away at any time; the run saves when it gets SIGTERM
#   --python NAME   install: the workers' Python, 3.11 or newer (python3)
#   --dry-run       print the commands and leave
#
# install copies what is committed here. run starts the same command on every worker, in the background (scripts/launch/background.sh), so it
# outlives the connection; stop lets it save. A pod's workers share no disk: its --workdir must be a bucket, gs://BUCKET/FOLDER.
set -euo pipefail
# shellcheck source=scripts/launch/launching.sh
source "$(dirname "${BASH_SOURCE[0]}")/launching.sh"

action=${1-} name=${2-}
case $action in
  -h | --help) usage && exit ;;
  create | install | run | follow | stop | delete) ;;
  *) refuse "give create, install, run, follow, stop or delete, and the TPU's name; --help shows how" ;;
esac
[[ $name =~ ^[a-z][a-z0-9-]*$ ]] || refuse "'$name' is no name for a TPU: use small letters, digits and '-'"
shift 2

zone="" project="" type=v5litepod-8 version=v2-alpha-tpuv5-lite spot="" python=python3 dry=""
while [ $# -gt 0 ]; do
  used=1
  case $1 in
    --) shift && break ;;
    --dry-run) dry=1 ;;
    --spot) spot=1 ;;
    --zone | --zone=*) option "$@" && zone=$value ;;
    --project | --project=*) option "$@" && project=$value ;;
    --type | --type=*) option "$@" && type=$value ;;
    --version | --version=*) option "$@" && version=$value ;;
    --python | --python=*) option "$@" && python=$value ;;
    *) refuse "unknown option '$1'; --help shows the options, tinygen's command and flags stand after --" ;;
  esac
  shift "$used"
done
[ -n "$zone" ] || refuse "--zone is missing: the TPU's, for example --zone us-central1-a"
[ "$action" = run ] || [ $# = 0 ] || refuse "$action takes no command, only run does"
[ -n "$dry" ] || need gcloud "Google Cloud's command line: https://cloud.google.com/sdk/docs/install"

# Runs a command, or prints it.
act() {
  if [ -n "$dry" ]; then quoted "$@" && echo; else "$@"; fi
}

# gcloud's command for TPU machines, where they are.
tpu() {
  local verb=$1
  shift
  act gcloud compute tpus tpu-vm "$verb" "$@" "--zone=$zone" ${project:+"--project=$project"}
}

# Runs a shell command in the repository's copy on the workers $1.
on() {
  tpu ssh "$name" "--worker=$1" "--command=cd tinygen && $2"
}

create() {
  tpu create "$name" "--accelerator-type=$type" "--version=$version" ${spot:+--spot}
}

install() {
  local archive=tinygen.tar.gz extras="./[tpu,gcs]" root folder
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  folder=$(if [ -n "$dry" ]; then echo "${TMPDIR:-/tmp}"; else mktemp -d; fi)
  act git -C "$root" archive --format=tar.gz "--output=$folder/$archive" HEAD
  tpu scp "$folder/$archive" "$name:$archive" --worker=all
  tpu ssh "$name" --worker=all "--command=rm -rf tinygen/tinygen && mkdir -p tinygen && tar -xzf $archive -C tinygen"
  on all "$(quoted "$python") -m venv .venv && .venv/bin/pip install --constraint constraints.txt --editable '$extras'"
  [ -n "$dry" ] || rm -r "$folder"
}

run() {
  local flag
  flag=$(distributed_flag "$@")
  on all "scripts/launch/background.sh start run -- $(quoted .venv/bin/tinygen "$@" "$flag=auto")"
}

follow() {
  on 0 "scripts/launch/background.sh follow run"
}

stop() {
  on all "scripts/launch/background.sh stop run"
}

delete() {
  tpu delete "$name"
}

"$action" "$@"
