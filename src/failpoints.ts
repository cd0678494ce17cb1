/**
 * Named places in the engine at which a fault test kills the process: `intended-not-started=3` ends it with SIGKILL at the third time
 * it comes by. Without a setting a place costs one look-up in an empty map.
 */
export const openFailpoints = (setting: string | undefined): ((name: string) => void) => {
  const left = new Map(
    (setting ?? '')
      .split(',')
      .filter((part) => part !== '')
      .map((part) => {
        const [name = '', count = '1'] = part.split('=')
        return [name, Number(count)] as const
      }),
  )
  return (name) => {
    if (left.size === 0) return
    const count = left.get(name)
    if (count === undefined) return
    if (count <= 1) process.kill(process.pid, 'SIGKILL')
    left.set(name, count - 1)
  }
}
