import { hash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { builtOnce, type ProgramOptions } from './go-build.ts'

const folder = join(import.meta.dirname, '../drivers/runtime/local')

const source = join(folder, 'runner.go')

/**
 * The path of the runner: beside its source, as in the image, else in the cache under its source's
 * digest. It may have to be built first.
 */
export const runnerFile = (cacheDir: string): string => {
  const beside = join(folder, 'runner')
  if (existsSync(beside)) return beside
  const digest = hash('sha256', readFileSync(source)).slice(0, 16)
  return join(cacheDir, 'runner', digest, 'orrery-runner')
}

/**
 * The runner of local tasks (`drivers/runtime/local/runner.go`): the one built beside its source,
 * as in the image, or in the cache under its source's digest. A build there takes 22 seconds of two
 * cores, or 2 after Temporal's server was built. @throws Error with the remedy
 */
export const findRunnerProgram = async ({
  cacheDir,
  environment,
  log,
  onProgress,
}: ProgramOptions): Promise<string> =>
  builtOnce({
    title: 'the runner of local tasks',
    needed: 'needed once, up to half a minute',
    source,
    flags: [],
    settings: { CGO_ENABLED: '0' },
    target: runnerFile(cacheDir),
    cacheDir,
    environment,
    log,
    onProgress,
    remedy:
      'Install Go 1.22 or newer (https://go.dev/dl/; Debian 13: golang-go), or run nothing on this machine',
  })

/**
 * Finds the runner at the first call and keeps its path; after a failure the next call tries again.
 */
export const openRunnerProgram = (options: ProgramOptions): (() => Promise<string>) => {
  let found: Promise<string> | undefined
  return () =>
    (found ??= findRunnerProgram(options).catch((error: unknown) => {
      found = undefined
      throw error
    }))
}
