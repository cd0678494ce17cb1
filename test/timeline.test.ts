import { describe, expect, test } from '@jest/globals'
import { createHash } from 'node:crypto'
import fc from './support/fast-check.ts'
import { timelineHtml } from '../src/domains/execution-runs/timeline-page.ts'
import {
  timelineSummary,
  type TimelineBand,
  type TimelineBar,
  type TimelineInput,
} from '../src/domains/execution-runs/timeline.ts'
import { growth } from './support/growth.ts'

const inputOf = (bands: TimelineBand[], run: Partial<TimelineInput['run']> = {}): TimelineInput => ({
  title: 'A run',
  run: { id: 'run-1', status: 'completed', mode: 'real', makespanSeconds: 10, cost: 0.5, ...run },
  bands,
})

const bar = (
  name: string,
  startAt: number,
  finishAt: number,
  more: Partial<TimelineBar> = {},
): TimelineBar => ({
  activityId: name,
  name,
  type: 'work',
  lane: 'core-0',
  resource: 'host',
  startAt,
  finishAt,
  ...more,
})

/** Times in quarters of a second, so that sums are exact and an oracle can walk over them. */
const anyBar = fc
  .record({
    index: fc.nat(30),
    ready: fc.integer({ min: 0, max: 200 }),
    wait: fc.nat(40),
    run: fc.nat(60),
    overhead: fc.option(fc.nat(20), { nil: undefined }),
    transfer: fc.option(fc.nat(60), { nil: undefined }),
    known: fc.boolean(),
    type: fc.constantFrom('a', 'b', 'c'),
    lane: fc.nat(3),
    attempt: fc.integer({ min: 1, max: 3 }),
  })
  .map(({ index, ready, wait, run, overhead, transfer, known, type, lane, attempt }): TimelineBar => ({
    ...bar(`task-${index}`, (ready + wait) / 4, (ready + wait + run) / 4, {
      type,
      lane: `core-${lane}`,
      attempt,
    }),
    ...(known ? { readyAt: ready / 4 } : {}),
    ...(overhead === undefined ? {} : { overheadSeconds: overhead / 4 }),
    ...(transfer === undefined ? {} : { transferSeconds: transfer / 4 }),
  }))

