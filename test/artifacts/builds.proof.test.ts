import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { randomBytes } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { haveApptainer } from '../../sites/apptainer.ts'
import {
  loadSystemImage,
  openDockerEngine,
  startLoopbackRegistry,
  type DockerEngine,
} from '../../sites/docker.ts'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { describedBuild, openHeldWay, send, sha256, tarOf } from './world.ts'

/** Builds by a real Docker engine; nothing is pulled from the world. */

const { afterAll, beforeAll, describe, test } = needs(
  ...(['root', 'docker.io', 'runc', 'iproute2', 'docker-registry', 'skopeo', 'squashfs-tools'] as const),
)

const folder = mkdtempSync(join(runFolder(), 'builds-'))
const store = join(folder, 'artifacts')
let engine: DockerEngine
let registry: Awaited<ReturnType<typeof startLoopbackRegistry>>
let base: string
let service: TestService
beforeAll(async () => {
  await haveApptainer()
  ;[engine, registry] = await Promise.all([
    openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true }),
    startLoopbackRegistry(join(folder, 'registry')),
  ])
  base = await loadSystemImage(engine)
  // Of runs before, which may have been killed.
  for (const names of ['orrery-build/*', '*/tools/*'])
    for (const left of new Set((await engine.docker('images', '--quiet', names)).split('\n').filter(Boolean)))
      await engine.docker('rmi', '--force', left)
  for (const name of ['images', 'partial']) mkdirSync(join(store, name), { recursive: true })
  for (const [name, hours] of Object.entries({ killed: 25, young: 1 })) {
    const path = join(store, 'partial', name)
    writeFileSync(path, 'what came before the kill')
    utimesSync(path, Date.now() / 1_000, Date.now() / 1_000 - hours * 3_600)
  }
  service = await openService({
    environment: {
      SERVICE_CONTAINER_ENGINE: engine.socket,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_ARTIFACT_ROOT: store,
    },
  })
}, 600_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await Promise.all([engine?.[Symbol.asyncDispose](), registry?.stop()])
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const start = (id: string, query = '') => service.call('POST', `/artifact-builds/${id}/runs/${query}`)
const ended = (id: string, seconds = 180): Promise<any> =>
  until(`the end of ${id}`, seconds, async () => {
    const run = await service.get(`/build-runs/${id}/`)
    return ['completed', 'failed', 'cancelled'].includes(run.status) ? run : undefined
  })
const built = async (id: string, query = ''): Promise<any> => {
  const answer = await start(id, query)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  return ended(answer.body.id)
}
const output = async (run: string): Promise<Buffer> =>
  Buffer.from(await (await fetch(`${service.baseUrl}/build-runs/${run}/output/`)).arrayBuffer())
const logOf = async (run: string): Promise<string> =>
  (await fetch(`${service.baseUrl}/build-runs/${run}/logs/`)).text()
const eventsOf = async (run: string): Promise<string[]> =>
  (await service.get(`/build-runs/${run}/events/`)).items.map(({ eventType }: any) => eventType)
/** How the variants of the version of an artifact were verified. */
const verificationOf = async (id: string): Promise<string[]> =>
  (await service.get(`/artifact-versions/artifact-version:${id}:1:system:/`)).variants.map(
    ({ verification }: { verification: string }) => verification,
  )
const reaches = (run: string, status: string): Promise<unknown> =>
  until(`${run} is ${status}`, 60, async () => (await service.get(`/build-runs/${run}/`)).status === status)
/** Asks a run to end, and waits until it has. */
const cancelled = async (run: string): Promise<void> => {
  expect((await service.call('POST', `/build-runs/${run}/cancel/`)).status).toBe(202)
  expect((await ended(run, 60)).status).toBe('cancelled')
}
/** The images in the store. */
const images = (): string[] =>
  (readdirSync(join(store, 'images'), { recursive: true }) as string[]).filter((path) =>
    /[0-9a-f]{64}$/.test(path),
  )
/** Processes of this machine whose command begins so. */
const processes = (command: string): string =>
  execFileSync('sh', ['-c', `pgrep -f "^$1" || true`, 'sh', command]).toString()
/** Nothing of a build is left in the engine or aside. */
const expectTidy = async (): Promise<void> => {
  expect(await engine.docker('images', '--quiet', 'orrery-build/*')).toBe('')
  expect(readdirSync(join(store, 'builds'))).toEqual([])
}

