import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { haveApptainer } from '../../sites/apptainer.ts'
import { openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { readDefinition } from '../../src/drivers/build/definition.ts'
import { quote } from '../../src/shell/quote.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { contextOf, describedBuild, send, sha256 } from './world.ts'

/** Definitions of Apptainer, built by the real one from an image of a real engine. */

const { afterAll, beforeAll, describe, test } = needs(
  ...(['root', 'docker.io', 'runc', 'iproute2', 'squashfs-tools', 'bubblewrap'] as const),
)

const folder = mkdtempSync(join(runFolder(), 'definitions-'))
/** The sandboxes of all builds here lie below it. */
const store = join(folder, `-art'i"facts $(touch ran) \`touch ran\` ; touch ran #%s`)
let engine: DockerEngine
let service: TestService
beforeAll(async () => {
  await haveApptainer()
  engine = await openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true })
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  await engine.docker('load', '--quiet', '--input', busybox)
  service = await openService({
    environment: { SERVICE_CONTAINER_ENGINE: engine.socket, SERVICE_ARTIFACT_ROOT: store },
  })
}, 600_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await engine?.[Symbol.asyncDispose]()
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const base = 'Bootstrap: docker\nFrom: local/bb:1\n'
const definitionOf = (id: string, text: string, more: object = {}, files: Record<string, string> = {}) =>
  describedBuild(
    service,
    id,
    { 'apptainer.def': text, ...files },
    {
      ...{ sourceType: 'definition', recipeDigest: sha256(text), targetFormat: 'sif' },
      ...more,
    },
  )
const ended = (id: string): Promise<any> =>
  until(`the end of ${id}`, 180, async () => {
    const run = await service.get(`/build-runs/${id}/`)
    return ['completed', 'failed', 'cancelled'].includes(run.status) ? run : undefined
  })
const built = async (id: string, query = ''): Promise<any> => {
  const answer = await service.call('POST', `/artifact-builds/${encodeURIComponent(id)}/runs/${query}`)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  return ended(answer.body.id)
}
/** The file of a run's output. */
const outputFile = async (run: string): Promise<string> => {
  const path = join(folder, run)
  const answer = await fetch(`${service.baseUrl}/build-runs/${run}/output/`)
  writeFileSync(path, Buffer.from(await answer.arrayBuffer()))
  return path
}
const expectTidy = (): void => expect(readdirSync(join(store, 'builds'))).toEqual([])
const processes = (what: string): string =>
  execFileSync('sh', ['-c', `pgrep -f "$1" || true`, 'sh', what]).toString()

