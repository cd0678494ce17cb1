import { randomUUID } from 'node:crypto'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'

/** Nobody else's, also in tests that run beside: processes are found by it. */
export const taskName = (count: number): string => `task-${count}-${randomUUID().slice(0, 8)}`

/** A task that only runs `argv`: no files, no limits, one core. */
export const plainIntent = (name: string, directory: string, argv: readonly string[]): Intent => ({
  name,
  directory,
  argv,
  environment: {},
  stage: [],
  expectedOutputs: [],
  cores: 1,
  memoryBytes: 0,
  timeoutSeconds: 0,
})
