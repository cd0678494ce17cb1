import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Log } from '../observability/log.ts'
import { buildWithGo, makeOnce } from './go-build.ts'

const folder = join(import.meta.dirname, '../drivers/runtime')

export interface RunnerProgramOptions {
  cacheDir: string
  environment: Readonly<Record<string, string>>
  log: Log
  onProgress: (message: string) => void
}

/**
 * The runner of local tasks (`local-runner.go`): the one built beside its source, as in the image, or in the cache under its source's
 * digest, or built there, in about ten seconds. @throws Error saying what helps
 */
export const findRunnerProgram = async ({ cacheDir, environment, log, onProgress }: RunnerProgramOptions): Promise<string> => {
  const beside = join(folder, 'local-runner')
  if (existsSync(beside)) return beside
  const source = join(folder, 'local-runner.go')
  const digest = createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 16)
  const target = join(cacheDir, 'runner', digest, 'orrery-runner')
  const title = 'the runner of local tasks'
  return makeOnce(
    target,
    () => {
      onProgress(`another process builds ${title}; waiting for it`)
    },
    () =>
      buildWithGo({
        title,
        source,
        flags: [],
        settings: { CGO_ENABLED: '0' },
        target,
        environment,
        log,
        onProgress: (seconds) => {
          onProgress(`building ${title}, needed once, about 10 seconds: ${seconds} s`)
        },
        remedy: 'Install Go 1.22 or newer (https://go.dev/dl/; Debian 13: golang-go), or run nothing on this machine',
      }),
  )
}
