import { isRefusal, KubernetesError } from '../../../clients/kubernetes.ts'
import { DriverError } from '../contract/driver.ts'
import { asDriverError } from '../contract/results.ts'

/** The class of an error, which names the remedy. */
export const kubernetesTrouble = (error: unknown): DriverError => {
  if (!(error instanceof KubernetesError)) return asDriverError(error)
  const { status, permanent, stage } = error
  const passing = !permanent && !isRefusal(status) && (status !== undefined || stage !== 'host key')
  return new DriverError(passing ? 'unknown' : 'refused', error.message, { cause: error })
}

/** A request whose rejection is a `DriverError`. */
export const asked = <T>(request: Promise<T>): Promise<T> =>
  request.catch((error: unknown) => {
    throw kubernetesTrouble(error)
  })

export const isStatus = (error: unknown, ...statuses: number[]): boolean =>
  error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status)
