# shellcheck shell=sh
# next BYTES: cuts standard input there: `dd` takes exactly so many bytes from a pipe, which `head`
# does not promise.
next() { dd bs="$1" count=1 iflag=fullblock status=none; }