describe('a definition', () => {
  test('becomes a SIF file that Apptainer runs; built anew with SOURCE_DATE_EPOCH it has the same digest', async () => {
    const text = [
      base,
      '%arguments',
      '    WHO=nobody',
      '%setup',
      '    echo "of setup" > "${APPTAINER_ROOTFS}/srv-setup"',
      '%files',
      '    text /srv/text',
      '%environment',
      '    export GREETED={{ WHO }}',
      '%post',
      '    echo "hello {{ WHO }}, $SOURCE_DATE_EPOCH" >> /srv/text',
      '    mkdir /srv/closed && chmod 0 /srv/closed',
      '%runscript',
      '    cat /srv/text /srv-setup; echo "$GREETED"',
    ].join('\n')
    await definitionOf(
      'greeting',
      text,
      { buildArguments: '{"WHO":"world","SOURCE_DATE_EPOCH":"1000000000"}' },
      { text: 'a\n' },
    )
    const run = await built('greeting')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    const said = execFileSync('apptainer', ['-s', 'run', await outputFile(run.id)], { cwd: '/' }).toString()
    expect(said).toBe('a\nhello world, 1000000000\nof setup\nworld\n')
    const again = await built('greeting', '?fresh=true')
    expect([again.status, again.outputDigest]).toEqual(['completed', run.outputDigest])
    const third = await built('greeting')
    expect(third.logs).toContain('an earlier run of this build made')
    const id = await engine.docker('inspect', '--format', '{{.Id}}', 'local/bb:1')
    expect(run.bases).toEqual([{ image: 'local/bb:1', digest: id, digestOf: 'engine' }])
    expect([again.bases, third.bases]).toEqual([run.bases, run.bases])
    expectTidy()
  }, 400_000)

  test('begins with an image that is pinned by its id in the engine', async () => {
    const id = await engine.docker('inspect', '--format', '{{.Id}}', 'local/bb:1')
    await definitionOf('pinned', `Bootstrap: docker\nFrom: local/bb@${id}\n%post\n    true\n`)
    const run = await built('pinned')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.bases).toEqual([{ image: 'local/bb', digest: id, digestOf: 'engine' }])
  }, 120_000)

  test('reaches no network, no file and no process of the host, in %setup and %post', async () => {
    const look = [
      '    cat /proc/net/dev; ps 2>/dev/null || true',
      `    ls ${quote(store)} /root /home /var/run/docker.sock /etc/shadow 2>&1 || true`,
      '    echo no > /proc/sys/kernel/core_pattern 2>&1 || echo "cannot set"',
      '    touch /usr/of-the-build 2>&1 || echo "cannot write"',
    ].join('\n')
    await definitionOf('alone', `${base}%setup\n${look}\n%post\n${look}\n`)
    const run = await built('alone')
    expect([run.status, run.error]).toEqual(['completed', undefined])
    expect(run.logs).not.toMatch(/eth0|docker\.sock$|postgres/m)
    expect(run.logs).toMatch(/cannot set/)
    expect(run.logs).toMatch(/cannot write/)
    expect(existsSync('/usr/of-the-build')).toBe(false)
  }, 200_000)

  test('with metacharacters in every name and value has them unchanged, and runs nothing outside', async () => {
    // In the sandbox /tmp can be written, so that what runs there leaves its file there.
    const planted = [join(folder, 'executed'), `/tmp/executed-${process.pid}`]
    const bait = planted.map((path) => `$(touch ${path}) \`touch ${path}\` ; touch ${path}`).join(' ')
    const hostile = `-rf a'b"c ${bait} %post {{}} $$ \\1 & #x`
    const name = "x $(touch ran);`y`'z {{ NAME }} %s"
    const text = [
      'Bootstrap: docker-archive',
      "From: -it's $(touch ran) `touch ran` ;.tar",
      'Stage: first',
      '%post',
      '    echo first > /srv-first',
      'Bootstrap: docker',
      'From: {{ IMAGE }}',
      '%files from first',
      '    /srv-first /srv/first',
      '%files',
      '    files /srv/files',
      '    ./-rf /srv/dashed',
      '%environment',
      // A text in single quotes of the shell: a value without them is written as it is.
      "    export SHOWN='{{ QUOTED }}'",
      '%post',
      '    {{ COMMAND }}',
      "    cat > /srv/value <<'END'",
      '{{ VALUE }}',
      'END',
      '%runscript',
      '    cat /srv/value; printf "%s\\n" "$SHOWN"; cat "/srv/files/$1" /srv/dashed /srv/first',
    ].join('\n')
    const recipePath = `-d/it's a "def" $(touch ran);\`touch ran\`.def`
    const id = `-rf 'a' "b" $(touch ran) ;{{ x }} %s`
    const value = {
      ...{ VALUE: hostile, QUOTED: hostile.replaceAll("'", ''), IMAGE: 'local/bb:1', _unused: hostile },
      COMMAND: `touch ${planted[1]}; ls /tmp`,
    }
    const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
    await describedBuild(
      service,
      id,
      {
        ...{ [recipePath]: text, [`files/${name}`]: 'kept\n', '-rf': 'dashed\n' },
        "-it's $(touch ran) `touch ran` ;.tar": readFileSync(busybox),
      },
      {
        ...{ sourceType: 'definition', recipePath, recipeDigest: sha256(text), targetFormat: 'sif' },
        buildArguments: JSON.stringify(value),
      },
    )
    const run = await built(id)
    expect([run.status, run.error]).toEqual(['completed', undefined])
    // The command did run, there.
    expect(run.logs).toContain(`executed-${process.pid}`)
    const file = await outputFile(run.id)
    const said = execFileSync('apptainer', ['-s', 'run', file, name], { cwd: '/' }).toString()
    expect(said).toBe(`${hostile}\n${value.QUOTED}\nkept\ndashed\nfirst\n`)
    expect([...planted, 'ran', '/ran'].filter((path) => existsSync(path))).toEqual([])
    expectTidy()
  }, 240_000)

  test('whose section fails, fails with its log', async () => {
    await definitionOf('failing', `${base}%post\n    echo before\n    false\n`)
    const run = await built('failing')
    expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(/Apptainer ended with/)])
    expect(run.logs).toContain('before')
    expectTidy()
  }, 120_000)

  test('that prints without end fails at the bound of its log', async () => {
    await definitionOf(
      'noisy',
      `${base}%post\n    yes "a line of a log that has no end, and that nobody reads"\n`,
    )
    const run = await built('noisy')
    expect([run.status, run.error]).toEqual([
      'failed',
      expect.stringMatching(/more than 16777216 bytes of log/),
    ])
    expect(run.logs.length).toBeLessThanOrEqual(65_536)
    expectTidy()
  }, 60_000)

  test('for another architecture than this machine’s fails with both names', async () => {
    await definitionOf('elsewhere', `${base}%post\n    true\n`, { targetArchitecture: 'arm64' })
    const run = await built('elsewhere')
    expect([run.status, run.error]).toEqual(['failed', expect.stringMatching(/for amd64 .*wants arm64/)])
  }, 60_000)

  test('that is cancelled ends with all its processes', async () => {
    await definitionOf('long', `${base}%post\n    sleep 98765 &\n    sleep 98765\n`)
    const { id } = await service.post('/artifact-builds/long/runs/', undefined)
    await until('the section is under way', 60, () =>
      Promise.resolve(processes('^sleep 98765') === '' ? undefined : true),
    )
    expect((await service.call('POST', `/build-runs/${id}/cancel/`)).status).toBe(202)
    expect((await ended(id)).status).toBe('cancelled')
    expect(processes('^sleep 98765')).toBe('')
    expectTidy()
  }, 180_000)

  test.each([
    [
      'an image of a denied host',
      'Bootstrap: docker\nFrom: 169.254.169.254/a:1\n',
      /169\.254\.169\.254.*denied/,
    ],
    ['a registry of a denied host', 'Bootstrap: docker\nRegistry: 169.254.169.254\nFrom: a:1\n', /denied/],
    [
      'a host behind an argument',
      'Bootstrap: docker\nFrom: {{ A }}/a:1\n%arguments\nA=169.254.169.254\n',
      /denied/,
    ],
    ['packages of a mirror', 'Bootstrap: debootstrap\nMirrorURL: http://10.0.0.1/\n', /MirrorURL/],
    ['a library', 'Bootstrap: library\nFrom: a/b/c\n', /docker, scratch/],
    ['further packages', `${base}Include: curl\n`, /Include/],
    ['a file of the host', `${base}%files\n    /etc/shadow /srv/\n`, /\/etc\/shadow.*build context/],
    ['a file above the context', `${base}%files\n    ../../a /srv/\n`, /build context/],
    [
      'a file behind an argument',
      `${base}%arguments\nF=/etc\n%files\n    {{ F }}/shadow /a\n`,
      /build context/,
    ],
    ['an image file of the host', 'Bootstrap: localimage\nFrom: /srv/a.sif\n', /build context/],
    [
      'a value that Apptainer would replace again',
      `${base}%arguments\nA={ B }}\n%post\n    echo {{{ A }}\n`,
      /\{\{ B \}\}/,
    ],
    ['an unknown argument', `${base}%post\n    echo {{ NONE }}\n`, /NONE/],
    ['no Bootstrap', '%post\n    true\n', /before its Bootstrap/],
  ])('with %s is refused', async (title, text, message) => {
    const { artifactVersionId } = await service.post('/artifacts/', { artifactId: title, version: '1' })
    const { body } = await send(service, await contextOf({ 'apptainer.def': text }))
    const answer = await service.call('POST', '/artifact-builds/', {
      ...{ id: title, artifactVersionId, sourceType: 'definition', contextDigest: body.digest },
      ...{ recipeDigest: sha256(text), cacheKey: title },
    })
    expect([answer.status, answer.body.error]).toEqual([422, expect.stringMatching(message)])
  })

  test('with a network is refused', async () => {
    await expect(definitionOf('networked', base, { network: true })).rejects.toThrow(/network/)
  })
})

test('stages, headers and files of other stages are read', () => {
  const read = readDefinition(
    'bootstrap: docker\nfrom: //one:1 # a comment\nStage: build\n%files\n a\n%post\n echo \\\n  x\n' +
      'Bootstrap: docker\nFrom: two:{{ T }}\n%files from build\n /srv/a /srv/b\n%arguments\n T="2"\n',
  )
  expect(read.images).toEqual(['one:1', 'two:2'])
  expect(read.textFor((image) => `/${image}`)).toBe(
    'bootstrap: docker-archive\nfrom: /one:1\nstage: build\n%files\n a\n%post\n echo \\\n  x\n\n' +
      'bootstrap: docker-archive\nfrom: /two:2\n%files from build\n /srv/a /srv/b\n',
  )
})
