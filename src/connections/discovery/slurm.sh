# shellcheck shell=sh
# Prints what the controller knows of its cluster. A silent controller has 30 s for each query.
export LC_ALL=C
within() { if command -v timeout >/dev/null 2>&1; then timeout 30 "$@"; else "$@"; fi; }
ask() { echo "@@ $1"; shift; within "$@" 2>&1 || echo "@@ failed"; }
ask version sinfo --version
ask configuration scontrol show config
ask partitions scontrol --oneliner --all show partition
ask nodes scontrol --oneliner --all show node
ask queue squeue --noheader --all --format=%P/%t
echo '@@ end'
