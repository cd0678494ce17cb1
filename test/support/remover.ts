import { spawn } from 'node:child_process'
import { tmpdir } from 'node:os'

/** Where tests make their folders: the test run's own, which ends with it and with what lives in it. */
export const runFolder = (): string => process.env['ORRERY_TEST_ROOT'] ?? tmpdir()

/**
 * Waits for a word, or for the end of whoever would have said it. Then it ends jest's workers, which would start more, gives the leashes of
 * sites and servers ten seconds to take away what is theirs, and ends what is left in the folder: what names it in its arguments or its
 * environment, or works below it. In both cases the folder goes, and what is mounted there.
 */
const script = `trap '' TERM INT HUP
read -r word
finish() { for each in "$@"; do each=\${each#/proc/}; kill -KILL "\${each%%/*}"; done 2>/dev/null; }
if [ -z "$word" ]; then
  for each in $(grep -lsF -- "ORRERY_TEST_ROOT=$1" /proc/[0-9]*/environ); do
    ! grep -qsF jest-worker "\${each%environ}cmdline" || finish "$each"
  done
  sleep 10
  for try in 1 2 3 4 5; do
    finish $(grep -lsF -- "$1/" /proc/[0-9]*/cmdline /proc/[0-9]*/environ; find /proc -mindepth 2 -maxdepth 2 -name cwd -lname "$1/*" 2>/dev/null)
    sleep 0.1
  done
fi
umount -l -- "$1" 2>/dev/null
n=0
until rm -rf -- "$1" 2>/dev/null || [ $n -ge 50 ]; do n=$((n + 1)); sleep 0.1; done`

/**
 * A leash for a folder: it goes when `leave()` is called, or when this process ends, however it does; then with all that was started in it
 * (tasks live on when their daemon is killed, as they should). `leave()` waits until it is gone; it is harmless when called again.
 */
export const removeAtEnd = (folder: string): { leave(): Promise<void> } => {
  const remover = spawn('/bin/sh', ['-c', script, 'orrery-remover', folder], {
    cwd: '/',
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  const ended = new Promise<void>((resolve) => remover.once('exit', () => resolve()))
  remover.stdin.on('error', () => undefined)
  return {
    leave: async () => {
      if (!remover.stdin.writableEnded) remover.stdin.end('leave\n')
      await ended
    },
  }
}
