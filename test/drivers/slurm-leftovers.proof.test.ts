import { expect } from '@jest/globals'
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent, RuntimeDriver, TaskState } from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { plainIntent } from './intent.ts'

const { afterAll, afterEach, beforeAll, test } = needs(
  ...(['root', 'openssh-server', 'openssh-client', 'iproute2', 'iptables', 'slurm-wlm', 'munge'] as const),
)

/**
 * What may be left in the queue: two jobs of one array, whose `sbatch` ran twice with at most one
 * answer, and jobs that the site put back.
 */

let site: SlurmSite
let count = 0
const closing: (() => Promise<void>)[] = []
beforeAll(async () => {
  site = await startSlurm({ nodes: 1 })
}, 300_000)
afterAll(() => site?.stop(), 120_000)
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
  for (const command of ['squeue', 'sbatch'] as const) site.disturb(command, undefined)
  await site.slurm('scancel --user=root')
  await site.idle()
}, 120_000)

/** What runs in the place of `sbatch`, which runs `submit` as the cluster's own. */
const sbatch = (script: string): void =>
  site.disturb('sbatch', `submit() { SLURM_CONF=${site.conf} /usr/bin/sbatch "$@"; }\n${script}`)
const twice = {
  'the first answer': 'submit "$@" > /dev/null',
  'both answers': 'submit "$@"; submit "$@"; exit 124',
}

const open = (configuration: Record<string, unknown> = {}) => {
  const root = mkdtempSync(join(site.scratch, 'root-'))
  const environment = { PATH: `${site.commands}:/usr/local/bin:/usr/bin:/bin`, SLURM_CONF: site.conf }
  const shell = openLocalShell({ environment })
  const driver = openSlurmDriver({
    ...{ shell, root, runtime: 'cluster', taskVariable: 'ORRERY_TASK', pollMilliseconds: 300 },
    configuration: {
      ...{ settleSeconds: 1, commandSeconds: 10, claimSeconds: 1, outputPatienceSeconds: 0 },
      ...configuration,
    },
  })
  closing.push(async () => {
    await driver.close()
    await shell.close()
  })
  const [ledger, gate] = [join(root, 'ledger'), join(root, 'gate')]
  /** Writes a line at its start, and ends at the gate. */
  const task = (more: Partial<Intent> = {}): Intent => {
    const name = `leftover-${++count}`
    const script = 'echo "$3" >> "$1"; until [ -e "$2" ]; do sleep 0.1; done; exit 4'
    const argv = ['/bin/sh', '-c', script, 'sh', ledger, gate, name]
    return { ...plainIntent(name, join(root, 'work', name, '1'), argv), memoryBytes: 64 * 1024 ** 2, ...more }
  }
  const starts = (): string[] => (existsSync(ledger) ? readFileSync(ledger, 'utf8').trim().split('\n') : [])
  return { driver, task, root, starts, go: () => writeFileSync(gate, '') }
}
const stateOf = async (driver: RuntimeDriver, { name }: Intent): Promise<TaskState> =>
  (await driver.find([name])).get(name) ?? { state: 'unknown' }
const is = (driver: RuntimeDriver, task: Intent, state: TaskState['state']): Promise<unknown> =>
  until(`${task.name} ${state}`, 40, async () => (await stateOf(driver, task)).state === state)
/** `JOB_INDEX STATE` of ours. */
const queue = async (): Promise<string[]> =>
  (await site.slurm('squeue -h -r -o "%F_%K %T %j" | grep orrery- || true'))
    .trim()
    .split('\n')
    .filter(Boolean)
/** Until the cluster runs what it can. */
const blocked = async (): Promise<void> => {
  await site.slurm('sbatch -p main -n4 --mem=100 -J blocker -o /dev/null --wrap "sleep 3600"')
  await until('a full cluster', 40, async () => (await site.slurm('squeue -h -t R -n blocker')) !== '')
}

test.each(Object.entries(twice))(
  'with %s lost, a cancel ends both jobs of the name while they wait',
  async (_which, script) => {
    const { driver, task, starts } = open()
    await blocked()
    sbatch(script)
    const pair = [task(), task()]
    await driver.submit(pair)
    site.disturb('sbatch', undefined)
    expect(await queue()).toHaveLength(4)
    await driver.cancel(
      pair.map(({ name }) => name),
      1,
    )
    expect(await queue()).toEqual([])
    for (const one of pair)
      expect(await stateOf(driver, one)).toMatchObject({ state: 'ended', reason: 'cancelled' })
    expect(starts()).toEqual([])
  },
  300_000,
)

