import { performance } from 'node:perf_hooks'

/**
 * One side of a comparison: does the work once and returns its duration, in seconds (or another
 * unit that the report names).
 */
export type Measured = () => Promise<number>

export const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1
    ? (sorted[middle] as number)
    : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2
}

/** Seconds that `work` takes. */
export const secondsOf = async (work: () => unknown): Promise<number> => {
  const started = performance.now()
  await work()
  return (performance.now() - started) / 1_000
}

/**
 * Measures all sides once as a cold start, then in `rounds` rounds A B A B …, so that a slow minute
 * of the machine affects them alike; every other round runs backwards. `between` runs after each
 * round and is not measured.
 */
export const interleaved = async <Side extends string>(
  rounds: number,
  sides: Record<Side, Measured>,
  between?: (round: number) => Promise<void>,
): Promise<{ cold: Record<Side, number>; warm: Record<Side, number[]> }> => {
  const names = Object.keys(sides) as Side[]
  const cold = {} as Record<Side, number>
  const warm = Object.fromEntries(names.map((name) => [name, []])) as unknown as Record<Side, number[]>
  for (const name of names) {
    cold[name] = await sides[name]()
    process.stderr.write(`  cold      ${name}: ${cold[name].toPrecision(3)}\n`)
  }
  for (let round = 0; round < rounds; round++) {
    for (const name of round % 2 === 0 ? names : [...names].reverse()) {
      const value = await sides[name]()
      warm[name].push(value)
      process.stderr.write(
        `  round ${String(round + 1)}/${String(rounds)} ${name}: ${value.toPrecision(3)}\n`,
      )
    }
    await between?.(round)
  }
  return { cold, warm }
}

/** Median of the per-round ratios `over[i] / under[i]`. */
export const medianRatio = (over: readonly number[], under: readonly number[]): number =>
  median(over.map((value, i) => value / (under[i] as number)))

/** Numbers from 0 to 1, the same in every run of a benchmark (mulberry32). */
export const seeded = (seed: number): (() => number) => {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
