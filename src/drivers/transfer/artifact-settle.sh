# shellcheck shell=sh
# Moves the verified file at FROM to its place NAME in ROOT, and removes what the transfer to
# ARRIVED left beside it.
cd "$ROOT" && chmod 0444 "$FROM" && mv -f "$FROM" "$NAME" || exit 1
rm -rf "$ARRIVED" "$MANIFEST"
