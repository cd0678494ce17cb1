import { cpus } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'

const everyMs = 1000
/** Two quiet seconds in a row are required, because builds and indexers pause. */
const quietRounds = 2
/**
 * Use that counts as idle: the service itself and the kernel take 0.05 of a core, and a tenth of
 * the cores changes the figures little.
 */
const harmlessShare = 0.1

/** Milliseconds that all processors have worked since the machine started. */
const workedMs = (): number =>
  cpus().reduce((sum, { times }) => sum + times.user + times.nice + times.sys + times.irq, 0)

/**
 * Waits until other programs leave `cores` of the machine idle, `mostSeconds` at most.
 * @param onBusy called each second with the number of busy cores
 * @returns the busy cores at the end: those of other programs, where the wait was in vain
 * @throws the reason of `stop` when it is aborted
 */
export const awaitQuiet = async (
  cores: number,
  {
    mostSeconds,
    onBusy,
    stop,
  }: { mostSeconds: number; onBusy: (busyCores: number) => void; stop: AbortSignal },
): Promise<{ quiet: boolean; busyCores: number }> => {
  const harmless = Math.max(0, cpus().length - cores) + harmlessShare * cores
  const until = performance.now() + 1000 * mostSeconds
  for (let quiet = 0; ;) {
    const [from, worked] = [performance.now(), workedMs()]
    await sleep(everyMs, undefined, { signal: stop })
    const busyCores = (workedMs() - worked) / (performance.now() - from)
    quiet = busyCores <= harmless ? quiet + 1 : 0
    if (quiet >= quietRounds) return { quiet: true, busyCores }
    if (performance.now() >= until) return { quiet: false, busyCores }
    if (quiet === 0) onBusy(busyCores)
  }
}
