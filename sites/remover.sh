# remover.sh FOLDER [with-processes [SPAWNER]]
#
# Waits for the end of a folder's owner, then removes the folder with all mounts below it. A line on
# standard input means that the owner leaves in order; the line `clear` also ends the processes that
# are left. The end of the input without a line means that the owner was killed.
trap '' TERM INT HUP
folder=$1 processes=${2:-} spawner=${3:-}
read -r line

# Ends processes, given by a file or folder in /proc.
end() {
  for each in "$@"; do
    each=${each#/proc/}
    kill -KILL "${each%%/*}" 2>/dev/null
  done
}

unmount() {
  while read -r _ place _; do
    case $place in "$folder" | "$folder"/*) echo "$place" ;; esac
  done </proc/mounts | tac | while read -r place; do umount -l -- "$place" 2>/dev/null; done
}

if [ "$processes" = with-processes ] && { [ -z "$line" ] || [ "$line" = clear ]; }; then
  # These processes would start others, so they end first.
  if [ -n "$spawner" ]; then
    for each in $(grep -lsF -- "$folder" /proc/[0-9]*/environ); do
      ! grep -qsF -- "$spawner" "${each%environ}cmdline" || end "$each"
    done
  fi
  # Removers and leashes in the folder end with the same owner: they have ten seconds to remove
  # their own parts.
  [ "$line" = clear ] || sleep 10
  # A process may start another one between the search and its end.
  for _ in 1 2 3 4 5; do
    # Numbers without spaces, one word each.
    # shellcheck disable=SC2046
    end $(
      grep -lsF -- "$folder/" /proc/[0-9]*/cmdline /proc/[0-9]*/environ
      find /proc -mindepth 2 -maxdepth 2 -name cwd -lname "$folder/*" 2>/dev/null
    )
    sleep 0.1
  done
  unmount
fi
umount -l -- "$folder" 2>/dev/null
# Processes of a site end at the same moment as its owner, and engines unmount within seconds.
# Mounts that are left after ten seconds stay.
tries=0
until rm -rf -- "$folder" 2>/dev/null || [ "$tries" -ge 200 ]; do
  tries=$((tries + 1))
  sleep 0.1
  [ "$tries" -lt 100 ] || unmount
done
