import { afterAll, beforeAll, describe, expect, jest } from '@jest/globals'
import { chmodSync, existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sql } from '../../src/db/sql.ts'
import { machineConfigurationRoutes } from '../../src/domains/machine-configurations/routes.ts'
import type { IdempotencyStore } from '../../src/http/idempotency.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { needs } from '../support/needs.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { runFolder } from '../support/run-folder.ts'

const { test } = needs('ansible-core', 'bubblewrap')
jest.setTimeout(60_000)

/** Every answer is lost, as if the daemon had died behind the commit. */
const forgetful: IdempotencyStore = {
  begin: () => Promise.resolve('fresh'),
  complete: () => Promise.resolve(),
  abandon: () => Promise.resolve(),
  renew: () => Promise.resolve(),
}

let app: OpenedRoutes
const opened = (environment: Record<string, string> = {}) =>
  openRoutes(
    (db, atClose) => {
      const localShell = openLocalShell({ environment })
      atClose.defer(() => localShell.close())
      return machineConfigurationRoutes({ db, links: { localShell } })
    },
    { kernel: { idempotency: forgetful } },
  )
beforeAll(async () => {
  app = await opened()
})
afterAll(() => app.close())

const good = '- hosts: all\n  tasks:\n    - name: greet\n      ansible.builtin.command: echo hi\n'
const validate = (playbookYaml: unknown, at: OpenedRoutes = app) =>
  at.call('POST', '/machine-configuration-validations/', { playbookYaml })
const task = (text: string): string => `- hosts: all\n  tasks:\n    - ${text}\n`

test('a version whose answer was lost is added once', async () => {
  await app.call('POST', '/machine-configurations/', { id: 'repeated', name: 'repeated' })
  const add = () =>
    app.call(
      'POST',
      '/machine-configurations/repeated/versions/',
      { playbookYaml: good },
      { 'idempotency-key': 'version' },
    )
  const [first, second] = [await add(), await add()]
  expect([first.status, first.body.versions.length]).toEqual([201, 1])
  expect([second.status, second.body.versions]).toEqual([201, first.body.versions])
})

test('a configuration has versions that never change, newest first', async () => {
  const made = await app.call('POST', '/machine-configurations/', { name: 'worker', description: 'd' })
  expect(made.status).toBe(201)
  expect(made.body).toMatchObject({
    name: 'worker',
    description: 'd',
    ownership: 'user',
    enabled: true,
    versions: [],
  })
  expect(made.body.id).toMatch(/^machine-configuration-[0-9a-f-]{36}$/)
  const path = `/machine-configurations/${made.body.id}/`
  const first = await app.call('POST', `${path}versions/`, { playbookYaml: good })
  expect(first.status).toBe(201)
  const variablesSchema = { type: 'object', properties: { size: { type: 'integer' } } }
  const second = await app.call('POST', `${path}versions/`, {
    ...{
      playbookYaml: `\n${good}\n`,
      status: 'published',
      compatibility: { providers: ['aws'] },
      variablesSchema,
    },
    validationChecks: [{ name: 'here', command: 'true' }],
  })
  expect(second.body.versions).toMatchObject([
    {
      version: 2,
      status: 'published',
      compatibility: { providers: ['aws'] },
      variablesSchema,
      validationChecks: [{ name: 'here', command: 'true' }],
    },
    { version: 1, status: 'draft', compatibility: {}, machineConfigurationId: made.body.id },
  ])
  expect(second.body.versions[0].id.startsWith(`${made.body.id}-`)).toBe(true)
  expect(second.body.versions[0].contentSha256).toBe(second.body.versions[1].contentSha256)
  expect((await app.call('GET', path)).body).toEqual(second.body)
  const again = await app.call('POST', `${path}versions/`, { playbookYaml: good, version: 2 })
  expect([again.status, again.body.details[0].path]).toEqual([422, 'version'])
  const taken = { id: second.body.versions[0].id, playbookYaml: good }
  expect((await app.call('POST', `${path}versions/`, taken)).body.details).toEqual([
    { path: 'id', message: expect.stringMatching('is taken .*; .* choose another id') },
  ])
  expect(
    (await app.call('POST', '/machine-configurations/no/versions/', { playbookYaml: good })).status,
  ).toBe(404)
  expect((await app.call('GET', '/machine-configurations/no/')).status).toBe(404)
})

