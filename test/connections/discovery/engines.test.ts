import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { join } from 'node:path'
import {
  answeringEnginesScript,
  engineFacts,
  engineWords,
  localEngines,
} from '../../../src/connections/discovery/engines.ts'
import { runFolder } from '../../support/run-folder.ts'

/** What is made of engines' answers; real engines answer in test/api/container-engines.test.ts. */

const folder = mkdtempSync(join(runFolder(), 'engines-'))
const socket = (name: string): string => join(folder, name)
const absent = { docker: socket('absent'), podman: socket('absent') }
const id = `sha256:${'a'.repeat(64)}`

let engine: Server
beforeAll(async () => {
  const answers: Record<string, unknown> = {
    '/version': { Version: '29.1.0', ApiVersion: '1.52', Components: [{ Name: 'Engine' }] },
    '/images/json': [
      { Id: id, RepoTags: null, RepoDigests: null },
      { Id: id, RepoTags: ['b:1', '<none>:<none>'], RepoDigests: [] },
      {
        Id: id,
        RepoTags: ['127.0.0.1:5000/a:1'],
        RepoDigests: [`127.0.0.1:5000/a@sha256:${'b'.repeat(64)}`],
      },
    ],
  }
  engine = createServer((request, response) =>
    response.end(JSON.stringify(answers[(request.url ?? '').split('?')[0] ?? ''])),
  )
  await new Promise<void>((resolve) => engine.listen(socket('docker'), resolve))
})
afterAll(() => {
  engine.close()
  rmSync(folder, { recursive: true, force: true })
})

test('of another machine, Docker is named only where an engine answers its program', () => {
  const programs = mkdtempSync(join(folder, 'programs-'))
  const found = (code: number): string => {
    const program = join(programs, 'docker')
    writeFileSync(program, `#!/bin/sh\nexit ${String(code)}\n`)
    chmodSync(program, 0o755)
    const shell = execFileSync('/bin/sh', ['-c', answeringEnginesScript], {
      env: { PATH: `${programs}:/usr/bin:/bin` },
    })
    return shell.toString().trim().split('\n')[0] ?? ''
  }
  expect(found(0)).toBe('docker')
  expect(found(1)).not.toBe('docker')
})

test('an engine that is installed and away is named with the remedy; Podman and Apptainer need nothing that answers', async () => {
  const engines = await localEngines(['docker', 'podman', 'apptainer'], absent)
  expect(engines.map(engineWords)).toEqual([
    'docker cannot be used: it does not answer: it is not installed, or not started; start it, or ' +
      `let this account use ${absent.docker}`,
    'podman (version not known: its API service does not answer)',
    'apptainer',
  ])
  expect(engineFacts(engines)).toEqual({ metadata: {}, observed: {}, warnings: [engineWords(engines[0]!)] })
  expect(await localEngines([], absent)).toEqual([])
})

test('an engine that answers is of no use to tasks without its program; its images have the digest of their registry, else their id', async () => {
  const sockets = { ...absent, docker: socket('docker') }
  const [found] = await localEngines([], sockets)
  expect(found).toMatchObject({
    engine: 'docker',
    version: '29.1.0',
    problem: expect.stringContaining('docker.io'),
  })
  const [usable] = await localEngines(['docker'], sockets)
  expect(engineWords(usable!)).toBe('docker 29.1.0 (API 1.52, 2 images)')
  expect(engineFacts([usable!])).toEqual({
    metadata: { containerEngineVersions: { docker: '29.1.0' } },
    observed: {
      containerImages: [
        { engine: 'docker', name: '127.0.0.1:5000/a:1', digest: `sha256:${'b'.repeat(64)}` },
        { engine: 'docker', name: 'b:1', digest: id },
      ],
    },
    warnings: [],
  })
})

test('of many images the first are kept, and the others are counted', () => {
  const images = Array.from({ length: 101 }, (_, i) => ({ name: `image-${i}:1`, digest: id }))
  const { observed, warnings } = engineFacts([
    { engine: 'docker', version: '29.1.0', apiVersion: '1.52', images },
  ])
  expect(observed['containerImages']).toHaveLength(100)
  expect(warnings).toEqual(['101 images; the first 100 are taken'])
})
