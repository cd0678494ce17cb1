# shellcheck shell=sh
# Removes the marks of the task NAME in ROOT, and with the last mark the arrived files; prints what
# it removed.
cd "$ROOT" 2>/dev/null || exit 0
for u in *.uses/"$NAME"; do
  [ -e "$u" ] || continue
  rm -f "$u"; d=${u%/*}; k=${d%.uses}
  if rmdir "$d" 2>/dev/null; then rm -f ".$k.manifest"; rm -rf "$k" ".$k.arriving"; echo "$k"; fi
done
