import { setTimeout as sleep } from 'node:timers/promises'
import { gatewayProgram } from '../../sites/s3.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { findRunnerProgram } from '../../src/embedded/runner-program.ts'
import { findTemporalProgram } from '../../src/embedded/temporal-program.ts'
import { openLog } from '../../src/observability/log.ts'

/** A registry that does not answer is asked again after these pauses, in milliseconds. */
const pausesMs = [5_000, 30_000]

const progressEveryMs = 15_000

/**
 * Makes the programs that the tests start: Temporal's server, the runner of local tasks and an S3
 * server. They stay in the cache; on an empty one this takes five minutes of two processors.
 * @returns why one cannot be made
 */
export const preparePrograms = async (): Promise<string | undefined> => {
  // The files of planted.ts use no server.
  if (process.env['ORRERY_TEST_SERVERS'] !== undefined) return undefined
  for (let tries = 0; ; tries++) {
    try {
      await prepare()
      return undefined
    } catch (error) {
      const pause = pausesMs[tries]
      const message = error instanceof Error ? error.message : String(error)
      if (pause === undefined) return `the programs of the tests cannot be made: ${message}`
      process.stderr.write(`${message}\ntrying again in ${pause / 1_000} s\n`)
      await sleep(pause)
    }
  }
}

const prepare = async (): Promise<void> => {
  const { cacheDir, temporalBinary, childEnvironment: environment } = configFromEnvironment()
  const log = openLog('warn')
  let shownAt = 0
  const onProgress = (line: string): void => {
    if (Date.now() - shownAt < progressEveryMs) return
    shownAt = Date.now()
    process.stderr.write(`${line}\n`)
  }
  const options = { cacheDir, environment, log, onProgress }
  await findTemporalProgram({ named: temporalBinary, ...options })
  await findRunnerProgram(options)
  await gatewayProgram()
}
