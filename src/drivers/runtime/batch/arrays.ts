import { hash } from 'node:crypto'
import type { BatchArray, BatchTerms } from './scheduler.ts'

/** Prefix of every array's name: it distinguishes our jobs from the user's own. */
export const arrayNamePrefix = 'orrery-'

const textOf = (request: object): string =>
  JSON.stringify(Object.entries(request).sort(([a], [b]) => (a < b ? -1 : 1)))

/** A key that equal requests share. */
export const requestKey = (request: object): string => hash('sha256', textOf(request), 'hex').slice(0, 32)

/** Groups tasks with equal requests into arrays of at most `arraySize`, in the given order. */
export function arraysOf<Request extends object>(
  requests: ReadonlyMap<string, Request>,
  {
    arraySize,
    nameWords = [],
    limitSecondsOf,
  }: Pick<BatchTerms<Request>, 'arraySize' | 'nameWords' | 'limitSecondsOf'>,
): BatchArray<Request>[] {
  const groups = new Map<string, { request: Request; tasks: string[] }>()
  for (const [name, request] of requests) {
    const key = requestKey(request)
    const group = groups.get(key) ?? { request, tasks: [] }
    group.tasks.push(name)
    groups.set(key, group)
  }
  return [...groups.values()].flatMap(({ request, tasks }) =>
    Array.from({ length: Math.ceil(tasks.length / arraySize) }, (_, part) => {
      const some = tasks.slice(part * arraySize, (part + 1) * arraySize)
      const text = [...nameWords, ...[...some].sort()].join('\n')
      const limitSeconds = limitSecondsOf?.(request)
      const limit = limitSeconds === undefined ? {} : { limitSeconds }
      return {
        name: `${arrayNamePrefix}${hash('sha256', text, 'hex').slice(0, 32)}`,
        request,
        tasks: some,
        ...limit,
      }
    }),
  )
}
