import { spawn, type ChildProcess } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { constants } from 'node:os'
import path from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { tasksOf } from '../../examples/demo/leftovers.ts'
import { mosaicWorkflow, smallShape } from '../../examples/mosaic/generate-workflow.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'
import { readPng } from './png.ts'

const program = path.resolve(import.meta.dirname, '../../examples/demo.ts')
const folder = temporaryFolder()
const data = path.join(folder.path, 'data')
const output = path.join(folder.path, 'output')
const started: ChildProcess[] = []
afterAll(() => {
  for (const child of started) child.kill('SIGKILL')
  folder[Symbol.dispose]()
})

interface Demo {
  child: ChildProcess
  said: () => string
  ended: Promise<number | string>
}
const start = (...args: string[]): Demo => {
  const child = spawn(process.execPath, [program, '--output', output, ...args], {
    env: {
      PATH: '/usr/local/bin:/usr/bin:/bin',
      HOME: folder.path,
      TMPDIR: folder.path,
      SERVICE_DATA_DIR: data,
      SERVICE_CACHE_DIR: cacheDir,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  started.push(child)
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
  const ended = new Promise<number | string>((resolve) =>
    child.once('close', (code, signal) => resolve(code ?? signal ?? 'unknown')),
  )
  return { child, said: () => text, ended }
}

const linksOf = (directory: string): string[] =>
  readdirSync(directory).map((name) => readlinkSync(path.join(directory, name)))

/**
 * Processes that know the folder by their arguments, environment, working directory or an open
 * file.
 */
const processesOf = (where: string): string[] =>
  readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false
    const knows = [
      () => readFileSync(`/proc/${pid}/cmdline`, 'latin1'),
      () => readFileSync(`/proc/${pid}/environ`, 'latin1'),
      () => readlinkSync(`/proc/${pid}/cwd`),
      () => linksOf(`/proc/${pid}/fd`).join('\0'),
    ]
    return knows.some((read) => {
      try {
        return read().includes(where)
      } catch {
        // It has ended meanwhile, or is another user's.
        return false
      }
    })
  })

/** The guards of the servers end a moment after them. */
const nothingRuns = (): Promise<boolean> =>
  until(() => processesOf(folder.path).length === 0, 'no process works in the folder any more')

/** The line of the table of `name`, as its cells. */
const cellsOf = (said: string, name: string): string[] =>
  said
    .split('\n')
    .map((line) => line.trim().split(/\s{2,}/))
    .find(([first]) => first === name) ?? []

/** A process of a task of the real run, as soon as there is one. */
const runningTask = (demo: Demo) =>
  until(
    () => {
      if (demo.child.exitCode !== null) throw new Error(`the demo ended:\n${demo.said()}`)
      return tasksOf(data)[0]
    },
    'tasks run',
    300_000,
  )

/** How a wait for the demo's end is told when it fails. */
const endOf = async (demo: Demo): Promise<number | string> => {
  const code = await demo.ended
  // What the demo has said explains a wrong code better than the code.
  if (code === 1) process.stderr.write(demo.said())
  return code
}

describe('the demo', () => {
  let demo: Demo
  let code: number | string
  beforeAll(async () => {
    demo = start('--small', '--archive')
    code = await endOf(demo)
  }, 900_000)

  test('plans, rehearses, runs and compares, saying what it does and how long it takes', () => {
    expect(code).toBe(0)
    const headings = [...demo.said().matchAll(/^(\d\/6 .*|\S.*)$/gm)].map(([line]) => line)
    expect(headings).toEqual([
      '1/6  Start PostgreSQL, Temporal, the API and a worker',
      expect.stringMatching(/^2\/6 {2}Measure each type of activity on this machine \(\d+ cores\)$/),
      '3/6  Post the documents',
      '4/6  Plan',
      '5/6  Rehearse the plan in simulation',
      '6/6  Run the plan',
      'Planned, simulated, measured',
      'What made the picture',
      'To look at',
      'The same elsewhere',
      'Figures',
    ])
    expect(demo.said().match(/^ {6}done in [\d.]+ m?s/gm)).toHaveLength(6)
    expect(demo.said()).toMatch(
      /API {12}http:\/\/127\.0\.0\.1:\d+\/api\n.*\/docs\/\n\s+Temporal page {2}http:\/\/127\.0\.0\.1:\d+\n/,
    )
    expect(demo.said()).toMatch(/first answer after [\d.]+ s \(the first start on this data\)/)
    const candidate = /candidate-[\da-f]+/.exec(demo.said())?.[0] ?? ''
    expect(cellsOf(demo.said(), candidate)).toEqual([
      candidate,
      'heft',
      expect.stringMatching(/ s$/),
      expect.stringMatching(/^0\.00/),
      'yes',
    ])
  })

  test('has a line per activity type with planned, simulated, measured and cost, which add up', () => {
    const [, tasksTable = '', sumsTable = ''] = demo
      .said()
      .split(/^ +seconds (?:of a task, mean|in all) .*$/m)
    const types = Map.groupBy(mosaicWorkflow(smallShape).spec.activities, ({ activityType }) => activityType)
    const sums = [0, 0, 0, 0]
    for (const [type, activities] of types) {
      const [, tasks, ...means] = cellsOf(tasksTable, type)
      expect([type, tasks]).toEqual([type, String(activities.length)])
      const [planned, simulated, measured] = means.map(Number)
      expect(simulated).toBeCloseTo(planned!, 2)
      expect(measured).toBeGreaterThan(0)
      const [, plannedSum, simulatedSum, measuredSum, error, cost] = cellsOf(sumsTable, type)
      expect([type, error]).toEqual([type, means[3]])
      for (const [index, figure] of [plannedSum, simulatedSum, measuredSum, cost].entries())
        sums[index]! += Number(figure)
    }
    expect(cellsOf(tasksTable, 'all')[1]).toBe('43')
    const [, planned, simulated, measured, , cost] = cellsOf(sumsTable, 'all')
    // Each figure is rounded to a hundredth or a tenth of a second.
    for (const [index, total] of [planned, simulated, measured].entries())
      expect(Math.abs(Number(total) - sums[index]!)).toBeLessThan(0.3)
    expect(Number(cost)).toBeCloseTo(sums[3]!, 4)
    // The price of the example is 0.0001 per second.
    expect(Number(cost)).toBeGreaterThan(0.0001 * 0.95 * Number(measured))
    expect(cellsOf(sumsTable, 'makespan')).toHaveLength(5)
    for (const row of [
      'compute',
      'data transfer',
      'queue: waiting for a core',
      'overhead: start and end of tasks',
    ])
      expect(cellsOf(demo.said(), row)).toEqual([
        row,
        expect.stringMatching(/^[\d.]+$/),
        expect.stringMatching(/^[\d.]+$/),
      ])
  })

  test('shows the same run, plan and lineage in a second service, which refuses changes', () => {
    const [, elsewhere = ''] = demo.said().split('The same elsewhere')
    expect(elsewhere).toMatch(/a second service on an empty folder answers after [\d.]+ s/)
    expect(elsewhere).toMatch(/imported in .*: 2 runs, 1 plans, 1 workflows/)
    expect(elsewhere).toMatch(/the same run, plan and lineage are there:\n\s+mosaic.png\n/)
    expect(elsewhere).toContain('every change of it is refused (423)')
    expect(existsSync(`${data}-elsewhere`)).toBe(false)
  })

  test('says what its costs are, how sure its plan is, and what it leaves on the disk', () => {
    expect(demo.said()).toContain('Costs have no currency')
    const [, lowest, highest] = /the plan is between ([\d.]+) s and ([\d.]+) s/.exec(demo.said()) ?? []
    expect(Number(lowest)).toBeGreaterThan(0)
    expect(Number(highest)).toBeGreaterThanOrEqual(Number(lowest))
    const [, mebibytes] = new RegExp(`data +${data}, (\\d+) MiB:`).exec(demo.said()) ?? []
    // A database without any record takes 40.
    expect(Number(mebibytes)).toBeGreaterThan(40)
  })

  test('fits a terminal of 80 columns, but for the names of files', () => {
    const lines = demo
      .said()
      .split('\n')
      .filter((line) => !line.includes(folder.path))
    expect(lines.filter((line) => line.length > 80)).toEqual([])
  })

  test('leaves the picture, a timeline of three bands and the figures', () => {
    const file = (label: string): string => {
      const named = new RegExp(`^ +${label} +(/.*)$`, 'm').exec(demo.said())?.[1] ?? ''
      expect([label, existsSync(named)]).toEqual([label, true])
      return named
    }
    const picture = readPng(readFileSync(file('picture')))
    expect([picture.width, picture.height]).toEqual([smallShape.width, smallShape.height])
    expect(new Set(picture.pixels).size).toBeGreaterThan(100)
    const timeline = readFileSync(file('timeline'), 'utf8')
    expect(
      [...timeline.matchAll(/<tr><td>(planned|simulated|measured)<\/td>/g)].map(([, band]) => band),
    ).toEqual(['planned', 'simulated', 'measured'])
    const drawn = JSON.parse(/id="data">(.*?)<\/script>/s.exec(timeline)?.[1] ?? '') as {
      bands: { bars: unknown[] }[]
    }
    expect(drawn.bands.map(({ bars }) => bars.length)).toEqual([43, 43, 43])
    expect(timeline).not.toMatch(/(?:src|href)="https?:/)
    const summary = JSON.parse(readFileSync(file('figures'), 'utf8')) as {
      makespanSeconds: Record<string, number>
      all: { tasks: number }
    }
    expect(summary.all.tasks).toBe(43)
    expect(summary.makespanSeconds['simulated']).toBeCloseTo(summary.makespanSeconds['planned']!, 6)
  })

  test('leaves nothing running', async () => {
    await nothingRuns()
  })
})

test('works again on the same data, and Ctrl-C while tasks run leaves nothing running', async () => {
  const demo = start('--small')
  await runningTask(demo)
  const asked = performance.now()
  demo.child.kill('SIGINT')
  // npm and the shell's process group deliver one Ctrl-C several times: that is not a second wish.
  demo.child.kill('SIGINT')
  expect(await demo.ended).toBe(128 + constants.signals.SIGINT)
  expect((performance.now() - asked) / 1000).toBeLessThan(60)
  expect(demo.said()).toMatch(/first answer after [\d.]+ s \(a later start on this data\)/)
  expect(demo.said()).toMatch(new RegExp(`earlier demos left \\d+ MiB in ${data}\\n`))
  expect(demo.said()).toContain('the run is cancelled')
  await nothingRuns()
}, 600_000)

test('a run that fails is told with its reason, and the demo fails', async () => {
  const demo = start('--small')
  const task = await runningTask(demo)
  process.kill(task.pid, 'SIGKILL')
  expect(await demo.ended).toBe(1)
  expect(demo.said()).toMatch(
    new RegExp(
      String.raw`The demo failed\n\s+run demo-\S+-real ended failed: .+\n\s+observe-\d+: .+\n` +
        String.raw`\s+(it wrote nothing to|the end of its) standard error`,
    ),
  )
  await nothingRuns()
}, 600_000)

test('with --storages, copies a tree on after a kill, and compares it in all three places', async () => {
  const demo = start('--storages', '--small', '--loopback')
  expect(await endOf(demo)).toBe(0)
  const said = demo.said()
  expect([...said.matchAll(/^(\d)\/7 {2}\S/gm)].map(([, step]) => step)).toEqual([...'1234567'])
  const [, twice, percent] = /([\d.]+) MiB of them sent twice \(([\d.]+) %\)/.exec(said) ?? []
  // Up to three parts of 8 MiB were under way, and a batch of small files.
  expect([Number(twice) < 28, Number(percent) < 60]).toEqual([true, true])
  expect(said.match(/: \d+ MiB\/s$/gm)?.length).toBeGreaterThanOrEqual(2)
  expect(said).toMatch(/it went on by itself: \d+ entries, .*, status completed/)
  expect(said).toMatch(/found by its digest: results\/image\.fits/)
  expect(said).toContain('no unfinished file at the host, and all digests are equal')
  await nothingRuns()
}, 600_000)

test('wrong usage is refused with what is right, before anything is started', async () => {
  for (const [args, reason] of [
    [['--fast'], /--fast/],
    [['--workflow', 'montage'], /--workflow montage: give mosaic or mosaic-montage/],
    [['--workflow', 'mosaic-montage', '--small'], /only the mosaic has a small variant/],
    [['extra'], /extra/],
  ] as const) {
    const demo = start(...args)
    expect(await demo.ended).toBe(2)
    expect(demo.said()).toMatch(reason)
    expect(demo.said()).toMatch(/npm run demo -- \[OPTIONS\]/)
  }
}, 120_000)