describe('a recipe', () => {
  test('becomes an OCI layout, once for its content; its output is read whole and in ranges', async () => {
    await describedBuild(
      service,
      'greeting',
      {
        Dockerfile: `FROM ${base}\nARG WHO\nCOPY text /srv/text\nRUN echo "hello $WHO" >> /srv/text\n`,
        text: 'a\n',
      },
      { buildArguments: '{"WHO":"world"}' },
    )
    const run = await built('greeting')
    expect(run).toMatchObject({
      ...{ artifactBuildId: 'greeting', status: 'completed', outputVariantId: expect.any(String) },
      logs: expect.stringContaining('RUN echo'),
    })
    const bytes = await output(run.id)
    expect(sha256(bytes)).toBe(run.outputDigest)
    const layout = join(folder, 'layout')
    mkdirSync(layout)
    execFileSync('tar', ['-x', '-C', layout], { input: bytes })
    const index = JSON.parse(readFileSync(join(layout, 'index.json'), 'utf8'))
    const inspected = JSON.parse(execFileSync('skopeo', ['inspect', `oci:${layout}`]).toString())
    expect(inspected).toMatchObject({ Digest: index.manifests[0].digest, Architecture: 'amd64', Os: 'linux' })

    const part = await fetch(`${service.baseUrl}/build-runs/${run.id}/output/`, {
      headers: { range: 'bytes=10-19' },
    })
    expect([part.status, part.headers.get('etag')]).toEqual([206, `"${run.outputDigest}"`])
    expect(Buffer.from(await part.arrayBuffer()).equals(bytes.subarray(10, 20))).toBe(true)
    const none = await fetch(`${service.baseUrl}/build-runs/${run.id}/output/`, {
      headers: { range: `bytes=${String(bytes.length)}-` },
    })
    expect(none.status).toBe(416)
    expect(await service.get('/artifact-locations/')).toContainEqual(
      expect.objectContaining({ variantId: run.outputVariantId, digest: run.outputDigest, available: true }),
    )

    // The answer of the request that starts it has the output already.
    const { body: again } = await start('greeting')
    expect(again).toMatchObject({
      ...{ status: 'completed', outputDigest: run.outputDigest, outputVariantId: run.outputVariantId },
      logs: expect.stringContaining('an earlier run of this build made'),
    })
    expect(await logOf(again.id)).toBe(again.logs)
    expect(await eventsOf(again.id)).toEqual(['artifact.build-run.started', 'artifact.build-run.completed'])
    expect(again.id).not.toBe(run.id)
    expect(
      (await service.get('/artifact-builds/greeting/runs/')).map(({ id }: { id: string }) => id),
    ).toEqual([again.id, run.id])
    await expectTidy()
  }, 300_000)

  test('that is cancelled while its file is made ends, and leaves nothing', async () => {
    const bytes = `RUN head -c ${String(48 * 2 ** 20)} /dev/urandom > /bytes`
    await describedBuild(
      service,
      'stopped',
      { Dockerfile: `FROM ${base}\n${bytes}\n` },
      { targetFormat: 'sif' },
    )
    const { body } = await start('stopped')
    await reaches(body.id, 'verifying')
    await cancelled(body.id)
    await expectTidy()
  }, 120_000)

  test('that is cancelled while it is published is not published, and leaves nothing', async () => {
    const before = images()
    await describedBuild(service, 'recalled', { Dockerfile: `FROM ${base}\nRUN echo recalled > /text\n` })
    const [locked, over] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
    // Its variant waits for this lock.
    const lock = service.db.transaction(async (tx) => {
      await tx.run(sql`lock table artifact_variants in share mode`)
      locked.resolve(undefined)
      await over.promise
    })
    await locked.promise
    const { body } = await start('recalled')
    await reaches(body.id, 'publishing')
    expect((await service.call('POST', `/build-runs/${body.id}/cancel/`)).status).toBe(202)
    over.resolve(undefined)
    await lock
    expect((await ended(body.id, 60)).status).toBe('cancelled')
    expect(await verificationOf('recalled')).toEqual([])
    expect(images()).toEqual(before)
    await expectTidy()
  }, 120_000)

  test('that waits for its turn is cancelled at once, and the one before it goes on', async () => {
    for (const id of ['first', 'waiting'])
      await describedBuild(service, id, { Dockerfile: `FROM ${base}\nRUN echo ${id} && sleep 98763\n` })
    const first = (await start('first')).body
    await until('its step runs', 60, () => processes('sleep 98763') !== '')
    const waiting = (await start('waiting')).body
    await reaches(waiting.id, 'building')
    await cancelled(waiting.id)
    expect((await service.get(`/build-runs/${first.id}/`)).status).toBe('building')
    await cancelled(first.id)
    await until('its step has ended', 60, () => processes('sleep 98763') === '')
    await expectTidy()
  }, 120_000)

  test('for another architecture than this machine’s is verified by its parts alone', async () => {
    const image = { Dockerfile: 'FROM scratch\nCOPY text /text\n', text: 'a\n' }
    const target = { targetFormat: 'sif', targetArchitecture: 'arm64' }
    await describedBuild(service, 'elsewhere', image, target)
    const run = await built('elsewhere')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.logs).toContain('structural (this host runs amd64, and the image is for arm64)')
    expect(await verificationOf('elsewhere')).toEqual(['structural'])
  }, 60_000)

  test('with metacharacters in every name and value reaches the image unchanged, and runs nothing here', async () => {
    const planted = join(folder, 'executed')
    const hostile = `a'b"c $(touch ${planted}) \`touch ${planted}\` ; touch ${planted} #-rf`
    const name = "x $(touch ran);`y`'z"
    const recipe = [
      `FROM ${base}`,
      'ARG VALUE',
      'RUN mkdir -p /srv && printf %s "$VALUE" > /srv/value',
      'COPY files/ /srv/',
      `ENTRYPOINT ["/bin/echo", "it's \\"$(touch ${planted})\\""]`,
    ].join('\n')
    const recipePath = 'Docker file;$(x)'
    await describedBuild(
      service,
      'hostile',
      { [recipePath]: recipe, [`files/${name}`]: 'kept' },
      {
        ...{ targetFormat: 'sif', recipePath, recipeDigest: sha256(recipe) },
        buildArguments: JSON.stringify({ VALUE: hostile }),
      },
    )
    const run = await built('hostile')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    const file = join(folder, 'hostile.sif')
    writeFileSync(file, await output(run.id))
    const inside = (...args: string[]) => execFileSync('apptainer', ['-s', ...args], { cwd: '/' }).toString()
    expect(inside('exec', file, '/bin/cat', '/srv/value')).toBe(hostile)
    expect(inside('exec', file, '/bin/cat', `/srv/${name}`)).toBe('kept')
    expect(inside('run', file)).toBe(`it's "$(touch ${planted})"\n`)
    expect(existsSync(planted)).toBe(false)
  }, 120_000)

  test('whose step fails, fails with its log; an output of it is 404', async () => {
    await describedBuild(service, 'failing', { Dockerfile: `FROM ${base}\nRUN echo before && false\n` })
    const run = await built('failing')
    expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(/false|exit code/)])
    expect(run.logs).toContain('before')
    expect((await service.call('GET', `/build-runs/${run.id}/output/`)).status).toBe(404)
    await expectTidy()
  }, 120_000)

  test('has no network, and no socket of the engine', async () => {
    await describedBuild(service, 'alone', {
      Dockerfile: `FROM ${base}\nRUN cat /proc/net/dev > /srv-net && ! ls /var/run/docker.sock && cat /srv-net\n`,
    })
    const run = await built('alone')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.logs).not.toMatch(/eth0/)
  }, 120_000)

  test('records the images that it took: by the digest of their registry, else by their id', async () => {
    const idOf = (image: string) => engine.docker('inspect', '--format', '{{.Id}}', image)
    const [first, copied] = [await pushed('based', 'tools/based:1'), await pushed('copied', 'tools/copied:1')]
    const tools = `${registry.address}/tools`
    const recipe = [
      'ARG TAG',
      `FROM ${tools}/based:$TAG AS first`,
      'FROM scratch AS unused',
      'FROM orrery-test/based:1 AS also-unused',
      `FROM ${base}`,
      'RUN mkdir /taken && echo "[1/1] FROM docker.io/printed/by:1"',
      'COPY --from=first /text /taken/first',
      `COPY --from=${tools}/copied@${copied} /text /taken/copied`,
    ].join('\n')
    for (const id of ['based', 'based-again'])
      await describedBuild(service, id, { Dockerfile: recipe }, { buildArguments: '{"TAG":"1"}' })
    const taken = [
      { image: `${tools}/based:1`, digest: first, digestOf: 'registry' },
      { image: `${tools}/copied`, digest: copied, digestOf: 'registry' },
      { image: `docker.io/${base}`, digest: await idOf(base), digestOf: 'engine' },
    ]
    // The third one takes what the first one made, the last one takes all from the builder's cache.
    for (const [id, query] of [['based'], ['based', '?fresh=true'], ['based'], ['based-again']] as const) {
      const run = await built(id, query)
      expect([run.status, run.error]).toEqual(['completed', undefined])
      expect(run.bases.toSorted((a: any, b: any) => (a.image < b.image ? -1 : 1))).toEqual(
        taken.toSorted((a, b) => (a.image < b.image ? -1 : 1)),
      )
    }
  }, 240_000)

  test('that 64 requests start at once is one run and one file, made of the files that were sent', async () => {
    // Its head is larger than what BuildKit reads to know an archive.
    const long = `${'long/'.repeat(40)}${'name'.repeat(40)}`
    await describedBuild(service, 'shared', {
      [long]: 'of the depth\n',
      Dockerfile: `FROM ${base}\nCOPY . /srv/\nRUN cd /srv && cat ${long} && stat -c "%u:%g %a" ${long}\n`,
    })
    const before = images()
    const answers = await Promise.all(Array.from({ length: 64 }, () => start('shared')))
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(1)
    const run = await ended(answers[0]?.body.id)
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.logs).toMatch(/of the depth[^]*0:0 644/)
    expect(await service.get('/artifact-builds/shared/runs/')).toHaveLength(1)
    expect(images().filter((path) => !before.includes(path))).toHaveLength(1)
    await expectTidy()
  }, 300_000)

  test('that is cancelled ends, and 32 equal starts are one run', async () => {
    await describedBuild(service, 'long', { Dockerfile: `FROM ${base}\nRUN sleep 300\n` })
    const answers = await Promise.all(Array.from({ length: 32 }, () => start('long')))
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(1)
    const { id } = answers[0]?.body ?? {}
    await until('the step is under way', 60, async () => {
      const { status, logs = '' } = await service.get(`/build-runs/${id}/`)
      return status === 'building' && logs.includes('sleep 300') ? true : undefined
    })
    expect((await service.call('POST', `/build-runs/${id}/cancel/`)).status).toBe(202)
    expect((await ended(id, 60)).status).toBe('cancelled')
    await expectTidy()
  }, 180_000)

  test('becomes a SIF file that Apptainer runs, with links, whiteouts and the image’s environment', async () => {
    await describedBuild(
      service,
      'sifted',
      {
        Dockerfile: [
          `FROM ${base}`,
          'RUN mkdir -p /srv/old /srv/kept && echo 1 > /srv/old/a && echo keep > /srv/kept/a && ' +
            'ln /srv/kept/a /srv/hard',
          'RUN rm -r /srv/old && rm /srv/kept/a && mkdir /srv/old && echo new > /srv/old/b && ln -s old/b /srv/soft',
          'ENV WHO="the $HOME" MORE=1',
          'ENTRYPOINT ["/bin/cat"]',
          'CMD ["/srv/soft"]',
        ].join('\n'),
      },
      { targetFormat: 'sif' },
    )
    const run = await built('sifted')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    const answer = await fetch(`${service.baseUrl}/build-runs/${run.id}/output/`)
    expect([answer.headers.get('content-type'), answer.headers.get('content-disposition')]).toEqual([
      'application/vnd.sylabs.sif',
      `attachment; filename="${run.id}.sif"`,
    ])
    const file = join(folder, 'a.sif')
    writeFileSync(file, Buffer.from(await answer.arrayBuffer()))
    const inside = (...args: string[]) =>
      execFileSync('apptainer', ['-s', ...args], { cwd: '/' })
        .toString()
        .trim()
    expect(
      inside('exec', file, '/bin/sh', '-c', 'cat /srv/hard /srv/soft; ls /srv /srv/old; echo "$WHO"'),
    ).toBe('keep\nnew\n/srv:\nhard\nkept\nold\nsoft\n\n/srv/old:\nb\nthe')
    expect(inside('run', file)).toBe('new')
    const again = await built('sifted', '?fresh=false')
    expect(again.outputDigest).toBe(run.outputDigest)
    expect(await verificationOf('sifted')).toEqual(['executed'])
    await expectTidy()
  }, 300_000)

  test('whose image has no program true is published, verified by its parts alone', async () => {
    const image = { Dockerfile: 'FROM scratch\nCOPY text /text\n', text: 'a\n' }
    await describedBuild(service, 'bare', image, { targetFormat: 'sif' })
    const run = await built('bare')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.logs).toContain('structural (the image has no program true)')
    expect(await verificationOf('bare')).toEqual(['structural'])
  }, 120_000)

  test('whose programs do not start fails, and leaves nothing', async () => {
    const image = (program: string) => `FROM ${base}\nRUN ${program}\n`
    const programs = {
      refusing: "rm /bin/true; printf '#!/bin/sh\\nexit 3\\n' > /bin/true; chmod 755 /bin/true",
      foreign: 'rm -f /lib64/ld-linux-x86-64.so.2',
    }
    for (const [id, program] of Object.entries(programs)) {
      await describedBuild(service, id, { Dockerfile: image(program) }, { targetFormat: 'sif' })
      const run = await built(id)
      expect([run.status, run.error]).toEqual([
        'failed',
        expect.stringMatching(/the program true of the image/),
      ])
      expect(await verificationOf(id)).toEqual([])
    }
    await expectTidy()
  }, 180_000)
})

