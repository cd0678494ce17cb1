# shellcheck shell=sh
# Unpacks standard input into ARRIVING in blocks of BLOCKING, and prints the SHA-256 of the files of
# its list LIST. After digest.sh.
export LC_ALL=C; umask 077; cd "$ARRIVING/files" && tar -x -p -f - -b "$BLOCKING" --no-same-owner &&
  listed < "../lists/$LIST"
