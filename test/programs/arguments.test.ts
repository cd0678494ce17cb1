import { spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from '@jest/globals'
import { temporaryFolder } from '../embedded/folder.ts'
import { compiledOnce } from '../support/run-folder.ts'
import { openShare } from '../support/share.ts'

const root = new URL('../../', import.meta.url).pathname
const { scripts, version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>
  version: string
}
/** The scripts that run something of ours; the others run tools, which have their own arguments. */
const names = Object.keys(scripts).filter(
  (name) => / bin\/[\w-]+\.mjs/.test(scripts[name] ?? '') && !['docs:schema', 'docs:openapi'].includes(name),
)

const folder = temporaryFolder()
afterAll(() => folder[Symbol.dispose]())

interface Outcome {
  code: number | null
  out: string
  err: string
}

/** A script of package.json as npm runs it: by the shell, the arguments behind it. */
const run = (name: string, ...args: string[]): Promise<Outcome> =>
  new Promise((resolve) => {
    const child = spawn('/bin/sh', ['-c', [scripts[name], ...args].join(' ')], {
      cwd: root,
      env: {
        PATH: `${join(root, 'node_modules/.bin')}:${process.env['PATH'] ?? ''}`,
        HOME: folder.path,
        SERVICE_DATA_DIR: join(folder.path, 'data'),
        SERVICE_CACHE_DIR: join(folder.path, 'cache'),
        ...compiledOnce(),
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let [out, err] = ['', '']
    child.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()))
    child.stderr.on('data', (chunk: Buffer) => (err += chunk.toString()))
    child.once('close', (code) => {
      resolve({ code, out, err })
    })
  })

test('the scripts of ours are known', () => {
  expect(names).toEqual(
    expect.arrayContaining([
      'start',
      'worker',
      'demo',
      'test',
      'bench',
      'backup',
      'restore',
      'vault',
      'site',
      'build',
    ]),
  )
})

test.each(names.filter(openShare(3)))(
  '%s: --help and --version answer and do nothing, an unknown argument is refused by name with 2 and no stack',
  async (name) => {
    const help = await run(name, '--help')
    const [ours, unknown] = await Promise.all([run(name, '--version'), run(name, '--nonsense')])
    expect(help).toEqual({
      code: 0,
      out: expect.stringMatching(new RegExp(`^npm (run )?${name}\\b`, 'm')),
      err: '',
    })
    expect(ours).toEqual({ code: 0, out: `${version}\n`, err: '' })
    expect(unknown).toEqual({ code: 2, out: '', err: expect.stringContaining('--nonsense') })
    expect(unknown.err).not.toMatch(/\n\s+at /)
    expect(existsSync(join(folder.path, 'data'))).toBe(false)
    expect(existsSync(join(root, '--help'))).toBe(false)
  },
)

test.each([
  ['start', 'now', 'now'],
  ['backup', '', 'missing'],
  ['backup', 'one two', 'two'],
  ['vault', 'dance', 'dance'],
  ['vault', 'retire', 'retire'],
  ['vault', 'status k1', 'k1'],
  ['site', 'castle up', 'castle'],
  ['demo', '--workflow nothing', '--workflow nothing'],
  ['demo', '--output', '--output'],
  ['bench', 'nothing', 'nothing'],
  ['bench', 'chain --rounds 0', '--rounds 0'],
])('%s %s: is refused with %s in the reason', async (name, args, named) => {
  const { code, out, err } = await run(name, args)
  expect([code, out]).toEqual([2, ''])
  expect(err.split('\n')[0]).toContain(named)
  expect(err).not.toMatch(/\n\s+at /)
})

test('the programs are named where none or an unknown one is given', async () => {
  for (const [args, code] of [
    ['', 2],
    ['stop', 2],
    ['--help', 0],
  ] as const) {
    const child = spawn(process.execPath, [join(root, 'bin/run.mjs'), ...args.split(' ').filter(Boolean)], {
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let text = ''
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
    expect(await new Promise((resolve) => child.once('close', resolve))).toBe(code)
    expect(text).toMatch(/start\|worker\|demo/)
  }
})
