import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { leash } from '../../src/embedded/leash.ts'
import { identify, stillRuns } from '../../src/embedded/processes.ts'
import type { KnownProcess } from '../../src/embedded/processes.ts'
import { temporaryFolder, until } from './folder.ts'

const start = (folder: string, program: string, patienceSeconds = 1) =>
  leash({
    command: ['/bin/sh', '-c', program],
    environment: { PATH: '/usr/bin:/bin' },
    directory: folder,
    logFile: join(folder, 'log'),
    softSignal: 'TERM',
    patienceSeconds,
  })

test('the end of a server is reported with its code, and its output is in the log', async () => {
  using folder = temporaryFolder()
  const server = await start(folder.path, 'echo hello; sleep 0.3; exit 7')
  expect(await server.ended).toBe(7)
  expect(readFileSync(join(folder.path, 'log'), 'utf8')).toBe('hello\n')
})

test('a release asks first: a server that obeys has time to end in order', async () => {
  using folder = temporaryFolder()
  const server = await start(
    folder.path,
    `trap 'sleep 0.5; echo ended in order; exit 0' TERM; echo up; while :; do sleep 0.05; done`,
    20,
  )
  await until(() => readFileSync(join(folder.path, 'log'), 'utf8').includes('up'), 'the server is up')
  await server.release()
  expect(readFileSync(join(folder.path, 'log'), 'utf8')).toBe('up\nended in order\n')
  expect(stillRuns(server.process)).toBe(false)
  await server.release()
})

test('a release ends by force what does not obey', async () => {
  using folder = temporaryFolder()
  const server = await start(folder.path, `trap '' TERM; echo up; while :; do sleep 0.05; done`)
  await until(() => readFileSync(join(folder.path, 'log'), 'utf8').includes('up'), 'the server is up')
  await server.release()
  expect(await server.ended).toBe(137)
  expect(stillRuns(server.process)).toBe(false)
})

/**
 * A parent in a process of its own that starts a server on a leash, writes its id and the shell's
 * to a file, and stays.
 */
const parentProgram = (folder: string, trap: string): string => `
  import { writeFileSync } from 'node:fs'
  import { leash } from ${JSON.stringify(new URL('../../src/embedded/leash.ts', import.meta.url).href)}
  const server = await leash({ command: ['/bin/sh', '-c', ${JSON.stringify(
    `trap ${trap} TERM; while :; do sleep 0.05; done`,
  )}], environment: { PATH: '/usr/bin:/bin' },
    directory: '/', logFile: ${JSON.stringify(join(folder, 'log'))}, softSignal: 'TERM', patienceSeconds: 1 })
  writeFileSync(${JSON.stringify(join(folder, 'pid'))}, String(server.process.pid))
  setInterval(() => {}, 1000)
`

test.each([
  ['obeys', '"exit 0"'],
  ['does not obey', '""'],
])('a server that %s ends when its parent is killed', async (_, trap) => {
  using folder = temporaryFolder()
  const file = join(folder.path, 'parent.ts')
  writeFileSync(file, parentProgram(folder.path, trap))
  writeFileSync(join(folder.path, 'pid'), '')
  const parent = spawn(process.execPath, [file], { stdio: ['ignore', 'ignore', 'inherit'] })
  const server = await until<KnownProcess | undefined>(
    () => identify(Number(readFileSync(join(folder.path, 'pid'), 'utf8') || -1)),
    'the server runs',
  )
  parent.kill('SIGKILL')
  await until(() => !stillRuns(server), 'the server has ended', 20_000)
})

test('the server ends with the shell that holds it, and its end is reported', async () => {
  using folder = temporaryFolder()
  const server = await start(folder.path, 'exec sleep 1000')
  const shell = Number(
    /^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${server.process.pid}/status`, 'utf8'))?.[1],
  )
  process.kill(shell, 'SIGKILL')
  await server.ended
  expect(stillRuns(server.process)).toBe(false)
})

test('a program that cannot be executed ends with code 127, and the log names it', async () => {
  using folder = temporaryFolder()
  const options = {
    environment: {},
    directory: '/',
    logFile: join(folder.path, 'log'),
    softSignal: 'TERM',
    patienceSeconds: 1,
  } as const
  const server = await leash({ ...options, command: ['/no/such/program'] })
  expect(await server.ended).toBe(127)
  expect(readFileSync(join(folder.path, 'log'), 'utf8')).toMatch(/no\/such\/program/)
})

test('servers that end at once, many at a time, are reported with their code', async () => {
  using folder = temporaryFolder()
  const codes = await Promise.all(
    Array.from({ length: 60 }, async () => (await start(folder.path, 'exit 3')).ended),
  )
  expect(codes).toEqual(codes.map(() => 3))
})
