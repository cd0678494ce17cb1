# shellcheck shell=sh
# Writes pieces from standard input into files of ARRIVING at their offsets. After every block it
# notes its progress, also when the stream ends early, and reads the block back for its digest while
# the next one arrives. HOLES: `,sparse` where zeros may become holes. After digest.sh; at the end comes
# `wait`.
export LC_ALL=C; umask 077; cd "$ARRIVING/files" || exit 1; trap : INT
LINE='
'
# take START END, of FILE with the notes NOTE
take() {
  o=$1
  while [ "$o" -lt "$2" ]; do
    b=$((o - o % BLOCK)); e=$((b + BLOCK)); [ "$e" -le "$2" ] || e=$2
    r=$(dd of="$FILE" bs=262144 iflag=fullblock,count_bytes oflag=seek_bytes conv="notrunc$HOLES" seek="$o" \
      count=$((e - o)) 2>&1)
    s=$?
    n=${r##*"$LINE"}; n=${n%% *}
    case $n in '' | *[!0-9]*) n=0 ;; esac
    printf '%s %s\n' "$o" "$n" >> "../notes/$NOTE"
    if [ "$s" != 0 ] || [ "$n" != $((e - o)) ]; then printf '%s\n' "$r" >&2; wait; exit 1; fi
    wait
    digest "$b" $((e - b)) &
    o=$e
  done
}
