import { spawn } from 'node:child_process'
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { buffer } from 'node:stream/consumers'
import { Readable } from 'node:stream'
import type { Failures } from '../../bench/tally.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import { startSsh } from '../../sites/ssh.ts'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { StorageError, type StorageDriver } from '../../src/drivers/storage/contract.ts'
import { openFilesystem } from '../../src/drivers/storage/filesystem/driver.ts'
import { nameOf, parseNames, type StoragePath } from '../../src/drivers/storage/paths.ts'
import { openPodStorage } from '../../src/drivers/storage/pod.ts'
import { openShellStorage } from '../../src/drivers/storage/shell/driver.ts'
import { pagesBelow } from '../../src/domains/storages/tree.ts'
import { clusterOf } from '../drivers/kubernetes-site.ts'
import { runFolder } from '../support/run-folder.ts'

const secret = 'nobody may read this'
const harmless = 'harmless'
/** Swaps of one round; a round takes seconds. */
const swapsOfRound = 500

interface Place {
  name: string
  driver: StorageDriver
  /** The endpoint, as this process sees it. */
  folder: string
  close(): Promise<void>
}

const at = (path: string): StoragePath => parseNames(nameOf(path))

const here = async (): Promise<Place> => {
  const folder = realpathSync(mkdtempSync(join(runFolder(), 'swaps-')))
  mkdirSync(join(folder, 'endpoint'))
  const driver = openFilesystem({ base: join(folder, 'endpoint') })
  return {
    ...{ name: 'here', driver, folder: join(folder, 'endpoint') },
    close: async () => rmSync(folder, { recursive: true }),
  }
}

const bySsh = async (): Promise<Place> => {
  const site = await startSsh({ hosts: 1 })
  const [host] = site.hosts
  const sessions = openSshSessions()
  const shell = sessions.shell({
    ...{ host: host.address, port: host.port, username: host.user },
    secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
  })
  await shell.run('mkdir -p /srv/swaps/endpoint && chmod -R 0777 /srv/swaps')
  return {
    ...{ name: 'by SSH', driver: openShellStorage({ shell, base: '/srv/swaps/endpoint' }) },
    folder: join(host.folder, 'srv', 'swaps', 'endpoint'),
    close: async () => {
      await sessions.close()
      await site.stop()
    },
  }
}

const inPod = async (): Promise<Place> => {
  const site = await startKubernetes()
  const token = await site.token()
  const cluster = clusterOf(site, () => Promise.resolve(token))
  const { namespace, volume, images } = site
  const pod = { cluster, namespace, claim: volume.claim, mountPath: '/storage' }
  const driver = openPodStorage({ ...pod, configuration: { helperImage: images.gnu } })
  return {
    ...{ name: 'in a Pod', driver, folder: volume.folder },
    close: async () => {
      cluster.close()
      await site.stop()
    },
  }
}

/** Changes `dir` and `link` in a folder as fast as it can, and says how often. */
const startSwapper = (folder: string) => {
  const script = `const { renameSync } = require('node:fs'); process.chdir(${JSON.stringify(folder)}); let swaps = 0
    process.on('message', () => process.send(swaps)); process.on('disconnect', () => process.exit())
    const go = () => {
      for (let i = 0; i < 10; i++) {
        renameSync('dir', 'kept'); renameSync('link', 'dir')
        renameSync('dir', 'link'); renameSync('kept', 'dir'); swaps++
      }
      setImmediate(go)
    }
    go()`
  const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
  return {
    swaps: (): Promise<number> =>
      new Promise((resolve) => {
        child.once('message', resolve)
        child.send('?')
      }),
    stop: (): Promise<void> =>
      new Promise((resolve) => {
        child.once('exit', () => resolve())
        child.kill('SIGKILL')
      }),
  }
}

