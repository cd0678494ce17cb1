import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { openDockerEngine } from '../../sites/docker.ts'
import { run, until } from '../../sites/ground.ts'
import { bareArchive } from '../../sites/image-files.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { test } = needs(...sites.docker)

/**
 * Starts an engine with a container in a process of its own that writes what it has to a file and
 * stays.
 */
const owner = (data: string, archive: string, file: string) =>
  spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { openDockerEngine } from ${JSON.stringify(new URL('../../sites/docker.ts', import.meta.url).href)}
       import { renameSync, writeFileSync } from 'node:fs'
       import { dirname } from 'node:path'
       const [data, archive, file] = process.argv.slice(1)
       const engine = await openDockerEngine({ data, kind: 'killed' })
       await engine.docker('load', '--quiet', '--input', archive)
       const id = await engine.docker('run', '--detach', 'local/bare:1', '/app/busybox', 'sleep', '100000')
       const pid = await engine.docker('inspect', '--format', '{{.State.Pid}}', id)
       writeFileSync(file + '.new', JSON.stringify({ folder: dirname(engine.socket), id, pid: Number(pid) }))
       renameSync(file + '.new', file)
       setInterval(() => {}, 1000)`,
      ...[data, archive, file],
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )

/** Mounts below the folders, and cgroups of this name. */
const left = async (folders: readonly string[], cgroup: string): Promise<string[]> => [
  ...readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .filter((line) => folders.some((folder) => line.includes(` ${folder}/`))),
  ...(await run('find', ['/sys/fs/cgroup', '-type', 'd', '-name', cgroup], { mayFail: true })).stdout
    .split('\n')
    .filter(Boolean),
]

test('an engine that cannot be started says why in the first line of its error', async () => {
  const data = mkdtempSync(join(tmpdir(), 'orrery-engine-'))
  try {
    writeFileSync(join(data, 'data'), 'a file where the engine wants a folder')
    const error = await openDockerEngine({ data, kind: 'killed' }).then(
      () => undefined,
      (reason: unknown) => reason as Error,
    )
    expect(error?.message.split('\n')[0]).toMatch(/^dockerd ended with code 1: .*points to a file/)
  } finally {
    rmSync(data, { recursive: true, force: true })
  }
})

test('nothing of a Docker engine is left when its owner is killed: process, container, mount, cgroup, network, file', async () => {
  const ground = mkdtempSync(join(tmpdir(), 'orrery-docker-owner-'))
  const [data, file] = [join(ground, 'data'), join(ground, 'facts')]
  const child = owner(data, await bareArchive(ground), file)
  const exited = new Promise((resolve) => child.once('exit', resolve))
  try {
    await until('the engine', async () => existsSync(file) || child.exitCode !== null)
    const { folder, id, pid } = JSON.parse(readFileSync(file, 'utf8')) as {
      folder: string
      id: string
      pid: number
    }
    const bridge = async (): Promise<boolean> =>
      (await run('ip', ['link', 'show', 'orrery-test2'], { mayFail: true })).code === 0
    expect([existsSync(`/proc/${pid}`), await bridge()]).toEqual([true, true])
    expect((await left([folder, data], id)).length).toBeGreaterThan(1)
    child.kill('SIGKILL')
    await exited
    await until('its container is gone', async () => !existsSync(`/proc/${pid}`))
    await until('its mounts and cgroups are gone', async () => (await left([folder, data], id)).length === 0)
    await until('its network is gone', async () => !(await bridge()))
    await until('its folder is gone', async () => !existsSync(folder))
    expect((await run('pgrep', ['-f', folder], { mayFail: true })).stdout).toBe('')
  } finally {
    child.kill('SIGKILL')
    await exited
    rmSync(ground, { recursive: true, force: true })
  }
}, 120_000)
