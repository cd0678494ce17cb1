# The first contact with a site: makes its folders and its supervisor, and prints a line for each
# fact, `lacks TOOL` for a missing tool. ROOT: absolute, or nothing for a folder below the account's
# home. HASH names the supervisor's text, WRAPPER. MISSING: the code where that is impossible.
LC_ALL=C
export LC_ALL
umask 077
# shellcheck disable=SC2153 # two of them
root=$ROOT
if [ -z "$root" ]; then
  [ -n "$HOME" ] || { echo 'the account has no home directory; give workDirectory' >&2; exit "$MISSING"; }
  root=$HOME/.orrery
fi
for tool in setsid env find grep sed tr sleep xargs sha256sum tail head cp mv cat date; do
  command -v "$tool" > /dev/null || echo "lacks $tool"
done
[ -r /proc/self/stat ] || echo 'lacks /proc'
find / -maxdepth 0 -printf '' 2> /dev/null || echo 'lacks find -printf (GNU findutils)'
folder=$root/bin/$HASH
mkdir -p -- "$root/tasks" "$folder" || exit "$MISSING"
if ! [ -s "$folder/wrapper" ]; then
  printf '%s' "$WRAPPER" > "$folder/.wrapper.$$" && mv -f -- "$folder/.wrapper.$$" "$folder/wrapper" || exit "$MISSING"
fi
: >> "$root/ends"
cd -- "$root/tasks" || exit "$MISSING"
echo "root $(cd .. && pwd -P)"
read -r boot < /proc/sys/kernel/random/boot_id && echo "boot $boot"
read -r node < /proc/sys/kernel/hostname && echo "hostname $node"
# When the first process was started, in hundredths of a second since the kernel was.
# shellcheck disable=SC2086 # the fields of the line
{ read -r first < /proc/1/stat; } 2> /dev/null && set -f && set -- ${first##*") "} && set +f && shift 19 &&
  echo "first $1"
for time in /usr/bin/time /bin/time; do
  "$time" -f 'peak %M' -a -o /dev/null true 2> /dev/null && echo "measure $time" && break
done
env -i --default-signal=INT,QUIT true 2> /dev/null && echo 'signals --default-signal=INT,QUIT'
true