test('answers can be sent back; two configurations may have one name', async () => {
  const { body: made } = await app.call('POST', '/machine-configurations/', { name: 'sent back' })
  const { id: _, ...rest } = made
  const twin = await app.call('POST', '/machine-configurations/', { ...rest, enabled: false })
  expect([twin.status, twin.body]).toEqual([
    201,
    {
      ...made,
      ...{ id: twin.body.id, enabled: false },
      ...{ createdAt: twin.body.createdAt },
      updatedAt: twin.body.updatedAt,
    },
  ])
  expect(twin.body.id).not.toBe(made.id)
  expect((await app.call('POST', '/machine-configurations/', made)).body.details).toEqual([
    { path: 'id', message: expect.stringContaining('is taken') },
  ])
  const path = `/machine-configurations/${made.id}/versions/`
  const [version] = (await app.call('POST', path, { playbookYaml: good })).body.versions
  const next = await app.call('POST', path, {
    ...version,
    id: 'sent-back-2',
    version: 2,
    contentSha256: 'old',
  })
  expect([next.status, next.body.versions[0]]).toEqual([
    201,
    { ...version, id: 'sent-back-2', version: 2, createdAt: next.body.versions[0].createdAt },
  ])
  const elsewhere = { ...version, id: 'sent-back-3', version: 3, machineConfigurationId: twin.body.id }
  expect((await app.call('POST', path, elsewhere)).body.details).toMatchObject([
    { path: 'machineConfigurationId' },
  ])
  const whole = await app.call('POST', '/machine-configurations/', { ...rest, versions: [version] })
  expect([whole.status, whole.body.details]).toEqual([
    422,
    [{ path: 'versions', message: expect.stringContaining('/versions/') }],
  ])
})

test('one configuration comes with the service; its playbook passes its own check, and it takes no versions', async () => {
  const list = await app.call('GET', '/machine-configurations/')
  const builtIn = list.body.find(({ id }: { id: string }) => id === 'akoflow-scientific-worker')
  expect(builtIn).toMatchObject({
    ownership: 'system',
    versions: [{ id: 'akoflow-scientific-worker-v7', version: 7, status: 'published' }],
  })
  const verdict = await validate(builtIn.versions[0].playbookYaml)
  expect([verdict.status, verdict.body]).toEqual([
    200,
    { valid: true, sha256: builtIn.versions[0].contentSha256 },
  ])
  const more = await app.call('POST', '/machine-configurations/akoflow-scientific-worker/versions/', {
    playbookYaml: good,
  })
  expect(more.status).toBe(422)
})

test('the list is whole without a page, as other arrays are', async () => {
  await app.db.run(sql`insert into machine_configurations (id, name)
    select 'many-' || n, 'many' from generate_series(1, 101) n`)
  const { body, headers } = await app.call('GET', '/machine-configurations/')
  expect(body.length).toBeGreaterThan(101)
  expect(headers.get('x-total-count')).toBe(String(body.length))
})

test('a validation without a playbook has the members of a verdict', async () => {
  const { status, body } = await app.call('POST', '/machine-configuration-validations/', {})
  expect([status, body.valid, body.errors]).toEqual([422, false, [expect.stringMatching(/^line 1: .*empty/)]])
})

