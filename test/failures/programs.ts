import { spawn, type ChildProcess } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'
import { beforeNextLook } from '../support/pace.ts'
import { buildOfRun } from './build.ts'
import { runFolder } from '../support/run-folder.ts'

const { cacheDir } = configFromEnvironment()

export interface Program {
  child: ChildProcess
  /** All it has said so far. */
  output: () => string
  /** Exit code or signal. */
  ended: Promise<number | string>
}

/** A data folder that the user postgres may pass through. */
export const dataFolder = (): string => {
  const path = mkdtempSync(join(runFolder(), 'orrery-failures-'))
  chmodSync(path, 0o711)
  return path
}

export const removeFolder = (path: string): void => {
  rmSync(path, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
}

/**
 * Starts one of the programs of a build (`src/main.ts`, `src/worker.ts`, or a file below its
 * folder), by default the test run's; it inherits no environment. `through` is a command that
 * becomes the program which its last arguments name.
 */
export const startProgram = async (
  file: 'main' | 'worker' | `${string}/${string}.ts`,
  environment: Record<string, string>,
  folder?: string,
  through: readonly string[] = [],
): Promise<Program> => {
  const build = folder === undefined ? await buildOfRun() : { folder, environment: {} }
  const [command, ...words] = [
    ...through,
    process.execPath,
    join(build.folder, file.includes('/') ? file : `src/${file}.ts`),
  ]
  const child = spawn(command, words, {
    cwd: build.folder,
    env: {
      ...{
        PATH: '/usr/local/bin:/usr/bin:/bin',
        HOME: '/',
        TMPDIR: runFolder(),
        SERVICE_CACHE_DIR: cacheDir,
        SERVICE_LOG_LEVEL: 'warn',
      },
      ...build.environment,
      ...environment,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (text = (text + chunk.toString()).slice(-200_000)))
  const ended = new Promise<number | string>((resolve) =>
    child.once('close', (code, signal) => {
      resolve(code ?? signal ?? 'unknown')
    }),
  )
  return { child, output: () => text, ended }
}

/** A machine that does other work may need this long for what takes it a second. */
const patienceSeconds = 120

/**
 * Asks until the answer is there, at least for the common patience. @throws Error that names `what`
 */
export const until = async <T>(
  what: string,
  withinSeconds: number,
  done: () => T | Promise<T>,
): Promise<NonNullable<T>> => {
  const began = performance.now()
  const limit = Math.max(withinSeconds, patienceSeconds)
  for (;;) {
    const value = await done()
    if (value !== undefined && value !== null && value !== false) return value
    if (performance.now() - began > limit * 1_000) throw new Error(`not within ${String(limit)} s: ${what}`)
    await beforeNextLook(began)
  }
}

/** Waits until a daemon has written where it listens. */
export const readyOf = (daemon: Program, dataDir: string): Promise<ReadyFacts> =>
  until('the ready file of the daemon', 300, () => {
    if (daemon.child.exitCode !== null || daemon.child.signalCode !== null)
      throw new Error(
        `the daemon ended with ${String(daemon.child.exitCode ?? daemon.child.signalCode)}:\n${daemon.output()}`,
      )
    const file = join(dataDir, 'ready.json')
    if (!existsSync(file)) return undefined
    const ready = JSON.parse(readFileSync(file, 'utf8')) as ReadyFacts
    return ready.pids.daemon === daemon.child.pid ? ready : undefined
  })
