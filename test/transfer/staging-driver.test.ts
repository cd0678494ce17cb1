import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { hash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { ShellStream, SiteShell } from '../../src/shell/site-shell.ts'
import type { Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import type { WaysOut } from '../../src/drivers/runtime/contract/kind.ts'
import { openLocalDriver } from '../../src/drivers/runtime/local/driver.ts'
import {
  withArtifacts,
  type ArtifactBytes,
  type ArtifactOptions,
} from '../../src/drivers/transfer/artifacts.ts'
import {
  withTransfers,
  type StagingOptions,
  type EdgeTransfer,
} from '../../src/drivers/transfer/staging-driver.ts'
import { openSiteDrivers } from '../../src/executor/drivers.ts'
import { openHostCores } from '../../src/executor/host-cores.ts'
import { ownPlace } from '../../src/executor/sites.ts'
import { directFrom } from '../../src/drivers/transfer/strategy.ts'
import { transfer } from '../../src/drivers/transfer/transfer.ts'
import { runnerProgram } from '../support/runner-program.ts'
import { proved } from '../support/share.ts'
import { overLink, type LinkFailures } from './links.ts'
import { randomFile, scratch } from './trees.ts'

const folder = scratch()
const shell = openLocalShell()
let local: RuntimeDriver
beforeAll(() => {
  local = openLocalDriver({ controlDirectory: join(folder.path, 'control'), runnerProgram })
})
afterAll(async () => {
  await local.close()
  await shell.close()
  folder[Symbol.dispose]()
})

const incoming = join(folder.path, 'incoming')
const made = (name: string, bytes: number): string => {
  const directory = join(folder.path, 'made', name)
  mkdirSync(directory, { recursive: true })
  randomFile(join(directory, name), bytes)
  return directory
}

const task = (name: string, stage: Intent['stage'], argv = ['/bin/sh', '-c', 'ls > listing']): Intent => ({
  name,
  directory: join(folder.path, 'work', name),
  argv,
  environment: {},
  stage,
  expectedOutputs: [],
  cores: 1,
  memoryBytes: 0,
  timeoutSeconds: 0,
})

/**
 * A driver of site `here`, whose tasks need files of site `there` behind a link; with what it told.
 */
const withLink = (
  failures: LinkFailures,
  more: Partial<StagingOptions> = {},
): { driver: RuntimeDriver; facts: [string, EdgeTransfer][] } => {
  const facts: [string, EdgeTransfer][] = []
  const link = overLink(shell, failures)
  const driver = withTransfers(local, {
    site: 'here',
    ends: async (site) => ({ site, shell: site === 'here' ? shell : link, mounts: [] }),
    incomingRoot: async () => incoming,
    onTransfer: async (name, fact) => {
      facts.push([name, fact])
    },
    ...more,
  })
  return { driver, facts }
}
const clear = (): LinkFailures => ({ calls: 0, bytes: 0 })

/** A shell that opens no stream before `go`; `begun`: one was asked for. */
const held = (begun: () => void, go: Promise<undefined>): SiteShell => ({
  ...shell,
  async open(script) {
    begun()
    await go
    return shell.open(script)
  },
})

const ended = async (name: string): Promise<void> => {
  while ((await local.find([name])).get(name)?.state !== 'ended') await delay(20)
}

describe('tasks whose files are at another site', () => {
  proved(
    'the files of one producer come once for all that need them here',
    async () => {
      const directory = made('once', 300_000)
      const failures = clear()
      const { driver, facts } = withLink(failures)
      const names = Array.from({ length: 6 }, (_, at) => `once-${String(at)}`)
      const outcomes = await driver.submit(
        names.map((name) => task(name, [{ at: 'there', from: directory, label: 'maker', producer: 7 }])),
      )
      expect(outcomes.map(({ ok }) => ok)).toEqual(names.map(() => true))
      for (const name of names) {
        await ended(name)
        expect(readFileSync(join(folder.path, 'work', name, 'once'))).toEqual(
          readFileSync(join(directory, 'once')),
        )
      }
      expect(facts.map(([name]) => name).sort()).toEqual(names)
      expect(facts.map(([, { strategy }]) => strategy).sort()).toEqual([
        'gateway',
        ...names.slice(1).map(() => 'use-existing'),
      ])
      expect(facts.filter(([, { networkBytes }]) => networkBytes > 0)).toHaveLength(1)
      expect(facts[0]?.[1]).toMatchObject({
        fromSite: 'there',
        toSite: 'here',
        producer: 7,
        from: directory,
        bytes: 300_000,
        files: 1,
      })
      expect(failures.bytes).toBeLessThan(400_000)

      // A new process asks nothing of the source: what is there is verified here.
      const later = withLink({ ...clear(), cut: { call: 2, when: 'before' } })
      const [outcome] = await later.driver.submit([
        task('once-later', [{ at: 'there', from: directory, label: 'maker', producer: 7 }]),
      ])
      expect(outcome?.ok).toBe(true)
      expect(later.facts).toMatchObject([
        ['once-later', { strategy: 'use-existing', bytes: 0, networkBytes: 0, files: 0 }],
      ])

      // The last who needs it takes it away.
      for (const name of [...names, 'once-later']) {
        expect(readdirSync(incoming).filter((entry) => !entry.endsWith('.uses')).length).toBeGreaterThan(0)
        await ended(name)
        await driver.remove(name)
      }
      expect(readdirSync(incoming)).toEqual([])
    },
    300_000,
  )

  test.each<[who: string, Partial<StagingOptions>, Partial<StagingOptions>, { producer?: number }]>([
    ['two sites of one account', { site: 'here' }, { site: 'beside' }, { producer: 7 }],
    ['two runs with one seed', { scope: 'one' }, { scope: 'other' }, {}],
  ])(
    '%s: the files come to both at once, and neither ends the transfer of the other',
    async (who, one, other, maker) => {
      const [begun, go] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
      const name = who.replaceAll(' ', '-')
      const directory = made(name, 9_000_000)
      const stage = [{ at: 'there', from: directory, label: 'maker', ...maker }]
      const slow = held(() => begun.resolve(undefined), go.promise)
      const first = withLink(clear(), {
        ...one,
        ends: async (site) => ({ site, shell: site === 'here' ? shell : slow, mounts: [] }),
      })
      const submitted = first.driver.submit([task(`${name}-1`, stage)])
      await begun.promise
      const second = await withLink(clear(), other).driver.submit([task(`${name}-2`, stage)])
      go.resolve(undefined)
      expect([await submitted, second]).toMatchObject([[{ ok: true }], [{ ok: true }]])
      for (const each of [`${name}-1`, `${name}-2`]) {
        await ended(each)
        expect(readFileSync(join(folder.path, 'work', each, name))).toEqual(
          readFileSync(join(directory, name)),
        )
      }
    },
  )

  test('a seed comes as it is, not as an earlier task had it', async () => {
    const directory = made('seed', 3)
    const stage = [{ at: 'there', from: directory, label: 'workspaceSeedPath seed' }]
    for (const [content, scope] of [
      ['one', 'run'],
      ['two', 'run'],
      ['six', 'later'],
    ] as const) {
      writeFileSync(join(directory, 'seed'), content)
      const { driver } = withLink(clear(), { scope })
      expect(await driver.submit([task(`seed-${content}`, stage)])).toMatchObject([{ ok: true }])
      await ended(`seed-${content}`)
      expect(readFileSync(join(folder.path, 'work', `seed-${content}`, 'seed'), 'utf8')).toBe(content)
    }
  })

  test('its end gives up what the driver beneath waits for, also while a transfer does not end', async () => {
    const directory = made('hangs', 10)
    const asked = Promise.withResolvers<string>()
    const ended = Promise.withResolvers<string>()
    const never = new Promise<never>(() => undefined)
    const driver = withTransfers(
      { ...local, close: async () => ended.resolve('closed') },
      {
        site: 'here',
        ends: (site) => {
          if (site === 'here') return Promise.resolve({ site, shell, mounts: [] })
          asked.resolve(site)
          return never
        },
        incomingRoot: async () => incoming,
        onTransfer: async () => undefined,
      },
    )
    void driver.submit([task('hangs', [{ at: 'there', from: directory, label: 'maker', producer: 7 }])])
    await asked.promise
    void driver.close()
    expect(await ended.promise).toBe('closed')
  })

  test('what moved is told again, as it was, to whom it moved for when nobody heard of it; to others it is there', async () => {
    const directory = made('unheard', 200_000)
    const stage = [{ at: 'there', from: directory, label: 'maker' }]
    const deaf = withLink(clear(), { onTransfer: () => Promise.reject(new Error('killed')) })
    const [killed] = await deaf.driver.submit([task('unheard-first', stage)])
    expect(killed).toMatchObject({ ok: false })
    expect((await local.find(['unheard-first'])).get('unheard-first')).toEqual({ state: 'unknown' })

    const { driver, facts } = withLink(clear())
    for (const name of ['unheard-second', 'unheard-first', 'unheard-third'])
      expect((await driver.submit([task(name, stage)]))[0]?.ok).toBe(true)
    expect(facts.map(([name, { strategy, bytes, files }]) => [name, strategy, bytes, files])).toEqual([
      ['unheard-second', 'use-existing', 0, 0],
      ['unheard-first', 'gateway', 200_000, 1],
      ['unheard-third', 'use-existing', 0, 0],
    ])
    for (const name of facts.map(([one]) => one)) await ended(name)
  })

  test('stages of the own site, and tasks without others, pass through', async () => {
    const directory = made('own', 10)
    const failures = clear()
    const { driver, facts } = withLink(failures)
    const [outcome] = await driver.submit([task('own', [{ at: 'here', from: directory, label: 'own' }])])
    expect(outcome?.ok).toBe(true)
    await ended('own')
    expect([failures.calls, facts]).toEqual([0, []])
  })

  test('what two producers leave under one name is refused with the names of both', async () => {
    const [one, other] = [made('same', 10), join(folder.path, 'made', 'other')]
    mkdirSync(other)
    writeFileSync(join(other, 'same'), 'other')
    const { driver } = withLink(clear())
    const [outcome] = await driver.submit([
      task('conflict', [
        { at: 'there', from: one, label: 'one' },
        { at: 'there', from: other, label: 'other' },
      ]),
    ])
    expect(outcome).toMatchObject({
      ok: false,
      error: { trouble: 'user', message: expect.stringMatching(/one and other both leave "same"/) },
    })
  })

  test('a lost link is asked again, goes on where it was, and the task starts once', async () => {
    const directory = made('cut', 9_000_000)
    const ledger = join(folder.path, 'ledger')
    const intent = task(
      'cut',
      [{ at: 'there', from: directory, label: 'maker' }],
      ['/bin/sh', '-c', `echo ran >> ${ledger}; cmp cut ${directory}/cut`],
    )
    const [first] = await withLink({ ...clear(), cutAtBytes: 5_000_000 }).driver.submit([intent])
    expect(first).toMatchObject({ ok: false, error: { trouble: 'unknown' } })
    const { driver, facts } = withLink(clear())
    for (let time = 0; time < 2; time++) expect((await driver.submit([intent]))[0]?.ok).toBe(true)
    await ended('cut')
    expect((await driver.find(['cut'])).get('cut')).toMatchObject({ exitCode: 0 })
    expect(facts).toMatchObject([['cut', { resumed: true }]])
    expect(facts[0]?.[1].networkBytes).toBeLessThan(4_100_000)
    expect(readFileSync(ledger, 'utf8')).toBe('ran\n')
  })

  test('cancelled while its files are on their way: they stop, and it never starts', async () => {
    const directory = made('stopped', 9_000_000)
    const failures: LinkFailures = { ...clear(), silentAtBytes: 2_000_000 }
    const { driver, facts } = withLink(failures)
    const submitted = driver.submit([task('stopped', [{ at: 'there', from: directory, label: 'maker' }])])
    while (failures.bytes < 2_000_000) await delay(10)
    await driver.cancel(['stopped'], 0)
    await submitted
    expect((await driver.find(['stopped'])).get('stopped')).toMatchObject({
      state: 'ended',
      reason: 'cancelled',
    })
    expect(facts).toEqual([])
    expect(existsSync(join(folder.path, 'work', 'stopped', 'listing'))).toBe(false)
  })
})

describe('tasks whose executable is at another site', () => {
  const directory = (): string => join(folder.path, 'images')
  const image = (name: string): ArtifactBytes => {
    mkdirSync(directory(), { recursive: true })
    randomFile(join(directory(), name), 3_000_000)
    const digest = `sha256:${hash('sha256', readFileSync(join(directory(), name)))}`
    return {
      ...{ digest, sizeBytes: 3_000_000, format: 'sif', at: 'there', directory: directory(), path: name },
      ...{ label: name, strategy: 'managed', reason: 'it was built there' },
    }
  }
  const needing = (name: string): Intent => ({
    ...task(name, [], ['/bin/sh', '-c', 'echo > ran']),
    container: {
      ...{ image: '', network: false, reuse: false, scope: 'run' },
      brought: { id: name, label: name },
    },
  })
  interface Sites {
    failures?: LinkFailures
    here?: SiteShell
  }
  /** A driver of site `here` over `beneath`, whose executables are behind a link. */
  const bringing = (
    beneath: RuntimeDriver,
    ready: ArtifactOptions['ready'],
    { failures = clear(), here = shell, ...more }: Partial<ArtifactOptions> & Sites = {},
  ): RuntimeDriver => {
    const link = overLink(shell, failures)
    const nothing = async (): Promise<void> => undefined
    return withArtifacts(
      beneath,
      {
        ...{ site: 'here', scope: 'run', cacheBytes: 2 ** 30, root: async () => folder.path, ready },
        ends: async (site) => ({ site, shell: site === 'here' ? here : link, mounts: [] }),
        ...{ begun: nothing, delivered: nothing, failed: nothing, ran: nothing, brings: () => true },
        ...more,
      },
      new Map(),
    )
  }

  test('cancelled meanwhile at a site that needs some calls for that: it is passed on only when it never starts', async () => {
    const bytes = image('slow-cancel')
    const failures: LinkFailures = { ...clear(), silentAtBytes: 1_000_000 }
    const order: string[] = []
    const slow: RuntimeDriver = {
      ...local,
      async submit(intents) {
        order.push('passed on')
        return local.submit(intents)
      },
      async cancel(names, graceSeconds) {
        for (let call = 0; call < 3; call++) await shell.run(':')
        await local.cancel(names, graceSeconds)
        order.push('buried')
      },
    }
    const driver = bringing(slow, async () => bytes, { failures })
    const submitted = driver.submit([needing('slow-cancel')])
    while (failures.bytes < 1_000_000) await delay(10)
    await driver.cancel(['slow-cancel'], 0)
    expect(await submitted).toMatchObject([{ ok: true }])
    expect(order).toEqual(['buried', 'passed on'])
    expect((await driver.find(['slow-cancel'])).get('slow-cancel')).toMatchObject({ reason: 'cancelled' })
    expect(existsSync(join(folder.path, 'work', 'slow-cancel', 'ran'))).toBe(false)
  })

  test('cancelled while another brings the same: its wait for the lock ends', async () => {
    const bytes = image('locked')
    const [root, hex] = [join(folder.path, 'artifacts'), bytes.digest.slice(7)]
    mkdirSync(join(root, 'locks'), { recursive: true })
    const other = await shell.open(`exec 9>> ${root}/locks/${hex} && flock 9 && echo held && exec cat`)
    await once(other.stdout, 'data')
    const opened: ShellStream[] = []
    const here: SiteShell = {
      ...shell,
      async open(script) {
        const stream = await shell.open(script)
        opened.push(stream)
        return stream
      },
    }
    const driver = bringing(local, async () => bytes, { here })
    const submitted = driver.submit([needing('locked')])
    while (opened.length === 0) await delay(10)
    await driver.cancel(['locked'], 0)
    expect(await submitted).toMatchObject([{ ok: true }])
    await opened[0]?.done
    other.kill()
  })

  test('a driver that is closed passes nothing on, and records no failure', async () => {
    const bytes = image('left')
    const failures: LinkFailures = { ...clear(), silentAtBytes: 1_000_000 }
    const passed: string[] = []
    const failed: string[] = []
    const beneath: RuntimeDriver = {
      ...local,
      async submit(intents) {
        passed.push(...intents.map(({ name }) => name))
        return local.submit(intents)
      },
      close: async () => undefined,
    }
    let looks = 0
    const ready = async (id: string): Promise<ArtifactBytes | undefined> => {
      if (id === 'left') return bytes
      looks += 1
      return undefined
    }
    const driver = bringing(beneath, ready, { failures, failed: async (name) => void failed.push(name) })
    const submitted = Promise.all(['left', 'unbuilt'].map((name) => driver.submit([needing(name)])))
    while (failures.bytes < 1_000_000 || looks === 0) await delay(10)
    await driver.close()
    const closed = { ok: false, error: { trouble: 'unknown', message: 'the driver was closed' } }
    expect(await submitted).toMatchObject([[closed], [closed]])
    expect([passed, failed]).toEqual([[], []])
  })

  test('one that is another file by now is refused, and is not kept under the digest of the run', async () => {
    const bytes = image('replaced')
    randomFile(join(directory(), 'replaced'), bytes.sizeBytes)
    const failed: string[] = []
    const driver = bringing(local, async () => bytes, { failed: async (name) => void failed.push(name) })
    expect(await driver.submit([needing('replaced')])).toMatchObject([
      { ok: false, error: { trouble: 'refused', message: expect.stringMatching(/replaced .*another file/) } },
    ])
    expect(failed).toEqual(['replaced'])
    const kept = readdirSync(join(folder.path, 'artifacts'), { recursive: true }) as string[]
    const hex = bytes.digest.slice(7)
    expect(kept.filter((path) => path === `${hex}.sif` || path.startsWith(`arriving/${hex}`))).toEqual([])
  })

  test('who leaves this machine gives up its wait for a build, and the machine works on for others', async () => {
    const sites = openSiteDrivers({
      local: { ...local, closeScope: async () => undefined },
      ...{ rehearsal: local, ways: {} as WaysOut, localShell: shell, reachOf: async () => [] },
      ...{ hostId: 'host', workRoot: folder.path, cores: openHostCores(1), taskVariable: 'ORRERY_TASK' },
    })
    const place = ownPlace('host')
    const facts = { hostId: 'host', runtimes: [], resources: [], runtimeBindings: [] }
    const nothing = async (): Promise<void> => undefined
    let looks = 0
    const site = sites.of(place, new Map([[place.site, place]]), facts, [], {
      ...{ begun: nothing, delivered: nothing, failed: nothing, ran: nothing, brings: () => true },
      scope: 'run',
      ready: async () => {
        looks += 1
        return undefined
      },
    })
    const submitted = site.driver.submit([needing('unbuilt-here')])
    while (looks === 0) await delay(10)
    site.leave?.()
    expect(await submitted).toMatchObject([{ ok: false, error: { message: 'the driver was closed' } }])
    expect(await local.submit([task('for-others', [])])).toMatchObject([{ ok: true }])
    await ended('for-others')
    await sites.close()
  })
})

test('the words of a direct way that does not work are in the reason as a terminal shows them', async () => {
  const bin = join(folder.path, 'bin')
  mkdirSync(bin)
  const ssh = `#!/bin/sh
cat > /dev/null
printf 'x%.0s' $(seq 2000) >&2
printf '\\n\\033[31mno\\342\\200\\256\\033[0m\\r\\n' >&2
exit 255
`
  writeFileSync(join(bin, 'ssh'), ssh, { mode: 0o755 })
  const ways = openLocalShell({ environment: { PATH: `${bin}:/usr/bin:/bin` } })
  const door = { host: '127.0.0.1', port: 1, username: 'nobody', knownHosts: '', shell: ways }
  try {
    const { strategy, reason } = await transfer({
      from: { site: 'there', shell, mounts: [], reach: [{ site: 'here', ...door }] },
      to: { site: 'here', shell, mounts: [] },
      source: { directory: made('barred', directFrom) },
      directory: join(incoming, 'barred'),
      label: 'maker',
    })
    expect(strategy).toBe('gateway')
    expect(reason).toMatch(/; not source-push: …x+\nno(;|$)/)
    expect(reason.length).toBeLessThan(1_500)
  } finally {
    await ways.close()
  }
})
