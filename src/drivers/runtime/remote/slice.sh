# shellcheck shell=sh
# A slice of FILE: its size and the offset of the slice in one line, then the bytes. WANTED bytes
# from OFFSET on, or the last ones where OFFSET is empty.
size=0
[ -e "$FILE" ] && size=$(($(wc -c < "$FILE")))
[ -n "$OFFSET" ] || OFFSET=$((size > WANTED ? size - WANTED : 0))
count=$((size - OFFSET < WANTED ? size - OFFSET : WANTED))
echo "$size $OFFSET"
[ "$count" -le 0 ] || tail -c "+$((OFFSET + 1))" "$FILE" | head -c "$count"
:
