import { accessSync, chmodSync, constants, existsSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { execFile } from 'node:child_process'
import { delimiter, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { StartError } from '../config.ts'
import type { Log } from '../observability/log.ts'
import { makeFolder } from './folders.ts'
import { hold } from './hold.ts'
import { leash } from './leash.ts'
import { logTail } from './server-log.ts'

const run = promisify(execFile)

/** Where a program is on the search path, or in one of the further folders. */
export const onSearchPath = (
  program: string,
  environment: Readonly<Record<string, string>>,
  further: readonly string[] = [],
): string | undefined =>
  [...(environment.PATH ?? '').split(delimiter).filter((folder) => folder !== ''), ...further]
    .map((folder) => join(folder, program))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK)
        return true
      } catch {
        return false
      }
    })

/** The program of that path, made by `make` where it is missing: once, however many processes ask. */
export const makeOnce = async (target: string, onWait: () => void, make: () => Promise<void>): Promise<string> => {
  if (existsSync(target)) return target
  const folder = dirname(target)
  makeFolder('SERVICE_CACHE_DIR', folder, 0o755)
  const held = await hold(folder, 'program', onWait)
  try {
    if (existsSync(target)) return target
    // Remains of attempts that were killed; nobody else works here while we hold the folder.
    for (const name of readdirSync(folder))
      if (/^(?:build|download)-/.test(name)) rmSync(join(folder, name), { recursive: true, force: true })
    await make()
    return target
  } finally {
    await held.release()
  }
}

/**
 * What `-s -w` throws away is not made, and the compiler collects garbage more rarely: 27 % less processor time for Go's own compiler, for up
 * to 2 GB of memory where 1.2 were needed.
 */
export const thriftyGo = { flags: ['-gcflags=all=-dwarf=false'], environment: { GOGC: '400' } } as const

/** Go's compile cache of this service's builds, where the account has none. */
const objectsFolder = (cacheDir: string): string => join(cacheDir, 'go-objects')

export interface GoBuild {
  /** What is built, for people. */
  title: string
  /** A package of `module`, or a file of its own. */
  source: string
  /** go.mod, for what other modules it needs. */
  module?: string
  flags: readonly string[]
  linkerFlags?: string
  /** `CGO_ENABLED` and the like. */
  settings?: Readonly<Record<string, string>>
  target: string
  cacheDir: string
  /** Another build of this service follows soon: what was compiled stays for it. The last build removes it. */
  anotherFollows: boolean
  environment: Readonly<Record<string, string>>
  log: Log
  /** Called each second with the seconds since the beginning. */
  onProgress: (seconds: number) => void
  /** Why it has to be built, and what helps if it cannot be. */
  reason?: string
  remedy: string
}

/** Compiles a program with the machine's Go. @throws Error with the end of the compiler's output, and what helps */
export const buildWithGo = async (build: GoBuild): Promise<void> => {
  const go = onSearchPath('go', build.environment, ['/usr/local/go/bin'])
  const reason = build.reason === undefined ? '' : ` (and ${build.reason})`
  if (go === undefined) throw new StartError(`${build.title} is not there${reason}, and there is no Go to build it with. ${build.remedy}`)
  const temporary = mkdtempSync(join(dirname(build.target), 'build-'))
  const environment: Record<string, string> = { ...build.environment, ...thriftyGo.environment, GOFLAGS: '', ...build.settings }
  const startedAt = Date.now()
  const say = (): void => {
    build.onProgress(Math.floor((Date.now() - startedAt) / 1000))
  }
  try {
    const { stdout } = await run(go, ['env', 'GOMODCACHE', 'GOCACHE'], { env: environment, cwd: temporary, timeout: 60_000 })
    const [modules = '', objects = ''] = stdout.split('\n')
    // Temporal's build fills 3.4 GB of caches. Where the account has such caches they are used, else ours go after the builds.
    if (!existsSync(modules)) environment.GOMODCACHE = join(temporary, 'modules')
    if (existsSync(objects)) await compile(build, go, environment, temporary, say)
    else await withOwnObjects(build, say, (GOCACHE) => compile(build, go, { ...environment, GOCACHE }, temporary, say))
    chmodSync(join(temporary, 'program'), 0o755)
    renameSync(join(temporary, 'program'), build.target)
    build.log.info({ program: build.target, seconds: Math.round((Date.now() - startedAt) / 1000) }, `${build.title} built`)
  } catch (error) {
    if (!(error instanceof CompilerError)) throw error
    throw new Error(`${build.title} could not be built: ${error.message}${reason}. ${build.remedy}\n${error.output}`, { cause: error })
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

/** One build at a time uses the cache, so that none removes it under another. */
const withOwnObjects = async (build: GoBuild, onWait: () => void, work: (objects: string) => Promise<void>): Promise<void> => {
  const objects = objectsFolder(build.cacheDir)
  const held = await hold(build.cacheDir, 'go-objects', onWait)
  let stay = false
  try {
    await work(objects)
    stay = build.anotherFollows
  } finally {
    if (!stay) rmSync(objects, { recursive: true, force: true })
    await held.release()
  }
}

class CompilerError extends Error {
  readonly output: string
  constructor(message: string, output: string) {
    super(message)
    this.name = 'CompilerError'
    this.output = output
  }
}

/** Leaves the program at `<folder>/program`. @throws CompilerError */
const compile = async (
  build: GoBuild,
  go: string,
  environment: Readonly<Record<string, string>>,
  folder: string,
  say: () => void,
): Promise<void> => {
  if (build.module !== undefined) writeFileSync(join(folder, 'go.mod'), build.module)
  say()
  const ticking = setInterval(say, 1000)
  try {
    const logFile = join(folder, 'build.log')
    const flags = [...build.flags, ...thriftyGo.flags, '-trimpath', '-ldflags', `-s -w ${build.linkerFlags ?? ''}`.trim()]
    // On a leash, so that a compiler does not work on for minutes after we were stopped.
    const compiler = await leash({
      command: [go, 'build', ...flags, '-o', join(folder, 'program'), build.source],
      environment,
      directory: folder,
      logFile,
      softSignal: 'TERM',
      patienceSeconds: 1,
    })
    const code = await compiler.ended
    if (code !== 0) throw new CompilerError(`go build ended with code ${code}`, logTail(logFile))
  } finally {
    clearInterval(ticking)
  }
}
