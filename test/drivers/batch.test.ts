import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { arraysOf } from '../../src/drivers/runtime/batch/arrays.ts'
import { cancelStep, cancelTasks } from '../../src/drivers/runtime/batch/cancelling.ts'
import { append } from '../../src/lists.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { runFolder } from '../support/run-folder.ts'
import { until } from '../failures/programs.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { plainIntent } from './intent.ts'
import { withScripts } from './scripts.ts'
import { openTableDriver, startTable } from './table.ts'
import { tortureConformance } from './torture.ts'
import { proved, runsOf } from '../support/share.ts'

/** What batch schedulers share, over the smallest one: a table in memory. */

let folder: string
let socket: string
let table: Awaited<ReturnType<typeof startTable>>
beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-table-'))
  socket = join(folder, 'table.sock')
  table = await startTable(socket, 40)
})
afterAll(async () => {
  await table.close()
  rmSync(folder, { recursive: true, force: true })
})

const optionsIn = (scratch: string) => ({
  root: join(scratch, 'root'),
  runtime: 'table',
  taskVariable: 'ORRERY_TASK',
  socket,
})

const makeSite = (): ConformanceSite => {
  const scratch = mkdtempSync(join(folder, 'conformance-'))
  const options = optionsIn(scratch)
  const shells: ReturnType<typeof openLocalShell>[] = []
  return {
    scratch,
    endsUnmarked: false,
    open() {
      const shell = openLocalShell()
      shells.push(shell)
      return openTableDriver({ ...options, shell })
    },
    hiding: {
      // The word of the table counts when it is a second old.
      forMs: 2500,
      open() {
        let hidden = false
        const shell = openLocalShell()
        shells.push(shell)
        const driver = openTableDriver({ ...options, shell, hides: () => hidden })
        return { driver, hide: (now) => (hidden = now) }
      },
    },
    submitter: [process.execPath, join(import.meta.dirname, 'table-submitter.ts'), JSON.stringify(options)],
    async close() {
      for (const shell of shells) await shell.close()
      rmSync(scratch, { recursive: true, force: true })
    },
  }
}
runtimeDriverConformance('batch, over a table in memory', makeSite, { hides: true, restless: false })
// The files of hosts, which are listed and staged in the same way, get them all.
tortureConformance('batch, over a table in memory', makeSite, { cases: runsOf(5, 40) })

proved(
  'an array whose id no answer gave is found by its name: its task runs once, and a cancel ends it',
  async () => {
    const scratch = mkdtempSync(join(folder, 'lost-answer-'))
    const shell = openLocalShell()
    const options = { ...optionsIn(scratch), shell }
    const driver = openTableDriver({ ...options, losesAnswers: true })
    const ledger = join(scratch, 'ledger')
    const script = 'echo begun >> "$1"; sleep 86400'
    const task = plainIntent('nameless', join(scratch, 'work', 'nameless', '1'), [
      'sh',
      '-c',
      script,
      'sh',
      ledger,
    ])
    expect(await driver.submit([task])).toMatchObject([{ ok: false, error: { trouble: 'unknown' } }])
    await until('its start', 120, () => existsSync(ledger))
    const found = (await driver.find([task.name])).get(task.name)
    expect(found).toMatchObject({ state: 'running', externalId: expect.stringMatching(/^table\.\d+_0$/) })
    expect(await driver.submit([task])).toMatchObject([
      { ok: true, externalId: found?.state === 'running' && found.externalId },
    ])
    await driver.cancel([task.name], 0)
    expect((await driver.find([task.name])).get(task.name)).toMatchObject({
      state: 'ended',
      reason: 'cancelled',
    })
    expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
    await driver.close()
    await shell.close()
  },
)

test('an array that is submitted again, as the scheduler does not mention it yet, keeps its indexes in whatever order its tasks come', async () => {
  const scratch = mkdtempSync(join(folder, 'again-'))
  const shell = openLocalShell()
  const idle = join(scratch, 'idle.sock')
  const waiting = await startTable(idle, 0)
  const options = { ...optionsIn(scratch), shell, socket: idle, claimSeconds: 0 }
  const [a, b] = ['again-a', 'again-b'].map((name) =>
    plainIntent(name, join(scratch, 'work', name), ['true']),
  )
  const first = openTableDriver({ ...options, losesAnswers: true })
  expect(await first.submit([b!, a!])).toMatchObject([{ ok: false }, { ok: false }])
  const second = openTableDriver({ ...options, hides: () => true })
  expect(await second.submit([a!, b!])).toMatchObject([
    { ok: true, externalId: 'table.2_1' },
    { ok: true, externalId: 'table.2_0' },
  ])
  for (const driver of [first, second]) await driver.close()
  await waiting.close()
  await shell.close()
})

/** Files can be made, and nothing can be written into them. */
const fullDisk = `trap '' XFSZ; ulimit -f 0\n`

