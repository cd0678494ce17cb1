/**
 * Writes a real export of this version, of a service that ran the hello example, to
 * `test/archives/exports/<newest migration>.zip`. Later versions have to import it:
 * `npx node test/archives/make-export.ts [FOLDER]`, once per released schema.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { readMigrations } from '../../src/db/migrations.ts'
import { dataFolder, removeFolder, until } from '../failures/programs.ts'
import { openPrograms } from '../failures/rounds.ts'

const [folder = join(import.meta.dirname, 'exports')] = process.argv.slice(2)
const examples = join(import.meta.dirname, '../../examples/hello')
const dataDir = dataFolder()
const programs = openPrograms(dataDir, {})
try {
  await programs.startDaemon()
  for (const [path, file] of [
    ['/workflow-definitions/', 'workflow'],
    ['/environments/', 'environment'],
    ['/execution-scopes/', 'scope'],
    ['/schedule-plans/import/', 'plan'],
  ] as const)
    await programs.post(path, parse(readFileSync(join(examples, `${file}.yaml`), 'utf8')))
  await programs.post('/artifacts/', { artifactId: 'tool', version: '1' })
  for (const [id, mode] of [
    ['first', 'real'],
    ['rehearsed', 'simulation'],
  ]) {
    await programs.post('/execution-runs/', { id, schedulePlanId: 'hello-plan', mode })
    await until('the end of the run', 120, async () => {
      const { run } = await programs.get(`/execution-runs/${String(id)}/`)
      return run.status === 'completed'
    })
  }
  const answer = await fetch(`${programs.baseUrl()}/instances/default/export/`)
  if (answer.status !== 200) throw new Error(`the export was answered ${String(answer.status)}`)
  const number = (await readMigrations()).at(-1)?.number ?? 0
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, `${String(number)}.zip`), Buffer.from(await answer.arrayBuffer()))
} finally {
  await programs.stop()
  removeFolder(dataDir)
}
