import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeWorld } from '../support/worlds.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

const dataDir = dataFolder()
let programs: Programs
beforeAll(async () => {
  programs = openPrograms(dataDir, {})
  await programs.startDaemon()
})
afterAll(async () => {
  await programs.stop()
  removeFolder(dataDir)
})

test('a daemon that is killed with a run in flight starts nothing twice, and the run completes after its restart', async () => {
  const [ledger, go] = [join(dataDir, 'ledger'), join(dataDir, 'go')]
  const world = await makeWorld(
    { post: (path: string, body?: unknown) => programs.post(path, body) },
    {
      name: 'kept',
      cores: [1],
      tasks: [
        { name: 'before', run: `echo before >> ${ledger}` },
        {
          name: 'during',
          run: `echo during >> ${ledger}; until [ -e ${go} ]; do sleep 0.1; done`,
          after: ['before'],
        },
        { name: 'after', run: `echo after >> ${ledger}`, after: ['during'] },
      ],
    },
  )
  await programs.post('/execution-runs/', { id: 'kept', schedulePlanId: world.planId, mode: 'real' })
  const lines = (): string[] => (existsSync(ledger) ? readFileSync(ledger, 'utf8').trimEnd().split('\n') : [])
  await until('the second task', 120, () => lines().includes('during'))
  await programs.killDaemon()
  // It ends while no daemon is there to see it.
  writeFileSync(go, '')
  await programs.startDaemon()
  const run = await until('the end of the run', 120, async () => {
    const { run } = await programs.get('/execution-runs/kept/')
    return ['completed', 'failed', 'cancelled'].includes(run.status) ? run : undefined
  })
  expect(run).toMatchObject({ status: 'completed', completedActivityCount: 3 })
  expect(lines()).toEqual(['before', 'during', 'after'])
})
