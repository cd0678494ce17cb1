import { execFile } from 'node:child_process'
import {
  accessSync,
  chmodSync,
  constants,
  createWriteStream,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { delimiter, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { promisify } from 'node:util'
import type { Log } from '../observability/log.ts'
import { hold } from './hold.ts'
import { leash } from './leash.ts'
import { logTail } from './server-log.ts'

const run = promisify(execFile)

/** The release that is downloaded or built: server 1.31.2 with its page. */
export const temporalVersion = '1.8.2'
const commandModule = 'github.com/temporalio/cli/cmd/temporal'
/** It must be a replacement: the pseudo-version sorts below the v0.0.0 that the command's own module asks for. */
const goModule = `module dev-server

go 1.26.4

require (
	github.com/temporalio/cli v${temporalVersion}
	github.com/temporalio/cli/cliext v0.0.0
)

replace github.com/temporalio/cli/cliext => github.com/temporalio/cli/cliext v0.0.0-20260731000218-c579925f193f
`
const downloadAddress = `https://temporal.download/cli/archive/v${temporalVersion}?platform=linux&arch=amd64`

/** Flags that the embedded server is started with; a program on the search path that lacks one is too old for it. */
const neededFlags = ['--dynamic-config-value', '--sqlite-pragma', '--search-attribute', '--metrics-port', '--ui-port']

export interface TemporalProgramOptions {
  /** SERVICE_TEMPORAL_BINARY. */
  named: string | undefined
  cacheDir: string
  environment: Readonly<Record<string, string>>
  log: Log
  /** Called about once a second while something takes long. */
  onProgress: (message: string) => void
  /** Where the archive is downloaded from; a local server in tests. */
  downloadAddress?: string
}

/**
 * The `temporal` program: the one named, on the search path, in the cache, downloaded, or built from its Go module, in this order.
 * Concurrent callers build once. @throws Error saying what was tried and what helps
 */
export const findTemporalProgram = async (options: TemporalProgramOptions): Promise<string> => {
  const { named, environment, log } = options
  if (named !== undefined) {
    const lacks = await missingFlags(named, environment)
    if (lacks.length > 0)
      throw new Error(
        `SERVICE_TEMPORAL_BINARY=${named} does not offer ${lacks.join(', ')}: name a temporal program of release ${temporalVersion} or unset the variable`,
      )
    return named
  }
  const installed = onSearchPath('temporal', environment)
  if (installed !== undefined) {
    const lacks = await missingFlags(installed, environment)
    if (lacks.length === 0) return installed
    log.info({ program: installed, lacks }, 'the temporal program on the search path is too old for the embedded server; another is used')
  }
  const folder = join(options.cacheDir, 'temporal')
  const cached = join(folder, 'temporal')
  if (existsSync(cached)) return cached
  mkdirSync(folder, { recursive: true, mode: 0o755 })
  const held = await hold(folder, 'temporal-program', () => {
    options.onProgress('another process makes the Temporal development server; waiting for it')
  })
  try {
    if (existsSync(cached)) return cached
    // Remains of attempts that were killed; nobody else works here while we hold the folder.
    for (const name of readdirSync(folder))
      if (/^(?:build|download)-/.test(name)) rmSync(join(folder, name), { recursive: true, force: true })
    const whyNoDownload = await download(options, folder, cached)
    if (whyNoDownload !== undefined) await build(options, folder, cached, whyNoDownload)
    return cached
  } finally {
    await held.release()
  }
}

const missingFlags = async (program: string, environment: Readonly<Record<string, string>>): Promise<string[]> => {
  try {
    const { stdout } = await run(program, ['server', 'start-dev', '--help'], { env: environment, timeout: 20_000 })
    return neededFlags.filter((flag) => !stdout.includes(flag))
  } catch {
    return neededFlags
  }
}

const onSearchPath = (
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

/** Undefined when it worked, else why not: a machine without that way out is usual, so it is tried briefly and never an error. */
const download = async (options: TemporalProgramOptions, folder: string, target: string): Promise<string | undefined> => {
  const temporary = mkdtempSync(join(folder, 'download-'))
  const quiet = new AbortController()
  // Five seconds to the first byte, ten without another end it; a slow line may take as long as it needs.
  const alarm = setTimeout(() => {
    quiet.abort(new Error('no answer'))
  }, 5000)
  try {
    options.onProgress(`downloading the Temporal development server ${temporalVersion}`)
    const response = await fetch(options.downloadAddress ?? downloadAddress, { signal: quiet.signal })
    if (!response.ok || response.body === null) return `the download answered ${response.status}`
    let bytes = 0
    const body = Readable.fromWeb(response.body as ReadableStream<Uint8Array>)
    body.on('data', (chunk: Uint8Array) => {
      alarm.refresh()
      bytes += chunk.length
      options.onProgress(`downloading the Temporal development server ${temporalVersion}: ${(bytes / 1e6).toFixed(0)} MB`)
    })
    const archive = join(temporary, 'archive.tar.gz')
    await pipeline(body, createWriteStream(archive))
    await run('tar', ['-xzf', archive, '-C', temporary, 'temporal'], { env: options.environment })
    const program = join(temporary, 'temporal')
    const { stdout } = await run(program, ['--version'], { env: options.environment })
    if (!stdout.includes(temporalVersion)) return `the download is not release ${temporalVersion} but ${JSON.stringify(stdout.trim())}`
    renameSync(program, target)
    options.log.info({ program: target }, 'Temporal development server downloaded')
    return undefined
  } catch (error) {
    return `the download failed (${error instanceof Error ? (error.cause instanceof Error ? error.cause.message : error.message) : String(error)})`
  } finally {
    clearTimeout(alarm)
    rmSync(temporary, { recursive: true, force: true })
  }
}

const build = async (options: TemporalProgramOptions, folder: string, target: string, whyNoDownload: string): Promise<void> => {
  const go = onSearchPath('go', options.environment, ['/usr/local/go/bin'])
  const remedy =
    'Install Go 1.26.4 or newer, name a temporal program in SERVICE_TEMPORAL_BINARY, or set SERVICE_TEMPORAL_ADDRESS to a running server'
  if (go === undefined)
    throw new Error(
      `no Temporal development server: none on the search path, ${whyNoDownload}, and there is no Go to build it with. ${remedy}`,
    )
  const temporary = mkdtempSync(join(folder, 'build-'))
  const environment: Record<string, string> = { ...options.environment, GOFLAGS: '' }
  try {
    const { stdout } = await run(go, ['env', 'GOMODCACHE', 'GOCACHE'], { env: environment })
    const [modules = '', objects = ''] = stdout.split('\n')
    // The build fills 3.4 GB of caches. Where the user keeps such caches they are used, else ours go with the build.
    if (!existsSync(modules)) environment.GOMODCACHE = join(temporary, 'modules')
    if (!existsSync(objects)) environment.GOCACHE = join(temporary, 'objects')
    writeFileSync(join(temporary, 'go.mod'), goModule)
    const output = join(temporary, 'temporal')
    const flags = [
      '-mod=mod',
      '-trimpath',
      '-modcacherw',
      '-ldflags',
      `-s -w -X github.com/temporalio/cli/internal/temporalcli.Version=${temporalVersion}`,
    ]
    const startedAt = Date.now()
    const say = (): void => {
      const seconds = Math.floor((Date.now() - startedAt) / 1000)
      options.onProgress(
        `building the Temporal development server, needed once, 3 to 5 minutes on two cores: ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`,
      )
    }
    say()
    const ticking = setInterval(say, 1000)
    try {
      const logFile = join(temporary, 'build.log')
      // On a leash, so that a compiler does not work on for minutes after we were stopped.
      const compiler = await leash({
        command: [go, 'build', ...flags, '-o', output, commandModule],
        environment,
        directory: temporary,
        logFile,
        softSignal: 'TERM',
        patienceSeconds: 1,
      })
      const code = await compiler.ended
      if (code !== 0)
        throw new Error(
          `the Temporal development server could not be built: go build ended with code ${code} (and ${whyNoDownload}). ${remedy}\n${logTail(logFile)}`,
        )
    } finally {
      clearInterval(ticking)
    }
    chmodSync(output, 0o755)
    renameSync(output, target)
    options.log.info({ program: target, seconds: Math.round((Date.now() - startedAt) / 1000) }, 'Temporal development server built')
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}
