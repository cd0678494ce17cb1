import { execFile } from 'node:child_process'
import { createCipheriv } from 'node:crypto'
import { closeSync, mkdirSync, openSync, readdirSync, rmSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { Failures } from '../../bench/tally.ts'
import { startS3, type S3Site } from '../../sites/s3.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { bucketStorage, environmentOf, localStorage } from '../storages/world.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf, type Programs } from './rounds.ts'

export type StorageKills = 'copies' | 'archives' | 'indexes'

const mebibyte = 2 ** 20
/** A hundredth of a tree's bytes is in small files, the rest in few large ones. */
const smallBytes = 16 * 1024
const largeFiles = 8
/** Kills of one job: so that it also comes to its end. */
const killsOfJob = 5
/** The longest pause before a kill, for a tree of so many bytes: a job of it takes several times as long. */
const longestPauseMs = (bytes: number): number => Math.max(1_500, bytes / mebibyte)

/** Writes random bytes as fast as the disk takes them. */
const fillFile = (path: string, bytes: number): void => {
  const cipher = createCipheriv('aes-128-ctr', Buffer.from(path.slice(-16).padStart(16)), Buffer.alloc(16))
  const zeros = Buffer.alloc(mebibyte)
  const file = openSync(path, 'w')
  for (let left = bytes; left > 0; left -= zeros.length)
    writeSync(file, cipher.update(zeros.subarray(0, Math.min(left, zeros.length))))
  closeSync(file)
}

const plantTree = (folder: string, bytes: number): void => {
  const small = Math.max(50, Math.min(100_000, Math.floor(bytes / 100 / smallBytes)))
  for (let k = 0; k < small; k += 1) {
    const inner = join(folder, `small-${k % 100}`)
    if (k < 100) mkdirSync(inner, { recursive: true })
    fillFile(join(inner, `file-${k}`), smallBytes)
  }
  for (let k = 0; k < largeFiles; k += 1)
    fillFile(join(folder, `large-${k}`), Math.floor((bytes * 0.99) / largeFiles))
}

// Not in step: a loop that stands still for minutes sends the next request over a connection that the
// service has closed.
const run = promisify(execFile)

/** The digests of all files below a folder, as `sha256sum` prints them. */
const digestsOf = async (folder: string): Promise<string> => {
  const program = 'find . -type f ! -name ".sgwtmp*" -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum'
  return (await run('sh', ['-c', program], { cwd: folder, maxBuffer: 512 * mebibyte })).stdout
}
const leftoversIn = (folder: string): string[] =>
  (readdirSync(folder, { recursive: true }) as string[]).filter((path) => path.includes('.orrery-'))

interface World {
  programs: Programs
  root: string
  bucket: string
  series: string
  digests: string
  longestMs: number
}
const over = ['completed', 'ready', 'failed', 'cancelled']

/** Kills the daemon, with its worker, at random moments until a job has ended. */
const killUntilEnded = async (
  { programs, longestMs }: World,
  random: () => number,
  statusOf: () => Promise<string>,
): Promise<{ kills: number; status: string }> => {
  for (let kills = 0; ; kills += 1) {
    const isOver = async (): Promise<string | undefined> => {
      const status = await statusOf()
      return over.includes(status) ? status : undefined
    }
    if (kills === killsOfJob) return { kills, status: await until('the end of the job', 3_600, isOver) }
    await pause(200 + random() * longestMs)
    const ended = await isOver()
    if (ended !== undefined) return { kills, status: ended }
    await programs.killDaemon()
    await programs.startDaemon()
  }
}

const playCopy = async (world: World, job: number, random: () => number) => {
  const { programs, root, bucket, series, digests } = world
  const [from, to] = [
    ['a', 'b'],
    ['a', 'bucket'],
    ['kept', 'b'],
  ][job % 3] as [string, string]
  const id = `copy-${series}-${Date.now().toString(36)}`
  const began = performance.now()
  const place = join(to === 'b' ? join(root, 'b') : bucket, id)
  await programs.post(`/storages/${from}/copies/`, {
    ...{ id, path: 'tree', destinationStorageId: to, destinationPath: id },
  })
  const record = async () => programs.get(`/storage-downloads/${id}/`)
  const { kills, status } = await killUntilEnded(world, random, async () => (await record()).status)
  const violations = status === 'completed' ? [] : [`${id} is ${status}: ${(await record()).error}`]
  if ((await digestsOf(place)) !== digests) violations.push(`${id}: other bytes have arrived than were sent`)
  violations.push(...leftoversIn(join(root, 'b')).map((path) => `${id} has left ${path}`))
  const { sentBytes = 0, sizeBytes = 0 } = await record()
  process.stdout.write(
    `${id} from ${from} to ${to}: ${kills} kills, ${((performance.now() - began) / 1_000).toFixed(0)} s, ` +
      `${(((sentBytes - sizeBytes) / sizeBytes) * 100).toFixed(2)} % sent again as far as recorded\n`,
  )
  rmSync(place, { recursive: true, force: true })
  return { counted: kills, violations }
}

