# shellcheck shell=sh
# The run SCOPE uses no file in ROOT any more. Whole files stay for the next run; what began to
# arrive and no open run waits for goes, once the lock of a transfer that is being given up is free.
cd "$ROOT/uses" 2>/dev/null || exit 0
for mark in */"$SCOPE"; do
  [ -f "$mark" ] || continue
  rm -f -- "$mark"
  name=${mark%/*} hex=${mark%%.*}
  set -- "../arriving/.$hex".*
  [ -e "$1" ] || [ -e "../arriving/$hex" ] || continue
  (
    flock -w 30 9 || exit 0
    [ -z "$(find "$name" -type f -mtime -30 -print -quit)" ] || exit 0
    rm -rf -- "../arriving/.$hex".* "../arriving/$hex"
  ) 9>> "../locks/$hex"
done
