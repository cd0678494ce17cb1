# shellcheck shell=sh
# The script of an index's container, after image.sh. The text before it defines `choose INDEX`,
# which sets script (NAME.TOKEN) and, for a task that creates its own script and work directory,
# from, size and directory; and `supervise`, which calls `begin` with the command of the supervisor
# at the keeper.
# FOLDER: of the records. TOOLS: of the site's tools; LENT: whether there are any. PACK: the packed
# texts. PREPARES: with ORRERY_PREPARE it only creates the packed files and prints its findings.

cd "$FOLDER" || exit 97
# The image's own shell fits its own tools better; the site's shell prefers its own tools to all
# others.
shell=/bin/sh
if [ -n "$LENT" ]; then
  shell=$TOOLS/sh
  if [ -x /bin/sh ]; then
    [ -n "$ORRERY_SHELL" ] || ORRERY_SHELL=own exec /bin/sh "$0"
    shell=/bin/sh
  fi
fi
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$TOOLS
export PATH
# shellcheck disable=SC2034 # `unpack` reads size
script= size=
choose "$JOB_COMPLETION_INDEX"
[ -n "$script" ] || exit 0
name=${script%%.*}
[ -e "$name.verdict" ] && exit 0
unpack
if [ -n "$PREPARES" ] && [ -n "$ORRERY_PREPARE" ]; then
  echo "$script"
  exit 0
fi
{ echo "$ORRERY_POD $ORRERY_NODE" > "$name.place"; } 2> /dev/null

# begin SH WRAPPER MODE RECORDS VARIABLE OOM MEASURE SIGNALS WORD…: the three values of this
# container are read here.
begin() {
  wrapper=$2 mode=$3 records=$4 variable=$5
  shift 8
  measure= signals=
  for each in /usr/bin/time /bin/time; do
    [ -x "$each" ] && "$each" --version 2>&1 | grep -q GNU && measure=$each && break
  done
  env -i --default-signal=INT,QUIT true 2> /dev/null && signals=--default-signal=INT,QUIT
  # A numeric id may have no name in the image.
  user=$(id -un 2> /dev/null) || user=user
  case $user in '' | *[!A-Za-z0-9._-]*) user=user ;; esac
  signals="$signals USER=$user LOGNAME=$user"
  oom=$(grep '^oom_kill ' /proc/vmstat) || oom='oom_kill 0'
  exec "$shell" "$wrapper" "$mode" "$records" "$variable" "${oom#oom_kill }" "$measure" "$signals" "$@"
}
supervise
