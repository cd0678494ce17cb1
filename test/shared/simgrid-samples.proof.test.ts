import { readFileSync } from 'node:fs'
import { expect } from '@jest/globals'
import { parse } from 'yaml'
import { replay } from '../simulator/documents.ts'
import type { ReplayRequest } from '../simulator/documents.ts'
import { needs } from '../support/needs.ts'
import { shared } from './trace.ts'

const { test } = needs('shared', 'python3-simgrid')

const request = (path: string): ReplayRequest => parse(readFileSync(shared(path), 'utf8')) as ReplayRequest

/**
 * The reference is held to the documented answers by the documents alone; the simulator is held to
 * the reference elsewhere.
 */
const answers = [
  ['samples/simulation/execution-request.yaml', 'by-policy', '19.600'],
  ['samples/simulation/execution-request.yaml', 'lv08', '21.593'],
  ['samples/simulation-30gb-fanout/plan-request.yaml', 'max-min', '36.000'],
] as const

test.each(answers)('SimGrid replays %s under %s in %s s', (path, networkModel, makespan) => {
  expect(replay({ ...request(path), networkModel }).makespanSeconds.toFixed(3)).toBe(makespan)
})
