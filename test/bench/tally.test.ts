import { readFileSync, mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { runFolder } from '../support/run-folder.ts'
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
