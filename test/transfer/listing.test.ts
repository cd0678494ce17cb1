import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdirSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { planned } from '../../src/drivers/runtime/local/planned.ts'
import { listTree } from '../../src/drivers/transfer/copy.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { scratch } from './trees.ts'

/** What stages bring of one directory: by its listings at a site, and on this machine. */

const folder = scratch()
const shell = openLocalShell()
let from: string

beforeAll(() => {
  from = join(realpathSync(folder.path), 'work')
  mkdirSync(join(from, 'many'), { recursive: true })
  for (let file = 0; file < 500; file++) writeFileSync(join(from, `many/file-${String(file)}`), '')
  mkdirSync(join(from, 'versions/2/parts'), { recursive: true })
  writeFileSync(join(from, 'versions/2/data.txt'), 'data')
  writeFileSync(join(from, 'versions/2/parts/a'), 'a')
  writeFileSync(join(from, 'plain.txt'), 'plain')
  const links = {
    'latest.txt': 'current/data.txt',
    current: join(from, 'versions/2'),
    'versions/2/parts/plain': '../../../plain.txt',
    'versions/2/parts/gone': 'nothing',
    'versions/2/parts/host': '/etc/hostname',
    up: '..',
    round: 'turn',
    turn: 'round',
    'through.txt': `up/${basename(from)}/plain.txt`,
  }
  for (const [path, target] of Object.entries(links)) symlinkSync(target, join(from, path))
})
afterAll(async () => {
  await shell.close()
  folder[Symbol.dispose]()
})

/** What a stage of these paths brings and leaves by listings, and what the listings show. */
const listed = async (paths?: string[]) => {
  const seen: string[] = []
  const heard: SiteShell = {
    ...shell,
    run: async (script, options) => {
      const answer = await shell.run(script, options)
      seen.push(answer.stdout.toString('latin1'))
      return answer
    },
  }
  const stage = { from, label: 'made', ...(paths === undefined ? {} : { paths }) }
  const { tree, left } = await listTree({ site: 'there', shell: heard }, stage)
  return { tree, left, seen }
}

const locally = async (paths?: string[]) => {
  const { entries, left } = await planned([
    { from, label: 'made', ...(paths === undefined ? {} : { paths }) },
  ])
  return { entries, left: left.map(({ path, why }) => ({ path, why })) }
}

const brought = (entries: ReadonlyMap<string, { kind: string; target?: string | undefined }>): string[] =>
  [...entries].map(([path, { kind, target }]) => `${path} ${target || kind}`).toSorted()

const cases: { paths?: string[]; brings: string[]; leaves: string[] }[] = [
  { paths: ['plain.txt'], brings: ['plain.txt file'], leaves: [] },
  {
    paths: ['latest.txt'],
    brings: [
      'current versions/2',
      'latest.txt current/data.txt',
      'versions directory',
      'versions/2 directory',
      'versions/2/data.txt file',
    ],
    leaves: [],
  },
  {
    paths: ['current'],
    brings: [
      'current versions/2',
      'plain.txt file',
      'versions directory',
      'versions/2 directory',
      'versions/2/data.txt file',
      'versions/2/parts directory',
      'versions/2/parts/a file',
      'versions/2/parts/gone nothing',
      'versions/2/parts/plain ../../../plain.txt',
    ],
    leaves: ['versions/2/parts/host'],
  },
  // A link on the way leads out of the directory, and the rest of the path leads in again.
  {
    paths: ['up/work/plain.txt', 'current/parts/a'],
    brings: [
      'current versions/2',
      'plain.txt file',
      'versions directory',
      'versions/2 directory',
      'versions/2/parts directory',
      'versions/2/parts/a file',
    ],
    leaves: ['up'],
  },
  { paths: ['through.txt'], brings: ['plain.txt file', 'through.txt plain.txt'], leaves: ['up'] },
]

test.each(cases)('of $paths', async ({ paths, brings, leaves }) => {
  const there = await listed(paths)
  const here = await locally(paths)
  expect(brought(there.tree)).toEqual(brings)
  expect(brought(here.entries)).toEqual(brings)
  expect(there.left.map(({ path }) => path)).toEqual(leaves)
  expect(here.left).toEqual(there.left)
  expect(there.seen.join('')).not.toContain('many/file-')
})

test('of all: both bring and leave the same', async () => {
  const [there, here] = [await listed(), await locally()]
  expect(brought(here.entries)).toEqual(brought(there.tree))
  expect(brought(there.tree)).toHaveLength(500 + 14)
  expect(there.left.toSorted((a, b) => (a.path < b.path ? -1 : 1))).toEqual(
    here.left.toSorted((a, b) => (a.path < b.path ? -1 : 1)),
  )
})

test.each([
  ['round', /leads by the link "turn" to "round", which leads in a circle|in a circle/],
  ['up', /it is a link to "\.\.", outside of its work directory/],
  ['none/at/all', /made did not leave "none\/at\/all"/],
  ['current/none', /made leaves "current\/none".*where nothing is/],
])('%s is refused, naming why', async (path, why) => {
  await expect(listed([path])).rejects.toThrow(why)
  await expect(locally([path])).rejects.toThrow(why)
})

test('a chain of links longer than a few lists is followed by one list of all', async () => {
  for (let link = 0; link < 30; link++) {
    mkdirSync(join(from, `chain/${String(link)}`), { recursive: true })
    symlinkSync(`../${String(link + 1)}`, join(from, `chain/${String(link)}/next`))
  }
  mkdirSync(join(from, 'chain/30'))
  const { tree, seen } = await listed(['chain/0'])
  expect(tree.has('chain/30')).toBe(true)
  expect(brought(tree)).toEqual(brought((await locally(['chain/0'])).entries))
  expect(seen.length).toBeLessThanOrEqual(22)
})

test.each([
  { part: 'nothing', share: 0, paths: ['latest.txt'] },
  { part: 'half', share: 0.5, paths: ['latest.txt'] },
  { part: 'half of the list of all', share: 0.5 },
  { part: 'all', share: 1 },
])(
  'a list that fails after $part is trouble of the site at once; nothing is missing or brought',
  async (half) => {
    let calls = 0
    const failing: SiteShell = {
      ...shell,
      run: async (script, options) => {
        calls += 1
        const answer = await shell.run(script, options)
        const stdout = answer.stdout.subarray(0, Math.floor(answer.stdout.length * half.share))
        return { ...answer, code: 1, stdout, stderr: 'Input/output error' }
      },
    }
    const stage = { from, label: 'made', ...(half.paths === undefined ? {} : { paths: half.paths }) }
    await expect(listTree({ site: 'there', shell: failing }, stage)).rejects.toMatchObject({
      trouble: 'infrastructure',
      message: expect.stringContaining('Input/output error'),
    })
    expect(calls).toBe(1)
  },
)
