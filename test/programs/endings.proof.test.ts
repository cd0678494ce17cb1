import { spawn } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, test } from '@jest/globals'
import { identify, stillRuns, signalKnown } from '../../src/embedded/processes.ts'
import type { KnownProcess } from '../../src/embedded/processes.ts'
import { temporaryFolder, until } from '../embedded/folder.ts'
import { openTerminal } from './terminal.ts'

const root = new URL('../../', import.meta.url).pathname
const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>
}
/** The scripts that run a program of the service. */
const names = Object.keys(scripts).filter((name) => scripts[name]?.includes('bin/run.mjs'))

/** Within this time nothing may be left. */
const leftWithinMs = 20_000

const folder = temporaryFolder()
const started: KnownProcess[] = []
afterAll(() => {
  for (const each of started) signalKnown(each, 'SIGKILL')
  folder[Symbol.dispose]()
})

/**
 * The project's own package.json and bin/run.mjs, where each program is one that writes down who
 * runs it and ends in order when it is asked to. One that is stubborn must be ended by force.
 */
const checkout = join(folder.path, 'checkout')
const planted = `import { renameSync, writeFileSync } from 'node:fs'
const file = process.env.MARK
for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP'])
  process.on(name, () => {
    if (process.env.STUBBORN === undefined) { writeFileSync(file + '.ended', name); process.exit(0) } })
writeFileSync(file + '.new', JSON.stringify({ program: process.pid, runner: process.ppid }))
renameSync(file + '.new', file)
setInterval(() => undefined, 1000)
`
mkdirSync(join(checkout, 'node_modules/.bin'), { recursive: true })
mkdirSync(join(checkout, 'bin'))
for (const file of ['package.json', 'package-lock.json', 'bin/run.mjs'])
  cpSync(join(root, file), join(checkout, file))
cpSync(join(root, 'package-lock.json'), join(checkout, 'node_modules/.installed-lock.json'))
writeFileSync(join(checkout, 'planted.mjs'), planted)
// npm puts this folder first on the search path: a call of run.mjs goes on, any other is a program.
writeFileSync(
  join(checkout, 'node_modules/.bin/node'),
  `#!/bin/sh\ncase $1 in bin/run.mjs) exec ${process.execPath} "$@" ;; *) exec ` +
    `${process.execPath} ${join(checkout, 'planted.mjs')} ;; esac\n`,
)
chmodSync(join(checkout, 'node_modules/.bin/node'), 0o755)

const environment = (mark: string, stubborn = false): Record<string, string> => ({
  PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`,
  HOME: folder.path,
  npm_config_update_notifier: 'false',
  MARK: mark,
  ...(stubborn ? { STUBBORN: '1' } : {}),
})

interface Chain {
  npm: KnownProcess
  all: KnownProcess[]
}

const written = (mark: string): { program: number; runner: number } | undefined =>
  existsSync(mark)
    ? (JSON.parse(readFileSync(mark, 'utf8')) as { program: number; runner: number })
    : undefined

const parentOf = (pid: number): number =>
  Number(/^PPid:\s*(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])

/** npm, the runner and the program, once the program runs. */
const chainOf = async (mark: string): Promise<Chain> => {
  const { program, runner } = await until(() => written(mark), `the program of ${mark} runs`, 120_000)
  const all = [parentOf(runner), runner, program].map((pid) => identify(pid)!)
  started.push(...all)
  return { npm: all[0]!, all }
}

let count = 0
const newMark = (): string => join(folder.path, `mark-${String((count += 1))}`)

const runScript = (name: string, mark: string, stubborn = false): Promise<Chain> => {
  spawn('npm', ['run', '--silent', name], {
    cwd: checkout,
    env: environment(mark, stubborn),
    stdio: 'ignore',
    detached: true,
  })
  return chainOf(mark)
}

const gone = ({ all }: Chain, name: string): Promise<boolean> =>
  until(() => !all.some(stillRuns), `nothing is left of npm run ${name}`, leftWithinMs)

describe('nothing is left within 20 s of the end of npm', () => {
  test('the scripts give their place to the program, so that a signal to npm arrives', () => {
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
      ]),
    )
    expect(names.filter((name) => !/^exec (?:env [A-Z_]+=\S+ )?node /.test(scripts[name] ?? ''))).toEqual([])
  })

  test.each(['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGKILL'] as const)(
    '%s to npm, every script',
    async (way) => {
      await Promise.all(
        names.map(async (name) => {
          const mark = newMark()
          const chain = await runScript(name, mark)
          process.kill(chain.npm.pid, way)
          await gone(chain, name)
          expect(existsSync(`${mark}.ended`)).toBe(true)
        }),
      )
    },
    240_000,
  )

  test('a closed terminal, every script', async () => {
    await Promise.all(
      names.map(async (name) => {
        const mark = newMark()
        const terminal = openTerminal(`exec npm run --silent ${name}`, environment(mark), checkout)
        const chain = await chainOf(mark)
        terminal.close()
        await gone(chain, name)
        expect(existsSync(`${mark}.ended`)).toBe(true)
      }),
    )
  }, 240_000)

  test('a program that does not end by itself is ended by force', async () => {
    const chain = await runScript('start', newMark(), true)
    process.kill(chain.npm.pid, 'SIGKILL')
    await gone(chain, 'start')
  }, 240_000)
})

/**
 * Types `npm run start` with a prefix into an interactive shell, closes the terminal, and waits
 * until the hang-up has ended npm.
 */
const inBackground = async (prefix: string): Promise<{ mark: string; chain: Chain }> => {
  const mark = newMark()
  const terminal = openTerminal('exec bash --norc --noprofile -i', environment(mark), checkout)
  terminal.type(`${prefix} npm run --silent start &\n`)
  const chain = await chainOf(mark)
  terminal.close()
  return { mark, chain }
}

describe('a program in the background of a terminal that is closed', () => {
  test('goes on under nohup, and ends in order when it is asked to', async () => {
    const { mark, chain } = await inBackground('nohup')
    const [npm, runner, program] = chain.all as [KnownProcess, KnownProcess, KnownProcess]
    // Node takes back what nohup set, so npm itself dies of the hang-up.
    await until(() => !stillRuns(npm), 'npm has ended')
    await new Promise((resolve) => setTimeout(resolve, 3_000))
    expect([stillRuns(runner), stillRuns(program), existsSync(`${mark}.ended`)]).toEqual([true, true, false])
    process.kill(runner.pid, 'SIGTERM')
    await gone(chain, 'start')
    expect(readFileSync(`${mark}.ended`, 'utf8')).toBe('SIGTERM')
  }, 240_000)

  test('ends without nohup', async () => {
    const { chain } = await inBackground('')
    await gone(chain, 'start')
  }, 240_000)
})
