import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { openService, type TestService } from '../support/service.ts'
import { runsOf } from '../support/share.ts'
import { contextOf, describedBuild, retyped, send, sha256, tarOf, type Planted } from './world.ts'

/** Contexts, versions and builds as they are described, before anything is built. */

const limit = 4 * 2 ** 20
let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_BUILD_CONTEXT_LIMIT_BYTES: String(limit), SERVICE_CONTAINER_ENGINE: '/none.sock' },
  })
})
afterAll(() => service[Symbol.asyncDispose]())

const store = () => join(service.dataDir, 'artifacts')
/** Every file of the store. */
const kept = (): string[] =>
  existsSync(store())
    ? readdirSync(store(), { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join(entry.parentPath, entry.name))
    : []

describe('a build context', () => {
  test('is kept as it was sent, once, under its digest; its JSON form names the same bytes', async () => {
    const bytes = await contextOf({ Dockerfile: 'FROM scratch\n', 'src/main.py': 'print(1)\n' })
    const context = {
      digest: sha256(bytes),
      storageUri: `artifact://contexts/${sha256(bytes).slice(7)}`,
      sizeBytes: bytes.length,
      mediaType: 'application/vnd.akoflow.build-context+tar+gzip',
    }
    expect(await send(service, bytes)).toEqual({ status: 201, body: context })
    expect(await send(service, bytes)).toEqual({ status: 201, body: context })
    const files = kept().filter((path) => path.endsWith(context.digest.slice(7)))
    expect(files).toHaveLength(1)
    expect(readFileSync(files[0] ?? '').equals(bytes)).toBe(true)
    const registered = await service.call('POST', '/build-contexts/', context)
    expect([registered.status, registered.body]).toEqual([201, context])
  })

  test('that was built by GNU tar is taken too, with long names and directories', async () => {
    const name = `${'long'.repeat(40)}/${'name'.repeat(50)}.txt`
    const bytes = gzipSync(
      await tarOf([
        { name: './', type: 'directory' },
        { name, content: 'x' },
      ]),
    )
    expect((await send(service, bytes)).status).toBe(201)
  })

  const twice = (...names: string[]): Planted[] =>
    names.map((name, at) => ({ name, content: `FROM scratch\nLABEL at=${at}\n` }))
  const manyOf = (count: number): Planted[] => Array.from({ length: count }, (_, at) => ({ name: `f${at}` }))
  const deepOf = (folders: number): Planted[] =>
    Array.from({ length: folders / 200 }, (_, at) => ({ name: `d${at}/${'e/'.repeat(199)}f`, content: '' }))
  const hostile: [string, Planted[] | Buffer, RegExp][] = [
    ['a symbolic link', [{ name: 'a', type: 'symlink', linkname: '/etc/passwd' }], /symlink/],
    [
      'a hard link',
      [
        { name: 'a', content: '1' },
        { name: 'b', type: 'link', linkname: 'a' },
      ],
      /is a link/,
    ],
    ['a device', [{ name: 'a', type: 'character-device' }], /character device/],
    ['a FIFO', [{ name: 'a', type: 'fifo' }], /fifo/],
    ['a path above', [{ name: 'a/../../b', content: '1' }], /leads out/],
    ['an absolute path', [{ name: '/etc/passwd', content: '1' }], /absolute/],
    ['a control character', [{ name: 'a\nb', content: '1' }], /control character/],
    ['a set-user-id bit', [{ name: 'a', content: '1', mode: 0o4755 }], /set-user-id/],
    ['a name of 300 bytes', [{ name: 'n'.repeat(300), content: '1' }], /longer/],
    ['a path twice', twice('Dockerfile', 'Dockerfile'), /"Dockerfile" twice/],
    ['a path in two spellings', twice('a/Dockerfile', './a//Dockerfile'), /"a\/Dockerfile" twice/],
    [
      'a file at the path of a directory',
      [
        { name: 'a', type: 'directory' },
        { name: 'a', content: '1' },
      ],
      /"a" twice/,
    ],
    ['names that differ by case', twice('Dockerfile', 'dockerfile'), /"dockerfile" in two spellings/],
    ['folders that differ by case', twice('src/a', 'Src/b'), /"Src" in two spellings/],
    ['a file in the place of a folder', twice('a/Dockerfile', 'a'), /"a" twice/],
    ['a file in a file', twice('a', 'a/Dockerfile'), /"a" twice/],
    ['a backslash', [{ name: 'a\\b', content: '1' }], /backslash/],
    ['a drive', [{ name: 'C:\\a', content: '1' }], /backslash/],
    ['a zero byte in a path', [{ name: 'a', content: '1', pax: { path: 'b\0c' } }], /zero byte/],
    ['a size that is none', [{ name: 'a', content: '1', pax: { size: '0x1' } }], /"size" that is no number/],
    [
      '100,000 folders that paths alone name',
      [{ name: 'a', content: '1' }, ...deepOf(100_000)],
      /files and folders/,
    ],
    ['a sparse file', [{ name: 'a', content: '1', pax: { 'GNU.sparse.name': 'Dockerfile' } }], /sparse/],
    ['no file', [{ name: 'a/', type: 'directory' }], /no file/],
    ['no bytes', Buffer.alloc(0), /empty/],
    ['no gzip', Buffer.from('not an archive at all'), /no gzip/],
    ['gzip of no tar', gzipSync(Buffer.alloc(2_048, 'x')), /no tar archive/],
    ['200 times its size', [{ name: 'zeros', content: Buffer.alloc(40 * 2 ** 20) }], /200 times/],
  ]
  /** A disk takes 20 s for them. Folders count towards the same limit, in the gate too. */
  const large: typeof hostile = [['100,000 files and one', manyOf(100_001), /more than 100000 entries/]]
  test.each([...hostile, ...large.slice(0, runsOf(0, 1))])(
    'with %s is refused, and nothing of it is kept',
    async (_, given, message) => {
      const before = kept()
      const bytes = Buffer.isBuffer(given) ? given : gzipSync(await tarOf(given))
      const answer = await send(service, bytes)
      expect([answer.status, answer.body.error]).toEqual([422, expect.stringMatching(message)])
      expect(kept()).toEqual(before)
    },
  )

  test('that is cut is refused', async () => {
    const bytes = await contextOf({
      a: Buffer.from(Array.from({ length: 9_000 }, (_, i) => (i * 7919) % 251)),
    })
    expect((await send(service, bytes.subarray(0, bytes.length - 60))).body.error).toMatch(/send all of it/)
  })

  test('whose records give one path to all entries, or two to one, is refused', async () => {
    const record = async (flag: string) =>
      retyped((await tarOf([{ name: 'records', content: '10 path=b\n' }])).subarray(0, 1_024), flag, 10)
    const rest = await tarOf([{ name: 'Dockerfile', content: 'FROM scratch\n' }])
    for (const [flags, message] of [
      ['g', /all entries one path/],
      ['xx', /twice, in two records/],
      ['xL', /twice, in two records/],
      ['xg', /twice, in two records/],
      ['Lg', /twice, in two records/],
    ] as const) {
      const heads = await Promise.all([...flags].map(record))
      const answer = await send(service, gzipSync(Buffer.concat([...heads, rest])))
      expect([flags, answer.status, answer.body.error]).toEqual([flags, 422, expect.stringMatching(message)])
    }
  })

  test('that names an entry with a megabyte and more is refused before it is in memory', async () => {
    const head = retyped(
      (await tarOf([{ name: 'PaxHeader', content: '' }])).subarray(0, 512),
      'x',
      0o100000000,
    )
    expect((await send(service, gzipSync(Buffer.concat([head, Buffer.alloc(4_096)])))).body.error).toMatch(
      /names one entry with more than/,
    )
  })

  test('has one field named context: another, a second, a text or none are 422', async () => {
    const bytes = await contextOf({ a: '1' })
    expect((await send(service, bytes, 'other')).body.error).toMatch(/context.*missing/)
    const two = new FormData()
    const text = new FormData()
    for (const name of ['context', 'context']) two.append(name, new Blob([Uint8Array.from(bytes)]), 'c')
    text.append('context', 'text')
    for (const body of [two, text, new FormData()]) {
      const answer = await fetch(`${service.baseUrl}/build-contexts/`, { method: 'POST', body })
      expect([answer.status, ((await answer.json()) as any).error]).toEqual([
        422,
        expect.stringMatching(/^context/),
      ])
    }
  })

  test('of a million parts is refused, and nothing of it is kept', async () => {
    const before = kept()
    const part = '--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    const piece = Buffer.from(part.repeat(10_000))
    const answer = await fetch(`${service.baseUrl}/build-contexts/`, {
      ...{ method: 'POST', headers: { 'content-type': 'multipart/form-data; boundary=b' } },
      body: new Blob(Array.from({ length: 100 }, () => Uint8Array.from(piece))).stream(),
      duplex: 'half',
    } as RequestInit)
    expect([413, 422]).toContain(answer.status)
    expect(kept()).toEqual(before)
  })

  test('one byte beyond the limit and a megabyte is 413, also without Content-Length; nothing is kept', async () => {
    const before = kept()
    const { randomBytes } = await import('node:crypto')
    const big = await contextOf({ a: randomBytes(limit + 2 ** 20) })
    const answer = await send(service, big)
    expect([answer.status, answer.body.code]).toEqual([413, 'too_large'])
    const head = '--b\r\nContent-Disposition: form-data; name="context"; filename="c"\r\n\r\n'
    const chunked = await fetch(`${service.baseUrl}/build-contexts/`, {
      method: 'POST',
      headers: { 'content-type': 'multipart/form-data; boundary=b' },
      body: new Blob([head, Uint8Array.from(big), '\r\n--b--\r\n']).stream(),
      duplex: 'half',
    } as RequestInit)
    expect(chunked.status).toBe(413)
    expect(kept()).toEqual(before)
  })

  test('with its form may have the limit and a megabyte, and no byte more', async () => {
    const head = '--b\r\nContent-Disposition: form-data; name="context"; filename="c"\r\n\r\n'
    const bytes = await contextOf({ a: 'of the largest form' })
    const post = (size: number) =>
      fetch(`${service.baseUrl}/build-contexts/`, {
        ...{ method: 'POST', headers: { 'content-type': 'multipart/form-data; boundary=b' } },
        // Readers of gzip pass over zero bytes behind its end.
        body: Buffer.concat([
          ...[Buffer.from(head), bytes],
          ...[Buffer.alloc(size - head.length - bytes.length - 9), Buffer.from('\r\n--b--\r\n')],
        ]),
      })
    const [most, more] = [await post(limit + 2 ** 20), await post(limit + 2 ** 20 + 1)]
    expect([most.status, more.status]).toEqual([201, 413])
  })

  test('whose connection is cut leaves nothing', async () => {
    const before = kept()
    const { hostname, port } = new URL(service.baseUrl)
    await new Promise<void>((resolve) => {
      const socket = connect(Number(port), hostname, () => {
        socket.write(
          'POST /api/build-contexts/ HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n' +
            'Content-Length: 100000\r\n\r\n--b\r\nContent-Disposition: form-data; name="context"; filename="c"\r\n\r\n',
        )
        socket.write(gzipSync(Buffer.alloc(1_000, 'x')))
        setTimeout(() => socket.destroy(), 300)
      })
      socket.once('close', () => resolve())
    })
    await new Promise((resolve) => setTimeout(resolve, 500))
    expect(kept()).toEqual(before)
  })

  test.each([
    ['unknown bytes', { digest: sha256('no') }, /does not have/],
    ['no size', { sizeBytes: 0 }, /sizeBytes/],
    ['another scheme', { storageUri: 'file:///etc/passwd' }, /storageUri/],
    ['another digest', { storageUri: `artifact://contexts/${'0'.repeat(64)}` }, /storageUri/],
    ['another size', { sizeBytes: 1 }, /has \d+ bytes/],
  ])('in JSON with %s is refused', async (_, wrong, message) => {
    const { body } = await send(service, await contextOf({ a: '1' }))
    const uri = 'digest' in wrong ? { storageUri: `artifact://contexts/${wrong.digest.slice(7)}` } : {}
    const answer = await service.call('POST', '/build-contexts/', { ...body, ...uri, ...wrong })
    expect([answer.status, answer.body.error]).toEqual([422, expect.stringMatching(message)])
  })
})

describe('a build', () => {
  const files = { Dockerfile: 'FROM scratch\n' }

  test('is stored with its defaults; its key answers it again as it is stored', async () => {
    const build = await describedBuild(service, 'tool', files)
    expect(build).toMatchObject({
      ...{
        id: 'tool',
        sourceType: 'dockerfile',
        recipePath: 'Dockerfile',
        targetFormat: 'oci',
        network: false,
      },
      ...{ targetOs: 'linux', targetArchitecture: 'amd64', buildArguments: '{}', cacheKey: 'key of tool' },
    })
    expect(await service.get('/artifact-builds/tool/')).toEqual(build)
    expect(await service.get('/artifacts/tool/builds/')).toEqual([build])
    const context = { contextDigest: sha256('none') }
    for (const more of [
      {},
      { id: 'another' },
      { targetFormat: 'sif' },
      { artifactVersionId: 'none', ...context },
    ]) {
      const again = await service.call('POST', '/artifact-builds/', { ...build, ...more })
      expect([more, again.status, again.body]).toEqual([more, 200, build])
    }
    const [artifactId, version] = ['a'.repeat(255), 'v'.repeat(255)]
    const { artifactVersionId } = await service.post('/artifacts/', { artifactId, version })
    expect(
      await service.call('POST', '/artifact-builds/', {
        ...build,
        ...{ id: 'long', cacheKey: 'of long', artifactVersionId },
      }),
    ).toMatchObject({ status: 201, body: { artifactVersionId } })
    const taken = await service.call('POST', '/artifact-builds/', { ...build, cacheKey: 'other' })
    expect([taken.status, taken.body.details[0].path]).toEqual([422, 'id'])
    expect(await service.get('/artifacts/tool/builds/')).toEqual([build])
  })

  test.each([
    ['an unknown version', { artifactVersionId: 'none' }, /artifactVersionId/],
    ['an unknown context', { contextDigest: sha256('none') }, /contextDigest/],
    ['no such recipe', { recipePath: 'other/Dockerfile' }, /recipePath.*no file/],
    ['a recipe outside', { recipePath: '../Dockerfile' }, /recipePath.*leads out/],
    ['a recipe of another digest', { recipeDigest: sha256('other') }, /recipeDigest.*has sha256/],
    ['arguments that are none', { buildArguments: '{"A B":"1"}' }, /buildArguments/],
    ['a digest that is none', { contextDigest: 'sha256:1' }, /contextDigest/],
    ['an image beside a context', { image: 'a/b:1' }, /image/],
  ])('with %s is 422 and not stored', async (_, wrong, message) => {
    const { createdAt: _at, ...document } = await service.get('/artifact-builds/tool/')
    const answer = await service.call('POST', '/artifact-builds/', {
      ...document,
      id: 'wrong',
      cacheKey: 'wrong',
      ...wrong,
    })
    expect([answer.status, answer.body.error]).toEqual([422, expect.stringMatching(message)])
    expect((await service.call('GET', '/artifact-builds/wrong/')).status).toBe(404)
  })

  const evil = '169.254.169.254/a:1'
  const added = 'ADD \\\n http://example.org/a /a'
  const heredoc = 'FROM a\nRUN <<"A\\"\necho 1\nA\\\nFROM \\\n'
  test.each<[string, string, RegExp, object?]>([
    ['a base', `FROM ${evil}`, /names "169.*denied/],
    ['a base on the next line', `FROM \\\n  ${evil}`, /names "169.*denied/],
    ['a base behind another escape', `# escape=\`\nFROM \`\n\n# a\n  ${evil}`, /names "169.*denied/],
    ['the second variable of a line', `ARG A=1 B=${evil}\nFROM $B`, /names "169.*denied/],
    ['a variable that is set anew later', `ARG A=${evil}\nFROM $A\nARG A=b`, /names "169.*denied/],
    ['an empty variable', 'FROM 169.254.${X}169.254/a:1', /names "169.*denied/],
    ['quotes in a name', `FROM 169."254".169.254/a`, /names "169.*denied/],
    ['an argument', 'ARG A\nFROM $A', /names "169.*denied/, { buildArguments: JSON.stringify({ A: evil }) }],
    ['a frontend', `# syntax=${evil}\nFROM a`, /names "169.*denied/],
    ['a frontend by argument', 'FROM a', /names/, { buildArguments: `{"BUILDKIT_SYNTAX":"${evil}"}` }],
    [
      'a frontend of others',
      '# a\n#syntax = docker.io/a/b:1 c\nFROM a',
      /frontend "docker.io\/a\/b:1".*network: true/,
    ],
    [
      'such a frontend by argument',
      'FROM a',
      /frontend "a\/b"/,
      { buildArguments: '{"BUILDKIT_SYNTAX":" a/b c"}' },
    ],
    ['a space of Go alone', 'FROM a\n\u0085ADD http://example.org/a /a', /holds the character U\+0085/],
    ['a space of JavaScript alone', 'FROM a\nRUN a \\\n\ufeff\nADD \\\n a /a', /holds the character U\+FEFF/],
    ['an escape character behind another', `FROM a\nRUN a \\\\\n${added}`, /has no network/],
    [
      'an escape character that older builders take',
      'FROM a\nADD \\\\\n http://c/a \\\n /a',
      /has no network/,
    ],
    ['a space that is none behind an escape character', `FROM a\nRUN a \\\u00a0\n${added}`, /has no network/],
    ['a mount', `FROM a\nRUN --mount=from=${evil},target=/a ls`, /names "169.*denied/],
    ['a quoted mount', `FROM a\nRUN --mount=type=bind,"from=${evil}" ls`, /names "169.*denied/],
    ['a copy', `FROM a\nCOPY --from=${evil} /a /a`, /names "169.*denied/],
    ['a copy that is kept', `FROM a\nONBUILD COPY --from=${evil} /a /a`, /names "169.*denied/],
    ['a version 6 address', 'FROM [fe80::1]:80/a', /names "\[fe80.*denied/],
    ['a variable that is cut', 'ARG A=b\nFROM ${A#x}', /not known before the build/],
    [
      'variables that double each other',
      `ARG A=b\n${'ARG A=$A$A\n'.repeat(40)}FROM $A`,
      /not known before the build/,
    ],
    [
      'a long variable often in many words',
      `ARG A=${'a'.repeat(4_000)}\n${`ARG B=${'$A'.repeat(2_000)}\n`.repeat(200)}FROM $B`,
      /not known before the build/,
    ],
    [
      'a long word of what could begin an address',
      `FROM a\nADD ${`${'a@'.repeat(32_000)}\\\n`.repeat(14)} /a\n${added}`,
      /has no network/,
    ],
    ['a line of 64 KiB', `FROM a\n# ${'a'.repeat(65_534)}`, /line 2 of the recipe has more than 65535 bytes/],
    ['more than a megabyte', `FROM a\n${'# a\n'.repeat(2 ** 18)}`, /has more than 1048576 bytes/],
    ['a heredoc that ends like a continued line', `${heredoc}${evil}`, /not known before the build/],
    ['an address', 'FROM a\nADD http://example.org/a /a', /has no network/],
    ['an address behind a space with an escape character', 'FROM a\nADD b\\ http://c/a /a', /has no network/],
    ['a repository', 'FROM a\nADD ["git@example.org:a/b.git", "/a"]', /has no network/],
    ['words behind an array', 'FROM a\nADD ["\\u0068ttp://c/a", "/a"] b', /has no network/],
    ['an address in a variable', 'FROM a\nADD ${A} /a', /not known before the build/],
    ['a denied address', 'FROM a\nADD http://169.254.169.254/a /a', /adds "http.*denied/, { network: true }],
    ['a metadata service', 'FROM a\nADD http://metadata/a /a', /metadata service/, { network: true }],
  ])('whose recipe has %s is 422', async (name, text, message, more = {}) => {
    const recipe = `${text}\n`
    const { body } = await send(service, await contextOf({ Dockerfile: recipe }))
    const answer = await service.call('POST', '/artifact-builds/', {
      ...{ id: 'judged', artifactVersionId: 'artifact-version:tool:1:system:', contextDigest: body.digest },
      ...{ recipeDigest: sha256(recipe), cacheKey: name, targetFormat: 'oci', ...more },
    })
    expect([answer.status, answer.body.error]).toEqual([422, expect.stringMatching(message)])
  })

  const long = '# a\n'.repeat(2 ** 19)
  test.each([
    [
      'grows by its arguments',
      `%arguments\na=${'x'.repeat(2 ** 19)}\n%post\n${long}${'{{ a }}\n'.repeat(2 ** 15)}`,
      /add more than 1048576 characters/,
    ],
    ['has more than 4 MiB', `%post\n${long}${long}`, /has more than 4194304 bytes/],
  ])('whose definition %s is 422', async (cacheKey, sections, message) => {
    const text = `Bootstrap: scratch\n${sections}`
    const { body } = await send(service, await contextOf({ 'apptainer.def': text }))
    const answer = await service.call('POST', '/artifact-builds/', {
      ...{ id: 'grown', artifactVersionId: 'artifact-version:tool:1:system:', contextDigest: body.digest },
      ...{ recipeDigest: sha256(text), cacheKey, sourceType: 'definition', targetFormat: 'sif' },
    })
    expect([answer.status, answer.body.error]).toEqual([422, expect.stringMatching(message)])
  })

  test('of a definition whose base the engine has to pull is not begun while the engine is away', async () => {
    const definition = 'Bootstrap: docker\nFrom: a:1\n'
    const files = { 'apptainer.def': definition, Dockerfile: definition }
    await describedBuild(service, 'defined', files, { sourceType: 'definition', targetFormat: 'sif' })
    const answer = await service.call('POST', '/artifact-builds/defined/runs/')
    expect([answer.status, answer.body.error]).toEqual([503, expect.stringMatching(/container engine|no /)])
    expect(await service.get('/artifact-builds/defined/runs/')).toEqual([])
  })

  test('whose context is at another host is begun while the engine here is away', async () => {
    const { contextDigest } = await describedBuild(service, 'elsewhere', { Dockerfile: 'FROM a:1\n' })
    expect((await service.call('POST', '/artifact-builds/elsewhere/runs/')).status).toBe(503)
    await service.db.run(
      sql`update build_contexts set host_id = 'another-host' where digest = ${contextDigest as string}`,
    )
    const { status, body } = await service.call('POST', '/artifact-builds/elsewhere/runs/')
    expect([status, body.error]).toEqual([202, undefined])
    expect((await service.call('POST', `/build-runs/${body.id}/cancel/`)).status).toBe(202)
    await until(
      'the end of the run',
      120,
      async () => (await service.get(`/build-runs/${body.id}/`)).status === 'cancelled',
    )
  })

  test('with usual recipes is stored', async () => {
    const recipes = [
      'ARG TAG=1\nFROM --platform=$BUILDPLATFORM b:${TAG:-2} AS x\nFROM a-$TARGETARCH\nCOPY --from=x /a /a\n',
      'FROM a\nADD --chown=1:1 a-${V}.tar.gz ./b/$C /a/\nRUN <<EOF\nselect 1\nFROM x\nEOF\n',
      '\ufeff# syntax=docker/dockerfile:1.7-labs\r\nFROM a\r\nRUN a \\\r\n  b\r\n# syntax = proto3\r\n',
      'FROM a\nRUN cat <<\'A\' && echo "$((1 << 2))" <<< x \\\n  && ls\n1\nA\n',
    ]
    for (const [at, Dockerfile] of recipes.entries())
      await describedBuild(service, `usual-${String(at)}`, { Dockerfile })
    const Dockerfile = 'FROM a\nADD https://example.org/a /a\n'
    await describedBuild(service, 'fetching', { Dockerfile }, { network: true })
    const frontend = { buildArguments: '{"BUILDKIT_SYNTAX":"a/b"}', network: true }
    await describedBuild(service, 'read-by-others', { Dockerfile }, frontend)
  })

  test('of an image stands beside its version; both digests are of its name', async () => {
    const given = { artifactId: 'imaged', version: '1', image: 'docker://registry.example.org/tools/a:1' }
    const { artifact, build } = await service.post('/artifacts/docker/', given)
    const digest = sha256('docker://registry.example.org/tools/a:1\n')
    expect(artifact).toMatchObject({ artifactId: 'imaged', version: '1', scope: 'system' })
    expect(build).toMatchObject({
      ...{ sourceType: 'docker-image', contextDigest: digest, recipeDigest: digest, targetFormat: 'sif' },
      ...{ artifactVersionId: artifact.id, image: 'registry.example.org/tools/a:1' },
    })
    expect((await service.call('POST', '/artifacts/docker/', given)).status).toBe(422)
    expect(await service.get('/artifacts/')).toContainEqual({
      ...{
        id: 'imaged',
        name: 'imaged',
        version: '1',
        artifactVersionId: artifact.id,
        scope: 'system',
        formats: [],
      },
    })
    expect(await service.get('/artifacts/?selectable=true')).toEqual([])
  })

  test.each([
    'a b',
    '-v',
    'user:secret@registry.example.org/a:1',
    'a\nb',
    'http://example.org/a',
    '169.254.169.254/a:1',
    '127.1/a:1',
    'metadata.google.internal/a:1',
    '',
  ])('of the image %j is 422', async (image) => {
    const answer = await service.call('POST', '/artifacts/docker/', {
      artifactId: 'wrong',
      version: '1',
      image,
    })
    expect([answer.status, answer.body.details[0].path]).toEqual([422, 'image'])
  })
})

test('what does not exist is 404 for readers, starts and deletions', async () => {
  for (const [method, path] of [
    ['GET', '/artifact-builds/none/'],
    ['DELETE', '/artifact-builds/none/'],
    ['GET', '/artifact-builds/none/runs/'],
    ['GET', '/build-runs/none/'],
    ['GET', '/build-runs/none/output/'],
    ['GET', '/build-runs/none/logs/'],
    ['POST', '/build-runs/none/cancel/'],
    ['GET', '/artifact-versions/none/'],
    ['DELETE', '/artifact-versions/none/'],
    ['DELETE', `/build-contexts/${sha256('none')}/`],
  ] as const)
    expect([method, path, (await service.call(method, path)).status]).toEqual([method, path, 404])
})

test('a materialization is recorded and updated; committed only with the digest that was found', async () => {
  const given = {
    id: 'm',
    runId: 'none',
    variantId: 'none',
    digest: sha256('a'),
    resourceId: 'none',
    destinationPath: '/a.sif',
  }
  const answer = await service.call('POST', '/artifact-materializations/', { ...given, status: 'committed' })
  expect(answer.status).toBe(422)
  expect(answer.body.details.map(({ path }: { path: string }) => path)).toEqual([
    'runId',
    'variantId',
    'resourceId',
    'verifiedDigest',
  ])
  expect(await service.get('/artifact-materializations/')).toEqual([])
})

test('the materialization of an image that an engine pulled can be sent back', async () => {
  await service.post('/environments/', {
    environment: { id: 'pulls', name: 'pulls' },
    version: { id: 'pulls-v1', version: 1 },
    resources: [{ id: 'engine', name: 'engine', providerId: 'engine' }],
  })
  await service.db.run(
    sql`insert into artifact_materializations (id, digest, resource_id, site, destination_path, status, verified_digest)
      values ('pulled', ${sha256('image')}, 'engine', 'local@here', 'the store of the engine', 'committed',
        ${sha256('image')})`,
  )
  const [shown] = await service.get('/artifact-materializations/')
  expect(shown).toMatchObject({ id: 'pulled', variantId: sha256('image'), digest: sha256('image') })
  for (const document of [shown, { ...shown, id: 'elsewhere', destinationPath: '/other' }]) {
    const answer = await service.call('POST', '/artifact-materializations/', document)
    expect([answer.status, answer.body]).toEqual([201, document])
  }
  expect(await service.get('/artifact-materializations/')).toMatchObject([
    { id: 'pulled' },
    { id: 'elsewhere' },
  ])
  for (const [wrong, path] of [
    [{ variantId: sha256('other') }, 'variantId'],
    [{ digest: sha256('other'), verifiedDigest: sha256('other') }, 'digest'],
  ] as const)
    expect(
      (await service.call('POST', '/artifact-materializations/', { ...shown, ...wrong })).body.details,
    ).toMatchObject([{ path }])

  // The service recorded the first one itself; the second is the user's.
  const documents = await service.get('/artifact-materializations/')
  const taken = { status: 'failed', destinationPath: '/gone' }
  const answer = await service.call('POST', '/artifact-materializations/', { ...shown, ...taken })
  expect([answer.status, answer.body.details]).toEqual([
    422,
    [{ path: 'id', message: expect.stringContaining('is a record of the service') }],
  ])
  expect(await service.get('/artifact-materializations/')).toEqual(documents)
  const own = { ...shown, id: 'elsewhere', ...taken }
  expect(await service.post('/artifact-materializations/', own)).toEqual(own)

  // A run that was deleted stays named by the records of what was brought for it.
  await service.db.run(sql`update artifact_materializations set run_id = 'deleted'`)
  for (const document of await service.get('/artifact-materializations/'))
    expect(await service.post('/artifact-materializations/', document)).toEqual(document)
})
