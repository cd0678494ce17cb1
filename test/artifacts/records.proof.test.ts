import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openDockerEngine, startLoopbackRegistry, type DockerEngine } from '../../sites/docker.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { describedBuild, sha256 } from './world.ts'

/** What is kept of builds: logs, provenance, versions; logins of registries; what may be deleted. */

const { afterAll, beforeAll, describe, test } = needs(
  ...([
    'root',
    'docker.io',
    'runc',
    'iproute2',
    'docker-registry',
    'skopeo',
    'squashfs-tools',
    'openssl',
  ] as const),
)

const base = 'local/bb:1'
const password = 'of-the-registry-alone'
const folder = mkdtempSync(join(runFolder(), 'records-'))
const store = join(folder, 'artifacts')
let engine: DockerEngine
let registry: Awaited<ReturnType<typeof startLoopbackRegistry>>
let service: TestService
/** Of the image `closed/bb:1` at the registry. */
let pushedDigest: string
beforeAll(async () => {
  ;[engine, registry] = await Promise.all([
    openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true }),
    startLoopbackRegistry(join(folder, 'registry'), { username: 'ada', password }),
  ])
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  await engine.docker('load', '--quiet', '--input', busybox)
  pushedDigest = await registry.push(busybox, 'closed/bb:1')
  service = await openService({
    environment: {
      SERVICE_CONTAINER_ENGINE: engine.socket,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_ARTIFACT_ROOT: store,
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
}, 600_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await Promise.all([engine?.[Symbol.asyncDispose](), registry?.stop()])
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const built = async (id: string): Promise<any> => {
  const { body } = await service.call('POST', `/artifact-builds/${id}/runs/`)
  return until(`the end of ${id}`, 120, async () => {
    const run = await service.get(`/build-runs/${body.id}/`)
    return ['completed', 'failed', 'cancelled'].includes(run.status) ? run : undefined
  })
}

describe('a build run', () => {
  test('keeps its whole log: by range, from its end, and as events to its end', async () => {
    await describedBuild(service, 'talking', {
      // Not from the engine's cache of runs before, which says nothing.
      Dockerfile: [
        `FROM ${base}`,
        `ARG RUN=${process.pid}-${Date.now()}`,
        'RUN for i in $(seq 1 4000); do echo "line $i of the log"; done\n',
      ].join('\n'),
    })
    const run = await built('talking')
    expect(run.status).toBe('completed')
    const path = `${service.baseUrl}/build-runs/${run.id}/logs/`
    const whole = await (await fetch(path)).text()
    expect(whole.length).toBeGreaterThan(65_536)
    expect(whole.endsWith(run.logs)).toBe(true)
    expect(whole).toContain('line 1 of the log')
    const part = await fetch(`${path}?offset=5&limit=10`)
    expect([part.status, await part.text()]).toEqual([206, whole.slice(5, 15)])
    expect(await (await fetch(`${path}?tail=20`)).text()).toBe(whole.slice(-20))
    expect(await (await fetch(`${path}?follow=true`)).text()).toBe(whole)
    const events = await fetch(path, { headers: { accept: 'text/event-stream' } })
    const said = await events.text()
    expect(events.headers.get('content-type')).toBe('text/event-stream')
    expect(said).toContain('data: line 4000 of the log')
    expect(said.endsWith('event: end\ndata: \n\n')).toBe(true)
    const rest = await fetch(path, {
      headers: { accept: 'text/event-stream', 'last-event-id': String(whole.length) },
    })
    expect(await rest.text()).toBe('event: end\ndata: \n\n')
  }, 240_000)

  test('has provenance whose signature openssl accepts, and no other', async () => {
    await describedBuild(
      service,
      'proven',
      { Dockerfile: `FROM ${base}\nRUN true\n` },
      { targetFormat: 'sif' },
    )
    const run = await built('proven')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    const envelope = await service.get(`/build-runs/${run.id}/attestation/`)
    const payload = Buffer.from(envelope.payload, 'base64')
    const statement = JSON.parse(payload.toString())
    const build = await service.get('/artifact-builds/proven/')
    expect(statement).toMatchObject({
      predicateType: 'https://slsa.dev/provenance/v1',
      subject: [{ digest: { sha256: run.outputDigest.slice(7) } }],
      predicate: {
        buildDefinition: { internalParameters: { packer: expect.stringMatching(/^sqfstar .*4\./) } },
        runDetails: {
          metadata: { invocationId: run.id },
          byproducts: [{ digest: { sha256: expect.stringMatching(/^[0-9a-f]{64}$/) } }],
        },
      },
    })
    expect(statement.predicate.buildDefinition.resolvedDependencies[0].digest.sha256).toBe(
      build.contextDigest.slice(7),
    )
    const id = await engine.docker('inspect', '--format', '{{.Id}}', base)
    expect(statement.predicate.buildDefinition.resolvedDependencies.slice(2)).toEqual([
      { name: 'image in the engine', uri: `docker://docker.io/${base}`, digest: { sha256: id.slice(7) } },
    ])
    const at = (name: string, content: string | Buffer): string => {
      writeFileSync(join(folder, name), content)
      return join(folder, name)
    }
    const { publicKey } = await service.get('/attestation-key/')
    const verify = (text: Buffer): string => {
      const head = `DSSEv1 ${envelope.payloadType.length} ${envelope.payloadType} ${text.length} `
      const args = [
        ...['pkeyutl', '-verify', '-pubin', '-rawin', '-inkey', at('key.pem', publicKey)],
        ...['-in', at('signed', Buffer.concat([Buffer.from(head), text]))],
        ...['-sigfile', at('signature', Buffer.from(envelope.signatures[0].sig, 'base64'))],
      ]
      return execFileSync('openssl', args, { stdio: ['ignore', 'pipe', 'pipe'] }).toString()
    }
    expect(verify(payload)).toContain('Verified Successfully')
    expect(() => verify(Buffer.concat([payload, Buffer.from(' ')]))).toThrow()
    expect((await service.call('GET', '/build-runs/none/attestation/')).status).toBe(404)
  }, 240_000)
})

describe('a login of a registry', () => {
  test('pulls the images of its own registry alone, and is in no record and no log', async () => {
    const image = `${registry.address}/closed/bb:1`
    const { credentialRef } = await service.post('/registry-credentials/', {
      ...{ id: 'closed', registry: registry.address, username: 'ada', password },
    })
    await service.post('/registry-credentials/', {
      ...{ id: 'other', registry: 'registry.example.org', username: 'ada', password: 'another' },
    })
    const artifact = { version: '1', image }
    const refused = await service.call('POST', '/artifacts/docker/', {
      ...{ ...artifact, artifactId: 'refused', credentialRef: 'vault:registry-credential/other' },
    })
    expect([refused.status, refused.text]).toEqual([
      422,
      expect.stringContaining('a login of registry.example.org'),
    ])
    const without = await service.post('/artifacts/docker/', { ...artifact, artifactId: 'without' })
    expect((await built(without.build.id)).status).toBe('failed')

    const { build } = await service.post('/artifacts/docker/', {
      ...artifact,
      artifactId: 'with',
      credentialRef,
    })
    const run = await built(build.id)
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.bases).toEqual([{ image, digest: pushedDigest, digestOf: 'registry' }])
    const shown = await service.get('/registry-credentials/closed/')
    expect(shown).toMatchObject({
      registry: registry.address,
      username: 'ada',
      usedBy: [{ buildId: build.id }],
    })
    expect(JSON.stringify([shown, run, build])).not.toContain(password)
    const kept = await service.call('DELETE', '/registry-credentials/closed/')
    expect([kept.status, kept.text]).toEqual([422, expect.stringContaining(build.id)])
    expect((await service.call('DELETE', `/artifact-builds/${build.id}/`)).status).toBe(204)
    expect((await service.call('DELETE', '/registry-credentials/closed/')).status).toBe(204)
  }, 240_000)
})

test('a build of any name lists the packages of its output where syft is, and completes without it', async () => {
  const recipe = { Dockerfile: `FROM ${base}\n` }
  await describedBuild(service, 'unlisted', recipe)
  const run = await built('unlisted')
  expect([run.status, run.logs]).toEqual(['completed', expect.stringContaining('SERVICE_SBOM is off')])
  const of = '/artifact-versions/artifact-version:unlisted:1:system:'
  expect((await service.get(`${of}/`)).variants).toMatchObject([{ sbom: false }])
  expect((await service.call('GET', `${of}/sbom/`)).status).toBe(404)

  const planted = `/tmp/executed-${process.pid}`
  const bait = `'a' "b" $(touch ran) \`touch ran\` ; touch ran # %s {{ x }}`
  const idOf = (format: string): string => `-rf --output=${planted} $(touch ${planted}) ${bait} ${format}`
  await using listing = await openService({
    environment: {
      SERVICE_CONTAINER_ENGINE: engine.socket,
      SERVICE_ARTIFACT_ROOT: join(folder, `-listed ${bait}`),
      SERVICE_SBOM: 'make',
    },
  })
  for (const targetFormat of ['oci', 'sif']) {
    await describedBuild(listing, idOf(targetFormat), recipe, { targetFormat })
    const build = encodeURIComponent(idOf(targetFormat))
    const { id } = await listing.post(`/artifact-builds/${build}/runs/`, undefined)
    // The first one builds syft: 8.5 minutes on two cores that did other things too.
    const listed = await until(`the end of ${id}`, 1_800, async () => {
      const found = await listing.get(`/build-runs/${id}/`)
      return ['completed', 'failed'].includes(found.status) ? found : undefined
    })
    expect([listed.status, listed.logs]).toEqual([
      'completed',
      expect.stringContaining('listed the packages'),
    ])
    const name = `artifact-version:${idOf(targetFormat)}:1:system:`
    const version = `/artifact-versions/${encodeURIComponent(name)}`
    const [variant] = (await listing.get(`${version}/`)).variants
    expect(variant).toMatchObject({ sbom: true, format: targetFormat })
    const answer = await fetch(`${listing.baseUrl}${version}/sbom/?variantId=${variant.id}`)
    expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'application/spdx+json'])
    const document = (await answer.json()) as any
    const digest = listed.outputDigest
    expect(document.name).toBe(digest)
    expect(document.spdxVersion).toBe('SPDX-2.3')
    expect(document.packages).toContainEqual(
      expect.objectContaining({ name: 'busybox', versionInfo: expect.stringMatching(/^1\./) }),
    )
    expect(document.packages).toContainEqual(
      expect.objectContaining({
        ...{ name: digest, primaryPackagePurpose: 'CONTAINER', versionInfo: digest },
      }),
    )
  }
  expect([planted, 'ran', '/ran'].filter((path) => existsSync(path))).toEqual([])
}, 2_100_000)