describe('playbooks that are refused, each error with its line', () => {
  test.each<[name: string, playbook: string, error: RegExp]>([
    ['nothing', ' \n', /^line 1: .*empty/],
    ['no YAML', '- hosts: [all\n  tasks: x: y', /^line \d+/],
    ['no list', 'hosts: all\n', /^line 1: .*list of at least one play/],
    ['no plays', '[]', /^line 1: .*list of at least one play/],
    ['no hosts', '\n- tasks: [{debug: {msg: hi}}]', /^line 2: 0: .*hosts/],
    ['no tasks', '- hosts: all\n', /^line 1: 0: .*at least one task/],
    ['a custom tag', task('debug: {msg: !vault x}'), /^line 3.*!vault/],
    ['a tag of Python', task('debug: {msg: !!python/object/apply:os.system [id]}'), /^line 3.*python/],
    ['10^5 levels', '['.repeat(100_000), /nested deeper/],
    ['aliases without end', `- &a [1]\n${'- [*a, *a]\n'.repeat(60)}`, /aliases/],
    ['roles', '- hosts: all\n  roles: [x]\n  tasks: [{debug: {msg: hi}}]', /^line 2: 0\.roles/],
    ['another playbook', "- import_playbook: \"{{ lookup('pipe', 'id') }}\"", /^line 1: /],
    ['the controller as host', '- hosts: localhost\n  tasks: [{debug: {msg: hi}}]', /^line 1: 0\.hosts/],
    [
      'the controller among hosts',
      '- hosts: "all:127.0.0.1"\n  tasks: [{debug: {msg: hi}}]',
      /^line 1: 0\.hosts/,
    ],
    ['a delegated task', task('{command: id, delegate_to: localhost}'), /^line 3: .*delegate_to/],
    ['a local action', task('local_action: command id'), /^line 3: .*local_action/],
    [
      'a local connection',
      '- hosts: all\n  connection: local\n  tasks: [{command: id}]',
      /^line 2: 0\.connection/,
    ],
    [
      'a connection by variable',
      '- hosts: all\n  vars: {ansible_connection: local}\n  tasks: [{command: id}]',
      /^line 2: .*ansible_connection/,
    ],
    ['a connection by fact', task('set_fact: ansible_connection=local'), /^line 3: .*set by the service/],
    ['a lookup', task("debug: {msg: \"{{ lookup('pipe', 'id') }}\"}"), /^line 3: .*lookup/],
    ['a lookup by loop', task('{debug: {msg: x}, with_pipe: [id]}'), /^line 3: .*with_pipe/],
    [
      'a lookup in a block',
      "- hosts: all\n  tasks:\n    - block:\n        - debug:\n            msg: \"{{ query ('env', 'HOME') }}\"",
      /^line 5: .*lookup/,
    ],
    ...[
      ['by brackets', "{{ (lookup)('pipe', 'id') }}"],
      ['under another name', '{% set f = lookup %}'],
      ['by q', "{{ [q][0]('pipe', 'id') }}"],
      ['behind an object', "{{ [{'a': {'b': 1}}, (query)('pipe', 'id')] }}"],
      ['behind a quote in a comment', "{# ' #}{{ (lookup)('pipe', 'id') }}{# ' #}"],
      ['behind a raw block', "{% raw %}{{ '{% endraw %}{{ (lookup)('pipe', 'id') }}"],
      ['behind other marks', "#jinja2: variable_start_string:'[%'\n[% (lookup)('pipe', 'id') %]"],
    ].map(([name = '', msg]): [string, string, RegExp] => [
      `a lookup ${name}`,
      task(`debug: {msg: ${JSON.stringify(msg)}}`),
      /^line 3: .*lookup/,
    ]),
    ...['when', 'changed_when'].map((key): [string, string, RegExp] => [
      `a lookup in ${key}`,
      task(`{command: id, ${key}: ["true", "(lookup)('pipe', 'id')"]}`),
      /^line 3: .*lookup/,
    ]),
    ['a lookup in a variable to show', task("debug: var=(lookup)('pipe','id')"), /^line 3: .*lookup/],
    ['a file of the controller', task('copy: {src: /etc/passwd, dest: /tmp/x}'), /^line 3: .*controller/],
    ['tasks of the controller', task('include_tasks: /etc/passwd'), /^line 3: .*controller/],
    ['a module that does not exist', task('no_such_module: {}'), /^line 3: .*no_such_module/],
  ])('%s', async (_, playbook, error) => {
    const { status, body } = await validate(playbook)
    expect([status, body.valid, body.sha256]).toEqual([
      422,
      false,
      expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
    ])
    expect(body.errors.join('\n')).toMatch(error)
    expect(body.details).toEqual(body.errors.map((message: string) => ({ path: 'playbookYaml', message })))
  })

  test('what only has the name of a lookup is taken', async () => {
    const texts = [
      ...["run the query: {{ 'lookup' }}", "{{ url | urlsplit('query') }} {{ (url | urlsplit).query }}"],
      ...['{{ dict(query=1) }}', '{# lookup #}', '{% raw %}{{ lookup }}{% endraw %}', '{{ queries }} q'],
    ]
    const tasks = texts.map((msg) => `    - debug: {msg: ${JSON.stringify(msg)}}\n`).join('')
    const shell = `{shell: "var=1; nslookup query q", when: "kind == 'query'"}`
    const { status, body } = await validate(task(shell) + tasks)
    expect([status, body.errors]).toEqual([200, undefined])
  })

  test('all errors come at once', async () => {
    const { body } = await validate('- hosts: all\n  roles: [x]\n  tasks:\n    - script: a.sh\n    - {}\n')
    expect(body.errors.map((error: string) => error.split(':')[0])).toEqual(['line 2', 'line 4', 'line 5'])
  })

  test('a megabyte is taken, five are not', async () => {
    const filled = (bytes: number): string => `${good}# ${'x'.repeat(bytes - good.length - 3)}\n`
    expect((await validate(filled(1_048_576))).status).toBe(200)
    expect((await validate(filled(1_048_577))).body.errors[0]).toMatch(/1048576 bytes/)
    expect((await validate(filled(5_242_880))).status).toBe(422)
  })

  test('a refused version leaves nothing behind', async () => {
    await app.call('POST', '/machine-configurations/', { id: 'kept', name: 'kept' })
    const refused = await app.call('POST', '/machine-configurations/kept/versions/', {
      playbookYaml: task('script: a.sh'),
    })
    expect([refused.status, refused.body.valid]).toEqual([422, false])
    expect((await app.call('GET', '/machine-configurations/kept/')).body.versions).toEqual([])
  })
})

