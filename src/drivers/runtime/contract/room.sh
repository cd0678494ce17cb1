# Whether cgroups can be had for process `$1`, or else for itself: sets room, and removes its trial
# cgroups. After cgroups.sh.
LC_ALL=C PATH=/usr/bin:/bin
export LC_ALL PATH
# shellcheck disable=SC2034 # cgroups.sh reads them
owner=${1:-$$} room= share= lingering= alone=1 memories= ours=
linger
confine "probe-$owner"
[ -z "$room" ] || rmdir -- "$room/orrery.probe-$owner"
