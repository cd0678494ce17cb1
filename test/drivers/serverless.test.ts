import { afterAll, beforeAll } from '@jest/globals'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openFunctions, type Functions } from '../../src/clients/functions.ts'
import { openServerlessDriver } from '../../src/drivers/runtime/serverless/driver.ts'
import { startFunctions, type FunctionsSite } from '../../sites/functions.ts'
import { runtimeDriverConformance } from './conformance.ts'
import { runFolder } from '../support/run-folder.ts'

let site: FunctionsSite
let functions: Functions
beforeAll(async () => {
  site = await startFunctions()
  functions = openFunctions({ addressAllowed: () => true })
})
afterAll(async () => {
  functions.close()
  await site.stop()
})

runtimeDriverConformance('serverless', () => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-serverless-'))
  const options = {
    root: scratch,
    runtime: 'serverless',
    taskVariable: 'ORRERY_TASK',
    configuration: { endpoint: site.framework },
    pollMilliseconds: 50,
  }
  return {
    scratch,
    endsUnmarked: false,
    measuresUse: false,
    runsInPlace: false,
    open: () => openServerlessDriver({ ...options, invoke: functions.invoke }),
    submitter: [
      process.execPath,
      join(import.meta.dirname, 'serverless-submitter.ts'),
      JSON.stringify(options),
    ],
    close: async () => rmSync(scratch, { recursive: true, force: true }),
  }
})