const playArchive = async (world: World, _job: number, random: () => number) => {
  const { programs, root, series, digests } = world
  const id = `archive-${series}-${Date.now().toString(36)}`
  await programs.post('/storages/a/archives/', { id, path: 'tree' })
  const record = async () => programs.get(`/storage-downloads/${id}/`)
  const { kills, status } = await killUntilEnded(world, random, async () => (await record()).status)
  const violations = status === 'ready' ? [] : [`${id} is ${status}: ${(await record()).error}`]
  const unpacked = join(root, 'unpacked')
  mkdirSync(unpacked)
  await run('tar', ['-xzf', join(root, 'a', 'tree.tar.gz'), '-C', unpacked])
  if ((await digestsOf(join(unpacked, 'tree'))) !== digests) violations.push(`${id} holds other bytes`)
  violations.push(...leftoversIn(join(root, 'a')).map((path) => `${id} has left ${path}`))
  rmSync(unpacked, { recursive: true })
  rmSync(join(root, 'a', 'tree.tar.gz'))
  return { counted: kills, violations }
}

const playIndex = async (world: World, _job: number, random: () => number) => {
  const { programs, digests, series } = world
  const id = `index-${series}-${Date.now().toString(36)}`
  // Without what is known from the run before, so that all is read again.
  await programs.post('/storages/kept/index-runs/', { id, checksums: true })
  const record = async () =>
    (await programs.get('/storages/kept/index-runs/')).find((run: { id: string }) => run.id === id)
  const { kills, status } = await killUntilEnded(world, random, async () => (await record()).status)
  const violations = status === 'completed' ? [] : [`${id} is ${status}: ${(await record()).error}`]
  const found: string[] = []
  for (let cursor = ''; ;) {
    const page = await programs.get(`/storages/kept/index/?path=tree&limit=500&type=file${cursor}`)
    for (const { path, checksum } of page.entries)
      found.push(`${checksum.replace('sha256:', '')}  ./${path.replace('tree/', '')}`)
    if (page.nextCursor === undefined) break
    cursor = `&cursor=${page.nextCursor}`
  }
  if (found.toSorted().join('\n') !== digests.trim().split('\n').toSorted().join('\n'))
    violations.push(`${id}: the index has other digests than the files`)
  return { counted: kills, violations }
}

const plays = { copies: playCopy, archives: playArchive, indexes: playIndex }
const what = {
  copies:
    'kills of the service during copies of a tree: folder to folder, to a bucket and back, equal digests',
  archives: 'kills of the service during archives of a tree: whole, once, equal digests',
  indexes: 'kills of the service during index runs with digests: every file once, equal digests',
}

/** Jobs of storages under sudden deaths. Each case is a kill; `gibibytes` is the size of the tree. */
export const openStorageKills = async (
  kind: StorageKills,
  gibibytes = Number(process.env['ORRERY_TREE_GIB'] ?? 20),
): Promise<Failures> => {
  const dataDir = dataFolder()
  const root = join(dataDir, 'storages')
  let site: S3Site | undefined
  const programs = openPrograms(dataDir, {
    environment: {
      SERVICE_LOCAL_STORAGE_ROOT: root,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  const close = async (): Promise<void> => {
    await programs.stop()
    await site?.stop()
    removeFolder(dataDir)
  }
  try {
    for (const name of ['a', 'b']) mkdirSync(join(root, name), { recursive: true })
    plantTree(join(root, 'a', 'tree'), gibibytes * 2 ** 30)
    site = await startS3()
    const bucket = site.bucket('bucket')
    await programs.startDaemon()
    const { credentialRef } = await programs.post('/cloud-credentials/', {
      ...{ id: 'site', provider: 'aws', credential: site.accessKey },
    })
    const indexPolicy = { maxEntries: 1_000_000, maxDepth: 20 }
    const kept = bucketStorage('kept', site, 's3://kept', credentialRef)
    site.bucket('kept')
    await programs.post(
      '/environments/',
      environmentOf('lab', [
        localStorage('a', join(root, 'a')),
        localStorage('b', join(root, 'b')),
        bucketStorage('bucket', site, 's3://bucket', credentialRef),
        { ...kept, configuration: { ...kept.configuration, indexPolicy } },
      ]),
    )
    const series = Date.now().toString(36)
    const digests = await digestsOf(join(root, 'a', 'tree'))
    const longestMs = longestPauseMs(gibibytes * 2 ** 30)
    const world: World = { programs, root, bucket, series, digests, longestMs }
    let jobs = 0
    if (kind !== 'archives') {
      await programs.post('/storages/a/copies/', { id: series, path: 'tree', destinationStorageId: 'kept' })
      await until('the first copy', 3_600, async () =>
        over.includes((await programs.get(`/storage-downloads/${series}/`)).status),
      )
    }
    return {
      what: what[kind],
      play: (number) => plays[kind](world, (jobs += 1), randomOf(number + jobs)),
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}
