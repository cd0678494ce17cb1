import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { needs } from '../support/needs.ts'
import type { TestService } from '../support/service.ts'
import { openShare, runsOf } from '../support/share.ts'
import { openSite, planned, simulated } from '../support/simulated-instances.ts'
import { filesOf, shared } from './trace.ts'

const { afterAll, beforeAll, test } = needs('shared')

let service: TestService
beforeAll(async () => {
  service = await openSite()
})
afterAll(() => service[Symbol.asyncDispose]())

const samples = shared('samples')
const files = filesOf(
  samples,
  new RegExp(
    String.raw`^(legacy-workflows|legacy-schedules|pegasus-montage)/.*\.ya?ml$|` +
      String.raw`(^|/)(workflow|source-workflow|workflow-roundtrip|dag)\.(yaml|json)$`,
  ),
)

test('there are all of them', () => {
  expect(files.length).toBeGreaterThan(40)
})

/** The two of 6,000 tasks and more are played in the proofs, and of the others a sixth in the gate. */
const mostBytes = runsOf(2 ** 20, Infinity)
const sizeOf = (file: string): number => statSync(join(samples, file), { throwIfNoEntry: false })?.size ?? 0

test.each(files.filter((file) => sizeOf(file) <= mostBytes).filter(openShare(6)))(
  'a sample workflow that is accepted is planned and simulated, another is refused with a reason: %s',
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
      expect(imported.body.details).toEqual(
        expect.arrayContaining([{ path: expect.any(String), message: expect.stringMatching(/\S/) }]),
      )
      return
    }
    const count = imported.body.version.activityCount
    if (file.endsWith('wf-montage-200d.yml')) expect([count, seconds < 20]).toEqual([6_448, true])
    const plan = await planned(service, name, imported.body.version.id)
    const { run } = await simulated(service, name, plan.id)
    expect(run).toMatchObject({
      status: 'completed',
      activityCount: count,
      completedActivityCount: count,
      failedActivityCount: 0,
    })
    expect(run.makespanSeconds).toBeGreaterThan(0)
  },
)
