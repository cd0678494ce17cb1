import { chmodSync, existsSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { execFile } from 'node:child_process'
import { delimiter, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { StartError } from '../config.ts'
import { isProgram } from '../drivers/machine-programs.ts'
import type { Log } from '../observability/log.ts'
import { makeFolder } from './folders.ts'
import { hold } from './hold.ts'
import { leash } from './leash.ts'
import { logTail } from './server-log.ts'

const run = promisify(execFile)

/** The path of a program on the search path, or in one of the further folders. */
export const onSearchPath = (
  program: string,
  environment: Readonly<Record<string, string>>,
  further: readonly string[] = [],
): string | undefined =>
  [...(environment.PATH ?? '').split(delimiter).filter((folder) => folder !== ''), ...further]
    .map((folder) => join(folder, program))
    .find(isProgram)

/**
 * The program of that path, built by `make` where it is missing: once, however many processes ask.
 */
export const makeOnce = async (
  target: string,
  onWait: () => void,
  make: () => Promise<void>,
): Promise<string> => {
  if (existsSync(target)) return target
  const folder = dirname(target)
  makeFolder('SERVICE_CACHE_DIR', folder, 0o755)
  const held = await hold(folder, 'program', onWait)
  try {
    if (existsSync(target)) return target
    // Remains of killed attempts; no other process works here while this one holds the folder.
    for (const name of readdirSync(folder))
      if (/^(?:build|download)-/.test(name)) rmSync(join(folder, name), { recursive: true, force: true })
    await make()
    return target
  } finally {
    await held.release()
  }
}

/**
 * The compiler does not make what `-s -w` removes, and collects garbage less often: 27 % less
 * processor time for Go's own compiler, for up to 2 GB of memory instead of 1.2.
 */
export const thriftyGo = { flags: ['-gcflags=all=-dwarf=false'], environment: { GOGC: '400' } } as const

/** Go's compile cache for this service's builds, where the account has none. */
const objectsFolder = (cacheDir: string): string => join(cacheDir, 'go-objects')

/** What the finders of this service's programs get. */
export interface ProgramOptions {
  cacheDir: string
  environment: Readonly<Record<string, string>>
  log: Log
  /** Called about once a second during a long step. */
  onProgress: (message: string) => void
}

export interface GoBuild extends Omit<ProgramOptions, 'onProgress'> {
  /** The program's name, for people. */
  title: string
  /** A package of `module`, or a source file. */
  source: string
  /** go.mod, for the other modules that it needs. */
  module?: string
  flags: readonly string[]
  linkerFlags?: string
  /** `CGO_ENABLED` and the like. */
  settings?: Readonly<Record<string, string>>
  target: string
  /**
   * Another build of this service follows soon: the compiled objects stay for it. The last build
   * removes them.
   */
  anotherFollows: boolean
  /** Called each second with the seconds since the beginning. */
  onProgress: (seconds: number) => void
  /** Why it has to be built, and the remedy if that is impossible. */
  reason?: string
  remedy: string
}

/**
 * Compiles a program with the machine's Go. @throws Error with the end of the compiler's output,
 * and the remedy
 */
export const buildWithGo = async (build: GoBuild): Promise<void> => {
  const go = onSearchPath('go', build.environment, ['/usr/local/go/bin'])
  const reason = build.reason === undefined ? '' : ` (and ${build.reason})`
  if (go === undefined)
    throw new StartError(
      `${build.title} is not there${reason}, and there is no Go to build it with. ${build.remedy}`,
    )
  const temporary = mkdtempSync(join(dirname(build.target), 'build-'))
  const environment: Record<string, string> = {
    ...build.environment,
    ...thriftyGo.environment,
    GOFLAGS: '',
    ...build.settings,
  }
  const startedAt = Date.now()
  const report = (): void => {
    build.onProgress(Math.floor((Date.now() - startedAt) / 1000))
  }
  try {
    const { stdout } = await run(go, ['env', 'GOMODCACHE', 'GOCACHE'], {
      env: environment,
      cwd: temporary,
      timeout: 60_000,
    })
    const [modules = '', objects = ''] = stdout.split('\n')
    // Temporal's build fills 3.4 GB of caches. The account's own caches are used where they exist;
    // otherwise ours are removed after the builds.
    if (!existsSync(modules)) environment.GOMODCACHE = join(temporary, 'modules')
    if (existsSync(objects)) await compile(build, go, environment, temporary, report)
    else
      await withOwnObjects(build, report, (GOCACHE) =>
        compile(build, go, { ...environment, GOCACHE }, temporary, report),
      )
    chmodSync(join(temporary, 'program'), 0o755)
    renameSync(join(temporary, 'program'), build.target)
    build.log.info(
      { program: build.target, seconds: Math.round((Date.now() - startedAt) / 1000) },
      `${build.title} built`,
    )
  } catch (error) {
    if (!(error instanceof CompilerError)) throw error
    throw new Error(
      `${build.title} could not be built: ${error.message}${reason}. ${build.remedy}\n${error.output}`,
      { cause: error },
    )
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

/** The program of `build.target`, built once, however many processes ask. @throws as `buildWithGo` */
export const builtOnce = ({
  needed = 'needed once',
  everySeconds = 1,
  onProgress,
  ...build
}: Omit<GoBuild, 'anotherFollows' | 'onProgress'> &
  Pick<ProgramOptions, 'onProgress'> & {
    /** How often it has to be built, and how long that takes, for people. */
    needed?: string
    /** Seconds between two messages of a build. */
    everySeconds?: number
  }): Promise<string> =>
  makeOnce(
    build.target,
    () => onProgress(`another process builds ${build.title}; waiting for it`),
    () =>
      buildWithGo({
        ...build,
        anotherFollows: false,
        onProgress: (seconds) => {
          if (seconds % everySeconds === 0)
            onProgress(`building ${build.title}, ${needed}: ${String(seconds)} s`)
        },
      }),
  )

/** One build at a time uses the cache, so that none removes it during another. */
const withOwnObjects = async (
  build: GoBuild,
  onWait: () => void,
  work: (objects: string) => Promise<void>,
): Promise<void> => {
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

/** Writes the program to `<folder>/program`. @throws CompilerError */
const compile = async (
  build: GoBuild,
  go: string,
  environment: Readonly<Record<string, string>>,
  folder: string,
  report: () => void,
): Promise<void> => {
  if (build.module !== undefined) writeFileSync(join(folder, 'go.mod'), build.module)
  report()
  const ticking = setInterval(report, 1000)
  try {
    const logFile = join(folder, 'build.log')
    const flags = [
      ...build.flags,
      ...thriftyGo.flags,
      '-trimpath',
      '-ldflags',
      `-s -w ${build.linkerFlags ?? ''}`.trim(),
    ]
    // On a leash, so that a compiler does not work on for minutes after this process has stopped.
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
