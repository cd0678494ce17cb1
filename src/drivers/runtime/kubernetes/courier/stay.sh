# shellcheck shell=sh
# The script of the courier. It holds a Pod that is deleted after the start as long as the cluster
# allows: a worker may fetch the outputs. ROOT: of the site's files. STAYING: seconds beyond the end
# of the task.
cd "$ROOT" || exit 97
trap '[ -e .go ] || exit 0' TERM
(cat .alive > /dev/null; : > .over) &
halves=0
until [ -e .fetched ]; do
  [ -e .over ] && halves=$((halves + 1))
  [ "$halves" -le $((STAYING * 2)) ] || exit 1
  sleep 0.5 &
  wait $!
done
