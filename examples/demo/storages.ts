import { createCipheriv, createHash, randomBytes } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync, realpathSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startLoopbackSsh } from '../../sites/loopback.ts'
import { startRelay } from '../../sites/relay.ts'
import { startS3 } from '../../sites/s3.ts'
import { startSsh } from '../../sites/ssh.ts'
import { openApi, type Api } from './api.ts'
import { duration, type Screen } from './screen.ts'
import { startService, type RunningService } from './service.ts'
import type { Teller } from './story.ts'

const mebibyte = 2 ** 20
const steps = 7

/** What the demo of storages moves. */
interface Tree {
  name: string
  files: { path: string; content: Buffer }[]
  bytes: number
}

const makeTree = (name: string, small: boolean): Tree => {
  const noise = (size: number): Buffer =>
    createCipheriv('aes-128-ctr', randomBytes(16), randomBytes(16)).update(Buffer.alloc(size))
  const files = [
    ...Array.from({ length: 40 }, (_, k) => ({
      path: `${name}/tables/part-${String(k).padStart(2, '0')}.csv`,
      content: noise(20_000),
    })),
    { path: `${name}/image.fits`, content: noise((small ? 48 : 192) * mebibyte) },
  ]
  return { name, files, bytes: files.reduce((sum, { content }) => sum + content.length, 0) }
}

const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')
const mib = (bytes: number): string => `${(bytes / mebibyte).toFixed(1)} MiB`
const rate = (bytes: number, ms: number): string => `${(bytes / mebibyte / (ms / 1_000)).toFixed(0)} MiB/s`

/** Hosts by SSH: of their own with root, else a port of this machine. */
const startHost = async (loopback: boolean) => {
  const site = loopback ? await startLoopbackSsh({ hosts: 1 }) : await startSsh({ hosts: 1 })
  const [host] = site.hosts
  if (host === undefined) throw new Error('the site has no host')
  const home = 'home' in host ? host.home : host.folder
  return { host, folder: home, stop: () => site.stop() }
}

type Wait = (what: string, path: string, ends: readonly string[]) => Promise<any>

/** Waits for a record's end and shows how far it is. @throws Error with the record's own reason */
const waiting =
  (api: Api, screen: Screen, stop: AbortSignal): Wait =>
  async (what, where, ends) => {
    for (;;) {
      const record = await api.get(where)
      const found = Array.isArray(record) ? record[0] : record
      if (ends.includes(found.status)) return found
      if (['failed', 'cancelled'].includes(found.status))
        throw new Error(`${what} is ${found.status}: ${found.error ?? ''}`)
      if (found.live !== undefined)
        screen.live(
          `${what}: ${found.live.phase}, ${mib(found.live.bytes)} of ${mib(found.live.totalBytes ?? 0)}`,
        )
      await sleep(200, undefined, { signal: stop })
    }
  }

const environmentOf = (
  id: string,
  {
    root,
    endpoint,
    host,
    reference,
    key,
  }: {
    root: string
    endpoint: string
    host: Awaited<ReturnType<typeof startHost>>
    reference: string
    key: string
  },
) => {
  const browseRoots = [{ path: '/' }]
  const names = { here: `${id}-here`, bucket: `${id}-bucket`, site: `${id}-site` }
  const document = {
    environment: { id, name: id },
    version: { id: `${id}-v1`, version: 1, status: 'published' },
    connections: [
      {
        ...{ id: `${id}-host`, name: 'host', type: 'ssh', endpoint: host.host.address, credentialRef: key },
        username: host.host.user,
        configuration: { port: host.host.port, knownHosts: host.host.knownHosts() },
      },
    ],
    storages: [
      { ...{ id: names.here, name: 'here', type: 'local', endpoint: root }, configuration: { browseRoots } },
      {
        ...{ id: names.bucket, name: 'bucket', type: 's3-compatible', endpoint: 's3://data' },
        credentialReference: reference,
        configuration: {
          endpointUrl: endpoint,
          region: 'us-east-1',
          pathStyle: true,
          signed: true,
          browseRoots,
        },
      },
      {
        ...{ id: names.site, name: 'site', type: 'ssh-filesystem', endpoint: host.folder },
        configuration: { connectionId: `${id}-host`, browseRoots },
      },
    ],
  }
  return { names, document }
}