test('a name that a disk cannot record, as it fills up during a submit, fails with its reason; the others run, and with room it runs too', async () => {
  const scratch = mkdtempSync(join(folder, 'filling-'))
  const real = openLocalShell()
  let fills = true
  const next = 'number=$((number + 1))\n'
  const shell = withScripts(real, (script) =>
    fills ? script.replace(next, (same) => `${same}${fullDisk}`) : script,
  )
  const driver = openTableDriver({ ...optionsIn(scratch), shell })
  const tasks = ['first', 'second'].map((name) =>
    plainIntent(name, join(scratch, 'work', name, '1'), ['sh', '-c', 'exit 3']),
  )
  expect(await driver.submit(tasks)).toMatchObject([
    { ok: true, externalId: expect.stringMatching(/^table\.\d+_0$/) },
    {
      ok: false,
      error: {
        trouble: 'infrastructure',
        message: expect.stringMatching(/cannot record second: .*File too large/),
      },
    },
  ])
  expect((await driver.find(['second'])).get('second')).toEqual({ state: 'unknown' })
  fills = false
  expect(await driver.submit(tasks.slice(1))).toMatchObject([{ ok: true }])
  for (const { name } of tasks) {
    await new Promise<void>((end) => void driver.watch([name], () => end()))
    expect((await driver.find([name])).get(name)).toMatchObject({ state: 'ended', exitCode: 3 })
  }
  await driver.close()
  await real.close()
})

proved(
  'a cancel on a full disk ends a task that the site could not take, and its name is free once it is removed',
  async () => {
    const scratch = mkdtempSync(join(folder, 'full-'))
    const real = openLocalShell()
    let isFull = false
    const shell = withScripts(real, (script) => `${isFull ? fullDisk : ''}${script}`)
    const options = optionsIn(scratch)
    const driver = openTableDriver({ ...options, shell })
    const records = join(options.root, 'tasks')
    const task = plainIntent('unwritten', join(scratch, 'work', 'unwritten', '1'), ['sh', '-c', 'exit 3'])
    const stateOf = async (name: string) => (await driver.find([name])).get(name)
    expect(await stateOf(task.name)).toEqual({ state: 'unknown' })
    isFull = true
    expect(await driver.submit([task])).toMatchObject([{ ok: false, error: { trouble: 'infrastructure' } }])
    await driver.cancel([task.name], 0)
    expect(readFileSync(join(records, 'unwritten.task'), 'utf8')).toBe('')
    expect(await stateOf(task.name)).toMatchObject({ state: 'lost' })
    isFull = false
    await driver.remove(task.name)
    expect(await driver.submit([task])).toMatchObject([{ ok: true }])
    await until('its end', 120, async () => (await stateOf(task.name))?.state === 'ended')

    // Another process found it over before its start, and the disk had no room for the record of that.
    const files = { array: 'orrery-held 0 0 1\n', verdict: 'never 2.000 held by the site\n', task: '' }
    for (const [kind, content] of Object.entries(files)) writeFileSync(join(records, `held.${kind}`), content)
    await until('its loss', 120, async () => (await stateOf('held'))?.state === 'lost')
    expect(await stateOf('held')).toMatchObject({ cause: 'held by the site' })
    await driver.close()
    await real.close()
  },
)

test('a cancel leaves no end on record for a task whose files are lost, and waits until its processes have ended', async () => {
  const marked: string[] = []
  let looks = 0
  const lostOnes = { state: 'running', externalId: 'a', startedAt: 0 } as const
  const parts = {
    site: { tasks: { markCancelled: (names: string[]) => Promise.resolve(append(marked, names)) } },
    scheduler: { strays: () => Promise.resolve(new Map([['stray', lostOnes]])), cancelSteps: {} },
    sight: {
      see: (names: string[]) => {
        const stray = ++looks < 3 ? lostOnes : { ...lostOnes, state: 'lost' }
        const state = (name: string) => (name === 'stray' ? stray : { ...lostOnes, state: 'ended' })
        return Promise.resolve(
          new Map(names.map((name) => [name, { state: state(name), sight: { form: 'none' } }])),
        )
      },
      adopt: () => Promise.resolve(new Map()),
      elementsOf: () => [],
    },
  } as unknown as Parameters<typeof cancelTasks>[0]
  await cancelTasks(parts, ['stray', 'plain'], 0)
  expect([marked, looks]).toEqual([['plain'], 3])
})

test('arrays have the names that every version has given them, so that a lost answer can be asked for after an upgrade', () => {
  const requests = new Map([
    ['b', { cores: 1 }],
    ['a', { cores: 1 }],
    ['c', { cores: 2 }],
  ])
  expect(arraysOf(requests, { arraySize: 10 }).map(({ name, tasks }) => [name, tasks])).toEqual([
    ['orrery-7e18f737311b2dc3b2f269dd78396b03', ['b', 'a']],
    ['orrery-2e7d2c03a9507ae265ecf5b5356885a5', ['c']],
  ])
  expect(arraysOf(requests, { arraySize: 10, nameWords: ['runtime', '/root'] })[0]?.name).toBe(
    'orrery-12ae77c0260cc2fb138b3aaca5c63de8',
  )
})

test('a cancel asks politely, again where the scheduler says so, and once by force after the grace', () => {
  const steps = { politeAgain: 3, forcedAfterGrace: 5 }
  const at = (spent: number, askedAt: number | undefined, forced = false) =>
    cancelStep(steps, { spent, grace: 10, askedAt, forced })
  expect(at(0, undefined)).toBe('polite')
  expect(at(2, 0)).toBeUndefined()
  expect(at(3, 0)).toBe('polite')
  expect(at(15, 14)).toBeUndefined()
  expect(at(15.1, 14)).toBe('forced')
  expect(at(30, 15.1, true)).toBeUndefined()
  expect(cancelStep({}, { spent: 1000, grace: 1, askedAt: 0, forced: false })).toBeUndefined()
})
