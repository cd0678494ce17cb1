/** Kills a process without a warning. A process that has ended, or never existed, is no error. */
export const kill = (pid: number | undefined | null): void => {
  if (pid === undefined || pid === null) return
  try {
    process.kill(pid, 'SIGKILL')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