/** Every call that could lead outside: what stat, copies, archives, deletes and uploads are made of. */
const callsOf = (driver: StorageDriver, round: number): (() => Promise<string | undefined>)[] => {
  const content = async (path: string): Promise<string> =>
    (await buffer((await driver.read(at(path))).stream)).toString()
  const wrong = (what: string, text: string): string | undefined =>
    text === harmless ? undefined : `${what} gave ${JSON.stringify(text.slice(0, 80))}`
  return [
    async () => {
      const { sizeBytes } = await driver.stat(at('swapped/dir/file'))
      return sizeBytes === harmless.length ? undefined : `stat gave a size of ${String(sizeBytes)}`
    },
    async () => wrong('read', await content('swapped/dir/file')),
    async () => {
      for await (const { folder, entries } of pagesBelow(driver, at('swapped/dir'), {
        signal: new AbortController().signal,
      }))
        for (const { name, type } of entries)
          if (type === 'file') {
            const found = wrong('the walk', await content(`swapped/dir/${[...folder, name].join('/')}`))
            if (found !== undefined && !String(name).startsWith('new')) return found
          }
      return undefined
    },
    async () => {
      await driver.delete(at('swapped/dir/victim'))
      await driver.write(
        at('swapped/dir/victim'),
        Readable.from([Buffer.from(harmless)], { objectMode: false }),
      )
      return undefined
    },
    async () => {
      const path = at(`swapped/dir/new-${round}`)
      await driver.write(path, Readable.from([Buffer.from(harmless)], { objectMode: false }))
      await driver.delete(path)
      return undefined
    },
    async () => {
      const [file] = await driver.readMany!(at('swapped/dir'), [nameOf('file')])
      return file && wrong('reading many', file.bytes.toString())
    },
    async () => {
      const pack = { name: nameOf('packed'), bytes: Buffer.from(harmless), upload: `pack-${round}` }
      await driver.writeMany!(at('swapped/dir'), [pack], { overwrite: true })
      return undefined
    },
    async () => {
      await driver.makeDirectory(at(`swapped/dir/made-${round}`))
      return undefined
    },
  ]
}

const playAt = async ({ name, driver, folder }: Place, number: number) => {
  // Every followed link is an escape, also one to another directory of the endpoint.
  const [outside, swapped] = [join(folder, `outside-${number}`), join(folder, 'swapped')]
  for (const [each, text] of [
    [outside, secret],
    [join(swapped, 'dir'), harmless],
  ] as const) {
    mkdirSync(each, { recursive: true })
    for (const file of ['file', 'victim']) writeFileSync(join(each, file), text)
  }
  for (const each of [outside, swapped, join(swapped, 'dir')]) chmodSync(each, 0o777)
  symlinkSync(`../outside-${number}`, join(swapped, 'link'))
  const violations: string[] = []
  const swapper = startSwapper(swapped)
  let swaps = 0
  try {
    await sleep(100)
    for (let round = 0; swaps < swapsOfRound; round += 1) {
      const ends = await Promise.allSettled(callsOf(driver, round).map((call) => call()))
      for (const end of ends)
        if (end.status === 'fulfilled' && end.value !== undefined) violations.push(`${name}: ${end.value}`)
        else if (end.status === 'rejected' && !(end.reason instanceof StorageError))
          violations.push(`${name}: ${String(end.reason)}`)
      swaps = await swapper.swaps()
    }
  } finally {
    await swapper.stop()
  }
  const left = readdirSync(outside).toSorted().join()
  if (left !== 'file,victim') violations.push(`${name}: outside are now ${left}`)
  for (const file of ['file', 'victim'])
    if (readFileSync(join(outside, file), 'utf8') !== secret)
      violations.push(`${name}: ${file} outside has changed`)
  for (const each of [outside, swapped]) rmSync(each, { recursive: true })
  return { counted: swaps, violations }
}

/** A link takes the place of a directory and goes again, while a storage is used. Each case is a swap. */
export const openLinkSwaps = async (): Promise<Failures> => {
  const places: Place[] = []
  const close = async (): Promise<void> => {
    for (const { driver, close: end } of places) {
      await driver.close()
      await end()
    }
  }
  try {
    for (const open of [here, bySsh, inPod]) places.push(await open())
  } catch (error) {
    await close()
    throw error
  }
  return {
    what: 'swaps of a link under stat, copy, archive, delete, upload and move, here, by SSH and in a Pod: no escape',
    play: (number) => playAt(places[Math.floor(number / swapsOfRound) % places.length] as Place, number),
    close,
  }
}
