# shellcheck shell=sh
# Keeps the environment of the image for the task (contract/task-script.ts), as text for `sh`: it
# comes before every other line of the first script in the container, which sets variables of its
# own, perhaps of the same names. What the cluster and this service add is not kept. Where there is a
# text, perhaps an empty one, it stays.
[ "${ORRERY_IMAGE+kept}" ] || ORRERY_IMAGE=$(
  set -- KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT KUBERNETES_SERVICE_PORT_HTTPS KUBERNETES_PORT \
    KUBERNETES_PORT_443_TCP KUBERNETES_PORT_443_TCP_ADDR KUBERNETES_PORT_443_TCP_PORT \
    KUBERNETES_PORT_443_TCP_PROTO HOSTNAME JOB_COMPLETION_INDEX OLDPWD \
    ORRERY_IMAGE ORRERY_NODE ORRERY_POD ORRERY_SHELL
  unset "$@"
  # Variables that bash refuses to set: they stay in the environment as they are.
  # shellcheck disable=SC3045 # bash and busybox have it, and only bash needs it
  command export -n UID EUID PPID SHELLOPTS BASHOPTS 2> /dev/null
  echo "unset LC_ALL $*"
  export -p
)
# Linux starts no program with a variable of 128 KiB: a task without the text begins with nothing of
# the image.
[ "$(LC_ALL=C; echo "${#ORRERY_IMAGE}")" -le 100000 ] || ORRERY_IMAGE=
export ORRERY_IMAGE