/** An image of this text, pushed to the registry. @returns its digest there */
const pushed = async (text: string, name: string): Promise<string> => {
  const [files, archive] = [join(folder, `${text}-files.tar`), join(folder, `${text}.tar`)]
  writeFileSync(files, await tarOf([{ name: 'text', content: text }]))
  await engine.docker('import', files, `orrery-test/${text}:1`)
  await engine.docker('save', '--output', archive, `orrery-test/${text}:1`)
  return registry.push(archive, name)
}
/** The build that makes an OCI layout of an image. */
const imageBuild = async (id: string, image: string): Promise<void> => {
  const { artifactVersionId } = await service.post('/artifacts/', { artifactId: id, version: '1' })
  const digest = sha256(`docker://${image}\n`)
  await service.post('/artifact-builds/', {
    ...{ id, artifactVersionId, sourceType: 'docker-image', image, contextDigest: digest },
    ...{ recipeDigest: digest, cacheKey: `key of ${id}`, targetFormat: 'oci' },
  })
}
/** The files of the one layer of an OCI layout. */
const layerFiles = (layoutBytes: Buffer, into: string): string => {
  const layout = mkdtempSync(join(folder, into))
  execFileSync('tar', ['-x', '-C', layout], { input: layoutBytes })
  const blob = (digest: string): string => join(layout, 'blobs/sha256', digest.slice(7))
  const [described] = JSON.parse(readFileSync(join(layout, 'index.json'), 'utf8')).manifests
  const [layer] = JSON.parse(readFileSync(blob(described.digest), 'utf8')).layers
  return execFileSync('tar', ['-x', '-O', '-f', blob(layer.digest)]).toString()
}

