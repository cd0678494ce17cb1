import { spawn } from 'node:child_process'
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { openGround, run, until } from '../../sites/ground.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { test } = needs(...sites.slurm)

/** Starts a site in a process of its own that writes what it has to a file and stays. */
const owner = (kind: 'ssh' | 'slurm', file: string) =>
  spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { ${kind === 'ssh' ? 'startSsh' : 'startSlurm'} as start } from
        ${JSON.stringify(new URL(`../../sites/${kind}.ts`, import.meta.url).href)}
       import { renameSync, writeFileSync } from 'node:fs'
       const site = await start()
       const host = site.hosts?.[0] ?? site.login
       await host.run('setsid sleep 100000 >/dev/null 2>&1 </dev/null &', 'account')
       writeFileSync(${JSON.stringify(`${file}.new`)}, JSON.stringify({ folder: site.folder,
          address: host.address, root: host.see('/') }))
       renameSync(${JSON.stringify(`${file}.new`)}, ${JSON.stringify(file)})
       setInterval(() => {}, 1000)`,
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )

/**
 * Processes that live in the mounts of a host, the host's own view of its root being their only
 * mark.
 */
const livingWith = (mounts: string): string[] =>
  readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/mountinfo`, 'utf8').includes(mounts)
    } catch {
      return false
    }
  })

test.each(['ssh', 'slurm'] as const)(
  'nothing of %s is left when its owner is killed: process, network, file',
  async (kind) => {
    const file = join(tmpdir(), `site-owner-${process.pid}-${kind}`)
    const child = owner(kind, file)
    const exited = new Promise((resolve) => child.once('exit', resolve))
    try {
      await until('the site', async () => existsSync(file) || child.exitCode !== null)
      const { folder, address } = JSON.parse(readFileSync(file, 'utf8')) as {
        folder: string
        address: string
      }
      const network = address.replace(/\d+$/, '')
      expect(livingWith(folder.replace(tmpdir(), '')).length).toBeGreaterThan(3)
      child.kill('SIGKILL')
      await exited
      await until('its processes are gone', async () => livingWith(folder.replace(tmpdir(), '')).length === 0)
      await until('its folder is gone', async () => !existsSync(folder))
      await until(
        'its network is gone',
        async () => !(await run('ip', ['-o', '-4', 'addr'])).stdout.includes(` ${network}`),
      )
    } finally {
      child.kill('SIGKILL')
      rmSync(file, { force: true })
    }
  },
)

test('a folder whose owner and remover are both gone is taken away by the next start, one of a living owner is not', async () => {
  const [dead, alive] = [openGround('ssh'), openGround('ssh')]
  // No process has these ticks.
  writeFileSync(join(dead.folder, 'owner.json'), JSON.stringify({ pid: process.pid, startTicks: -1 }))
  const next = openGround('ssh')
  expect([existsSync(dead.folder), existsSync(alive.folder)]).toEqual([false, true])
  await Promise.all([dead, alive, next].map((ground) => ground.leave()))
  expect([existsSync(alive.folder), existsSync(next.folder)]).toEqual([false, false])
})
