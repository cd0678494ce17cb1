import { ApplicationFailure, Context } from '@temporalio/activity'
import { setTimeout as pause } from 'node:timers/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import {
  clearCommand,
  readCommand,
  recordOutput,
  type CommandRow,
  type Output,
} from '../src/domains/console/store.ts'
import { cancelGraceSeconds, commandDriver, commandName } from '../src/domains/console/command-site.ts'
import { leastBytes, openMasks, type Masks } from '../src/domains/console/masks.ts'
import {
  DriverError,
  type Intent,
  type RuntimeDriver,
  type TaskState,
} from '../src/drivers/runtime/contract/driver.ts'
import type { Db } from '../src/db/sql.ts'
import type { Engine } from '../src/engine.ts'
import type { SiteDrivers } from '../src/executor/drivers.ts'
import { isOwnMachine, taskQueueOf } from '../src/executor/sites.ts'
import type { Vault } from '../src/vault/vault.ts'
import { beating } from './beating.ts'

export interface ConsoleParts {
  db: Db
  engine: Pick<Engine, 'taskQueue'>
  sites: SiteDrivers
  vault: Pick<Vault, 'values'>
  workRoot: string
  hostId: string
  /**
   * Aborted when this worker is being drained; another worker goes on with the commands that run.
   */
  draining: AbortSignal
}

/** Limit for each stream in the record. */
const mostBytes = 1024 * 1024
/** Pause between two looks at a command whose end was not reported. */
const lookMs = 2_000
const defaultMemoryBytes = 1024 ** 3
const searchPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/**
 * The command starts in the user's folder where one is given. Otherwise it runs in a folder of its
 * own, which is removed with it.
 */
const argvOf = ({ command, workingDirectory }: CommandRow): string[] =>
  workingDirectory === undefined || workingDirectory === ''
    ? ['/bin/sh', '-c', command]
    : ['/bin/sh', '-c', 'cd -- "$1" && exec /bin/sh -c "$2"', 'sh', workingDirectory, command]

const intentOf = (row: CommandRow, workRoot: string): Intent => {
  const local = isOwnMachine(row.place)
  const name = commandName(row.id)
  const directory = local ? join(workRoot, 'console', name) : `console/${name}`
  const environment = { PATH: searchPath, LANG: 'C.UTF-8', ...row.environment }
  const home = row.environment?.['HOME']
  return {
    name,
    directory,
    argv: argvOf(row),
    ...(local
      ? { environment: { ...environment, HOME: home ?? directory } }
      : { environment, pathVariables: home === undefined ? { HOME: '.' } : {} }),
    stage: [],
    expectedOutputs: [],
    cores: Math.min(row.cpuCores ?? 1, local ? availableParallelism() : Infinity),
    memoryBytes: row.memoryBytes ?? defaultMemoryBytes,
    ...(row.memoryBytes === undefined && local ? { memoryLimit: 'none' } : {}),
    timeoutSeconds: row.timeoutSeconds,
  }
}

const failureOfCode = (exitCode: number | null | undefined): string | undefined =>
  exitCode === 0 ? undefined : `the command ended with exit code ${String(exitCode ?? 'unknown')}`

type Ended = Extract<TaskState, { state: 'ended' | 'lost' }>

/** Why a command that is over has failed; undefined where it has not. */
const failureOf = (row: CommandRow, state: Ended): string | undefined => {
  if (state.state === 'lost')
    return `the command was lost with its machine${state.cause === undefined ? '' : ` (${state.cause})`}`
  if (state.reason === 'timeout')
    return `the command was ended after its timeout of ${String(row.timeoutSeconds)} s`
  if (state.reason === 'memory') return 'the command was ended because it used more memory than it was given'
  if (state.signal !== null) return `the command was ended by ${state.signal}`
  return failureOfCode(state.exitCode)
}

/** Resolves when the command has ended. @throws the reason with which `signal` is aborted */
const endOf = async (driver: RuntimeDriver, name: string, signal: AbortSignal): Promise<Ended> => {
  const ended = new AbortController()
  const stop = driver.watch([name], () => ended.abort())
  let momentMs = 1
  try {
    for (;;) {
      const state = (await driver.find([name])).get(name)
      if (state?.state === 'ended' || state?.state === 'lost') return state
      signal.throwIfAborted()
      await pause(lookMs, undefined, { signal: AbortSignal.any([ended.signal, signal]) }).catch(
        () => undefined,
      )
      // The driver finds the end within moments of the notification.
      if (ended.signal.aborted) await pause((momentMs = Math.min(momentMs * 2, 100)))
    }
  } finally {
    stop()
  }
}