describe('an image', () => {
  test('becomes an OCI layout; its tag is resolved again by the next run', async () => {
    const first = await pushed('first', 'tools/tagged:1')
    await imageBuild('tagged', `${registry.address}/tools/tagged:1`)
    const run = await built('tagged')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(layerFiles(await output(run.id), 'first-')).toBe('first')
    const base = { image: `${registry.address}/tools/tagged:1`, digestOf: 'registry' }
    expect(run.bases).toEqual([{ ...base, digest: first }])
    const again = await built('tagged')
    expect([again.outputDigest, again.outputVariantId]).toEqual([run.outputDigest, run.outputVariantId])
    expect(again.bases).toEqual(run.bases)

    const second = await pushed('second', 'tools/tagged:1')
    const later = await built('tagged')
    expect(layerFiles(await output(later.id), 'second-')).toBe('second')
    expect(later.bases).toEqual([{ ...base, digest: second }])
    expect(later.outputVariantId).not.toBe(run.outputVariantId)
    expect(layerFiles(await output(run.id), 'kept-')).toBe('first')
  }, 120_000)

  test('that is pinned becomes a SIF file, which makes its artifact selectable', async () => {
    const digest = await pushed('pinned', 'tools/pinned:1')
    const image = `${registry.address}/tools/pinned@${digest}`
    const { build } = await service.post('/artifacts/docker/', { artifactId: 'pulled', version: '1', image })
    const run = await built(build.id)
    expect([run.status, run.error]).toEqual(['completed', undefined])
    // The clock of the second packing is another one; its bytes are not.
    await new Promise((resolve) => setTimeout(resolve, 1_100))
    expect((await built(build.id, '?fresh=true')).outputDigest).toBe(run.outputDigest)
    expect((await output(run.id)).subarray(32, 41).toString()).toBe('SIF_MAGIC')
    expect((await service.get('/artifacts/?selectable=true')).map(({ id }: { id: string }) => id)).toContain(
      'pulled',
    )
  }, 120_000)

  test('that is cancelled while it is pulled ends with its pull, and leaves nothing', async () => {
    await using way = await openHeldWay(registry.address)
    await pushed('held', 'tools/held:1')
    await imageBuild('held', `${way.address}/tools/held:1`)
    const { body } = await start('held')
    await until('the engine pulls', 60, () => way.waiting() > 0)
    expect((await service.get(`/build-runs/${body.id}/`)).status).toBe('preparing')
    await cancelled(body.id)
    // The engine notices the end of a pull between two requests.
    way.letGo()
    await until('the engine asks no more', 60, () => way.waiting() === 0)
    expect(await engine.docker('images', '--quiet', `${way.address}/*/*`)).toBe('')
    await expectTidy()
  }, 120_000)

  test('that its registry lost after it was pinned fails, with name and digest', async () => {
    const digest = await pushed('lost', 'tools/lost:1')
    await imageBuild('lost', `${registry.address}/tools/lost@${digest}`)
    const manifest = `http://${registry.address}/v2/tools/lost/manifests/${digest}`
    expect((await fetch(manifest, { method: 'DELETE' })).status).toBe(202)
    const run = await built('lost')
    expect([run.status, run.error]).toEqual([
      'failed',
      expect.stringMatching(new RegExp(`tools/lost@${digest}.*(not found|unknown)`)),
    ])
    await expectTidy()
  }, 120_000)

  test('that its registry does not have fails', async () => {
    await imageBuild('absent', `${registry.address}/tools/none:1`)
    const run = await built('absent')
    expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(/not found|manifest unknown/)])
  }, 120_000)
})

