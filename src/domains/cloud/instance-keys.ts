import { createHash } from 'node:crypto'

/** Id in the vault of an instance's key. */
export const keyIdOf = (instanceId: string): string =>
  `cloud-${createHash('sha256').update(instanceId).digest('hex').slice(0, 32)}`
