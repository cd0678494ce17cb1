import { execFile } from 'node:child_process'
import { createWriteStream, existsSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { promisify } from 'node:util'
import { StartError } from '../config.ts'
import { buildWithGo, makeOnce, onSearchPath, type ProgramOptions } from './go-build.ts'
import { runnerFile } from './runner-program.ts'

const run = promisify(execFile)

/** The release that is downloaded or built: server 1.31.2 with its page. */
export const temporalVersion = '1.8.2'
const commandModule = 'github.com/temporalio/cli/cmd/temporal'
/**
 * It must be a replacement: the pseudo-version sorts below the v0.0.0 that the command's own module
 * requires.
 */
const goModule = `module dev-server

go 1.26.4

require (
	github.com/temporalio/cli v${temporalVersion}
	github.com/temporalio/cli/cliext v0.0.0
)

replace github.com/temporalio/cli/cliext => github.com/temporalio/cli/cliext v0.0.0-20260731000218-c579925f193f
`
const downloadAddress = `https://temporal.download/cli/archive/v${temporalVersion}?platform=linux&arch=amd64`

/**
 * Flags for the start of the embedded server; a program on the search path that lacks one is too
 * old.
 */
const neededFlags = [
  '--dynamic-config-value',
  '--sqlite-pragma',
  '--search-attribute',
  '--metrics-port',
  '--ui-port',
  '--ui-codec-endpoint',
  '--ui-disable-news-fetch',
]

export interface TemporalProgramOptions extends ProgramOptions {
  /** SERVICE_TEMPORAL_BINARY. */
  named: string | undefined
  /** Where the archive is downloaded from; a local server in tests. */
  downloadAddress?: string
}

/**
 * The `temporal` program: the configured one, or from the search path, from the cache, downloaded,
 * or built from its Go module, in this order. Concurrent callers build once. @throws Error with the
 * tries and the remedy
 */
export const findTemporalProgram = async (options: TemporalProgramOptions): Promise<string> => {
  const { named, environment, log } = options
  if (named !== undefined) {
    const lacks = await missingFlags(named, environment)
    if (lacks.length > 0)
      throw new StartError(
        `SERVICE_TEMPORAL_BINARY=${named} does not offer ${lacks.join(', ')}: name a temporal ` +
          `program of release ${temporalVersion} or unset the variable`,
      )
    return named
  }
  const installed = onSearchPath('temporal', environment)
  if (installed !== undefined) {
    const lacks = await missingFlags(installed, environment)
    if (lacks.length === 0) return installed
    log.info(
      { program: installed, lacks },
      'the temporal program on the search path is too old for the embedded server; another is used',
    )
  }
  const target = join(options.cacheDir, 'temporal', 'temporal')
  return makeOnce(
    target,
    () => {
      options.onProgress('another process makes the Temporal development server; waiting for it')
    },
    async () => {
      const whyNoDownload = await download(options, target)
      if (whyNoDownload !== undefined) await build(options, target, whyNoDownload)
    },
  )
}

const missingFlags = async (
  program: string,
  environment: Readonly<Record<string, string>>,
): Promise<string[]> => {
  try {
    const { stdout } = await run(program, ['server', 'start-dev', '--help'], {
      env: environment,
      timeout: 20_000,
    })
    return neededFlags.filter((flag) => !stdout.includes(flag))
  } catch {
    return neededFlags
  }
}

/**
 * Undefined on success, else the reason. A machine without access to the internet is usual, so the
 * try is short and a failure is no error.
 */
const download = async (options: TemporalProgramOptions, target: string): Promise<string | undefined> => {
  const temporary = mkdtempSync(join(dirname(target), 'download-'))
  const quiet = new AbortController()
  // Five seconds to the first byte, or ten between two bytes, end it; a slow line may take as long
  // as it needs.
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
      options.onProgress(
        `downloading the Temporal development server ${temporalVersion}: ${(bytes / 1e6).toFixed(0)} MB`,
      )
    })
    const archive = join(temporary, 'archive.tar.gz')
    await pipeline(body, createWriteStream(archive))
    await run('tar', ['-xzf', archive, '-C', temporary, 'temporal'], { env: options.environment })
    const program = join(temporary, 'temporal')
    const { stdout } = await run(program, ['--version'], { env: options.environment })
    if (!stdout.includes(temporalVersion))
      return `the download is not release ${temporalVersion} but ${JSON.stringify(stdout.trim())}`
    renameSync(program, target)
    options.log.info({ program: target }, 'Temporal development server downloaded')
    return undefined
  } catch (error) {
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
    return `the download failed (${cause instanceof Error ? cause.message : String(cause)})`
  } finally {
    clearTimeout(alarm)
    rmSync(temporary, { recursive: true, force: true })
  }
}

const build = async (
  { cacheDir, environment, log, onProgress }: TemporalProgramOptions,
  target: string,
  whyNoDownload: string,
): Promise<void> =>
  buildWithGo({
    title: 'the Temporal development server',
    source: commandModule,
    module: goModule,
    flags: ['-mod=mod', '-modcacherw'],
    linkerFlags: `-X github.com/temporalio/cli/internal/temporalcli.Version=${temporalVersion}`,
    target,
    cacheDir,
    // The runner shares most of Go's standard library with the server.
    anotherFollows: !existsSync(runnerFile(cacheDir)),
    environment,
    log,
    onProgress: (seconds) => {
      const elapsed = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`
      onProgress(
        `building the Temporal development server, needed once, 3 to 10 minutes on two cores: ${elapsed}`,
      )
    },
    reason: whyNoDownload,
    remedy:
      'Install Go 1.26.4 or newer, name a temporal program in SERVICE_TEMPORAL_BINARY, or set ' +
      'SERVICE_TEMPORAL_ADDRESS to a running server',
  })
