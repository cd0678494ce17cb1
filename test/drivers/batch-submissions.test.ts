import { afterEach, beforeEach, expect, test } from '@jest/globals'
import { execFileSync, spawnSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { arrayScript, packOf, type ArrayElement } from '../../src/drivers/runtime/batch/array-script.ts'
import { openSubmissions } from '../../src/drivers/runtime/batch/submissions.ts'
import { runFolder } from '../support/run-folder.ts'
import { runsOf } from '../support/share.ts'

/**
 * What is kept at the site of arrays, and what a task of an array makes itself at its start: its
 * script and its work directory.
 */

let root: string
beforeEach(() => {
  root = mkdtempSync(join(runFolder(), 'orrery-pack-'))
  for (const folder of ['tasks', 'arrays/one']) mkdirSync(join(root, folder), { recursive: true })
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

const write = (elements: readonly ArrayElement[]): void => {
  writeFileSync(
    join(root, 'arrays/one/script'),
    arrayScript(elements, {
      array: 'one',
      pack: '../arrays/one/x.pack',
      folder: join(root, 'tasks'),
      command: 'echo "$script"',
      index: '$TABLE_INDEX',
    }),
  )
  writeFileSync(join(root, 'arrays/one/x.pack'), packOf(elements).bytes)
  for (const { script } of elements)
    writeFileSync(join(root, 'tasks', `${script.split('.')[0]}.array`), 'one 0 0 1\n')
}
const start = (index: number): { status: number | null; stdout: string } =>
  spawnSync('/bin/sh', [join(root, 'arrays/one/script')], {
    encoding: 'utf8',
    env: { PATH: '/usr/bin:/bin', TABLE_INDEX: String(index) },
  })

test('each takes its own text and directory out of the file of all, whatever they hold', () => {
  const text = fc
    .string({ unit: 'binary', minLength: 1, maxLength: 40 })
    .map((some) => some.replaceAll('\0', "'\n$(echo no)`"))
  const folder = fc.stringMatching(/^[^/\0]{1,20}$/).filter((name) => name !== '.' && name !== '..')
  let round = 0
  fc.assert(
    fc.property(fc.array(fc.tuple(text, folder), { minLength: 1, maxLength: 4 }), (some) => {
      const place = join(root, `work${++round}`)
      const elements = some.map(([one, name], index) => ({
        script: `t${round}-${index}.abc`,
        packed: { directory: join(place, String(index), name), text: one },
      }))
      write(elements)
      for (const [index, { script, packed }] of elements.entries()) {
        expect(start(index)).toMatchObject({ status: 0, stdout: `${script}\n` })
        expect(readFileSync(join(root, 'tasks', `${script}.run`)).equals(Buffer.from(packed.text))).toBe(true)
        expect(statSync(packed.directory).mode & 0o777).toBe(0o700)
      }
    }),
    { numRuns: runsOf(10, 60) },
  )
})

test('nothing starts whose text is not there, whose directory cannot be made or leads elsewhere; and no script is written over', () => {
  const element = (name: string, directory: string): ArrayElement => ({
    script: `${name}.abc`,
    packed: { directory: join(root, directory), text: `# ${name}\n` },
  })
  writeFileSync(join(root, 'file'), '')
  mkdirSync(join(root, 'elsewhere'))
  symlinkSync('elsewhere', join(root, 'link'))
  write([element('a', 'file/below'), element('b', 'link'), element('c', 'fine/c'), { script: 'made.abc' }])
  expect([0, 1, 2, 3].map((index) => start(index).status)).toEqual([73, 73, 0, 0])
  expect(['a', 'b', 'c'].map((name) => existsSync(join(root, 'tasks', `${name}.abc.run`)))).toEqual([
    false,
    false,
    true,
  ])
  writeFileSync(join(root, 'tasks/c.abc.run'), 'as it was')
  expect(start(2).status).toBe(0)
  expect(readFileSync(join(root, 'tasks/c.abc.run'), 'utf8')).toBe('as it was')
  execFileSync('rm', [join(root, 'arrays/one/x.pack'), join(root, 'tasks/c.abc.run')])
  expect(start(2).status).toBe(73)
})

test('many who claim in the same moment, the first ones at this root too: an array each, and one array once', async () => {
  const shells = Array.from({ length: 4 }, () => openLocalShell())
  try {
    for (let round = 0; round < runsOf(5, 20); round += 1) {
      const site = join(root, String(round))
      mkdirSync(join(site, 'tasks'), { recursive: true })
      const claims = await Promise.all(
        shells.map((shell, index) => {
          // Two and two want the same array.
          const name = `array-${index % 2}`
          const array = { name, tasks: [`${name}-task`] }
          return openSubmissions(shell, () => Promise.resolve(site)).claim(array, '#!/bin/sh\n')
        }),
      )
      for (const array of [0, 1])
        expect([claims[array]!.state, claims[array + 2]!.state].sort()).toEqual(['open', 'ours'])
    }
  } finally {
    for (const shell of shells) await shell.close()
  }
})
