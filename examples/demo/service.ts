import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { leash } from '../../src/embedded/leash.ts'
import { stillRuns } from '../../src/embedded/processes.ts'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'

/**
 * The service under its own program. It ends with this process, even when this process is killed.
 */
export interface RunningService {
  ready: ReadyFacts
  /** From the start of the program to its first answer. */
  seconds: number
  /** Resolves when the program has ended, for any reason. */
  ended: Promise<unknown>
  /** Stops it in order, by force after a while. */
  stop(): Promise<void>
  /** Ends it now; its servers end with it. */
  kill(): void
}

export interface ServiceOptions {
  dataDir: string
  logFile: string
  /** The folder of the programs that the tasks run. */
  seedRoot: string
  stop: AbortSignal
  /** Socket of the engine that builds, for a demo that makes an image. */
  containerEngine?: string
  /** Beside the environment of this program. */
  environment?: Readonly<Record<string, string>>
  /** Without the servers, keys and stores that the environment names for another service. */
  alone?: boolean
  /** Called with the service's progress during long steps. */
  onProgress: (message: string) => void
}

/** Variables that name what belongs to one service. */
const ofOneService = new Set(
  [
    ...['DATABASE_URL', 'DATABASE_PASSWORD', 'PROVENANCE_DATABASE_URL', 'TEMPORAL_ADDRESS'],
    ...['TEMPORAL_CODEC_KEY', 'VAULT_KEY_FILE', 'ARTIFACT_ROOT'],
  ].flatMap((name) => [`SERVICE_${name}`, `SERVICE_${name}_FILE`]),
)

const checkout = path.resolve(import.meta.dirname, '../..')

/**
 * The cancel of a run and the close of a database take seconds. The service ends itself after 28 s.
 */
const patienceSeconds = 35

/**
 * Starts the service on a free port and waits for its first answer.
 * @throws Error with the end of its log when it ends instead; the signal's reason, with the program
 *   ended, when it is aborted
 */
export const startService = async ({
  dataDir,
  logFile,
  seedRoot,
  containerEngine,
  stop,
  environment = {},
  alone = false,
  onProgress,
}: ServiceOptions): Promise<RunningService> => {
  const startedAt = performance.now()
  mkdirSync(path.dirname(logFile), { recursive: true })
  const readyFile = path.join(dataDir, 'ready.json')
  const child = await leash({
    command: [process.execPath, path.join(checkout, 'src/main.ts')],
    environment: {
      ...Object.fromEntries(
        Object.entries(process.env).filter(
          (entry): entry is [string, string] =>
            entry[1] !== undefined && !(alone && ofOneService.has(entry[0])),
        ),
      ),
      SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
      SERVICE_ADMIN_ADDRESS: '127.0.0.1:0',
      SERVICE_DATA_DIR: dataDir,
      SERVICE_READY_FILE: readyFile,
      SERVICE_SEED_ROOT: seedRoot,
      ...(containerEngine === undefined ? {} : { SERVICE_CONTAINER_ENGINE: containerEngine }),
      ...environment,
    },
    directory: checkout,
    logFile,
    softSignal: 'TERM',
    patienceSeconds,
  })
  const over = (): boolean => !stillRuns(child.process)
  let told = 0
  const log = (): string => readFileSync(logFile, 'utf8')
  const freshLines = (): string[] => {
    const lines = log().split('\n').slice(0, -1)
    const fresh = lines.slice(told)
    told = lines.length
    return fresh
  }
  try {
    for (;;) {
      const ready = readyOf(readyFile, child.process.pid)
      if (ready !== undefined && (await answers(ready.rootUrl)))
        return {
          ready,
          seconds: (performance.now() - startedAt) / 1000,
          ended: child.ended,
          stop: () => child.release(),
          kill: () => {
            child.kill()
          },
        }
      for (const line of freshLines()) {
        const entry = entryOf(line)
        if (entry?.level === 'info' && entry.msg !== 'ready' && entry.msg !== 'request') onProgress(entry.msg)
      }
      if (over()) throw new Error(`the service did not start:\n${explanation(log())}`)
      await sleep(50, undefined, { signal: stop })
    }
  } catch (error) {
    await child.release()
    throw error
  }
}

/** The ready file of this process; undefined for one left by a killed predecessor. */
const readyOf = (file: string, pid: number): ReadyFacts | undefined => {
  if (!existsSync(file)) return undefined
  const ready = JSON.parse(readFileSync(file, 'utf8')) as ReadyFacts
  return ready.pids.daemon === pid ? ready : undefined
}

/** Any status counts as an answer, 401 too. */
const answers = (rootUrl: string): Promise<boolean> =>
  fetch(rootUrl).then(
    () => true,
    () => false,
  )

interface Entry {
  level?: string
  msg: string
  err?: { message?: string }
}

const entryOf = (line: string): Entry | undefined => {
  if (!line.startsWith('{')) return undefined
  return JSON.parse(line) as Entry
}

/**
 * The error by the log's entries of the highest level, else the end of the log (an invalid
 * configuration is reported in plain text).
 */
const explanation = (log: string): string => {
  const lines = log.trim().split('\n')
  const worst = lines
    .map(entryOf)
    .filter((entry) => entry !== undefined)
    .filter(({ level }) => level === 'fatal' || level === 'error')
    .map(({ msg, err }) => (err?.message === undefined ? msg : `${msg}: ${err.message}`))
  return (worst.length > 0 ? worst : lines).slice(-20).join('\n')
}
