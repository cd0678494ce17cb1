import { constants } from 'node:os'
import { LinkError } from '../../../shell/site-shell.ts'
import { DriverError, type Collected, type EndReason, type OutputManifest, type TaskState } from './driver.ts'
import { messageOf } from './errno.ts'

type Ended = Extract<TaskState, { state: 'ended' }>

/** Names of signals by number. */
export const signalNames = new Map(Object.entries(constants.signals).map(([name, number]) => [number, name]))

/** An end with this reason; `end` may have more members. */
export const endedState = (
  { startedAt, finishedAt, exitCode, signal }: Omit<Ended, 'state' | 'externalId' | 'reason'>,
  externalId: string,
  reason: EndReason,
): Ended => ({ state: 'ended', externalId, startedAt, finishedAt, exitCode, signal, reason })

/** The end of a task that was cancelled before its start. */
export const buriedEnd = (at: number, externalId = 'none'): Ended =>
  endedState({ startedAt: at, finishedAt: at, exitCode: null, signal: null }, externalId, 'cancelled')

/** An error of a driver's own work, of its class: of the link to the site, else of the infrastructure. */
export const asDriverError = (error: unknown): DriverError => {
  if (error instanceof DriverError) return error
  if (error instanceof LinkError)
    return new DriverError(error.permanent ? 'refused' : 'unknown', error.message, { cause: error })
  return new DriverError('infrastructure', messageOf(error), { cause: error })
}

/** Why a task cannot be collected. */
export const noEndOf = (name: string): DriverError =>
  new DriverError(
    'unknown',
    `${name} has no recorded end; find shows whether it runs, is lost or was never started`,
  )

/** Why a task was not submitted. */
export const removedMeanwhile = (name: string): DriverError =>
  new DriverError('infrastructure', `${name} was removed while it was submitted`)

/** Why a driver submits no more. */
export const driverClosed = (kind: string): DriverError =>
  new DriverError('infrastructure', `the ${kind} driver is closed; open another`)

/** Where a manifest was made. */
type Place = Pick<OutputManifest, 'runtime' | 'hostname' | 'root'>

/** A manifest of these changes, in the order of their paths. Reorders `files`. */
export const manifestWith = (
  { runtime, hostname, root }: Place,
  files: OutputManifest['files'] = [],
  { initialFiles, finalFiles }: { initialFiles: number; finalFiles: number } = {
    initialFiles: 0,
    finalFiles: 0,
  },
  warnings: readonly string[] = [],
): OutputManifest => {
  files.sort((a, b) => (a.path < b.path ? -1 : 1))
  const count = (change: string): number => files.filter((file) => file.change === change).length
  return {
    schemaVersion: 1,
    ...{ runtime, hostname, root, files },
    summary: {
      initialFiles,
      finalFiles,
      createdFiles: count('created'),
      modifiedFiles: count('modified'),
      deletedFiles: count('deleted'),
      outputBytes: files.reduce((sum, file) => sum + file.sizeBytes, 0),
    },
    ...(warnings.length === 0 ? {} : { warnings: [...warnings] }),
  }
}

/** The result of a task that left nothing: it never started, or its files are lost. `at`: its submit. */
export const emptyResult = <State extends TaskState>(
  state: State,
  { at = 0, runtime = '', hostname = '' }: { at?: number; runtime?: string; hostname?: string } = {},
): Collected & { state: State } => ({
  state,
  submittedAt: at,
  ...{ wallSeconds: 0, cpuSeconds: null, peakMemoryBytes: null, measuredBy: 'none' },
  manifest: manifestWith({ runtime, hostname, root: '' }),
  ...{ missingOutputs: [], stderrTail: '' },
})
