import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { processOf } from '../../src/drivers/runtime/local/processes.ts'
import { until } from '../embedded/folder.ts'

const lives = (pid: number): boolean => processOf(pid) !== undefined

test('nothing of a killed test run is left: processes that live in its folder or were told of it, the folder', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'orrery-killed-'))
  const started = join(folder, 'started')
  const owner = spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { spawn } from 'node:child_process'
       import { renameSync, writeFileSync } from 'node:fs'
       import { removeAtEnd } from ${JSON.stringify(new URL('./remover.ts', import.meta.url).href)}
       const folder = process.argv[1]
       globalThis.leash = removeAtEnd(folder)
       const start = (args, options) => spawn('/bin/sh', args, { detached: true, stdio: 'ignore', cwd: '/', env: {}, ...options }).pid
       const loop = 'trap "" TERM; while :; do sleep 0.1; done'
       const pids = [start(['-c', loop, 'sh', folder + '/tasks']), start(['-c', loop], { env: { HOME: folder + '/home' } }), start(['-c', 'mkdir work; cd work; ' + loop], { cwd: folder })]
       writeFileSync(folder + '/new', JSON.stringify(pids))
       renameSync(folder + '/new', folder + '/started')
       setInterval(() => {}, 1000)`,
      folder,
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )
  try {
    await until(() => existsSync(started), 'they run')
    const pids = JSON.parse(readFileSync(started, 'utf8')) as number[]
    expect(pids.map(lives)).toEqual([true, true, true])
    owner.kill('SIGKILL')
    await until(() => !existsSync(folder) && !pids.some(lives), 'nothing is left')
  } finally {
    owner.kill('SIGKILL')
  }
})
