import { existsSync, readFileSync, rmSync } from 'node:fs'
import { z } from 'zod'
import { formatAddress, StartError, type Config } from '../config.ts'
import type { Endpoints } from './embedded.ts'
import { postgresFiles } from './postgres.ts'
import { stillRuns, startTicks } from './processes.ts'
import { writeWhole } from '../whole-file.ts'

const schema = z.object({
  /** Base of the endpoints, with the API prefix. */
  baseUrl: z.string(),
  /** Base of the health answer, the API document and its page. */
  rootUrl: z.string(),
  adminUrl: z.string(),
  temporalAddress: z.string(),
  temporalUiUrl: z.string().nullable(),
  /** Without the password. */
  databaseUrl: z.string(),
  pids: z.object({
    daemon: z.int(),
    workers: z.array(z.int()),
    postgres: z.int().nullable(),
    temporal: z.int().nullable(),
  }),
})

/** The daemon's facts for other programs of its machine, written once everything listens. */
export type ReadyFacts = z.output<typeof schema>

export const writeReady = (file: string, ready: ReadyFacts): void => {
  writeWhole(file, `${JSON.stringify(ready, undefined, 2)}\n`, 0o644)
}

/** Removes the file if it is still this daemon's. */
export const removeReady = (file: string): void => {
  if (existsSync(file) && readReady(file)?.pids.daemon === process.pid) rmSync(file, { force: true })
}

const readReady = (file: string): ReadyFacts | undefined => {
  try {
    return schema.safeParse(JSON.parse(readFileSync(file, 'utf8'))).data
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

/** The running daemon of this ready file; undefined where none runs. */
const running = (file: string): ReadyFacts | undefined => {
  const ready = existsSync(file) ? readReady(file) : undefined
  const ticks = ready === undefined ? undefined : startTicks(ready.pids.daemon)
  return ready !== undefined &&
    ticks !== undefined &&
    stillRuns({ pid: ready.pids.daemon, startTicks: ticks })
    ? ready
    : undefined
}

/**
 * The API of the data folder's running daemon, with its prefix.
 * @throws StartError with the remedy when no daemon runs there
 */
export const findApi = ({ readyFile }: Config): string => {
  const ready = running(readyFile)
  if (ready === undefined)
    throw new StartError(
      `no daemon runs with the ready file ${readyFile}: start it (npm start), or name its file in ` +
        'SERVICE_READY_FILE',
    )
  return ready.baseUrl
}

/**
 * The servers for a worker: the configured ones, and for the others those of the daemon that runs
 * on the same data folder.
 * @throws Error naming the variable and the remedy when no daemon runs there
 */
export const findEndpoints = (config: Config): Endpoints => {
  const named = {
    databaseUrl: config.databaseUrl,
    temporalAddress: config.temporalAddress && formatAddress(config.temporalAddress),
  }
  if (named.databaseUrl !== undefined && named.temporalAddress !== undefined)
    return {
      databaseUrl: named.databaseUrl,
      temporalAddress: named.temporalAddress,
      temporalUiUrl: undefined,
    }
  const missing = [
    named.databaseUrl === undefined ? 'SERVICE_DATABASE_URL' : '',
    named.temporalAddress === undefined ? 'SERVICE_TEMPORAL_ADDRESS' : '',
  ]
    .filter(Boolean)
    .join(' and ')
  const ready = running(config.readyFile)
  if (ready === undefined)
    throw new StartError(
      `no daemon runs with the ready file ${config.readyFile}: start it (npm start), name its file ` +
        `in SERVICE_READY_FILE, or set ${missing}`,
    )
  const url = new URL(ready.databaseUrl)
  if (ready.pids.postgres !== null)
    url.password = readFileSync(postgresFiles(config.dataDir).password, 'utf8').trim()
  else if (named.databaseUrl === undefined)
    throw new StartError(
      'the daemon uses a database of its own configuration: set SERVICE_DATABASE_URL to the same',
    )
  return {
    databaseUrl: named.databaseUrl ?? url.href,
    temporalAddress: named.temporalAddress ?? ready.temporalAddress,
    temporalUiUrl: ready.temporalUiUrl ?? undefined,
  }
}
