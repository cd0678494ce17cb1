import { openBackoff } from '../../pacing/backoff.ts'
import { CloudError, type CloudDriver } from './contract.ts'

/** Node's codes through the SDK of AWS, and the fault of `src/clients/http.ts`. */
const brokenOff: readonly unknown[] = ['ECONNRESET', 'EPIPE', 'lost']
const isBrokenOff = (error: unknown): boolean =>
  error instanceof CloudError &&
  error.fault === 'away' &&
  brokenOff.includes((error.cause as { code?: unknown } | undefined)?.code)

/**
 * A driver whose calls back off together: after a throttling all of them wait, longer after each
 * further one. A call that was throttled still fails; its caller decides whether to ask again.
 *
 * A call that only reads and whose connection breaks off is sent once more: a provider may close a
 * kept connection in the moment in which it is used again.
 */
export const withBackoff = (driver: CloudDriver): CloudDriver => {
  const pauses = openBackoff({ firstMs: 500, longestMs: 15_000 })
  let notBefore = 0
  const paced =
    <Args extends unknown[], T>(call: (...args: Args) => Promise<T>) =>
    async (...args: Args): Promise<T> => {
      // A time that all calls share, and that may move while they wait for it.
      for (let left = notBefore - performance.now(); left > 0; left = notBefore - performance.now())
        await new Promise((resolve) => setTimeout(resolve, left))
      const begun = performance.now()
      try {
        const answer = await call(...args)
        // Calls that began before a throttling say nothing about the time behind it.
        if (begun >= notBefore) pauses.reset()
        return answer
      } catch (error) {
        if (error instanceof CloudError && error.fault === 'throttled' && begun >= notBefore) {
          notBefore = performance.now() + pauses.next() * (0.5 + Math.random())
        }
        throw error
      }
    }
  const reading = <Args extends unknown[], T>(call: (...args: Args) => Promise<T>) => {
    const asked = paced(call)
    return (...args: Args): Promise<T> =>
      asked(...args).catch((error: unknown) => {
        if (isBrokenOff(error)) return asked(...args)
        throw error
      })
  }
  return {
    zonalSubnets: driver.zonalSubnets,
    identity: reading(() => driver.identity()),
    account: reading(() => driver.account()),
    create: paced((wish) => driver.create(wish)),
    find: reading((reference) => driver.find(reference)),
    look: reading((ids) => driver.look(ids)),
    list: reading((service) => driver.list(service)),
    start: paced((id) => driver.start(id)),
    stop: paced((id) => driver.stop(id)),
    destroy: paced((id) => driver.destroy(id)),
    console: reading((id) => driver.console(id)),
    zonesOf: reading((machineType) => driver.zonesOf(machineType)),
    catalog: reading(() => driver.catalog()),
  }
}
