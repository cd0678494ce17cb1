import { cloud } from './cloud/kind.ts'
import type { DriverKind } from './contract/kind.ts'
import { kubernetes } from './kubernetes/kind.ts'
import { local } from './local/kind.ts'
import { rehearsal } from './none/kind.ts'
import { ssh } from './remote/kind.ts'
import { serverless } from './serverless/kind.ts'
import { slurm } from './slurm/kind.ts'

/**
 * Kinds of sites by the `driver` of a runtime, and `rehearsal`. A new kind is a folder and a line.
 */
export const driverKinds = { rehearsal, local, ssh, slurm, kubernetes, serverless, cloud } satisfies Record<
  string,
  DriverKind
>

/** Names of the kinds. */
export type KindName = keyof typeof driverKinds

export const kindOf = (name: KindName): DriverKind => driverKinds[name]

/** Drivers that a runtime may name. */
export const builtDrivers: ReadonlySet<string> = new Set(
  Object.keys(driverKinds).filter((name) => name !== 'rehearsal'),
)

/** The kind of a runtime's driver; undefined for one that is not built. */
export const kindNamed = (driver: string): DriverKind | undefined =>
  builtDrivers.has(driver) ? kindOf(driver as KindName) : undefined