test('versions, builds and contexts go once nothing refers to them, with their bytes', async () => {
  const build = await describedBuild(service, 'passing', { Dockerfile: `FROM ${base}\nRUN echo passing\n` })
  const run = await built('passing')
  const version = await service.get(`/artifact-versions/${build.artifactVersionId}/`)
  expect(version).toMatchObject({
    ...{ artifactId: 'passing', builds: ['passing'] },
    variants: [{ id: run.outputVariantId, digest: run.outputDigest, locations: [{ available: true }] }],
  })
  const blob = (kind: string, digest: string): string =>
    join(store, kind, digest.slice(7, 9), digest.slice(7))
  const remove = async (path: string) => {
    const { status, text } = await service.call('DELETE', path)
    return [status, text]
  }
  const paths = {
    version: `/artifact-versions/${build.artifactVersionId}/`,
    build: '/artifact-builds/passing/',
    context: `/build-contexts/${build.contextDigest}/`,
  }
  for (const path of [paths.version, paths.context])
    expect(await remove(path)).toEqual([422, expect.stringContaining('build \\"passing\\"')])
  expect(await remove(paths.build)).toEqual([204, ''])
  expect(existsSync(blob('images', run.outputDigest))).toBe(true)
  expect(await remove(paths.version)).toEqual([204, ''])
  expect(await remove(paths.context)).toEqual([204, ''])
  expect(existsSync(blob('images', run.outputDigest))).toBe(false)
  expect(existsSync(blob('contexts', build.contextDigest))).toBe(false)
  expect(readdirSync(join(store, 'logs'))).not.toContain(sha256(run.id).slice(7, 39))
  expect((await service.call('GET', paths.version)).status).toBe(404)
}, 120_000)
