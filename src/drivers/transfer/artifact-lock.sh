# shellcheck shell=sh
# Holds the lock of the file HEX in ROOT until standard input ends.
umask 077; mkdir -p "$ROOT/locks" && exec 9>> "$ROOT/locks/$HEX" && flock 9 || exit 1
echo held; exec cat > /dev/null
