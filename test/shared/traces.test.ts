import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import type { TestService } from '../support/service.ts'
import { expectSimulated, openSite, planned, simulated } from '../support/simulated-instances.ts'
import { traces } from './trace.ts'

const data = join(import.meta.dirname, '../../../shared/data')

let service: TestService
beforeAll(async () => {
  service = await openSite()
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

describe('the traces of real runs are imported, planned and simulated', () => {
  test.each(readdirSync(traces).filter((file) => file.endsWith('.json')))(
    '%s',
    (file) => expectSimulated(service, file.replace('.json', ''), readFileSync(join(traces, file), 'utf8')),
    60_000,
  )
})

describe('the sample workflows that are accepted are planned and simulated, the others are refused with a reason', () => {
  const samples = join(data, 'samples')
  const files = readdirSync(samples, { recursive: true, encoding: 'utf8' }).filter(
    (file) =>
      /^(legacy-workflows|legacy-schedules|pegasus-montage)\/.*\.ya?ml$/.test(file) ||
      /(^|\/)(workflow|source-workflow|workflow-roundtrip|dag)\.(yaml|json)$/.test(file),
  )

  test('there are all of them', () => {
    expect(files.length).toBeGreaterThan(40)
  })

  test.each(files.toSorted())(
    '%s',
    async (file) => {
      const name = file.replaceAll(/[^a-z0-9]+/gi, '-')
      const started = performance.now()
      const imported = await service.call(
        'POST',
        `/workflow-definitions/import/?name=${name}&namespace=samples`,
        readFileSync(join(samples, file), 'utf8'),
      )
      const seconds = (performance.now() - started) / 1_000
      if (imported.status !== 201) {
        expect([400, 422]).toContain(imported.status)
        expect(imported.body.details).toEqual(expect.arrayContaining([{ path: expect.any(String), message: expect.stringMatching(/\S/) }]))
        return
      }
      const count = imported.body.version.activityCount
      if (file.endsWith('wf-montage-200d.yml')) expect([count, seconds < 20]).toEqual([6_448, true])
      const plan = await planned(service, name, imported.body.version.id)
      const { run } = await simulated(service, name, plan.id)
      expect(run).toMatchObject({ status: 'completed', activityCount: count, completedActivityCount: count, failedActivityCount: 0 })
      expect(run.makespanSeconds).toBeGreaterThan(0)
    },
    60_000,
  )
})
