import { isInside } from '../../drivers/runtime/local/staging.ts'
import type { Problem } from '../../refusal.ts'
import { findCycle } from '../../schedulers/graph.ts'
import type { ContentEdge } from './content.ts'

/**
 * The limit of a logical name in bytes. The name is part of an index entry, which PostgreSQL limits
 * to 2,704 bytes.
 */
const logicalNameBytes = 1_500

/**
 * Repeated values: one problem per repetition, naming the first. `noun` alone where the value is an
 * internal key.
 */
export function duplicates(
  values: readonly (string | undefined)[],
  path: (index: number) => string,
  noun: string,
  shown = true,
): Problem[] {
  const first = new Map<string, number>()
  const problems: Problem[] = []
  values.forEach((value, i) => {
    if (value === undefined) return
    const before = first.get(value)
    if (before === undefined) first.set(value, i)
    else
      problems.push({
        path: path(i),
        message:
          `${noun}${shown ? ` ${JSON.stringify(value)}` : ''} is already that of ${path(before)}; ` +
          'each must be unique',
      })
  })
  return problems
}

/**
 * One cycle by name, as `a -> b -> a`; a long one is shortened in the middle. None where every edge
 * leads forward.
 */
export function cycleProblem(
  names: readonly string[],
  edges: readonly ContentEdge[],
  path: string,
): Problem[] {
  const cycle = findCycle(names.length, edges)
  if (cycle === undefined) return []
  const round = [...cycle, cycle[0] ?? 0].map((node) => names[node] ?? String(node))
  const shown =
    round.length <= 21
      ? round
      : [...round.slice(0, 10), `... ${round.length - 20} more ...`, ...round.slice(-10)]
  return [
    {
      path,
      message: `the workflow contains a cycle: ${shown.join(' -> ')}; remove one of these dependencies`,
    },
  ]
}

const shownText = (value: unknown): string =>
  typeof value === 'string' && value.length <= 80 ? ` (got ${JSON.stringify(value)})` : ''

/** The problem of a path that is to lie below an activity's work directory, or undefined. */
const pathTrouble = (path: unknown): string | undefined =>
  typeof path === 'string' && path.trim() !== '' && isInside(path)
    ? undefined
    : `must be a path below the work directory, without a leading "/" and ".."${shownText(path)}`

/**
 * Problems of an activity's paths, with which no site can run it: its working directory and the
 * outputs that it has to deliver, as documents hold them.
 */
export function pathProblems(
  { workingDirectory = '', expectedOutputs = [] }: { workingDirectory?: unknown; expectedOutputs?: unknown },
  paths: { workingDirectory: string; expectedOutputs: string },
): Problem[] {
  const place = workingDirectory === '' ? undefined : pathTrouble(workingDirectory)
  const problems: Problem[] = place === undefined ? [] : [{ path: paths.workingDirectory, message: place }]
  if (!Array.isArray(expectedOutputs))
    return [...problems, { path: paths.expectedOutputs, message: 'must be an array of paths' }]
  expectedOutputs.forEach((path: unknown, i) => {
    const message =
      pathTrouble(path) ??
      (/^(\.?\/)*\.?$/.test(path as string)
        ? 'is the work directory itself; name the files and folders in it'
        : undefined)
    if (message !== undefined) problems.push({ path: `${paths.expectedOutputs}.${i}`, message })
  })
  return problems
}

export const logicalNameTrouble = (name: string): string | undefined =>
  name.trim() === ''
    ? 'must not be blank'
    : Buffer.byteLength(name) > logicalNameBytes
      ? `must be at most ${logicalNameBytes} bytes long`
      : undefined

/** The key by which a data dependency is unique within its workflow. */
export const dataKey = (producer: string, consumer: string, logicalName: string): string =>
  `${producer}\n${consumer}\n${logicalName}`