describe('the timeline as data', () => {
  test('covers exactly the moments at which some task waited, moved data, was launched or ran', () => {
    fc.assert(
      fc.property(fc.array(anyBar, { maxLength: 25 }), fc.nat(100), (bars, wall) => {
        const summary = timelineSummary(inputOf([{ label: 'measured', bars }], { wallSeconds: wall }))
        // The oracle looks at each quarter of a second by itself.
        const busy = new Set(
          bars.flatMap(({ readyAt, startAt, finishAt }) => {
            const from = (readyAt ?? startAt) * 4
            return Array.from({ length: finishAt * 4 - from }, (_, index) => from + index)
          }),
        )
        expect(summary.coveredWallSeconds).toBeCloseTo(busy.size / 4, 9)
        expect(summary.wallSeconds).toBeCloseTo(Math.max(wall, ...bars.map(({ finishAt }) => finishAt)), 9)
        expect(summary.coveredWallSeconds + summary.unclassifiedWallSeconds).toBeCloseTo(
          summary.wallSeconds,
          9,
        )
        const counted = Object.values(summary.totals).reduce<number>((total, each = 0) => total + each, 0)
        expect(counted).toBeCloseTo(
          bars.reduce((total, { readyAt, startAt, finishAt }) => total + finishAt - (readyAt ?? startAt), 0),
          9,
        )
        expect(summary.phases.reduce((total, { durationSeconds }) => total + durationSeconds, 0)).toBeCloseTo(
          counted,
          9,
        )
        for (const { startedAt, finishedAt, durationSeconds } of summary.phases) {
          expect(durationSeconds).toBeGreaterThan(0)
          expect(finishedAt - startedAt).toBeCloseTo(durationSeconds, 9)
        }
      }),
      { seed: 20, numRuns: 200 },
    )
  })

  test('tells queue, transfer, launch and run apart, on the clock of the task records', () => {
    const bars = [bar('late', 5, 9, { readyAt: 1, transferSeconds: 1.5, overheadSeconds: 0.5, attempt: 2 })]
    const summary = timelineSummary(
      inputOf([{ label: 'measured', bars }], { startedAt: 1000, wallSeconds: 12 }),
    )
    expect(
      summary.phases.map(({ category, startedAt, finishedAt }) => [category, startedAt, finishedAt]),
    ).toEqual([
      ['workspace-transfer', 1001, 1002.5],
      ['resource-queue', 1002.5, 1005],
      ['launch', 1005, 1005.5],
      ['runtime', 1005.5, 1009],
    ])
    expect(summary).toMatchObject({
      startedAt: 1000,
      finishedAt: 1012,
      wallSeconds: 12,
      computeMakespanSeconds: 3.5,
      coveredWallSeconds: 8,
      unclassifiedWallSeconds: 4,
      totals: {
        workspaceTransferSeconds: 1.5,
        resourceQueueSeconds: 2.5,
        launchSeconds: 0.5,
        runtimeSeconds: 3.5,
      },
    })
    expect(summary.phases[0]).toMatchObject({
      id: 'run-1:late:2:workspace-transfer',
      source: 'measured',
      activityId: 'late',
    })
  })

  test('bringing the image of a container is a part of the overhead, after the queue of its site', () => {
    const more = { overheadSeconds: 4, preparedAt: 3, preparationSeconds: 2 }
    const summary = timelineSummary(inputOf([{ label: 'measured', bars: [bar('a', 0, 10, more)] }], {}))
    expect(
      summary.phases.map(({ category, startedAt, finishedAt }) => [category, startedAt, finishedAt]),
    ).toEqual([
      ['resource-queue', 0, 1],
      ['executable-preparation', 1, 3],
      ['launch', 3, 4],
      ['runtime', 4, 10],
    ])
    expect(summary.totals.executablePreparationSeconds).toBe(2)
  })

  test('a phase of a machine names its operation and no activity', () => {
    const machine = {
      ...{ operationId: 'made', category: 'infrastructure-provision' as const, status: 'completed' },
      ...{ from: 0, to: 2 },
    }
    const input = inputOf([{ label: 'measured', bars: [bar('a', 2, 3)] }])
    const { phases } = timelineSummary({ ...input, infrastructure: [machine] })
    expect(phases.map(({ activityId, operationId }) => [activityId, operationId])).toEqual([
      [undefined, 'made'],
      ['a', undefined],
    ])
  })

  test('has the phases of the run itself; of what has not started it says nothing', () => {
    const planned: TimelineBand = { label: 'planned', bars: [bar('a', 0, 1)] }
    const simulated: TimelineBand = { label: 'simulated', bars: [bar('a', 0, 2)] }
    const measured: TimelineBand = { label: 'measured', bars: [bar('a', 0, 3)] }
    const phaseOf = (mode: string, bands: TimelineBand[]) =>
      timelineSummary(inputOf(bands, { mode })).phases[0]
    const all = [planned, measured, simulated]
    expect(phaseOf('real', all)).toMatchObject({ source: 'measured', durationSeconds: 3 })
    expect(phaseOf('simulation', all)).toMatchObject({ source: 'simulated', durationSeconds: 2 })
    for (const mode of ['real', 'simulation'])
      for (const bands of [[], [planned], [planned, { label: 'measured' as const, bars: [] }]])
        expect(timelineSummary(inputOf(bands, { mode, startedAt: 1000 }))).toMatchObject({
          ...{ startedAt: 1000, finishedAt: 1000, wallSeconds: 0, computeMakespanSeconds: 0 },
          ...{ coveredWallSeconds: 0, phases: [] },
          totals: { runtimeSeconds: 0 },
        })
  })

  test('refuses times that no clock shows, naming the activity', () => {
    const drawn = (bars: TimelineBar[]) => inputOf([{ label: 'measured', bars }])
    for (const summary of [timelineSummary, timelineHtml]) {
      expect(() => summary(drawn([bar('odd', 3, 2)]))).toThrow('finishAt 2 of odd is before its startAt 3')
      expect(() => summary(drawn([bar('odd', Number.NaN, 2)]))).toThrow('startAt of odd is NaN')
      expect(() => summary(drawn([bar('odd', 1, Infinity)]))).toThrow('finishAt of odd is Infinity')
    }
  })
})

/** What the page's script draws from. */
interface Drawn {
  types: string[]
  end: number
  bands: { lanes: [string, string][]; bars: (string | number | null)[][] }[]
}
const islandOf = (html: string): Drawn => {
  const found = /<script type="application\/json" id="data">([^<]*)<\/script>/.exec(html)
  if (found?.[1] === undefined) throw new Error('the page has no data')
  return JSON.parse(found[1]) as Drawn
}
const elementsOf = (html: string): string[] =>
  [...html.matchAll(/<([a-z][a-z0-9]*)\b/g)].map((match) => match[1] ?? '')

