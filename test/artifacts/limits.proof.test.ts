import { expect } from '@jest/globals'
import { execFileSync, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { describedBuild } from './world.ts'

/** Recipes that take all they can get, in an engine with limits and a disk of its own. */

const { afterAll, beforeAll, describe, test } = needs('root', 'docker.io', 'runc', 'iproute2')

const folder = mkdtempSync(join(runFolder(), 'limits-'))
const [store, disk] = [join(folder, 'artifacts'), join(folder, 'disk')]
const diskMiB = 96
let engine: DockerEngine
let service: TestService
beforeAll(async () => {
  mkdirSync(disk)
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${String(diskMiB)}m`, 'engine', disk])
  engine = await openDockerEngine({ data: disk, kind: 'asked', buildkit: true })
  // More than the disk, whose pages count too.
  engine.limit({ processes: 64, memoryBytes: 2 * diskMiB * 2 ** 20 })
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  await engine.docker('load', '--quiet', '--input', busybox)
  service = await openService({
    environment: { SERVICE_CONTAINER_ENGINE: engine.socket, SERVICE_ARTIFACT_ROOT: store },
  })
}, 600_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await engine?.[Symbol.asyncDispose]()
  execFileSync('umount', ['--lazy', disk])
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const base = 'local/bb:1'
const describedRecipe = (id: string, steps: string, files: Record<string, Buffer> = {}) =>
  describedBuild(service, id, { Dockerfile: `FROM ${base}\n${steps}\n`, ...files })
const built = async (id: string): Promise<any> => {
  const run = await service.post(`/artifact-builds/${id}/runs/`)
  return until(`the end of the build ${id}`, 300, async () => {
    const found = await service.get(`/build-runs/${run.id}/`)
    return ['completed', 'failed', 'cancelled'].includes(found.status) ? found : undefined
  })
}
const filesOf = (name: string): string[] =>
  existsSync(join(store, name))
    ? readdirSync(join(store, name), { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => entry.name)
    : []
/** Command lines of the processes of builds in the engine. */
const processes = (): string[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes(engine.cgroup)
          ? [readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')]
          : []
      } catch {
        return [] // It has ended meanwhile.
      }
    })
/** Nothing of a failed build is left in the engine or the store, which has these images. */
const expectNothing = async (images: readonly string[]): Promise<void> => {
  await until('its processes have ended', 60, () => processes().length === 0)
  expect(await engine.docker('images', '--quiet', 'orrery-build/*')).toBe('')
  expect(await engine.containers()).toEqual([])
  expect([filesOf('builds'), filesOf('partial'), filesOf('images')]).toEqual([[], [], images])
}
const expectGood = async (id: string): Promise<void> => {
  const run = await built(id)
  expect([run.status, run.error]).toEqual(['completed', undefined])
}

describe('a recipe', () => {
  test.each<[string, string, RegExp]>([
    ['forks for ever', 'while :; do sleep 98764 & done', /can't fork: Resource temporarily unavailable/],
    ['takes all memory', 'tail /dev/zero', /exit code: 137.*memory/],
    ['fills the disk', 'cat /dev/zero > /bytes', /No space left on device/],
  ])(
    'that %s fails with the cause, leaves nothing, and the next build works',
    async (what, step, cause) => {
      const id = what.replaceAll(' ', '-')
      await describedRecipe(id, `RUN ${step}`)
      const images = filesOf('images')
      const run = await built(id)
      expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(cause)])
      expect(run.logs.length).toBeLessThanOrEqual(65_536)
      await expectNothing(images)
      await describedRecipe(`after-${id}`, `RUN echo ${id} > /text`)
      await expectGood(`after-${id}`)
    },
    300_000,
  )
})

test('a recipe that prints a gigabyte completes, with a log within its bound', async () => {
  await describedRecipe('talks', 'RUN tr "\\\\0" x < /dev/zero | head -c 1073741824')
  const run = await built('talks')
  expect([run.status, run.error]).toEqual(['completed', undefined])
  const log = await service.call('GET', `/build-runs/${run.id}/logs/`)
  expect(log.text).toMatch(/output clipped, log limit/)
  expect(log.text.length).toBeLessThanOrEqual(16 * 2 ** 20)
}, 600_000)

test('an engine whose disk is full fails a build with the cause, and makes it once there is room', async () => {
  await describedRecipe('full', 'COPY bytes /bytes\nRUN cp /bytes /more', { bytes: randomBytes(4 * 2 ** 20) })
  const images = filesOf('images')
  const filler = join(disk, 'filler')
  spawnSync('dd', ['if=/dev/zero', `of=${filler}`, 'bs=1M'])
  const run = await built('full')
  expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(/no space left on device/i)])
  await expectNothing(images)
  rmSync(filler)
  await expectGood('full')
}, 300_000)