/** The first job of the task runs, and its id is not known; the second one is held. */
const runsInFirst = async (at: ReturnType<typeof open>, tasks: readonly Intent[]): Promise<void> => {
  sbatch('submit "$@" > /dev/null; submit --hold "$@"; exit 0')
  await at.driver.submit(tasks)
  site.disturb('sbatch', undefined)
  await until('the starts', 120, () => at.starts().length === tasks.length)
}
const release = (): Promise<string> =>
  site.slurm('for job in $(squeue -h -t PD -o %F | sort -u); do scontrol release $job; done')
const left = (jobs: number): Promise<unknown> =>
  until(`${jobs} elements in the queue`, 40, async () => (await queue()).length === jobs)

test('a task runs in the job without an answer: it is running, is not lost as the other job ends, and starts once', async () => {
  const at = open()
  const { driver, starts } = at
  const one = at.task()
  await runsInFirst(at, [one])
  await is(driver, one, 'running')
  await release()
  await left(1)
  // The settling time is one second.
  for (const from = performance.now(); performance.now() - from < 4000;)
    expect(await stateOf(driver, one)).toMatchObject({ state: 'running' })
  expect(await driver.submit([one])).toMatchObject([{ ok: true }])
  at.go()
  await is(driver, one, 'ended')
  expect(await stateOf(driver, one)).toMatchObject({ exitCode: 4, reason: 'exited' })
  expect(starts()).toEqual([one.name])
}, 300_000)

test('a task runs in the job without an answer: a cancel ends it, and the other job leaves the queue', async () => {
  const at = open()
  const one = at.task()
  await runsInFirst(at, [one])
  await at.driver.cancel([one.name], 1)
  expect(await stateOf(at.driver, one)).toMatchObject({ state: 'ended', reason: 'cancelled' })
  await left(0)
  expect(at.starts()).toEqual([one.name])
}, 300_000)

test('a task runs in one job: the site starts the other one again, and the task goes on, started once', async () => {
  const at = open({ requeue: true })
  const { driver, starts } = at
  const one = at.task()
  await runsInFirst(at, [one])
  const other = (await queue()).find((line) => line.includes('PENDING'))?.split(' ')[0]
  await release()
  await left(1)
  await until('the restart of the other job', 120, async () => {
    await site.slurm(`scontrol requeue ${other} 2>&1 || true`)
    return /Restarts=[1-9]/.test(await site.slurm(`scontrol -o show job ${other}`))
  })
  // Else it waits for two minutes.
  await site.slurm(`scontrol update jobid=${other} starttime=now`)
  await left(1)
  expect(await stateOf(driver, one)).toMatchObject({ state: 'running' })
  at.go()
  await is(driver, one, 'ended')
  expect(await stateOf(driver, one)).toMatchObject({ exitCode: 4, reason: 'exited' })
  expect(starts()).toEqual([one.name])
}, 300_000)

test('a removed task does not start again in the other job, while its array has other names', async () => {
  const at = open()
  const pair = [at.task(), at.task()]
  await runsInFirst(at, pair)
  at.go()
  for (const one of pair) await is(at.driver, one, 'ended')
  await at.driver.remove(pair[0]!.name)
  await release()
  await left(0)
  expect(at.starts().sort()).toEqual(pair.map(({ name }) => name).sort())
}, 300_000)

test('a task has ended in one job: a cancel takes the other one out of the queue', async () => {
  const at = open()
  const one = at.task()
  await runsInFirst(at, [one])
  at.go()
  await is(at.driver, one, 'ended')
  expect(await queue()).toHaveLength(1)
  await at.driver.cancel([one.name], 1)
  expect(await queue()).toEqual([])
  expect(await stateOf(at.driver, one)).toMatchObject({ reason: 'exited', exitCode: 4 })
}, 300_000)

test('a task that the site put back into the queue: a cancel takes it out', async () => {
  const at = open({ requeue: true })
  const one = at.task()
  const [submitted] = await at.driver.submit([one])
  const { externalId } = submitted as { externalId: string }
  await until('its start', 120, () => at.starts().length === 1)
  // Refused while the job is being started, and once it waits: for two minutes.
  await until('the requeue', 40, async () => {
    await site.slurm(`scontrol requeue ${externalId} 2>&1 || true`)
    return (await queue()).some((line) => line.includes('PENDING'))
  })
  await at.driver.cancel([one.name], 1)
  expect(await queue()).toEqual([])
  expect(await stateOf(at.driver, one)).toMatchObject({ state: 'ended', reason: 'cancelled' })
  expect(at.starts()).toEqual([one.name])
}, 300_000)
