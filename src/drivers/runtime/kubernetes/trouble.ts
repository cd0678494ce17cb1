import { KubernetesError } from '../../../clients/kubernetes.ts'
import { DriverError } from '../contract/driver.ts'
import { asDriverError } from '../remote/site.ts'

/** The class of an error, which names the remedy. */
export const kubernetesTrouble = (error: unknown): DriverError => {
  if (!(error instanceof KubernetesError)) return asDriverError(error)
  const { status, permanent } = error
  const passing =
    !permanent &&
    (status === undefined ? error.stage !== 'host key' : status === 429 || status >= 500 || status === 409)
  return new DriverError(passing ? 'unknown' : 'refused', error.message, { cause: error })
}

/** A request whose rejection is a `DriverError`. */
export const asked = <T>(request: Promise<T>): Promise<T> =>
  request.catch((error: unknown) => {
    throw kubernetesTrouble(error)
  })

export const isStatus = (error: unknown, ...statuses: number[]): boolean =>
  error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status)
