# `sweep NODE` removes Podman's containers on this host whose first process is gone. Normally their
# monitor does that. Where the monitor was killed, Podman takes them for alive and their mounts
# stay.
lives() {
  { read -r words < "/proc/$1/stat"; } 2> /dev/null || return
  case ${words##*") "} in [ZX]*) return 1 ;; esac
}

# The first time, Podman waits five seconds for a monitor that was killed, records the end and
# fails.
remove_podman() {
  podman rm -f "$1" || podman rm -f "$1"
} > /dev/null 2>&1

sweep() {
  podman ps --all --filter "label=orrery.node=$1" --format '{{.ID}} {{.Pid}}' 2> /dev/null | while read -r each pid; do
    [ "${pid:-0}" -eq 0 ] || lives "$pid" || remove_podman "$each"
  done
}
