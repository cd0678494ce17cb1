# shellcheck shell=sh
# SHA-256, by `sum`, of blocks of BLOCK bytes of FILE, relative to the present folder: `digest offset
# path`, each before a NUL.
choose_sum
# digest OFFSET BYTES
digest() {
  h=$(dd if="$FILE" bs=262144 iflag=skip_bytes,count_bytes skip="$1" count="$2" status=none | sum)
  printf '%s %s %s\0' "${h%% *}" "$1" "$FILE"
}
# blocks START END
blocks() {
  o=$1
  while [ "$o" -lt "$2" ]; do
    e=$((o + BLOCK)); [ "$e" -le "$2" ] || e=$2
    digest "$o" $((e - o))
    o=$e
  done
}
# listed: SHA-256 of the files whose names, each before a NUL, are on standard input.
listed() { xargs -0 -r sha256sum -z --; }
