# shellcheck shell=sh
# Marks that the run SCOPE uses the file NAME in ROOT, and prints `there` where it is whole: of SIZE
# bytes with the SHA-256 HEX. Otherwise it removes what is there, then the files that were used
# longest ago and that no open run uses, until SIZE more bytes fit into LIMIT, and prints `absent`.
# A mark is void after 30 days: its run was ended without this site.
# shellcheck disable=SC2153 # The parameters are assigned before.
export LC_ALL=C; umask 077
mkdir -p "$ROOT/uses/$NAME" "$ROOT/arriving" && cd "$ROOT" && : > "uses/$NAME/$SCOPE" || exit 1
if [ -f "$NAME" ]; then
  sum=
  [ "$(wc -c < "$NAME")" -ne "$SIZE" ] || { choose_sum; sum=$(sum < "$NAME"); }
  if [ "${sum%% *}" = "$HEX" ]; then touch -c "$NAME"; echo there; exit 0; fi
  rm -f "$NAME"; echo altered
fi
exec 8>> .lock && flock 8 || exit 1
# Newest last; names are digests, so they hold no blanks.
find . -maxdepth 1 -type f ! -name '.*' -printf '%T@ %s %f\n' | sort -n > ".list.$$"
total=$SIZE
while read -r _ size _; do total=$((total + size)); done < ".list.$$"
while [ "$total" -gt "$LIMIT" ] && read -r _ size name; do
  [ -z "$(find "uses/$name" -type f -mtime -30 -print -quit 2>/dev/null)" ] || continue
  rm -f "$name" && total=$((total - size))
  rm -rf "uses/$name"
done < ".list.$$"
rm -f ".list.$$"
echo absent