test('a schema of variables that cannot be used is refused', async () => {
  await app.call('POST', '/machine-configurations/', { id: 'schemas', name: 'schemas' })
  const add = (variablesSchema: unknown) =>
    app.call('POST', '/machine-configurations/schemas/versions/', { playbookYaml: good, variablesSchema })
  for (const schema of [
    { type: 'array' },
    { type: 'object', $ref: '#' },
    { type: 'object', properties: { a: { type: 'string', pattern: '(a+)+$' } } },
    { type: 'object', properties: { db_password: { type: 'string', default: 'in clear text' } } },
  ])
    expect((await add(schema)).body.details[0].path).toBe('variablesSchema')
  expect((await add({ type: 'object', properties: { a: { type: 'nothing' } } })).status).toBe(422)
})

test('the check runs where nothing of this machine is to be seen', async () => {
  // ansible-playbook evaluates what imports: the rules refuse it before, so the sandbox is asked
  // directly.
  const { syntaxError } = await import('../../src/domains/machine-configurations/syntax-check.ts')
  const shell = openLocalShell({ environment: { SERVICE_SECRET: 'canary' } })
  const trace = join(runFolder(), 'trace')
  try {
    const command = `ls -A / /root /work /var 2>&1; env; touch ${trace}; cat /proc/net/dev`
    const seen = await syntaxError(shell, `- import_playbook: "{{ lookup('pipe', '${command}') }}"\n`)
    expect(seen?.message).toMatch(/bin.*dev.*home.*PATH=/)
    expect(seen?.message).not.toContain('canary')
    expect(seen?.message).not.toMatch(/eth0|orrery|SERVICE_/)
    expect(existsSync(trace)).toBe(false)
  } finally {
    await shell.close()
  }
})

test('a program that is missing is named', async () => {
  const empty = join(runFolder(), 'no-programs')
  mkdirSync(empty)
  const without = await opened({ PATH: empty })
  const { status, body } = await validate(good, without)
  expect([status, body.error]).toEqual([
    503,
    expect.stringMatching(/bwrap.*install the Debian package bubblewrap/),
  ])
  expect((await validate('', without)).status).toBe(422)
  await without.close()
  const failing = join(empty, 'bwrap')
  writeFileSync(failing, '#!/bin/sh\nexit 1\n')
  chmodSync(failing, 0o755)
  const broken = await opened({ PATH: empty })
  expect((await validate(good, broken)).body.error).toMatch(/bwrap makes no namespaces/)
  await broken.close()
})
