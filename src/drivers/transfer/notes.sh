# shellcheck shell=sh
# Prints the notes about large files below ARRIVING: name NUL text NUL.
cd "$ARRIVING/notes" || exit 1
for n in *; do [ -f "$n" ] || continue; printf '%s\0' "$n"; cat "$n"; printf '\0'; done
