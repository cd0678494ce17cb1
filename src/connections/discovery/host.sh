# shellcheck shell=sh
# Facts of the machine that a shell is on, behind the functions of engines.sh.
# Programs that may hang on a dead mount or device have 15 s.
export LC_ALL=C
within() { if command -v timeout >/dev/null 2>&1; then timeout 15 "$@"; else "$@"; fi; }
echo '@@ name'; uname -n
echo '@@ machine'; uname -m
echo '@@ system'; uname -sr
echo '@@ cores'; nproc 2>/dev/null || getconf _NPROCESSORS_ONLN
echo '@@ memory'; cat /proc/meminfo 2>/dev/null
echo '@@ load'; cat /proc/loadavg 2>/dev/null
echo '@@ gpus'; command -v nvidia-smi >/dev/null 2>&1 &&
  within nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits 2>/dev/null
echo '@@ engines'; engines
echo '@@ silent-engines'; silent_engines
echo '@@ mounts'; cat /proc/self/mounts 2>/dev/null
echo '@@ sizes'; within df -Pk 2>/dev/null
echo '@@ end'
