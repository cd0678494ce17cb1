import { hash } from 'node:crypto'
import { naturally } from '../../natural-order.ts'
import { greatest } from '../../lists.ts'
import {
  assertBar,
  partsOf,
  type BandLabel,
  type TimelineBand,
  type TimelineBar,
  type TimelineInput,
} from './timeline.ts'
import { timelineScript, timelineStyle } from './timeline-client.ts'

const order: readonly BandLabel[] = ['planned', 'simulated', 'measured']

/** Distinguishable on light and dark backgrounds, and dark enough for white text. */
const palette = [
  '#3b74d9',
  '#c2571a',
  '#2c8a4b',
  '#9447c4',
  '#b8325f',
  '#187f94',
  '#86701c',
  '#5a5fc9',
  '#a0522d',
  '#4d7d1f',
  '#b0379b',
  '#55697f',
]
const colourOf = (index: number): string =>
  palette[index] ?? `hsl(${Math.round((index * 137.508) % 360)} 48% 42%)`

const escapes: Record<string, string> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}
const escaped = (text: string): string => text.replace(/[&<>"']/g, (character) => escapes[character] ?? '')

/** JSON that cannot end the element that contains it. */
const island = (value: unknown): string => JSON.stringify(value).replace(/</g, '\\u003c')

const seconds = (value: number): string => {
  const size = Math.abs(value)
  if (size >= 36_000) return `${(value / 3600).toFixed(1)} h`
  return `${value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 4)} s`
}
const money = (value: number): string => String(Number(value.toPrecision(4)))
const percent = (value: number): string =>
  `${value >= 0 ? '+' : '−'}${Math.abs(value * 100).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} %`
const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0)

interface Shares {
  compute: number
  launch: number
  transfer: number
  queue: number
}

const sharesOf = (bars: readonly TimelineBar[]): Shares => {
  const shares = { compute: 0, launch: 0, transfer: 0, queue: 0 }
  for (const bar of bars) {
    const parts = partsOf(bar)
    shares.compute += parts.runtime.to - parts.runtime.from
    // The image of a container is brought within the overhead.
    shares.launch += parts.launch.to - bar.startAt
    shares.transfer += parts['workspace-transfer'].to - parts['workspace-transfer'].from
    shares.queue += Math.min(parts['resource-queue'].to, bar.startAt) - parts['resource-queue'].from
  }
  return shares
}

const makespanOf = (bars: readonly TimelineBar[]): number =>
  bars.length === 0
    ? 0
    : bars.reduce((most, bar) => Math.max(most, bar.finishAt), -Infinity) -
      bars.reduce((least, bar) => Math.min(least, bar.startAt), Infinity)

const costOf = (bars: readonly TimelineBar[]): number | null =>
  bars.some(({ cost }) => cost !== undefined) ? sum(bars.map(({ cost }) => cost ?? 0)) : null

/** `78 tasks`, with the number of attempts where a task had several. */
const countOf = (bars: readonly TimelineBar[]): string => {
  const tasks = new Set(bars.map(({ activityId }) => activityId)).size
  return `${tasks} ${tasks === 1 ? 'task' : 'tasks'}${tasks === bars.length ? '' : ` in ${bars.length} attempts`}`
}

const runSeconds = (bars: readonly TimelineBar[]): number =>
  sum(bars.map((bar) => bar.finishAt - bar.startAt))

const lanesOf = (bars: readonly TimelineBar[]): [resource: string, lane: string][] => {
  const lanes = new Map(
    bars.map(({ resource, lane }) => [
      JSON.stringify([resource, lane]),
      [resource, lane] as [string, string],
    ]),
  )
  return [...lanes.values()].sort((a, b) => naturally(a[0], b[0]) || naturally(a[1], b[1]))
}

/**
 * Milliseconds are below the resolution of any screen; short numbers keep a page of 10,000 bars
 * small.
 */
const rounded = (value: number): number => Math.round(value * 1e4) / 1e4

const drawn = (band: TimelineBand, types: ReadonlyMap<string, number>): unknown => {
  const lanes = lanesOf(band.bars)
  const rows = new Map(lanes.map(([resource, lane], index) => [JSON.stringify([resource, lane]), index]))
  return {
    lanes,
    bars: band.bars
      .toSorted((a, b) => a.startAt - b.startAt)
      .map((bar) => {
        const parts = partsOf(bar)
        return [
          rows.get(JSON.stringify([bar.resource, bar.lane])),
          types.get(bar.type),
          bar.name,
          rounded(parts['workspace-transfer'].from),
          rounded(parts['workspace-transfer'].to),
          rounded(bar.startAt),
          rounded(parts.launch.to),
          rounded(bar.finishAt),
          bar.status ?? band.label,
          bar.attempt ?? 1,
          bar.cost ?? null,
        ]
      }),
  }
}

const typeTable = (bands: readonly TimelineBand[], types: readonly string[], priced: string): string => {
  const measuredOrLast = bands.at(-1)
  const cells = (found: readonly (readonly TimelineBar[])[]): string => {
    const times = found.map((bars) => {
      if (bars.length === 0) return '<td>–</td>'
      const total = runSeconds(bars)
      return `<td>${seconds(total)} <small>${seconds(total / bars.length)} each</small></td>`
    })
    const [first, last] = [found[0], found.at(-1)]
    const compared =
      first !== undefined && last !== undefined && first !== last && runSeconds(first) > 0 && last.length > 0
    const change =
      bands.length > 1 ? `<td>${compared ? percent(runSeconds(last) / runSeconds(first) - 1) : '–'}</td>` : ''
    const cost = costOf(last ?? [])
    const tasks = new Set((last ?? []).map(({ activityId }) => activityId)).size
    const price = cost === null ? '–' : money(cost)
    return `<td>${tasks}</td>${times.join('')}${change}<td>${price}</td>`
  }
  const heads = bands.map(({ label }) => `<th>${label}</th>`).join('')
  const compare =
    bands.length > 1 ? `<th>${bands.at(-1)?.label ?? ''} against ${bands[0]?.label ?? ''}</th>` : ''
  const whole = bands.map(({ bars }) => bars)
  const byType = bands.map(({ bars }) => Map.groupBy(bars, ({ type }) => type))
  const shown = types.map((type, index) => {
    const name = `<td title="${escaped(type)}"><i style="background:${colourOf(index)}"></i>${escaped(type)}</td>`
    return `<tr>${name}${cells(byType.map((band) => band.get(type) ?? []))}</tr>`
  })
  return `<div class="scroll"><table><thead><tr><th>activity type</th>
<th>${measuredOrLast?.label ?? ''} tasks</th>${heads}${compare}<th>${escaped(priced)}</th></tr></thead>
<tbody>${shown.join('\n')}</tbody><tfoot><tr><td>all</td>${cells(whole)}</tr></tfoot></table></div>`
}

const bandTable = (bands: readonly TimelineBand[], priced: string): string => {
  const planned = bands[0] === undefined ? 0 : makespanOf(bands[0].bars)
  const rows = bands.map(({ label, bars }, index) => {
    const [makespan, lanes, cost] = [makespanOf(bars), lanesOf(bars).length, costOf(bars)]
    const busy =
      makespan > 0 && lanes > 0 ? `${((100 * runSeconds(bars)) / (makespan * lanes)).toFixed(0)} %` : '–'
    const change = index > 0 && planned > 0 ? percent(makespan / planned - 1) : ''
    const failed = bars.filter(({ status }) => status === 'failed').length
    const price = cost === null ? '–' : money(cost)
    const cells = [label, seconds(makespan), change, lanes, busy, failed, price]
    return `<tr>${cells.map((cell) => `<td>${cell}</td>`).join('')}</tr>`
  })
  const reference = bands.length > 1 ? `against ${bands[0]?.label ?? ''}` : ''
  return `<div class="scroll"><table><thead><tr><th></th><th>makespan</th>
<th>${reference}</th><th>lanes</th><th>lanes busy</th><th>failed attempts</th><th>${escaped(priced)}</th></tr></thead>
<tbody>${rows.join('\n')}</tbody></table></div>`
}

/** One horizontal bar per band: sums over all tasks, on one scale. */
const whereTimeWent = (bands: readonly TimelineBand[]): string => {
  const kinds = [
    ['compute', '#3b74d9'],
    ['launch', '#8894a8'],
    ['transfer', '#0a8f8f'],
    ['queue', '#d98a00'],
  ] as const
  const shares = bands.map(({ bars }) => sharesOf(bars))
  const widest = greatest(
    shares.map((share) => sum(Object.values(share))),
    1e-9,
  )
  const rows = bands.map(({ label }, index) => {
    const share = shares[index] ?? { compute: 0, launch: 0, transfer: 0, queue: 0 }
    const top = index * 46
    let left = 100
    const pieces = kinds.map(([kind, colour]) => {
      const width = (760 * share[kind]) / widest
      const piece =
        `<rect x="${left.toFixed(2)}" y="${top}" width="${width.toFixed(2)}" height="18" ` +
        `fill="${colour}"><title>${kind} ${seconds(share[kind])}</title></rect>`
      left += width
      return piece
    })
    const caption = kinds
      .map(([kind]) => `${kind === 'launch' ? 'overhead' : kind} ${seconds(share[kind])}`)
      .join('  ·  ')
    return (
      `<text x="0" y="${top + 13}">${label}</text>${pieces.join('')}<text class="soft" x="100" ` +
      `y="${top + 34}">${caption}</text>`
    )
  })
  const legend = kinds
    .map(
      ([kind, colour]) =>
        `<span><i style="background:${colour}"></i>${kind === 'launch' ? 'overhead' : kind}</span>`,
    )
    .join('')
  return `<div class="legend">${legend}</div>
<svg viewBox="0 0 860 ${bands.length * 46}" width="860" style="max-width:100%;margin-top:8px"
 role="img" aria-label="where the time went">${rows.join('')}</svg>`
}

/**
 * A run as one self-contained HTML page: planned, simulated and measured Gantt charts above each
 * other on one time axis, tables per activity type, and the phases of the run's time. The page
 * loads no other resource; its policy forbids any script but its own. The number of elements grows
 * with types and bands, never with bars: each band is drawn on one canvas.
 * @param currency of all costs; without it they are bare numbers, and the page notes the missing
 *   currency.
 * @throws RangeError naming the activity whose times are not finite or not in order.
 */
export const timelineHtml = (input: TimelineInput, currency?: string): string => {
  const priced = `cost, ${currency ?? 'no currency set'}`
  const amount = (cost: number): string =>
    `${money(cost)}${currency === undefined ? '' : ` ${escaped(currency)}`}`
  const bands = order.flatMap((label) =>
    input.bands.filter((band) => band.label === label && band.bars.length > 0),
  )
  for (const { bars } of bands) bars.forEach(assertBar)
  const types = [
    ...new Set(
      bands.flatMap(({ bars }) => bars.toSorted((a, b) => a.startAt - b.startAt).map(({ type }) => type)),
    ),
  ]
  const typeIndex = new Map(types.map((type, index) => [type, index]))
  const end = bands
    .flatMap(({ bars }) => bars)
    .reduce((most, bar) => Math.max(most, bar.finishAt), input.run.wallSeconds ?? 0)
  const data = {
    colours: types.map((_, index) => colourOf(index)),
    types,
    end: rounded(end),
    currency: currency ?? '',
    bands: bands.map((band) => drawn(band, typeIndex)),
  }

  const { run } = input
  const facts = [
    `run <b>${escaped(run.id)}</b>`,
    `<b class="status-${run.status.replace(/[^a-z]/g, '')}">${escaped(run.status)}</b>`,
    `mode <b>${escaped(run.mode)}</b>`,
    ...(run.makespanSeconds === null ? [] : [`makespan <b>${seconds(run.makespanSeconds)}</b>`]),
    ...(run.cost === null ? [] : [`cost <b>${amount(run.cost)}</b>`]),
    ...(run.startedAt === undefined
      ? []
      : [`started <b>${new Date(run.startedAt * 1000).toISOString().replace(/\.\d+Z$/, 'Z')}</b>`]),
  ]
  const shownTypes = types.slice(0, 24)
  const legend = [
    ...shownTypes.map(
      (type, index) =>
        `<span title="${escaped(type)}"><i style="background:${colourOf(index)}"></i>${escaped(type)}</span>`,
    ),
    ...(types.length > shownTypes.length
      ? [`<span>and ${types.length - shownTypes.length} more types</span>`]
      : []),
  ].join('')
  const charts = bands.map(({ label, bars }, index) => {
    const facts = [
      countOf(bars),
      `makespan ${seconds(makespanOf(bars))}`,
      ...(costOf(bars) === null ? [] : [`cost ${amount(costOf(bars) ?? 0)}`]),
    ].join(' · ')
    return `<section class="band"><header><strong>${label}</strong><span>${facts}</span></header>
<canvas id="band-${index}" role="img" aria-label="${label}: ${facts}"></canvas></section>`
  })
  const body =
    bands.length === 0
      ? '<p>Nothing has been planned or run yet.</p>'
      : `<div class="bar"><div class="legend">${legend}</div></div>
<div class="bar"><div class="legend"><span><i class="idle"></i>lane idle</span>
<span><i class="launch"></i>launch overhead</span><span><i class="wait"></i>task waits for its lane</span>
<span><i class="move"></i>data moves</span><span><i class="bad"></i>failed or cancelled</span></div>
<span><button id="closer" type="button">zoom in</button> <button id="wider" type="button">zoom out</button>
<button id="all" type="button">whole run</button></span></div>
${charts.join('\n')}
<h2>In total</h2>
${bandTable(bands, priced)}
<h2>By activity type</h2>
${typeTable(bands, types, priced)}
<h2>Where the time went, summed over tasks</h2>
${whereTimeWent(bands)}
<div id="tip"></div>
<script type="application/json" id="data">${island(data)}</script>
<script>${timelineScript}</script>`
  const policy =
    `default-src 'none'; style-src 'unsafe-inline'; script-src ` +
    `'sha256-${hash('sha256', timelineScript, 'base64')}'`
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(input.title)}</title>
<style>${timelineStyle}</style>
</head>
<body>
<main>
<h1>${escaped(input.title)}</h1>
<p class="facts">${facts.join(' · ')}</p>
${body}
</main>
</body>
</html>
`
}
