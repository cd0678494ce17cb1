import { readFileSync, mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { runFolder } from '../support/run-folder.ts'
import { verdictOf } from '../../bench/report.ts'
import { addTally, countedBefore } from '../../bench/tally.ts'

test('counts are added up in the file that is given, and the next run goes on behind them', () => {
  const file = join(mkdtempSync(join(runFolder(), 'tally-')), 'own.md')
  const links = { what: 'a link that is cut', command: 'npx node bench/failures.ts links-ssh' }
  expect(countedBefore(file, links.what)).toBe(0)
  addTally(file, { ...links, counted: 10, inOrder: 10 })
  addTally(file, {
    what: 'a Pod that is evicted',
    command: 'npx node bench/failures.ts evictions',
    counted: 3,
    inOrder: 3,
  })
  addTally(file, { ...links, counted: 5, inOrder: 4 })
  expect(countedBefore(file, links.what)).toBe(15)
  expect(readFileSync(file, 'utf8')).toContain(`| ${links.what} | ${links.command} | 15 | 14 |`)
})

test.each([
  [{ measured: 5, sense: 'least', goal: 5 }, 5, 'holds'],
  [{ measured: 4.9, sense: 'least', goal: 5 }, 5, '**below**'],
  [{ measured: 1.6, sense: 'most', goal: 1.5 }, 9, '**below**'],
  [{ measured: 1, sense: 'most', goal: 1.5, aim: 1.2 }, 5, 'holds, aim reached'],
  [{ measured: 1, sense: 'most', goal: 1.5 }, 4, 'holds; below method'],
  [{ measured: 2, sense: 'most', goal: 1.5 }, 1, '**below**; below method'],
] as const)('a figure %j of %i rounds: %s', (goal, rounds, verdict) => {
  expect(verdictOf({ what: 'a figure', unit: '', ...goal }, rounds)).toBe(verdict)
})
