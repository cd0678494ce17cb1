import { hash } from 'node:crypto'
import { present } from '../../../json-object.ts'
import { chunks } from '../remote/answers.ts'
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
  const groups = Map.groupBy(requests, ([, request]) => requestKey(request))
  return [...groups.values()].flatMap((group) =>
    [...chunks(group, arraySize)].map((some) => {
      const request = some[0]![1]
      const tasks = some.map(([name]) => name)
      const text = [...nameWords, ...tasks.toSorted()].join('\n')
      const name = `${arrayNamePrefix}${hash('sha256', text, 'hex').slice(0, 32)}`
      return { name, request, tasks, ...present({ limitSeconds: limitSecondsOf?.(request) }) }
    }),
  )
}
