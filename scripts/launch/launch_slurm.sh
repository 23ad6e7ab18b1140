#!/usr/bin/env bash
# Submits a command of tinygen as a Slurm job: a process a GPU, which find each other by JAX's own detection.
#
#   scripts/launch/launch_slurm.sh --nodes 2 --gpus 8 --time 12:00:00 -- train --config=dit_faces_80m --workdir=/shared/faces
#
# scripts/launch/launch_slurm.sh [options] -- train|check|sample|eval|eval-fid [flags]
#   --nodes N       machines (1)
#   --gpus G        GPUs a machine (1)
#   --tasks T       processes a machine (one a GPU)
#   --time LIMIT    as Slurm writes it (12:00:00), well over five minutes: five minutes before it the run saves and the job queues again
#   --partition P   where; by default the cluster's own choice
#   --name NAME     of the job (tinygen)
#   --setup TEXT    shell commands for the job to begin with, such as 'module load cuda'
#   --dry-run       print the job's script and leave
#
# All processes need the same --workdir on a shared disk. SIGTERM makes tinygen save and leave with status 143: at the time limit the
# job then requeues itself, when preempted Slurm requeues it, and after scancel nobody does. The log is runs/slurm/NAME-JOB.log.
# $TINYGEN names another executable than tinygen, such as .venv/bin/tinygen.
set -euo pipefail
# shellcheck source=scripts/launch/launching.sh
source "$(dirname "${BASH_SOURCE[0]}")/launching.sh"

nodes=1 gpus=1 tasks="" limit=12:00:00 partition="" name=tinygen setup="" dry=""
while [ $# -gt 0 ]; do
  used=1
  case $1 in
    -h | --help) usage && exit ;;
    --) shift && break ;;
    --dry-run) dry=1 ;;
    --nodes | --nodes=*) option "$@" && positive --nodes "$value" && nodes=$value ;;
    --gpus | --gpus=*) option "$@" && positive --gpus "$value" && gpus=$value ;;
    --tasks | --tasks=*) option "$@" && positive --tasks "$value" && tasks=$value ;;
    --time | --time=*) option "$@" && limit=$value ;;
    --partition | --partition=*) option "$@" && partition=$value ;;
    --name | --name=*) option "$@" && name=$value ;;
    --setup | --setup=*) option "$@" && setup=$value ;;
    *) refuse "unknown option '$1'; --help shows the options, tinygen's command and flags stand after --" ;;
  esac
  shift "$used"
done
flag=$(distributed_flag "$@")
[[ $limit =~ ^[0-9]+(-[0-9]+)?(:[0-9]+){0,2}$ ]] || refuse "--time must be as Slurm writes it: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS, not '$limit'"
[[ $name =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]*$ ]] || refuse "--name must be letters, digits, '_', '-' and '.', not '$name'"
[[ $partition =~ ^[A-Za-z0-9_.,-]*$ ]] || refuse "--partition must be the name of one, or names with commas, not '$partition'"

job() {
  cat <<EOF
#!/usr/bin/env bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=${tasks:-$gpus}
#SBATCH --gpus-per-node=$gpus
#SBATCH --time=$limit
${partition:+#SBATCH --partition=$partition
}#SBATCH --output=runs/slurm/%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@300
set -euo pipefail
trap : TERM # this shell waits for the processes, which get the signal themselves
${setup:+$setup
}
status=0
srun --label --kill-on-bad-exit=1 $(quoted "$tinygen" "$@" "$flag=auto") || status=\$?

# 143: saved after SIGTERM. Running still, the job was stopped by its time limit alone; one that is cancelled or preempted is not.
if [ "\$status" = 143 ] && [ "\$(squeue --noheader --jobs="\$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  scontrol requeue "\$SLURM_JOB_ID"
fi
exit "\$status"
EOF
}

if [ -n "$dry" ]; then
  job "$@"
  exit
fi
need sbatch "it comes with Slurm: run this on the cluster's login node"
mkdir -p runs/slurm # where it is missing, Slurm ends a job without a word
job "$@" | sbatch
