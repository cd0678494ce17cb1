import { expect } from '@jest/globals'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { describedBuild } from '../artifacts/world.ts'
import { loadSystemImage, openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { needs } from '../support/needs.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

/** A build outlives the daemon that began it, and the engine that works for it. */

const { afterAll, beforeAll, test } = needs('root', 'docker.io', 'runc', 'iproute2')

const dataDir = dataFolder()
let engine: DockerEngine
let base: string
let programs: Programs
beforeAll(async () => {
  engine = await openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true })
  // Of runs before, which may have been killed.
  await engine.forget('orrery-build/*')
  base = await loadSystemImage(engine)
  programs = openPrograms(dataDir, { environment: { SERVICE_CONTAINER_ENGINE: engine.socket } })
  await programs.startDaemon()
}, 600_000)
afterAll(async () => {
  await programs?.stop()
  await engine?.[Symbol.asyncDispose]()
  removeFolder(dataDir)
}, 120_000)

/** Starts the build of a recipe with a long step. @returns its run once the step is under way */
const underWay = async (id: string): Promise<string> => {
  const { baseUrl, post } = { baseUrl: programs.baseUrl(), post: programs.post }
  // The time keeps the engine from finding the step in its cache.
  const step = `RUN echo ${String(Date.now())} && sleep 8 && echo over > /srv-over`
  await describedBuild({ baseUrl, post }, id, { Dockerfile: `FROM ${base}\n${step}\n` })
  const run = await post(`/artifact-builds/${id}/runs/`, {})
  await until('the step is under way', 60, async () => {
    const { status, logs = '' } = await programs.get(`/build-runs/${run.id}/`)
    return status === 'building' && logs.includes('sleep 8') ? true : undefined
  })
  return run.id
}
const expectWhole = async (id: string): Promise<void> => {
  const run = await until('its end', 120, async () => {
    const found = await programs.get(`/build-runs/${id}/`)
    return ['completed', 'failed', 'cancelled'].includes(found.status) ? found : undefined
  })
  expect([run.status, run.error]).toEqual(['completed', undefined])
  const answer = await fetch(`${programs.baseUrl()}/build-runs/${id}/output/`)
  expect([answer.status, answer.headers.get('etag')]).toEqual([200, `"${run.outputDigest}"`])
  await answer.body?.cancel()
  expect(await engine.docker('images', '--quiet', 'orrery-build/*')).toBe('')
  expect(readdirSync(join(dataDir, 'artifacts/builds'))).toEqual([])
}

test('a build goes on when the daemon is killed in the middle of a step and started again', async () => {
  const id = await underWay('killed')
  await programs.killDaemon()
  await programs.startDaemon()
  await expectWhole(id)
}, 240_000)

test('a build goes on when its engine is killed in the middle of a step and started again', async () => {
  const id = await underWay('lost')
  await engine.kill()
  await engine.start()
  await expectWhole(id)
}, 240_000)
