#!/bin/bash
# For Epilog= of slurm.conf, which runs as root when a job has left the node,
# however it ended: one pass over what it left, so that a whole step that no
# daemon lived to commit is not lost with the disk. It is done as the job's user.
# An Epilog that fails drains the node, so this never does.
root=/scratch/$SLURM_JOB_ID/out
settings=/etc/ckptsync/epilog.yaml # store: and what else all jobs have in common
[ -d "$root" ] && [ -r "$settings" ] || exit 0
# Which run that was, the state directory says. Without one nobody restored here.
name=$(sed -n 's/.*"run": *"\([^"]*\)".*/\1/p' "$root.ckptsync/attempt.json" 2>/dev/null | head -n 1)
[ -n "$name" ] || exit 0
if timeout 300 runuser -u "$SLURM_JOB_USER" -- ckptsync push --config="$settings" --run="$name" --root="$root" >>"/var/log/ckptsync-epilog.log" 2>&1; then
  rm -rf -- "/scratch/${SLURM_JOB_ID:?}"
fi
exit 0
