# shellcheck shell=sh
# Prints pieces of files of DIRECTORY.
export LC_ALL=C; cd "$DIRECTORY" || exit 1
# give START END, of FILE
give() {
  dd if="$FILE" bs=262144 iflag=skip_bytes,count_bytes skip="$1" count=$(($2 - $1)) status=none || exit 1
}
