import { pathTrouble } from '../../outside-path.ts'
import { isInside } from '../../drivers/runtime/contract/links.ts'
import { mostDataBytes } from '../../ranges.ts'
import type { Problem } from '../../refusal.ts'
import { findCycle } from '../../schedulers/graph.ts'
import type { ContentEdge } from './content.ts'
import { inputVariable, inputVariables } from './names.ts'

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

/** The trouble with data dependencies that are too large together; undefined where they are not. */
export function dataBytesTrouble(sizes: readonly number[]): string | undefined {
  const total = sizes.reduce((sum, size) => sum + size, 0)
  return total > mostDataBytes
    ? `have ${total} bytes together; at most ${mostDataBytes} are possible, so lower their sizeBytes`
    : undefined
}

/** Names that differ and become the same identifier: one problem per name after the first. */
export function meetingNames(
  names: readonly (string | undefined)[],
  identifiers: readonly (string | undefined)[],
  path: (index: number) => string,
): Problem[] {
  const first = new Map<string, string>()
  return names.flatMap((name, i) => {
    const identifier = identifiers[i]
    if (name === undefined || identifier === undefined || identifier === '') return []
    const before = first.get(identifier)
    if (before === undefined) first.set(identifier, name)
    if (before === undefined || before === name) return []
    return [
      {
        path: path(i),
        message:
          `${JSON.stringify(before)} and ${JSON.stringify(name)} both become the identifier ` +
          `${JSON.stringify(identifier)}: letters in lower case, digits and "-" are kept, all else becomes ` +
          '"-"; rename one of them',
      },
    ]
  })
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
const placeTrouble = (path: unknown): string | undefined => {
  if (typeof path !== 'string' || path.trim() === '' || !isInside(path))
    return `must be a path below the work directory, without a leading "/" and ".."${shownText(path)}`
  const trouble = pathTrouble(path)
  return trouble === undefined ? undefined : `${trouble}; shorten it`
}

/**
 * Problems of an activity's paths, with which no site can run it: its working directory and the
 * outputs that it has to deliver, as documents hold them.
 */
export function pathProblems(
  { workingDirectory = '', expectedOutputs = [] }: { workingDirectory?: unknown; expectedOutputs?: unknown },
  paths: { workingDirectory: string; expectedOutputs: string },
): Problem[] {
  const place = workingDirectory === '' ? undefined : placeTrouble(workingDirectory)
  const problems: Problem[] = place === undefined ? [] : [{ path: paths.workingDirectory, message: place }]
  if (!Array.isArray(expectedOutputs))
    return [...problems, { path: paths.expectedOutputs, message: 'must be an array of paths' }]
  expectedOutputs.forEach((path: unknown, i) => {
    const message =
      placeTrouble(path) ??
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

/**
 * Inputs of activities that run for real whose names give one environment variable, which can hold
 * one path only: one problem per name after the first. Names that are told apart by digits go to
 * `warn` with their variable.
 * @param isReal whether the consumer at an index of `data` runs for real
 */
export const meetingInputs = <Consumer>(
  data: readonly { consumer: Consumer | undefined; logicalName: string | undefined }[],
  isReal: (consumer: Consumer) => boolean,
  path: (index: number) => string,
  warn: (problem: Problem) => void = () => undefined,
): Problem[] => {
  const names = new Map<Consumer, Map<string, number>>()
  data.forEach(({ consumer, logicalName }, i) => {
    if (consumer === undefined || logicalName === undefined || !isReal(consumer)) return
    const known = names.get(consumer) ?? new Map<string, number>()
    names.set(consumer, known)
    if (!known.has(logicalName)) known.set(logicalName, i)
  })
  return [...names.values()].flatMap((known) => {
    const owners = new Map<string, string>()
    const problems: Problem[] = []
    for (const [name, variable] of inputVariables(known.keys())) {
      const before = owners.get(variable)
      const at = path(known.get(name) ?? 0)
      if (before === undefined) owners.set(variable, name)
      else
        problems.push({
          path: at,
          message:
            `${JSON.stringify(before)} and ${JSON.stringify(name)} are both the variable ${variable} of ` +
            'their consumer: A-Z and 0-9 are kept, all else becomes "_"; rename one of them',
        })
      if (variable !== inputVariable(name))
        warn({
          path: at,
          message: `${JSON.stringify(name)} is the variable ${variable} of its consumer, as another input is like it`,
        })
    }
    return problems
  })
}

/** The key by which a data dependency is unique within its workflow. */
export const dataKey = (producer: string, consumer: string, logicalName: string): string =>
  `${producer}\n${consumer}\n${logicalName}`