const upload = async (
  service: RunningService,
  token: string | undefined,
  storage: string,
  tree: Tree,
  stop: AbortSignal,
): Promise<void> => {
  for (const { path: file, content } of tree.files) {
    const answer = await fetch(
      `${service.ready.baseUrl}/storages/${storage}/entries/?path=${encodeURIComponent(file)}`,
      {
        ...{ method: 'PUT', body: new Uint8Array(content), signal: stop },
        headers: {
          'content-type': 'application/octet-stream',
          'content-digest': `sha-256=:${createHash('sha256').update(content).digest('base64')}:`,
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        },
      },
    )
    if (!answer.ok)
      throw new Error(`the upload of ${file} was answered ${answer.status}: ${await answer.text()}`)
    await answer.arrayBuffer()
  }
}

/**
 * Takes a tree through storages: uploads it, copies it from here to an S3 server and on to an SSH
 * host, kills the service with its worker half-way, archives, indexes, searches, promotes and
 * downloads, and compares digests.
 */
export const tellStorages = async (teller: Teller & { loopback: boolean }): Promise<void> => {
  const { options, dataDir, config, screen, stop, stage, output, loopback } = teller
  const startedAt = performance.now()
  let number = 0
  const step = async <T>(heading: string, work: () => Promise<T>): Promise<T> => {
    number += 1
    screen.heading(`${number}/${steps}  ${heading}`)
    const from = performance.now()
    const result = await work()
    screen.say(`done in ${duration((performance.now() - from) / 1_000)}`)
    return result
  }
  const root = path.join(dataDir, 'storages', output.run)
  const logFile = output.file('service.log')
  stage.logFile = logFile
  const start = async (): Promise<Api> => {
    const environment = {
      SERVICE_LOCAL_STORAGE_ROOT: realpathSync(root),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    }
    const onProgress = (message: string): void => screen.live(message)
    const seedRoot = path.resolve(import.meta.dirname, '..')
    stage.service = await startService({ dataDir, logFile, seedRoot, stop, environment, onProgress })
    stage.api = openApi(stage.service.ready.baseUrl, config.apiToken, stop)
    return stage.api
  }

  const {
    api: first,
    s3,
    relay,
    host,
  } = await step('Start an S3 server, an SSH host and the service', async () => {
    const s3 = await startS3()
    stage.sites = { lines: [], reach: (_api, _id, each) => Promise.resolve(each), stop: () => s3.stop() }
    const relay = await startRelay(s3.endpoint)
    const host = await startHost(loopback)
    const stopAll = async (): Promise<void> => {
      await relay.close()
      await Promise.all([host.stop(), s3.stop()])
    }
    stage.sites = { ...stage.sites, stop: stopAll }
    s3.bucket('data')
    mkdirSync(root, { recursive: true })
    const api = await start()
    screen.say(`S3: ${s3.endpoint}, counted on the way; SSH: ${host.host.address} port ${host.host.port}`)
    screen.say(`this machine: ${root}`)
    return { api, s3, relay, host }
  })
  const id = `storages-${output.run}`
  const { names, tree } = await step('Name the storages and upload a tree', async () => {
    const secret = await first.post('/cloud-credentials/', { id, provider: 'aws', credential: s3.accessKey })
    const key = await first.post('/ssh-keys/', { id, comment: 'demo' })
    host.host.authorize(key.publicKey)
    const { names, document } = environmentOf(id, {
      ...{ root: realpathSync(root), endpoint: relay.endpoint, host },
      ...{ reference: secret.credentialRef, key: key.credentialRef },
    })
    await first.post('/environments/', document)
    const tree = makeTree('results', options.small)
    const from = performance.now()
    if (stage.service !== undefined) await upload(stage.service, config.apiToken, names.here, tree, stop)
    screen.say(
      `${tree.files.length} files, ${mib(tree.bytes)}, each with its digest: ` +
        rate(tree.bytes, performance.now() - from),
    )
    return { names, tree }
  })

  const api = await step('Copy it to the bucket, and kill the service with its worker half-way', async () => {
    const up = `/storage-downloads/${id}-up/`
    const limit = Math.ceil(tree.bytes / 6)
    await first.post(`/storages/${names.here}/copies/`, {
      ...{ id: `${id}-up`, path: tree.name, destinationStorageId: names.bucket, bytesPerSecond: limit },
    })
    screen.say(`slowed to ${mib(limit)}/s, so that there is a half-way`)
    for (let bytes = 0; bytes < tree.bytes / 2; await sleep(100, undefined, { signal: stop }))
      bytes = (await first.get(up)).live?.bytes ?? 0
    const sentBefore = relay.sent()
    stage.service?.kill()
    await stage.service?.ended
    screen.say(`killed (SIGKILL) when the store had been given ${mib(sentBefore)}`)
    const api = await start()
    const record = await waiting(api, screen, stop)('the copy', up, ['completed'])
    const again = Math.max(0, relay.sent() - tree.bytes)
    screen.say(
      `it went on by itself: ${record.entries} entries, ${mib(record.sizeBytes)}, status ${record.status}`,
    )
    screen.say(
      `counted at the store: ${mib(relay.sent())} in all, ${mib(again)} of them sent twice ` +
        `(${((again / tree.bytes) * 100).toFixed(1)} %)`,
    )
    return api
  })
  const wait = waiting(api, screen, stop)
  await step('Copy it on from the bucket to the SSH host', async () => {
    const from = performance.now()
    await api.post(`/storages/${names.bucket}/copies/`, {
      ...{ id: `${id}-on`, path: tree.name, destinationStorageId: names.site },
    })
    await wait('the copy', `/storage-downloads/${id}-on/`, ['completed'])
    screen.say(`${mib(tree.bytes)} through the service: ${rate(tree.bytes, performance.now() - from)}`)
  })
  await step('Archive it at the host; index and search the bucket; promote the image', async () => {
    await api.post(`/storages/${names.site}/archives/`, { id: `${id}-packed`, path: tree.name })
    const packed = await wait('the archive', `/storage-downloads/${id}-packed/`, ['ready'])
    screen.say(`${packed.path}: ${mib(packed.sizeBytes)}`)
    await api.post(`/storages/${names.bucket}/index-runs/`, { checksums: true })
    const run = await wait('the index run', `/storages/${names.bucket}/index-runs/`, ['completed'])
    screen.say(`index of the bucket: ${run.indexedEntries} entries, ${mib(run.indexedBytes)}`)
    const image = tree.files.at(-1)
    const digest = sha256(image?.content ?? Buffer.alloc(0))
    const { entries } = await api.get(`/storages/${names.bucket}/index/?checksum=sha256:${digest}`)
    screen.say(`found by its digest: ${entries.map((each: { path: string }) => each.path).join(', ')}`)
    const promoted = await api.post(`/storages/${names.bucket}/promote-data/`, { path: image?.path })
    const stat = await api.get(
      `/storages/${names.bucket}/stat/?path=${encodeURIComponent(image?.path ?? '')}`,
    )
    if (stat.promotedAs?.[0]?.id !== promoted.id) throw new Error('the promoted image is not shown as such')
    screen.say(`promoted as ${promoted.id}`)
  })
  await step('Download from all three and compare', async () => {
    let compared = 0
    for (const storage of [names.here, names.bucket, names.site])
      for (const { path: file, content } of [tree.files[0], tree.files.at(-1)].filter(
        (each) => each !== undefined,
      )) {
        const { id: download } = await api.post(`/storages/${storage}/downloads/`, { path: file })
        const bytes = await api.fetch(`/storage-downloads/${download}/content/`, '*/*')
        if (sha256(bytes) !== sha256(content)) throw new Error(`${file} of ${storage} has other bytes`)
        compared += bytes.length
      }
    for (const { path: file, content } of tree.files.slice(1, -1)) {
      const { checksum } = await api.post(`/storages/${names.site}/checksum/`, { path: file })
      if (checksum !== `sha256:${sha256(content)}`) throw new Error(`${file} at the host has another digest`)
    }
    const archive = await api.fetch(`/storage-downloads/${id}-packed/content/`, '*/*')
    writeFileSync(output.file('results.tar.gz'), archive)
    const hash = createHash('sha256')
    for await (const bytes of createReadStream(output.file('results.tar.gz'))) hash.update(bytes as Buffer)
    screen.say(
      `${mib(compared)} downloaded with equal digests; the archive is ${output.file('results.tar.gz')}`,
    )
    screen.say(`sha256 of the archive ${hash.digest('hex')}`)
  })
  await step('Look at what is left over', async () => {
    const { entries } = await api.get(`/storages/${names.site}/entries/`)
    const unfinished = entries.filter(({ name }: { name: string }) => name.startsWith('.orrery-'))
    if (unfinished.length > 0 || !existsSync(root)) throw new Error('an unfinished file is left at the host')
    screen.say('no unfinished file at the host, and all digests are equal')
  })
  screen.say(`the whole demo took ${duration((performance.now() - startedAt) / 1_000)}`)
  if (!options.keep) return
  stage.kept = true
  screen.say(`the service stays up at ${stage.service?.ready.baseUrl ?? ''}; Ctrl-C ends it`)
  await stage.service?.ended
}
