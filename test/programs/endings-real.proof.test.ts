import { spawn } from 'node:child_process'
import { existsSync, globSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, expect, test } from '@jest/globals'
import { identify, processesGiven, readOrUndefined, signalKnown } from '../../src/embedded/processes.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'
import { openTerminal } from './terminal.ts'

// The programs themselves, with their servers and their tasks, where endings.test.ts has planted
// ones.

const root = new URL('../../', import.meta.url).pathname
const leftWithinMs = 20_000
const folders: ReturnType<typeof temporaryFolder>[] = []
afterAll(() => {
  for (const folder of folders) {
    for (const { pid } of left(folder.path)) {
      const found = identify(pid)
      if (found !== undefined) signalKnown(found, 'SIGKILL')
    }
    folder[Symbol.dispose]()
  }
})

/**
 * What names a folder in its arguments or its environment, or works below it: everything that a
 * program started there.
 */
const left = (folder: string): { pid: number; what: string }[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .flatMap((name) => {
      const read = (file: string): string =>
        readOrUndefined(() => readFileSync(`/proc/${name}/${file}`, 'utf8')) ?? ''
      const what = read('cmdline')
      return (what + read('environ')).includes(folder) && identify(Number(name)) !== undefined
        ? [{ pid: Number(name), what }]
        : []
    })

const environmentOf = (folder: string): Record<string, string> => {
  mkdirSync(join(folder, 'tmp'), { mode: 0o1777 })
  return {
    PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`,
    HOME: folder,
    TMPDIR: join(folder, 'tmp'),
    SERVICE_DATA_DIR: join(folder, 'data'),
    SERVICE_CACHE_DIR: cacheDir,
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
  }
}

const postgresRuns = (folder: string): boolean =>
  left(folder).some(({ what }) => what.includes('/bin/postgres\0'))

test.each([
  ['start', [], (folder: string) => existsSync(join(folder, 'data/ready.json'))],
  // While its tasks run.
  [
    'demo',
    ['--small', '--output', 'OUTPUT'],
    (folder: string) => globSync(join(folder, 'data/work/*')).length > 0,
  ],
  ['test', ['test/db/sql.test.ts'], postgresRuns],
  [
    'bench',
    ['chain', '--tiny', '--rounds', '50'],
    (folder: string) => globSync(join(folder, 'tmp/*/**/ready.json')).length > 0,
  ],
] as const)(
  'npm run %s: killed with SIGKILL, npm leaves neither program nor server nor task',
  async (name, args, up) => {
    const folder = temporaryFolder()
    folders.push(folder)
    const npm = spawn(
      'npm',
      ['run', name, '--', ...args.map((arg) => (arg === 'OUTPUT' ? join(folder.path, 'output') : arg))],
      {
        cwd: root,
        env: environmentOf(folder.path),
        stdio: 'ignore',
        detached: true,
      },
    )
    await until(() => up(folder.path), `${name} is at work`, 600_000)
    npm.kill('SIGKILL')
    await until(
      () => left(folder.path).length === 0,
      `nothing is left of npm run ${name}`,
      leftWithinMs,
    ).catch((error: unknown) => {
      throw new Error(`${String(error)}: ${JSON.stringify(left(folder.path))}`)
    })
    expect(processesGiven('postgres', join(folder.path, 'data/postgresql'))).toEqual([])
  },
  900_000,
)

test('npm start and a worker beside it: a closed terminal ends both with their servers', async () => {
  const folder = temporaryFolder()
  folders.push(folder)
  const environment = environmentOf(folder.path)
  const terminal = openTerminal('exec npm start', environment, root)
  await until(() => existsSync(join(folder.path, 'data/ready.json')), 'the service is ready', 600_000)
  const second = openTerminal('exec npm run worker', environment, root)
  await until(() => / ready/.test(second.screen()), 'the worker is ready', 600_000)
  second.close()
  terminal.close()
  await until(() => left(folder.path).length === 0, 'nothing is left', leftWithinMs)
}, 900_000)
