import { lstatSync, mkdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { DriverError, type Intent } from '../contract/driver.ts'
import { checkIntent } from '../contract/intent.ts'
import { stage, writeStagedFiles } from '../local/staging.ts'
import { serverlessProblems } from './configuration.ts'
import { inlineBytes } from './files.ts'
import { byReference, requestBytes } from './requests.ts'
import { clock, type FunctionSite } from './site.ts'

const makeDirectory = (path: string): void => {
  mkdirSync(path, { recursive: true, mode: 0o700 })
  const found = lstatSync(path)
  if (!found.isDirectory() || (found.mode & 0o077) !== 0)
    throw new DriverError('infrastructure', `${path} is no folder of our own: others may enter it`)
}

/**
 * Records a call before it is made, with its files; a call with a record stays unchanged.
 * @throws DriverError
 */
export async function acceptCall(site: FunctionSite, intent: Intent): Promise<void> {
  const { calls, options } = site
  const {
    name,
    directory,
    argv,
    environment,
    workingDirectory,
    expectedOutputs,
    timeoutSeconds,
    memoryBytes,
  } = intent
  checkIntent(intent)
  const { configuration } = site.settings()
  const problems = serverlessProblems(
    { timeoutSeconds, memoryBytes, gpus: intent.gpus ?? 0 },
    configuration,
  ).filter(({ severity }) => severity === 'error')
  if (problems.length > 0)
    throw new DriverError('refused', problems.map(({ path, message }) => `${path} ${message}`).join('; '))
  if (calls.record(name) !== undefined) return
  const isStarted = (): boolean => calls.record(name) !== undefined
  if (intent.stage.length > 0)
    await stage(
      directory,
      intent.stage,
      (files) => writeStagedFiles(calls.path(name, 'staged'), files),
      isStarted,
    )
  makeDirectory(directory)
  const staged = calls.staged(name)
  const bytes = inlineBytes(staged) + requestBytes({ argv, environment, expectedOutputs })
  if (bytes > configuration.payloadLimitBytes && !byReference(site, bytes)) {
    await rm(directory, { recursive: true, force: true })
    throw new DriverError(
      'refused',
      `the request would have ${bytes} bytes (${staged.length} input files among them), and the ` +
        `platform takes ${configuration.payloadLimitBytes} (payloadLimitBytes); give publicBaseUrl, so ` +
        'that inputs are read by reference, or plan the activity elsewhere',
    )
  }
  calls.accept(name, {
    directory,
    argv,
    environment: { ...environment, [options.taskVariable]: name },
    ...(workingDirectory === undefined ? {} : { workingDirectory }),
    expectedOutputs,
    timeoutSeconds,
    memoryBytes,
    submittedAt: clock(),
    sources: intent.stage.map(({ from }) => from),
  })
}
