# shellcheck shell=sh
# In a Pod: all outputs have been carried back, and the courier may leave. ROOT: of the site's
# files.
: > "$ROOT/.fetched"
