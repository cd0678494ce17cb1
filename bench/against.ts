/**
 * Compares the speed of this checkout with that of another one, in interleaved rounds:
 *
 *   npx node bench/against.ts FOLDER [--rounds 20] [--tiny]
 *
 * FOLDER is a checkout of another commit, with its packages installed: `git worktree add FOLDER
 * COMMIT && (cd FOLDER && npm ci)`. Both daemons run all the time, each on servers of its own, and
 * one of them is measured at a time, in turns one or the other first. The program prints medians and
 * ranges, and exits with 1 where medians differ by more than 3 % and by more than half the spread of
 * the rounds.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { ArgumentError, readArguments } from '../src/programs/arguments.ts'
import { openBenchFolder } from './folder.ts'
import { median } from './rounds.ts'

/** Each with the unit of its number; less is better. */
const units = {
  'montage-noop': 's',
  chain: 'ms per hop',
  'read-environment': 'ms per request',
  'read-small-run': 'ms per request',
  'read-large-run': 'ms per request',
} as const
export type Measurement = keyof typeof units

const tolerance = 0.03
/** Rounds before the ones that count: compilers and caches warm up. */
const warmUp = 2
const usage = `npx node bench/against.ts FOLDER [--rounds N] [--tiny]`

const { other, rounds, isTiny } = readArguments(
  {
    usage,
    options: {
      rounds: { type: 'string', default: '20' },
      tiny: { type: 'boolean', default: false },
    },
    positionals: [1, 1],
  },
  ({ values, positionals: [folder = ''] }) => {
    const count = Number(values.rounds)
    if (!Number.isInteger(count) || count < 1)
      throw new ArgumentError(`--rounds ${values.rounds} is not a whole number from 1`)
    const checkout = resolve(process.env['INIT_CWD'] ?? '.', folder)
    for (const needed of ['bench/daemon.ts', 'node_modules'])
      if (!existsSync(join(checkout, needed)))
        throw new ArgumentError(`${checkout} has no ${needed}; name a checkout whose packages are installed`)
    return { other: checkout, rounds: count, isTiny: values.tiny }
  },
)

interface Side {
  measure(name: Measurement): Promise<number>
  stop(): Promise<void>
}

const startSide = async (checkout: string): Promise<Side> => {
  const child = fork(join(import.meta.dirname, 'against-side.ts'), [checkout, isTiny ? 'tiny' : 'full'], {
    cwd: checkout,
  })
  const ended = once(child, 'exit')
  const failed = ended.then(([code]) => {
    throw new Error(`the side of ${checkout} ended with ${String(code)}`)
  })
  const answer = async (): Promise<unknown> => {
    const [found] = (await Promise.race([once(child, 'message'), failed])) as [unknown]
    return found
  }
  await answer()
  return {
    async measure(name) {
      child.send(name)
      return Number(await answer())
    },
    async stop() {
      failed.catch(() => undefined)
      child.send('stop')
      await ended
    },
  }
}

const text = (values: readonly number[]): string =>
  `${median(values).toPrecision(4)} (${Math.min(...values).toPrecision(3)} – ${Math.max(...values).toPrecision(3)})`

const folder = openBenchFolder()
const before = await startSide(other)
const now = await startSide(resolve(import.meta.dirname, '..'))
for (const name of Object.keys(units) as Measurement[]) {
  const found: { before: number[]; now: number[] } = { before: [], now: [] }
  for (let round = -warmUp; round < rounds; round++) {
    const sides = [['before', before] as const, ['now', now] as const]
    for (const [which, side] of round % 2 === 0 ? sides : sides.toReversed()) {
      const measured = await side.measure(name)
      if (round >= 0) found[which].push(measured)
    }
  }
  const difference = median(found.now) / median(found.before) - 1
  const spread = (Math.max(...found.before) - Math.min(...found.before)) / 2
  const isSame =
    Math.abs(difference) <= tolerance || Math.abs(median(found.now) - median(found.before)) <= spread
  process.stdout.write(
    `${name}, ${units[name]}: ${text(found.before)} before, ${text(found.now)} now, ` +
      `${(difference * 100).toFixed(1)} %${isSame ? '' : ': another speed'}\n`,
  )
  if (!isSame) process.exitCode = 1
}
await Promise.all([before.stop(), now.stop()])
await folder.leave()
