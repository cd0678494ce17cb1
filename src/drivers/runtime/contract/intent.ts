import { isAbsolute } from 'node:path'
import { ranges } from '../../../ranges.ts'
import { DriverError, type Intent } from './driver.ts'
import { pathTrouble } from '../../../outside-path.ts'
import { isInside } from './links.ts'

const namePattern = /^[a-z0-9-]{1,63}$/

/** @throws DriverError `refused` naming field, value and remedy. */
export function checkIntent(intent: Intent): void {
  const refuse = (field: string, value: unknown, remedy: string): never => {
    throw new DriverError('refused', `${intent.name}: ${field} ${JSON.stringify(value)} ${remedy}`)
  }
  const { name, directory, argv, environment, workingDirectory, expectedOutputs, timeoutSeconds } = intent
  if (!namePattern.test(name)) refuse('name', name, 'must be 1 to 63 of a-z, 0-9 and -')
  if (!isAbsolute(directory) || directory.includes('\0'))
    refuse('directory', directory, 'must be an absolute path')
  if (argv[0] === undefined || argv[0] === '') refuse('argv', argv, 'must begin with the program to run')
  for (const [position, value] of argv.entries())
    if (value.includes('\0')) refuse(`argv[${position}]`, value, 'must not hold NUL')
  for (const [key, value] of Object.entries(environment)) {
    if (key === '' || /[=\0]/.test(key))
      refuse('environment name', key, 'must be non-empty, without = and NUL')
    if (value.includes('\0')) refuse(`environment.${key}`, value, 'must not hold NUL')
  }
  if (workingDirectory !== undefined && !isInside(workingDirectory))
    refuse('workingDirectory', workingDirectory, 'must be a relative path without ..')
  for (const path of expectedOutputs) {
    if (!isInside(path)) refuse('expectedOutputs', path, 'must be relative paths without ..')
    const trouble = pathTrouble(path)
    if (trouble !== undefined) refuse('expectedOutputs', path, `${trouble}; shorten it`)
  }
  if (!(timeoutSeconds >= 0 && timeoutSeconds <= ranges.seconds.most))
    refuse('timeoutSeconds', timeoutSeconds, `must be from 0 (none) to ${String(ranges.seconds.most)}`)
}