test('an image of a registry that is away fails with the cause, and is built once it is back', async () => {
  await pushed('away', 'tools/away:1')
  await imageBuild('away', `${registry.address}/tools/away:1`)
  await registry.stop()
  try {
    const run = await built('away')
    expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(/refused|connect/)])
  } finally {
    await registry.start()
  }
  expect((await built('away')).status).toBe('completed')
}, 120_000)

test('a store without room refuses contexts and ends builds with the cause, and keeps nothing half', async () => {
  const small = join(folder, 'small')
  mkdirSync(small)
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'store', small])
  try {
    await using full = await openService({
      environment: { SERVICE_CONTAINER_ENGINE: engine.socket, SERVICE_ARTIFACT_ROOT: small },
    })
    const answer = await send(
      full,
      gzipSync(await tarOf([{ name: 'bytes', content: randomBytes(3 * 2 ** 20) }])),
    )
    expect([answer.status, answer.body.error]).toEqual([503, expect.stringMatching(/room|space|full/)])
    expect(readdirSync(join(small, 'partial'))).toEqual([])

    await describedBuild(full, 'cramped', { Dockerfile: `FROM ${base}\nRUN touch /a\n` })
    const { id } = await full.post('/artifact-builds/cramped/runs/')
    const run = await until('the end of the cramped build', 60, async () => {
      const found = await full.get(`/build-runs/${id}/`)
      return ['completed', 'failed'].includes(found.status) ? found : undefined
    })
    expect([run.status, run.error]).toEqual(['failed', expect.stringContaining('SERVICE_ARTIFACT_ROOT')])
    expect(readdirSync(join(small, 'builds'))).toEqual([])
  } finally {
    execFileSync('umount', ['--lazy', small])
  }
}, 120_000)

test('without an engine a start is 503 with the remedy', async () => {
  await engine.stop()
  try {
    const answer = await start('greeting')
    expect([answer.status, answer.body.error]).toEqual([
      503,
      expect.stringContaining('SERVICE_CONTAINER_ENGINE'),
    ])
  } finally {
    // Another test's engine may have its turn before.
    await engine.start()
  }
}, 900_000)

test('what an upload of a killed service left goes at the next start, once it is a day old', async () => {
  await until('the old file is gone', 20, () =>
    Promise.resolve(readdirSync(join(store, 'partial')).join() === 'young' ? true : undefined),
  )
}, 30_000)
