import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { leash } from '../../src/embedded/leash.ts'
import { isAlive } from '../../src/embedded/processes.ts'
import type { Ready } from '../../src/embedded/ready-file.ts'

/** The service under its own program, ended with us even when we are killed. */
export interface RunningService {
  ready: Ready
  /** From the start of the program to its first answer. */
  seconds: number
  /** Resolves when the program has ended, by whomever. */
  ended: Promise<unknown>
  /** Ends it in order, by force when that takes long. */
  stop(): Promise<void>
  /** Ends it now; its servers end with it. */
  kill(): void
}

export interface ServiceOptions {
  dataDir: string
  logFile: string
  /** Of the programs that the tasks run. */
  seedRoot: string
  stop: AbortSignal
  /** What the service does while it takes long. */
  onProgress: (message: string) => void
}

const checkout = path.resolve(import.meta.dirname, '../..')

/** A run that is cancelled and a database that is closed need seconds; the service ends itself after 28. */
const patienceSeconds = 35

/**
 * Starts the service on a free port and waits for its first answer.
 * @throws Error with the end of its log when it ends instead; the signal's reason, with the program ended, when it is aborted
 */
export const startService = async ({ dataDir, logFile, seedRoot, stop, onProgress }: ServiceOptions): Promise<RunningService> => {
  const startedAt = performance.now()
  mkdirSync(path.dirname(logFile), { recursive: true })
  const readyFile = path.join(dataDir, 'ready.json')
  const child = await leash({
    command: [process.execPath, path.join(checkout, 'src/main.ts')],
    environment: {
      ...Object.fromEntries(Object.entries(process.env).filter((entry): entry is [string, string] => entry[1] !== undefined)),
      SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
      SERVICE_ADMIN_ADDRESS: '127.0.0.1:0',
      SERVICE_DATA_DIR: dataDir,
      SERVICE_READY_FILE: readyFile,
      SERVICE_SEED_ROOT: seedRoot,
    },
    directory: checkout,
    logFile,
    softSignal: 'TERM',
    patienceSeconds,
  })
  const over = (): boolean => !isAlive(child.process)
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

/** The ready file, if it is this process's own and not one that a killed predecessor left. */
const readyOf = (file: string, pid: number): Ready | undefined => {
  if (!existsSync(file)) return undefined
  const ready = JSON.parse(readFileSync(file, 'utf8')) as Ready
  return ready.pids.daemon === pid ? ready : undefined
}

/** Any answer will do, a 401 too. */
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

/** What went wrong by the log's worst entries, else its end as it is (a configuration that cannot be used is told in plain text). */
const explanation = (log: string): string => {
  const lines = log.trim().split('\n')
  const worst = lines
    .map(entryOf)
    .filter((entry) => entry !== undefined)
    .filter(({ level }) => level === 'fatal' || level === 'error')
    .map(({ msg, err }) => (err?.message === undefined ? msg : `${msg}: ${err.message}`))
  return (worst.length > 0 ? worst : lines).slice(-20).join('\n')
}
