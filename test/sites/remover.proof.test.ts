import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import type { RemoverOptions } from '../../sites/remover.ts'
import { processOf } from '../../src/drivers/runtime/local/processes.ts'
import { until } from '../embedded/folder.ts'
import { needs } from '../support/needs.ts'

const lives = (pid: number): boolean => processOf(pid) !== undefined

/**
 * Starts the owner of a folder, in which it runs `program` and then waits. The program notes
 * numbers of processes by `started(pids)`.
 */
const startOwner = (folder: string, options: RemoverOptions, program: string) =>
  spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { execFileSync, spawn } from 'node:child_process'
       import { renameSync, writeFileSync } from 'node:fs'
       import { removeAtEnd } from ${JSON.stringify(new URL('../../sites/remover.ts', import.meta.url).href)}
       const folder = process.argv[1]
       const remover = removeAtEnd(folder, ${JSON.stringify(options)})
       const start = (args, options) => spawn('/bin/sh', args, { detached: true,
          stdio: 'ignore', cwd: '/', env: {}, ...options }).pid
       const loop = 'trap "" TERM; while :; do sleep 0.1; done'
       const started = (pids) => {
         writeFileSync(folder + '/new', JSON.stringify(pids))
         renameSync(folder + '/new', folder + '/started')
       }
       setInterval(() => {}, 1000)
       ${program}`,
      folder,
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )
const newFolder = (): string => mkdtempSync(join(tmpdir(), 'orrery-killed-'))
/** The numbers of processes that the owner of a folder has started. */
const startedIn = async (folder: string): Promise<number[]> => {
  const file = join(folder, 'started')
  await until(() => existsSync(file), 'they run')
  return JSON.parse(readFileSync(file, 'utf8')) as number[]
}

test('nothing of a killed owner is left: processes that name its folder or work in it, the folder; those that start others end first', async () => {
  const folder = newFolder()
  const owner = startOwner(
    folder,
    { processes: true, spawner: 'starts-others' },
    `started([
       start(['-c', loop, 'starts-others'], { env: { HOME: folder + '/home' } }),
       start(['-c', loop, 'sh', folder + '/tasks']),
       start(['-c', loop], { env: { HOME: folder + '/home' } }),
       start(['-c', 'mkdir work; cd work; ' + loop], { cwd: folder }),
     ])`,
  )
  try {
    const pids = await startedIn(folder)
    expect(pids.map(lives)).toEqual([true, true, true, true])
    owner.kill('SIGKILL')
    await until(() => !lives(pids[0]!), 'the one that starts others has ended')
    expect(pids.map(lives)).toEqual([false, true, true, true])
    await until(() => !existsSync(folder) && !pids.some(lives), 'nothing is left')
  } finally {
    owner.kill('SIGKILL')
  }
})

test('without `processes` only the folder of a killed owner goes', async () => {
  const folder = newFolder()
  const owner = startOwner(folder, {}, `started([start(['-c', loop, 'sh', folder + '/tasks'])])`)
  const pids: number[] = []
  try {
    pids.push(...(await startedIn(folder)))
    owner.kill('SIGKILL')
    await until(() => !existsSync(folder), 'the folder is gone')
    expect(pids.map(lives)).toEqual([true])
  } finally {
    owner.kill('SIGKILL')
    for (const pid of pids) process.kill(-pid, 'SIGKILL')
  }
})

test('an owner that leaves in order keeps its processes, and its folder is gone when leave() resolves', async () => {
  const folder = newFolder()
  const owner = startOwner(
    folder,
    { processes: true },
    `const pid = start(['-c', loop, 'sh', folder + '/tasks'])
     started([pid])
     process.once('SIGTERM', async () => {
       await remover.leave()
       await remover.leave()
       const { existsSync } = await import('node:fs')
       process.exit(existsSync(folder) ? 1 : 0)
     })`,
  )
  const ended = new Promise((resolve) => owner.once('exit', (code) => resolve(code)))
  const pids: number[] = []
  try {
    pids.push(...(await startedIn(folder)))
    owner.kill('SIGTERM')
    expect(await ended).toBe(0)
    expect(pids.map(lives)).toEqual([true])
  } finally {
    owner.kill('SIGKILL')
    for (const pid of pids) process.kill(-pid, 'SIGKILL')
  }
})

needs('root').test('what is mounted in the folder of a killed owner goes with it', async () => {
  const folder = newFolder()
  const owner = startOwner(
    folder,
    {},
    `execFileSync('/bin/sh', ['-c',
      'mkdir -p "$1/mounted" && mount -t tmpfs none "$1/mounted" && echo kept > "$1/mounted/file"', 'sh', folder])
     started([])`,
  )
  try {
    await startedIn(folder)
    expect(readFileSync('/proc/mounts', 'utf8')).toContain(` ${folder}/mounted `)
    owner.kill('SIGKILL')
    await until(() => !existsSync(folder), 'the folder is gone')
    expect(readFileSync('/proc/mounts', 'utf8')).not.toContain(folder)
  } finally {
    owner.kill('SIGKILL')
  }
})
