# shellcheck shell=sh
# Moves the verified file at FROM to its place NAME in ROOT, and removes what the transfer to
# ARRIVED left beside it. Its time is that of its last use, so a copy does not keep that of its source.
cd "$ROOT" && chmod 0444 "$FROM" && mv -f "$FROM" "$NAME" || exit 1
touch -c "$NAME"
rm -rf "$ARRIVED" "$MANIFEST"
