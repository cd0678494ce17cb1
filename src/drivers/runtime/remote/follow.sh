# Follows the list of ends. It grows by a line a task: whoever follows it has read it, and whoever does not asks the records. Our end of its standard input tells
# that we live: where output is no pipe, tail would miss us only at the next line.
[ "$(wc -c < ../ends)" -gt 1000000 ] && : > ../ends
exec 3<&0 < /dev/null 2> /dev/null
(cat <&3 3<&-; kill $$) > /dev/null &
exec tail -n 0 -F ../ends 3<&-