export const consoleActivities = ({ db, engine, sites, vault, workRoot, hostId, draining }: ConsoleParts) => {
  const rowOf = async (id: string): Promise<CommandRow> => {
    const row = await readCommand(db, id)
    if (row === undefined) throw ApplicationFailure.nonRetryable(`console command ${id} does not exist`)
    return row
  }
  const driverOf = ({ place }: CommandRow): RuntimeDriver => commandDriver({ sites, hostId }, place)
  const outputOf = async (
    driver: RuntimeDriver,
    name: string,
    stream: 'stdout' | 'stderr',
    masks: Masks,
  ): Promise<Output> => {
    const { bytes, totalBytes } = await driver.logs(name, stream, { offset: 0, limit: mostBytes })
    const isCut = totalBytes > bytes.length
    const masked = isCut ? masks.cut(bytes) : masks.whole(bytes)
    return { bytes: masked.subarray(0, mostBytes), truncated: isCut || masked.length > mostBytes }
  }
  /** Records a command's output, and removes its folder. @returns the reason of its failure */
  const keep = async (row: CommandRow, driver: RuntimeDriver, state: Ended): Promise<string | undefined> => {
    const name = commandName(row.id)
    const masks = openMasks(await vault.values(leastBytes))
    const [stdout, stderr] = await Promise.all([
      outputOf(driver, name, 'stdout', masks),
      outputOf(driver, name, 'stderr', masks),
    ])
    const exitCode = state.state === 'ended' && state.exitCode !== null ? state.exitCode : undefined
    const failure = failureOf(row, state)
    await recordOutput(db, row.id, { stdout, stderr, exitCode, externalId: state.externalId, failure })
    try {
      await driver.remove(name)
      await clearCommand(db, row.id)
    } catch {
      // The output is on record. The folder is removed again and again once the command is over.
    }
    return failure
  }
  const run = async (row: CommandRow): Promise<void> => {
    const driver = driverOf(row)
    const name = commandName(row.id)
    const [outcome] = await driver.submit([intentOf(row, workRoot)])
    if (outcome?.ok === false) throw outcome.error
    const signal = AbortSignal.any([Context.current().cancellationSignal, draining])
    const state = await endOf(driver, name, signal)
    const failure = await keep(row, driver, state)
    if (failure !== undefined) throw ApplicationFailure.nonRetryable(failure, 'CommandFailed')
  }

  return {
    /** The queue of the workers that reach the command's site. */
    placeConsoleCommand: async (id: string): Promise<string> => {
      const { place } = await rowOf(id)
      return taskQueueOf(place, [place], engine.taskQueue)
    },

    /**
     * Starts a command once, waits for its end and records its output. @throws for a command that
     * fails
     */
    runConsoleCommand: (id: string): Promise<void> =>
      beating(async () => {
        const row = await rowOf(id)
        if (row.stdout !== undefined) {
          // The row was written before the answer of this activity was lost.
          // A row of an earlier version has no reason.
          const failure = row.failureReason ?? failureOfCode(row.exitCode)
          if (failure !== undefined) throw ApplicationFailure.nonRetryable(failure, 'CommandFailed')
          return
        }
        try {
          await run(row)
        } catch (error) {
          if (error instanceof DriverError && (error.trouble === 'refused' || error.trouble === 'user'))
            throw ApplicationFailure.nonRetryable(error.message, 'CommandRefused')
          throw error
        }
      }),

    /** Ends a command that was cancelled, and records its output. */
    stopConsoleCommand: (id: string): Promise<void> =>
      beating(async () => {
        const row = await rowOf(id)
        if (row.stdout !== undefined) return
        const driver = driverOf(row)
        const name = commandName(row.id)
        await driver.cancel([name], cancelGraceSeconds)
        const state = (await driver.find([name])).get(name)
        if ((state?.state === 'ended' && state.startedAt > 0) || state?.state === 'lost')
          await keep(row, driver, state)
      }),
  }
}

export type ConsoleActivities = ReturnType<typeof consoleActivities>
