#!/bin/bash
# For TaskProlog= of slurm.conf: it runs as the user before each task, and lines
# "export NAME=value" become the task's environment. Jobs that say nothing else
# are named after their job, and write on the node's own disk.
[ -n "${CKPTSYNC_RUN:-}" ] || echo "export CKPTSYNC_RUN=${SLURM_JOB_NAME:-job-$SLURM_JOB_ID}"
[ -n "${CKPTSYNC_ROOT:-}" ] || echo "export CKPTSYNC_ROOT=/scratch/$SLURM_JOB_ID/out"
