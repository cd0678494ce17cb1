# The records of NAME…, a line each: `NAME.task:LINE`, `claimed NAME` for one that has none yet,
# `cancel NAME` where a cancel was requested, `lost NAME` where the task was given up.
records() {
  for each; do
    if [ -e "$each.task" ]; then
      [ -s "$each.task" ] || echo "claimed $each"
      [ -e "$each.cancel" ] && echo "cancel $each"
      [ -e "$each.lost" ] && echo "lost $each"
      set -- "$@" "$each.task"
    fi
    shift
  done
  [ $# -eq 0 ] || grep -sH '' "$@"
}