describe('the timeline as a page', () => {
  test('draws every attempt in its lane, at its times', () => {
    fc.assert(
      fc.property(fc.array(anyBar, { minLength: 1, maxLength: 25 }), (bars) => {
        const { bands, types, end } = islandOf(timelineHtml(inputOf([{ label: 'planned', bars }])))
        const drawn = bands[0]!.bars.map(([lane, type, name, , , start, , finish, , attempt]) =>
          JSON.stringify([
            ...bands[0]!.lanes[Number(lane)]!,
            types[Number(type)],
            name,
            start,
            finish,
            attempt,
          ]),
        )
        const given = bars.map(({ resource, lane, type, name, startAt, finishAt, attempt }) =>
          JSON.stringify([resource, lane, type, name, startAt, finishAt, attempt]),
        )
        expect(drawn.toSorted()).toEqual(given.toSorted())
        expect(end).toBe(Math.max(...bars.map(({ finishAt }) => finishAt)))
      }),
      { seed: 21, numRuns: 100 },
    )
  })

  test('hostile names stay text: no element or attribute comes from them', () => {
    const text = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.constantFrom(
        '</script><script>alert(1)</script>',
        '<img src=x onerror=alert(1)>',
        `"><svg onload='x'>`,
        '<!--<script>',
        ']]>',
        '\u2028',
        '</title><b>',
        '${x}',
        '$&$1',
      ),
    )
    const quiet = timelineHtml(inputOf([{ label: 'measured', bars: [bar('a', 0, 1)] }]))
    fc.assert(
      fc.property(
        fc.array(text, { minLength: 6, maxLength: 6 }),
        ([title, id, name, type, lane, resource]) => {
          const hostile = bar('a', 0, 1, {
            name: name!,
            type: type!,
            lane: lane!,
            resource: resource!,
            activityId: name!,
            status: title!,
          })
          const html = timelineHtml({
            ...inputOf([{ label: 'measured', bars: [hostile] }], { id: id!, status: title!, mode: type! }),
            title: title!,
          })
          expect(elementsOf(html)).toEqual(elementsOf(quiet))
          expect(html.split('<').length).toBe(quiet.split('<').length)
          const { bands, types } = islandOf(html)
          expect([types[0], bands[0]!.bars[0]![2], ...bands[0]!.lanes[0]!]).toEqual([
            type,
            name,
            resource,
            lane,
          ])
        },
      ),
      { seed: 22, numRuns: 300 },
    )
  })

  test('names the currency of its costs, or says that none is set', () => {
    const input = inputOf([{ label: 'measured', bars: [bar('a', 0, 1, { cost: 0.25 })] }])
    expect(timelineHtml(input)).toContain('<th>cost, no currency set</th>')
    expect(timelineHtml(input, 'CHF')).toContain('<th>cost, CHF</th>')
    expect(timelineHtml(input, 'CHF')).toContain('cost 0.25 CHF')
  })

  test('is one file that loads nothing and allows no script but its own', () => {
    const html = timelineHtml(inputOf([{ label: 'measured', bars: [bar('a', 0, 1)] }]))
    expect(html).not.toMatch(/\b(?:src|href)\s*=|url\(|@import|https?:/)
    const script = /<script>([\s\S]*?)<\/script>/.exec(html)?.[1] ?? ''
    expect(html).toContain(`'sha256-${createHash('sha256').update(script).digest('base64')}'`)
    expect(() => new Function(script)).not.toThrow()
  })

  test('shows the three bands in order, tells how far they are apart, and counts tasks and attempts', () => {
    const bands: TimelineBand[] = [
      {
        label: 'measured',
        bars: [bar('a', 0, 4, { status: 'failed', cost: 0.25 }), bar('a', 4, 15, { attempt: 2, cost: 0.75 })],
      },
      { label: 'planned', bars: [bar('a', 0, 10)] },
      { label: 'simulated', bars: [bar('a', 0, 12)] },
    ]
    const html = timelineHtml(inputOf(bands))
    expect([...html.matchAll(/<strong>(\w+)<\/strong>/g)].map((match) => match[1])).toEqual([
      'planned',
      'simulated',
      'measured',
    ])
    expect(html).toContain('1 task in 2 attempts')
    expect(html).toContain('<td>simulated</td><td>12.0 s</td><td>+20 %</td>')
    expect(html).toContain(
      '<td>measured</td><td>15.0 s</td><td>+50 %</td><td>1</td><td>100 %</td><td>1</td><td>1</td>',
    )
    expect(timelineHtml(inputOf([]))).toContain('Nothing has been planned or run yet.')
  })

  test('keeps core 10 behind core 9', () => {
    const bars = [10, 2, 9, 1].map((core) => bar(`t${core}`, 0, 1, { lane: `core-${core}` }))
    expect(
      islandOf(timelineHtml(inputOf([{ label: 'planned', bars }]))).bands[0]!.lanes.map(([, lane]) => lane),
    ).toEqual(['core-1', 'core-2', 'core-9', 'core-10'])
  })

  test('a page of 10,000 bars has as many elements as one of 10, and takes no square of the time', async () => {
    const many = (count: number): TimelineBand[] =>
      (['planned', 'simulated', 'measured'] as const).map((label) => ({
        label,
        bars: Array.from({ length: count }, (_, index) =>
          bar(`t${index}`, index, index + 1, { type: `type-${index % 7}`, lane: `core-${index % 64}` }),
        ),
      }))
    const small = timelineHtml(inputOf(many(10)))
    const large = timelineHtml(inputOf(many(10_000)))
    expect(await growth((count) => void timelineHtml(inputOf(many(count))), 2_500)).toBeLessThan(1.6)
    expect(elementsOf(large).length).toBe(elementsOf(small).length)
    expect(large.length).toBeLessThan(4e6)
  })

  test('a page looks at each bar a few times, however many types of activities there are', () => {
    let reads = 0
    const bars = Array.from({ length: 2_000 }, (_, index) => ({
      ...bar(`t${index}`, index, index + 1),
      get type() {
        reads++
        return `type-${index}`
      },
    }))
    timelineHtml(inputOf([{ label: 'planned', bars }]))
    expect(reads / bars.length).toBeLessThan(20)
  })
})
