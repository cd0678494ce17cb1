import { expect } from '@jest/globals'
import { execFile, execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { recordRun } from '../../bench/provenance/rows.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { sql } from '../../src/db/sql.ts'
import { exportRoutes } from '../../src/domains/provenance/export-routes.ts'
import { installCrateValidator } from '../support/crate-validator.ts'
import { needs } from '../support/needs.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { runFolder } from '../support/run-folder.ts'

const { afterAll, beforeAll, test } = needs('python3-venv')

/** Exports of runs of every state and mode, judged by programs of others. */

const states = ['created', 'running', 'completed', 'failed', 'cancelled'] as const
/** A simulation ends in one transaction: it is not seen while it runs. */
const simulated: ReadonlySet<string> = new Set(['created', 'completed'])
const folder = mkdtempSync(join(runFolder(), 'crates-'))
let app: OpenedRoutes
interface Found {
  checks: Record<'REQUIRED' | 'RECOMMENDED', number>
  failed: { severity: string; check: string; message: string }[]
  answers: Record<'images' | 'durations' | 'inputs', string[][]>
  prov: { records: Record<string, number>; same: boolean }
}
let found: Record<string, Found>

const bytesOf = async (path: string): Promise<Buffer> => {
  const answer = await fetch(`${app.baseUrl}${path}`)
  expect([path, answer.status]).toEqual([path, 200])
  return Buffer.from(await answer.arrayBuffer())
}

beforeAll(async () => {
  app = await openRoutes((db) =>
    exportRoutes({
      db,
      hostId: 'here',
      // No crate of these holds the files themselves, so no site is asked.
      sites: undefined as never,
      api: { url: 'http://127.0.0.1/api' },
    }),
  )
  for (const status of states)
    for (const mode of simulated.has(status) ? ['real', 'simulation'] : ['real']) {
      const name = `${status}-${mode}`
      await recordRun(app.db, {
        name,
        activities: 3,
        edges: [
          [0, 1],
          [0, 2],
          [1, 2],
        ],
      })
      await app.db.run(sql`update execution_runs set status = ${status}, mode = ${mode},
        failure_reason = ${status === 'failed' ? 'it "broke"' : null},
        started_at = ${status === 'created' ? null : new Date(0).toISOString()},
        finished_at = ${['created', 'running'].includes(status) ? null : new Date(9_000).toISOString()}
        where id = ${`${name}-run`}`)
      if (status === 'created')
        await app.db
          .run(sql`update task_executions set status = 'blocked', started_at = null, finished_at = null,
          handle_name = null where execution_run_id = ${`${name}-run`}`)
      if (status === 'failed')
        await app.db.run(sql`update task_executions set status = 'failed', failure_reason = 'exit code 1'
          where execution_run_id = ${`${name}-run`} and activity_position = 2`)
      const place = join(folder, name)
      mkdirSync(place)
      writeFileSync(`${place}.zip`, await bytesOf(`/execution-runs/${name}-run/crate/`))
      execFileSync('python3', ['-m', 'zipfile', '-e', `${place}.zip`, place])
      writeFileSync(`${place}.prov.json`, await bytesOf(`/execution-runs/${name}-run/prov/`))
    }
  const { python, context } = await installCrateValidator(configFromEnvironment().cacheDir)
  const program = join(import.meta.dirname, 'crates.py')
  const { stdout } = await promisify(execFile)(python, [program, folder, context], {
    maxBuffer: 64 * 1024 * 1024,
  })
  found = JSON.parse(stdout) as Record<string, Found>
}, 600_000)
afterAll(() => app.close())

test('the validator passes every run: all that is required, and 95 % of what is recommended', () => {
  expect(Object.keys(found)).toHaveLength(states.length + simulated.size)
  for (const [name, { checks, failed }] of Object.entries(found)) {
    expect([name, checks.REQUIRED > 80, checks.RECOMMENDED > 90]).toEqual([name, true, true])
    expect([name, failed.filter(({ severity }) => severity === 'REQUIRED')]).toEqual([name, []])
    const rest = failed.filter(({ severity }) => severity === 'RECOMMENDED')
    process.stderr.write(
      `${name}: ${String(checks.RECOMMENDED - rest.length)} of ${String(checks.RECOMMENDED)} recommended\n`,
    )
    if (rest.length > 0.05 * checks.RECOMMENDED) expect([name, rest]).toEqual([name, []])
  }
})

test("SPARQL answers the profile's questions: image, duration, inputs", () => {
  const { images, durations, inputs } = (found['completed-real'] as Found).answers
  expect(new Set(images.map(([, image]) => image))).toEqual(new Set([expect.stringContaining('debian')]))
  expect(images).toHaveLength(3)
  // Three tasks and the run of the workflow.
  expect(durations).toHaveLength(4)
  for (const [, start = '', end = ''] of durations)
    expect(Date.parse(end)).toBeGreaterThanOrEqual(Date.parse(start))
  expect(inputs.length).toBeGreaterThanOrEqual(3)
})

test('the package prov reads every run, and writes it back the same', () => {
  for (const [name, { prov }] of Object.entries(found)) expect([name, prov.same]).toEqual([name, true])
  expect((found['completed-real'] as Found).prov.records).toMatchObject({
    Activity: expect.any(Number),
    Generation: 3,
    Usage: expect.any(Number),
  })
})
