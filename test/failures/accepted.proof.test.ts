import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { makeWorld } from '../support/worlds.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

const dataDir = dataFolder()
let programs: Programs
beforeAll(async () => {
  programs = openPrograms(dataDir, {})
  await programs.startDaemon()
}, 300_000)
afterAll(async () => {
  await programs.stop()
  removeFolder(dataDir)
}, 60_000)

test('an accepted run is never lost: the daemon is killed the moment it has answered, and the run completes after its restart', async () => {
  const world = await makeWorld(
    { post: (path: string, body?: unknown) => programs.post(path, body) },
    {
      name: 'kept',
      tasks: Array.from({ length: 6 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.1' })),
    },
  )
  const ids: string[] = []
  for (let k = 0; k < 3; k++) {
    const wave = Array.from({ length: 4 }, (_, i) => `kept-${String(k)}-${String(i)}`)
    const answers = wave.map((id) =>
      programs.call('POST', '/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' }).then(
        ({ status }) => [id, status] as const,
        () => [id, 0] as const,
      ),
    )
    await Promise.race(answers)
    await programs.killDaemon()
    ids.push(...(await Promise.all(answers)).flatMap(([id, status]) => (status === 202 ? [id] : [])))
    await programs.startDaemon()
  }
  expect(ids.length).toBeGreaterThanOrEqual(3)
  for (const id of ids) {
    const run = await until(`the end of ${id}`, 90, async () => {
      const { run } = await programs.get(`/execution-runs/${id}/`)
      return ['completed', 'failed', 'cancelled'].includes(run.status) ? run : undefined
    })
    expect(run).toMatchObject({ id, status: 'completed', completedActivityCount: 6 })
  }
}, 400_000)

test('a daemon that dies while it opens or closes runs leaves none of them waiting for long', async () => {
  const world = await makeWorld(
    { post: (path: string, body?: unknown) => programs.post(path, body) },
    { name: 'ends', launch: 'none', tasks: [{ name: 'a' }] },
  )
  const ids: string[] = []
  for (let k = 0; k < 3; k++) {
    for (let i = 0; i < 10; i++) {
      const id = `ends-${String(k)}-${String(i)}`
      await programs.post('/execution-runs/', {
        id,
        schedulePlanId: world.planId,
        mode: i % 2 === 0 ? 'real' : 'simulation',
      })
      ids.push(id)
    }
    await programs.killDaemon()
    await programs.startDaemon()
  }
  const began = Date.now()
  for (const id of ids)
    await until(
      `the end of ${id}`,
      60,
      async () => (await programs.get(`/execution-runs/${id}/`)).run.status === 'completed',
    )
  // Alone it is 2 to 10 s; what is shut out here is the wait for an activity whose process is gone,
  // were it not told of by heartbeats.
  expect(Date.now() - began).toBeLessThan(55_000)
}, 400_000)
