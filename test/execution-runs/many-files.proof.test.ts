import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'
import { until } from '../failures/programs.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
})
afterAll(() => service[Symbol.asyncDispose]())

const seconds = 3_600

/**
 * Runs an activity that leaves so many files.
 * @returns seconds from the end of its program to the end of its run, by file
 */
const recorded = async (count: number): Promise<number> => {
  const name = `files-${String(count)}`
  const folders = String(count / 1_000)
  const script = `for d in $(seq ${folders}); do mkdir d$d; (cd d$d; seq 1000 | xargs touch); done; date +%s.%N > end`
  const world = await makeWorld(service, {
    name,
    tasks: [{ name: 'many', run: `${script}; cat end` }],
    cores: [1],
  })
  await service.post('/execution-runs/', { id: name, schedulePlanId: world.planId, mode: 'real' })
  // Its answer would have the whole list of files.
  const [ended] = await until('its end', seconds, () =>
    service.db
      .prepared<{ at: number }>(
        'ended',
        `select extract(epoch from finished_at)::float8 as at from execution_runs
         where id = $1 and status in ('completed', 'failed')`,
        [name],
      )
      .then((rows) => (rows.length > 0 ? rows : undefined)),
  )
  const [row] = await service.db.prepared<Record<string, string>>(
    'recorded',
    `select count(distinct o.id) as instances, count(distinct l.data_object_instance_id) as locations,
      count(o.checksum) as digests, (select completed_activity_count from execution_runs where id = $1) as completed
     from data_object_instances o join data_locations l on l.data_object_instance_id = o.id
     where o.execution_run_id = $1`,
    [name],
  )
  expect(Object.values(row ?? {}).map(Number)).toEqual([count + 1, count + 1, count + 1, 1])
  const log = await service.call(
    'GET',
    `/execution-runs/${name}/activities/${world.activityId('many')}/logs/`,
  )
  const took = (ended?.at ?? NaN) - Number(String(log.body))
  console.log(`${String(count)} files: on record ${took.toFixed(1)} s after the end of their program`)
  return took / count
}

test(
  'all of 400,000 files of one activity are on record, at the cost of each that they have among 40,000',
  async () => {
    await recorded(1_000)
    const few = await recorded(40_000)
    const many = await recorded(400_000)
    expect(many / few).toBeLessThan(2)
  },
  seconds * 1_000,
)
