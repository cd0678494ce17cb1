import { readFileSync } from 'node:fs'
import { describe, expect, test } from '@jest/globals'
import { parse } from 'yaml'
import { replay } from '../simulator/documents.ts'
import type { ReplayRequest } from '../simulator/documents.ts'
import { applicable, shared } from './trace.ts'

const request = (path: string): ReplayRequest => parse(readFileSync(shared(path), 'utf8')) as ReplayRequest

/** The reference is held to the documented answers by the documents alone; the simulator is held to the reference elsewhere. */
const answers = applicable()
  ? ([
      ['samples/simulation/execution-request.yaml', 'by-policy', '19.600'],
      ['samples/simulation/execution-request.yaml', 'lv08', '21.593'],
      ['samples/simulation-30gb-fanout/plan-request.yaml', 'max-min', '36.000'],
    ] as const)
  : []

describe('known answers', () => {
  test('the samples are there where they are demanded', () => {
    expect(answers.length > 0 || process.env['REQUIRE_SHARED'] !== '1').toBe(true)
  })

  for (const [path, networkModel, makespan] of answers) {
    test(`SimGrid replays ${path} under ${networkModel} in ${makespan} s`, () => {
      expect(replay({ ...request(path), networkModel }).makespanSeconds.toFixed(3)).toBe(makespan)
    })
  }
})
