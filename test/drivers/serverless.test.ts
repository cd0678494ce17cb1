import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openFunctions, type Functions } from '../../src/clients/functions.ts'
import type { Collected, Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openServerlessDriver } from '../../src/drivers/runtime/serverless/driver.ts'
import { startFunctions, type FunctionsSite } from '../../sites/functions.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { runFolder } from '../support/run-folder.ts'
import { runsOf } from '../support/share.ts'
import { plainIntent, taskName } from './intent.ts'
import { tortureConformance } from './torture.ts'

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

const makeSite = (): ConformanceSite => {
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
}

runtimeDriverConformance('serverless', makeSite, { restless: false })
tortureConformance('serverless', makeSite, { cases: runsOf(8, 24) })

test('a call ends by its exit code, whatever the command leaves; names are bytes in both directions', async () => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-serverless-'))
  const driver = openServerlessDriver({
    root: scratch,
    runtime: 'serverless',
    taskVariable: 'ORRERY_TASK',
    configuration: { endpoint: site.framework },
    pollMilliseconds: 50,
    invoke: functions.invoke,
  })
  const intent = (count: number, script: string, stage: Intent['stage'] = []): Intent => {
    const name = taskName(count)
    return { ...plainIntent(name, join(scratch, name), ['/bin/sh', '-c', script]), stage }
  }
  const run = async (task: Intent): Promise<Collected> => {
    const ended = new Promise((resolve) => driver.watch([task.name], resolve))
    for (const outcome of await driver.submit([task])) if (!outcome.ok) throw outcome.error
    await ended
    return driver.collect(task.name)
  }
  try {
    const gone = await run(intent(1, 'rm -rf "$PWD"; printf "no \\000 luck" >&2; exit 7'))
    expect(gone).toMatchObject({ state: { state: 'ended', exitCode: 7 }, stderrTail: 'no \ufffd luck' })
    const producer = intent(2, `mkdir "$(printf '\\377')"; echo x > "$(printf '\\377/caf\\351')"`)
    const { manifest } = await run(producer)
    expect(manifest.files.map(({ path }) => path)).toEqual(['\udcff/caf\udce9'])
    const consumer = intent(3, `cat "$(printf '\\377/caf\\351')"`, [{ from: producer.directory, label: 'p' }])
    expect(await run(consumer)).toMatchObject({ state: { exitCode: 0 }, manifest: { files: [] } })
    const { bytes } = await driver.logs(consumer.name, 'stdout', { offset: 0, limit: 10 })
    expect(bytes.toString()).toBe('x\n')
  } finally {
    await driver.close()
    rmSync(scratch, { recursive: true, force: true })
  }
})

test.each([true, false])(
  'a function that fails after it took the call is called again only where it is idempotent (%s)',
  async (idempotent) => {
    const scratch = mkdtempSync(join(runFolder(), 'orrery-serverless-'))
    const driver = openServerlessDriver({
      root: scratch,
      runtime: 'serverless',
      taskVariable: 'ORRERY_TASK',
      configuration: { endpoint: site.gateway, idempotent, retries: 0 },
      pollMilliseconds: 50,
      invoke: functions.invoke,
    })
    const task = plainIntent(taskName(idempotent ? 11 : 12), join(scratch, 'w'), ['true'])
    site.failure = (_, response) => {
      response.writeHead(500).end('out of order')
      return true
    }
    try {
      const over = new Promise((resolve) => driver.watch([task.name], resolve))
      await driver.submit([task])
      await over
      // A lost attempt is followed by another, and so by another call; a refused one is not.
      await expect(driver.collect(task.name)).rejects.toMatchObject({
        trouble: idempotent ? 'unknown' : 'refused',
      })
      expect(site.calls(task.name)).toBe(1)
    } finally {
      site.failure = undefined
      await driver.close()
      rmSync(scratch, { recursive: true, force: true })
    }
  },
)
