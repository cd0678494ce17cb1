# shellcheck shell=sh
# Prints the SHA-256 of FROM. After sum.sh.
choose_sum
sum < "$FROM"
