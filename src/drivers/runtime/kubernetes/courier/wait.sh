# shellcheck shell=sh
# The first script of the task's container, after image.sh. Before all is delivered nothing has
# started, so a stop ends it at once. ROOT: of the site's files. TOOLS: folder of tools. SHELL_THERE
# runs SCRIPT, that of the Job, afterwards.
cd "$ROOT" || exit 97
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:$TOOLS
trap 'exit 143' TERM
# The end of this container, whatever its cause, closes this FIFO for the courier.
exec 9<> .alive || exit 97
while ! [ -e .go ]; do sleep 0.2; done
trap - TERM
exec "$SHELL_THERE" "$SCRIPT"
